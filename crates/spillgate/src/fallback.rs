//! Deciding while a shard is out of reach: by each rule's `on_outage`, in one place. What is admitted
//! alone is remembered, and charged to the store once it is back.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use parking_lot::Mutex;
use smallvec::SmallVec;

use crate::algorithm::{Charge, GiveBack, Intent, Numbers};
use crate::counter::{AskTier, Change, ToldTier};
use crate::engine::{Memory, Question, Redis, StandIn};
use crate::error::StoreError;
#[cfg(feature = "metrics")]
use crate::limit::{Algorithm, NamedLimit};
use crate::plan::{Ask, AtRecord, Cause, Heard, Heards, Plan};
use crate::policy::{OnOutage, Policy, Rule, Share};
use crate::time::{Clock, monotonic_us};

mod debts;
mod known;
mod live;
mod reserved;
mod share;

pub(crate) use reserved::{Alone, ChargedHere};

use debts::{Debt, Debts};
use known::Known;
use live::LiveInstances;

/// What this process does alone: a memory engine that enforces its share of every limit, from what
/// it last knew of each subject.
#[derive(Debug)]
pub(crate) struct Fallback {
    memory: Memory,
    clock: Clock,
    known: Known,
    debts: Debts,
    /// The largest count of the last heartbeats; 0 before the first.
    live_nodes: AtomicU32,
    live: Mutex<LiveInstances>,
    /// By the settings; 0 where they say nothing.
    expected_instances: u32,
    errors: AtomicU64,
    /// Decisions that found the store at work and too slow.
    overloaded: AtomicU64,
    /// By rule, the most that one subject held of what this process admitted alone in this outage.
    alone: Mutex<BTreeMap<String, u64>>,
}

/// Who decides for tiers of one plan whose shard gives no answer.
pub(crate) struct Outage<'p> {
    fallback: &'p Fallback,
    /// The rule of each tier; a limit that came with the request has none.
    rules: SmallVec<[Option<&'p Rule>; 4]>,
    /// What this plan's calls are to pay, by the place of its tier.
    owed: Mutex<Vec<(usize, Debt)>>,
    /// The shares that admitted what the store surely knows nothing of, by the place of their tier: a debt
    /// once the whole decision stands, for until then others would pay it.
    incurred: Mutex<Vec<(usize, Numbers)>>,
}

impl Fallback {
    pub(crate) fn new(max_keys: usize, clock: Clock, expected_instances: u32) -> Fallback {
        Fallback {
            memory: Memory::new(max_keys, clock.clone()),
            clock,
            known: Known::new(),
            debts: Debts::default(),
            live_nodes: AtomicU32::new(0),
            live: Mutex::new(LiveInstances::new(monotonic_us())),
            expected_instances,
            errors: AtomicU64::new(0),
            overloaded: AtomicU64::new(0),
            alone: Mutex::default(),
        }
    }

