//! Deciding while a shard is out of reach: by each rule's `on_outage`, in one place. What is admitted
//! alone is remembered, and charged to the store once it is back.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use parking_lot::Mutex;
use smallvec::SmallVec;

use crate::algorithm::{Charge, Intent, LimitParams, Refund};
use crate::counter::{Change, ChargeReply, PlannedCharge};
use crate::engine::{Memory, Redis, ShardFallback, StoreCall};
use crate::error::StoreError;
#[cfg(feature = "metrics")]
use crate::limit::{Algorithm, NamedLimit};
use crate::plan::{Cause, ChargeOutcome, ChargeOutcomes, Plan, RecordAction, Transaction};
use crate::policy::{OnOutage, Policy, Rule, Share};
use crate::time::{Clock, monotonic_us};

mod deferred_charges;
mod known;
mod live;
mod reserved;
mod share;

pub(crate) use reserved::{Alone, ChargedHere};

use deferred_charges::{DeferredCharge, DeferredCharges};
use known::Known;
use live::LiveInstances;

/// What this process does alone: a memory engine that enforces its share of every limit, from what
/// it last knew of each subject.
#[derive(Debug)]
pub(crate) struct Fallback {
    memory: Memory,
    clock: Clock,
    known: Known,
    deferred_charges: DeferredCharges,
    /// The largest count of the last heartbeats; 0 before the first.
    live_instances: AtomicU32,
    live: Mutex<LiveInstances>,
    /// By the settings; 0 where they say nothing.
    expected_instances: u32,
    errors: AtomicU64,
    /// Decisions that found the store at work and too slow.
    overloaded: AtomicU64,
    /// By rule, the most that one subject held of what this process admitted alone in this outage.
    alone: Mutex<BTreeMap<String, u64>>,
}

/// Who decides for counters of one plan whose shard gives no answer.
pub(crate) struct Outage<'p> {
    fallback: &'p Fallback,
    /// The rule of each counter; a limit that came with the request has none.
    rules: SmallVec<[Option<&'p Rule>; 4]>,
    /// What this plan's calls are to pay, by the place of its counter.
    deferred: Mutex<Vec<(usize, DeferredCharge)>>,
    /// The shares that admitted what the store surely knows nothing of, by the place of their counter: a deferred charge
    /// once the whole decision stands, for until then others would pay it.
    incurred: Mutex<Vec<(usize, LimitParams)>>,
}

impl Fallback {
    pub(crate) fn new(max_keys: usize, clock: Clock, expected_instances: u32) -> Fallback {
        Fallback {
            memory: Memory::new(max_keys, clock.clone()),
            clock,
            known: Known::new(),
            deferred_charges: DeferredCharges::default(),
            live_instances: AtomicU32::new(0),
            live: Mutex::new(LiveInstances::new(monotonic_us())),
            expected_instances,
            errors: AtomicU64::new(0),
            overloaded: AtomicU64::new(0),
            alone: Mutex::default(),
        }
    }