    /// The question that a plan puts to the store; it pays what its tiers owe.
    pub(crate) fn question<'q>(
        &'q self,
        plan: &'q mut Plan,
        policy: Option<&'q Policy>,
    ) -> Question<'q, Outage<'q>> {
        let owed = Mutex::new(self.take_debts(&mut plan.ask));
        let plan = &*plan;
        let rule = |tier| policy.map(|policy| policy.rule_at(plan.rule_of(tier)));
        let rules = plan.ask.tiers.iter().map(rule).collect();
        let stand_in = Outage { fallback: self, rules, owed, incurred: Mutex::default() };
        Question { ask: &plan.ask, order: plan.order(policy), stand_in }
    }

    /// Takes note of what the store said.
    pub(crate) fn settle(&self, question: &Question<'_, Outage<'_>>, heard: &Heards) {
        let now_us = self.clock.now_us();
        for (tier, heard) in question.ask.tiers.iter().zip(heard) {
            if let Heard::Store(told) = heard {
                self.known.note(tier.name(), &told.reading, now_us);
            }
        }
        for (place, debt) in question.stand_in.owed.lock().drain(..) {
            match heard[place] {
                Heard::Nobody => self.debts.put_back(debt),
                _ => self.forget(&debt),
            }
        }
        for (place, share) in question.stand_in.incurred.lock().drain(..) {
            let tier = &question.ask.tiers[place];
            self.debts.add(tier, &share, tier.cost);
        }
    }

    /// Pays some of what is owed by subjects that nobody asks about.
    pub(crate) async fn repay(&self, redis: &Redis) {
        if self.debts.are_none() {
            return;
        }
        let payable = |debt: &Debt| redis.is_asked(debt.key.tag);
        for name in self.debts.some(REPAID_IN_A_ROUND, payable) {
            // Each when its turn comes: what waits is owed still, and no share begins anew over it.
            let Some(debt) = self.debts.take_named(name) else { continue };
            let occupied = self.occupied_by(&debt);
            if occupied == 0 {
                continue;
            }
            let tier = AskTier::new(debt.key, debt.limit.clone());
            match redis.change(&tier, Change::Force(occupied)).await {
                Ok((_, told)) => {
                    // Its share begins from what is left now: else each payment to a store that works, and is only too
                    // slow for some callers, would renew the share.
                    self.known.note(tier.name(), &told.reading, self.clock.now_us());
                    self.forget(&debt);
                }
                Err(error) if error.is_uncharged() => self.debts.put_back(debt),
                // Unknown means paid.
                Err(_) => {}
            }
        }
    }

    /// Counts the instances that a heartbeat found alive at `now_us`, on a clock that is never set.
    pub(crate) fn note_live_nodes(&self, live: u32, now_us: u64) {
        let largest = self.live.lock().note(live, now_us);
        self.live_nodes.store(largest, Ordering::Relaxed);
    }

    /// How many processes share each limit while the store is out of reach.
    pub(crate) fn nodes(&self) -> u32 {
        let told = self.live_nodes.load(Ordering::Relaxed).max(self.expected_instances);
        if told > 0 { told } else { NODES_UNTOLD }
    }

    /// The same for a process that starts while the store is out of reach, and has heard of nobody;
    /// nothing where the settings do not say.
    pub(crate) fn expected_instances(&self) -> Option<u32> {
        Some(self.expected_instances).filter(|nodes| *nodes > 0)
    }

    /// Nothing is decided alone any more; what was admitted so is history once it is paid.
    pub(crate) fn note_recovery(&self) {
        if self.debts.are_none() {
            self.alone.lock().clear();
        }
    }

    /// By rule, what one subject held at most of what this process admitted alone in this outage.
    #[cfg(feature = "metrics")]
    pub(crate) fn observed_excess(&self) -> Vec<(String, u64)> {
        self.alone.lock().iter().map(|(rule, most)| (rule.clone(), *most)).collect()
    }

    /// What the processes together may admit to one subject of a rule beyond its limits while the store
    /// is out of reach: all their shares, and what leases hold; nothing where that has no bound.
    #[cfg(feature = "metrics")]
    pub(crate) fn excess_bound(&self, rule: &Rule) -> Option<u64> {
        let share = |numbers| self.share_of(Some(rule), numbers).capacity();
        let shares = rule.named_limits().iter().filter_map(NamedLimit::numbers).map(share);
        let alone = match rule.on_outage() {
            OnOutage::Allow => return None,
            OnOutage::Deny => 0,
            OnOutage::Local => shares.max().unwrap_or_default().saturating_mul(self.nodes().into()),
        };
        let leased = rule.lease().and_then(|lease| {
            rule.limits()
                .filter(|limit| limit.algorithm() != Algorithm::FixedWindow)
                .map(|limit| lease.tokens_of(limit))
                .max()
        });
        Some(alone.saturating_add(leased.unwrap_or_default()))
    }

    /// Takes note of how much of a share is in use, of an admission that it made.
    fn note_alone(&self, rule: &Rule, share: &Numbers, told: &ToldTier) {
        let used = share.capacity().saturating_sub(told.reading.remaining);
        let mut alone = self.alone.lock();
        let full = alone.len() >= RULES_MAX;
        match alone.get_mut(rule.name()) {
            Some(most) => *most = used.max(*most),
            None if full => {}
            None => drop(alone.insert(rule.name().to_owned(), used)),
        }
    }

    /// The same, and tells of the first, the second, the fourth: an outage fails very many.
    fn count_error(&self, error: &StoreError) {
        if error.is_overload() {
            let late = 1 + self.overloaded.fetch_add(1, Ordering::Relaxed);
            if late.is_power_of_two() {
                tracing::warn!(target: "spillgate", late, %error, "a decision found the store overloaded");
            }
            return;
        }
        let errors = 1 + self.errors.fetch_add(1, Ordering::Relaxed);
        if errors.is_power_of_two() {
            tracing::warn!(target: "spillgate", errors, %error, "a call to the store failed");
        }
    }

    /// Counts a call that the store has failed.
    pub(crate) fn note_error(&self) {
        self.errors.fetch_add(1, Ordering::Relaxed);
    }

    /// How many calls the store has failed.
    pub(crate) fn store_errors(&self) -> u64 {
        self.errors.load(Ordering::Relaxed)
    }

    /// This process's share of a limit, for a rule or for a limit that came with the request.
    fn share_of(&self, rule: Option<&Rule>, numbers: &Numbers) -> Numbers {
        let own = rule.and_then(Rule::local_share);
        share::part_of(numbers, own.unwrap_or_else(|| Share::one_of(self.nodes())))
    }

    /// Charges a share as far as the whole was used when the store last spoke of it, unless it was
    /// used alone since: then a window may have begun anew here that has not yet ended there.
    fn begin(&self, tier: &AskTier, local: &AskTier) {
        let Some(left) = self.known.remaining(tier, self.clock.now_us()) else { return };
        if self.look(local).reading.reset_after_us > 0 || self.debts.is_owed(tier) {
            return;
        }
        let (part, whole) = (local.numbers().capacity(), tier.numbers().capacity());
        let left = u128::from(left) * u128::from(part) / u128::from(whole);
        // No more is left of a part than the part.
        let used = part - left as u64;
        if used > 0 {
            self.memory.change(local, Change::Force(used));
        }
    }

    /// A call that writes pays what its tiers owe.
    fn take_debts(&self, ask: &mut Ask) -> Vec<(usize, Debt)> {
        let writes = ask.intent != Intent::Peek && ask.tiers.iter().any(|tier| tier.cost > 0);
        if self.debts.are_none() || !writes {
            return Vec::new();
        }
        let mut taken = Vec::new();
        for (place, tier) in ask.tiers.iter_mut().enumerate() {
            let Some(debt) = self.debts.take(tier) else { continue };
            tier.owed = self.occupied_by(&debt);
            // What has drained is owed no more, whatever becomes of the call.
            if tier.owed > 0 {
                taken.push((place, debt));
            }
        }
        taken
    }

    /// What of a debt's admissions still counts: what has drained, or lies in a past window, does
    /// not.
    fn occupied_by(&self, debt: &Debt) -> u64 {
        let tier = AskTier::new(debt.key, debt.limit.with_numbers(debt.share.clone()));
        let used = debt.share.capacity().saturating_sub(self.look(&tier).reading.remaining);
        used.min(debt.admitted)
    }

    /// The store knows of it now, and is asked from now on.
    fn forget(&self, debt: &Debt) {
        self.memory.reset(debt.key, std::slice::from_ref(&debt.limit));
    }

    fn look(&self, tier: &AskTier) -> ToldTier {
        self.memory.decide_one(tier, Intent::Peek)
    }
}

impl StandIn for Outage<'_> {
    type Error = Infallible;

    /// All or none over the mix of what the rules say.
    fn decide(&self, ask: &Ask, places: &[usize], error: StoreError) -> Result<Heards, Infallible> {
        self.fallback.count_error(&error);
        self.note_unpaid(places, &error);
        if let StoreError::Overloaded { admits_itself: false, .. } = error {
            return Ok(places.iter().map(|place| self.overloaded(*place)).collect());
        }
        let cause = if error.is_overload() { Cause::Overload } else { Cause::Outage };
        let tiers = || ask.tiers.iter().zip(places);
        let shares: Vec<Numbers> = tiers()
            .map(|(tier, place)| self.fallback.share_of(self.rules[*place], tier.numbers()))
            .collect();
        let mut local: Ask =
            Ask { intent: ask.intent, record: AtRecord::None, tiers: SmallVec::new() };
        let mut local_places: SmallVec<[usize; 4]> = SmallVec::new();
        for ((tier, place), share) in tiers().zip(&shares) {
            let says = self.says(*place);
            let fits = tier.cost <= share.capacity();
            if says == OnOutage::Local {
                let limit = tier.limit.with_numbers(share.clone());
                let share = AskTier {
                    cost: if fits { tier.cost } else { 0 },
                    owed: 0,
                    ..tier.under(limit)
                };
                self.fallback.begin(tier, &share);
                local.tiers.push(share);
                local_places.push(*place);
            }
            if tier.group == 0 && (says == OnOutage::Deny || says == OnOutage::Local && !fits) {
                local.intent = Intent::Peek;
            }
        }
        let is_full = local.intent != Intent::Peek && !self.fallback.has_room(ask);
        if is_full {
            local.intent = Intent::Peek;
        }
        let told = self.fallback.memory.decide(&local);
        // What the shares say of it comes first.
        let is_refused = is_full && told.allowed;
        if let AtRecord::Open(opening) = &ask.record
            && is_refused
        {
            opening.note_full();
        }
        if told.allowed && local.intent != Intent::Peek {
            // What the store may have charged already is no debt.
            let is_debt = error.is_uncharged();
            for ((tier, told), place) in local.tiers.iter().zip(&told.tiers).zip(&local_places) {
                if tier.cost == 0 || !told.fits {
                    continue;
                }
                if is_debt {
                    self.incurred.lock().push((*place, tier.numbers().clone()));
                }
                if let Some(rule) = self.rules[*place] {
                    self.fallback.note_alone(rule, tier.numbers(), told);
                }
            }
        }
        let mut told = told.tiers.into_iter();
        let heard = tiers().zip(&shares).map(|((tier, place), share)| match self.says(*place) {
            OnOutage::Deny => Heard::OutagePolicy { passes: false, cause },
            OnOutage::Allow => Heard::OutagePolicy { passes: true, cause },
            OnOutage::Local if is_refused => Heard::OutagePolicy { passes: false, cause },
            OnOutage::Local => {
                let mut told = told.next().expect("each local tier was asked");
                if tier.cost > share.capacity() {
                    // It may fit the whole limit, once the store is back.
                    told.fits = false;
                    told.reading.retry_after_us = None;
                }
                Heard::Fallback(told, cause)
            }
        });
        Ok(heard.collect())
    }

    fn give_back(&self, tier: &AskTier, place: usize, charge: Charge) -> Option<ToldTier> {
        let share = self.fallback.share_of(self.rules[place], tier.numbers());
        let what = GiveBack::Unused { charge, unused: charge.amount };
        self.incurred.lock().retain(|(incurred, _)| *incurred != place);
        let local = tier.under(tier.limit.with_numbers(share));
        Some(self.fallback.memory.change(&local, Change::GiveBack(what)).1)
    }
}

impl Outage<'_> {
    /// A store that works and did not answer in time: its shares are not for this process to give out.
    fn overloaded(&self, place: usize) -> Heard {
        let passes = self.says(place) == OnOutage::Allow;
        Heard::OutagePolicy { passes, cause: Cause::Overload }
    }

    /// Limits without a rule are enforced locally.
    fn says(&self, place: usize) -> OnOutage {
        self.rules[place].map_or(OnOutage::Local, Rule::on_outage)
    }

    /// What surely was not executed paid nothing; unknown means paid.
    fn note_unpaid(&self, places: &[usize], error: &StoreError) {
        let mut owed = self.owed.lock();
        for (_, debt) in owed.extract_if(.., |(place, _)| places.contains(place)) {
            if error.is_uncharged() {
                self.fallback.debts.put_back(debt);
            }
        }
    }
}

/// Nobody has told how many processes share the limit: enough for most fleets.
pub(crate) const NODES_UNTOLD: u32 = 16;
/// As many rules as have series of their own.
const RULES_MAX: usize = 1_000;
/// Payments in one round of upkeep: below a hundredth of what a server takes in a second.
const REPAID_IN_A_ROUND: usize = 256;