    /// The question that a plan puts to the store; it pays what its counters owe.
    pub(crate) fn store_call<'q>(
        &'q self,
        plan: &'q mut Plan,
        policy: Option<&'q Policy>,
    ) -> StoreCall<'q, Outage<'q>> {
        let deferred = Mutex::new(self.take_deferred(&mut plan.transaction));
        let plan = &*plan;
        let rule = |counter| policy.map(|policy| policy.rule_at(plan.rule_of(counter)));
        let rules = plan.transaction.counters.iter().map(rule).collect();
        let fallback = Outage { fallback: self, rules, deferred, incurred: Mutex::default() };
        StoreCall { transaction: &plan.transaction, order: plan.order(policy), fallback }
    }

    /// Takes note of what the store said.
    pub(crate) fn settle(&self, call: &StoreCall<'_, Outage<'_>>, outcomes: &ChargeOutcomes) {
        let now_us = self.clock.now_us();
        for (counter, outcome) in call.transaction.counters.iter().zip(outcomes) {
            if let ChargeOutcome::Store(reply) = outcome {
                self.known.note(counter.name(), &reply.reading, now_us);
            }
        }
        for (index, deferred) in call.fallback.deferred.lock().drain(..) {
            match outcomes[index] {
                ChargeOutcome::NotAsked => self.deferred_charges.put_back(deferred),
                _ => self.forget(&deferred),
            }
        }
        for (index, share) in call.fallback.incurred.lock().drain(..) {
            let counter = &call.transaction.counters[index];
            self.deferred_charges.add(counter, &share, counter.cost);
        }
    }

    /// Pays some of what is deferred by subjects that nobody asks about.
    pub(crate) async fn repay(&self, redis: &Redis) {
        if self.deferred_charges.are_none() {
            return;
        }
        let payable = |deferred: &DeferredCharge| redis.is_asked(deferred.key.tag);
        for name in self.deferred_charges.some(REPAID_IN_A_ROUND, payable) {
            // Each when its turn comes: what waits is deferred still, and no share begins anew over it.
            let Some(deferred) = self.deferred_charges.take_named(name) else { continue };
            let occupied = self.occupied_by(&deferred);
            if occupied == 0 {
                continue;
            }
            let counter = PlannedCharge::new(deferred.key, deferred.limit.clone());
            match redis.change(&counter, Change::Force(occupied)).await {
                Ok((_, reply)) => {
                    // Its share begins from what is left now: else each payment to a store that works, and is only too
                    // slow for some callers, would renew the share.
                    self.known.note(counter.name(), &reply.reading, self.clock.now_us());
                    self.forget(&deferred);
                }
                Err(error) if error.is_uncharged() => self.deferred_charges.put_back(deferred),
                // Unknown means paid.
                Err(_) => {}
            }
        }
    }

    /// Counts the instances that a heartbeat found alive at `now_us`, on a clock that is never set.
    pub(crate) fn note_live_instances(&self, live: u32, now_us: u64) {
        let largest = self.live.lock().note(live, now_us);
        self.live_instances.store(largest, Ordering::Relaxed);
    }

    /// How many processes share each limit while the store is out of reach.
    pub(crate) fn nodes(&self) -> u32 {
        let reply = self.live_instances.load(Ordering::Relaxed).max(self.expected_instances);
        if reply > 0 { reply } else { INSTANCES_UNKNOWN }
    }

    /// The same for a process that starts while the store is out of reach, and has heard of nobody;
    /// nothing where the settings do not say.
    pub(crate) fn expected_instances(&self) -> Option<u32> {
        Some(self.expected_instances).filter(|nodes| *nodes > 0)
    }

    /// Nothing is decided alone any more; what was admitted so is history once it is paid.
    pub(crate) fn note_recovery(&self) {
        if self.deferred_charges.are_none() {
            self.alone.lock().clear();
        }
    }

    /// Returns for each rule the most that one subject was admitted by the local share in this outage.
    #[cfg(feature = "metrics")]
    pub(crate) fn overshoot_observed(&self) -> Vec<(String, u64)> {
        self.alone.lock().iter().map(|(rule, most)| (rule.clone(), *most)).collect()
    }

    /// Returns the most that all instances together can admit to one subject beyond the limits of a rule while the
    /// store is unavailable: all local shares and leased tokens. `None` if there is no bound.
    #[cfg(feature = "metrics")]
    pub(crate) fn overshoot_bound(&self, rule: &Rule) -> Option<u64> {
        let share = |params| self.share_of(Some(rule), params).capacity();
        let shares = rule.named_limits().iter().filter_map(NamedLimit::params).map(share);
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
    fn note_alone(&self, rule: &Rule, share: &LimitParams, reply: &ChargeReply) {
        let used = share.capacity().saturating_sub(reply.reading.remaining);
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
    fn share_of(&self, rule: Option<&Rule>, params: &LimitParams) -> LimitParams {
        let own = rule.and_then(Rule::local_share);
        share::part_of(params, own.unwrap_or_else(|| Share::one_of(self.nodes())))
    }

    /// Charges a share as far as the whole was used when the store last spoke of it, unless it was
    /// used alone since: then a window may have begun anew here that has not yet ended there.
    fn begin(&self, counter: &PlannedCharge, local: &PlannedCharge) {
        let Some(left) = self.known.remaining(counter, self.clock.now_us()) else { return };
        if self.look(local).reading.reset_after_us > 0 || self.deferred_charges.is_deferred(counter)
        {
            return;
        }
        let (part, whole) = (local.params().capacity(), counter.params().capacity());
        let left = u128::from(left) * u128::from(part) / u128::from(whole);
        // No more is left of a part than the part.
        let used = part - left as u64;
        if used > 0 {
            self.memory.change(local, Change::Force(used));
        }
    }

    /// A call that writes pays what its counters owe.
    fn take_deferred(&self, transaction: &mut Transaction) -> Vec<(usize, DeferredCharge)> {
        let writes = transaction.intent != Intent::Peek
            && transaction.counters.iter().any(|counter| counter.cost > 0);
        if self.deferred_charges.are_none() || !writes {
            return Vec::new();
        }
        let mut taken = Vec::new();
        for (index, counter) in transaction.counters.iter_mut().enumerate() {
            let Some(deferred) = self.deferred_charges.take(counter) else { continue };
            counter.deferred = self.occupied_by(&deferred);
            // What has drained is deferred no more, whatever becomes of the call.
            if counter.deferred > 0 {
                taken.push((index, deferred));
            }
        }
        taken
    }

    /// What of a deferred charge's admissions still counts: what has drained, or lies in a past window, does
    /// not.
    fn occupied_by(&self, deferred: &DeferredCharge) -> u64 {
        let counter =
            PlannedCharge::new(deferred.key, deferred.limit.with_params(deferred.share.clone()));
        let used = deferred.share.capacity().saturating_sub(self.look(&counter).reading.remaining);
        used.min(deferred.admitted)
    }

    /// The store knows of it now, and is asked from now on.
    fn forget(&self, deferred: &DeferredCharge) {
        self.memory.reset(deferred.key, std::slice::from_ref(&deferred.limit));
    }

    fn look(&self, counter: &PlannedCharge) -> ChargeReply {
        self.memory.decide_one(counter, Intent::Peek)
    }
}

impl ShardFallback for Outage<'_> {
    type Error = Infallible;

    /// All or none over the mix of what the rules say.
    fn decide(
        &self,
        transaction: &Transaction,
        indices: &[usize],
        error: StoreError,
    ) -> Result<ChargeOutcomes, Infallible> {
        self.fallback.count_error(&error);
        self.note_unpaid(indices, &error);
        if let StoreError::Overloaded { admits_itself: false, .. } = error {
            return Ok(indices.iter().map(|index| self.overloaded(*index)).collect());
        }
        let cause = if error.is_overload() { Cause::Overload } else { Cause::Outage };
        let counters = || transaction.counters.iter().zip(indices);
        let shares: Vec<LimitParams> = counters()
            .map(|(counter, index)| self.fallback.share_of(self.rules[*index], counter.params()))
            .collect();
        let mut local: Transaction = Transaction {
            intent: transaction.intent,
            record: RecordAction::None,
            counters: SmallVec::new(),
        };
        let mut local_places: SmallVec<[usize; 4]> = SmallVec::new();
        for ((counter, index), share) in counters().zip(&shares) {
            let says = self.says(*index);
            let fits = counter.cost <= share.capacity();
            if says == OnOutage::Local {
                let limit = counter.limit.with_params(share.clone());
                let share = PlannedCharge {
                    cost: if fits { counter.cost } else { 0 },
                    deferred: 0,
                    ..counter.under(limit)
                };
                self.fallback.begin(counter, &share);
                local.counters.push(share);
                local_places.push(*index);
            }
            if counter.group == 0 && (says == OnOutage::Deny || says == OnOutage::Local && !fits) {
                local.intent = Intent::Peek;
            }
        }
        let is_full = local.intent != Intent::Peek && !self.fallback.has_room(transaction);
        if is_full {
            local.intent = Intent::Peek;
        }
        let reply = self.fallback.memory.decide(&local);
        // What the shares say of it comes first.
        let is_refused = is_full && reply.allowed;
        if let RecordAction::Open(opening) = &transaction.record
            && is_refused
        {
            opening.note_full();
        }
        if reply.allowed && local.intent != Intent::Peek {
            // What the store may have charged already is no deferred charge.
            let is_deferred = error.is_uncharged();
            for ((counter, reply), index) in
                local.counters.iter().zip(&reply.counters).zip(&local_places)
            {
                if counter.cost == 0 || !reply.fits {
                    continue;
                }
                if is_deferred {
                    self.incurred.lock().push((*index, counter.params().clone()));
                }
                if let Some(rule) = self.rules[*index] {
                    self.fallback.note_alone(rule, counter.params(), reply);
                }
            }
        }
        let mut reply = reply.counters.into_iter();
        let outcomes =
            counters().zip(&shares).map(|((counter, index), share)| match self.says(*index) {
                OnOutage::Deny => ChargeOutcome::OutagePolicy { passes: false, cause },
                OnOutage::Allow => ChargeOutcome::OutagePolicy { passes: true, cause },
                OnOutage::Local if is_refused => {
                    ChargeOutcome::OutagePolicy { passes: false, cause }
                }
                OnOutage::Local => {
                    let mut reply = reply.next().expect("each local counter was asked");
                    if counter.cost > share.capacity() {
                        // It may fit the whole limit, once the store is back.
                        reply.fits = false;
                        reply.reading.retry_after_us = None;
                    }
                    ChargeOutcome::Fallback(reply, cause)
                }
            });
        Ok(outcomes.collect())
    }

    fn refund(&self, counter: &PlannedCharge, index: usize, charge: Charge) -> Option<ChargeReply> {
        let share = self.fallback.share_of(self.rules[index], counter.params());
        let what = Refund::Unused { charge, unused: charge.amount };
        self.incurred.lock().retain(|(incurred, _)| *incurred != index);
        let local = counter.under(counter.limit.with_params(share));
        Some(self.fallback.memory.change(&local, Change::Refund(what)).1)
    }
}

impl Outage<'_> {
    /// A store that works and did not answer in time: its shares are not for this process to give out.
    fn overloaded(&self, index: usize) -> ChargeOutcome {
        let passes = self.says(index) == OnOutage::Allow;
        ChargeOutcome::OutagePolicy { passes, cause: Cause::Overload }
    }

    /// Limits without a rule are enforced locally.
    fn says(&self, index: usize) -> OnOutage {
        self.rules[index].map_or(OnOutage::Local, Rule::on_outage)
    }

    /// What surely was not executed paid nothing; unknown means paid.
    fn note_unpaid(&self, indices: &[usize], error: &StoreError) {
        let mut deferred = self.deferred.lock();
        for (_, deferred) in deferred.extract_if(.., |(index, _)| indices.contains(index)) {
            if error.is_uncharged() {
                self.fallback.deferred_charges.put_back(deferred);
            }
        }
    }
}

/// Nobody has told how many processes share the limit: enough for most fleets.
pub(crate) const INSTANCES_UNKNOWN: u32 = 16;
/// As many rules as have series of their own.
const RULES_MAX: usize = 1_000;
/// Payments in one round of upkeep: below a hundredth of what a server takes in a second.
const REPAID_IN_A_ROUND: usize = 256;
