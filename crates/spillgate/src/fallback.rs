//! Decides while a shard is out of reach, by each rule's `on_outage`. This is the one place that
//! does. Admissions by a local share become deferred charges, which the store gets once it is back.

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

/// The local fallback of this instance: a memory engine that enforces the local share of every
/// limit, starting from the last known state of each subject.
#[derive(Debug)]
pub(crate) struct Fallback {
    memory: Memory,
    clock: Clock,
    known: Known,
    deferred_charges: DeferredCharges,
    /// The largest count of recent heartbeats; 0 before the first.
    live_instances: AtomicU32,
    live: Mutex<LiveInstances>,
    /// The setting `expected_instances`; 0 if unset.
    expected_instances: u32,
    errors: AtomicU64,
    /// Decisions for which the store worked but was too slow.
    overloaded: AtomicU64,
    /// For each rule, the most that one subject has used of its local share in this outage.
    alone: Mutex<BTreeMap<String, u64>>,
}

/// Decides for those counters of one plan whose shards give no answer.
pub(crate) struct Outage<'p> {
    fallback: &'p Fallback,
    /// The rule of each charge; `None` for an inline limit.
    rules: SmallVec<[Option<&'p Rule>; 4]>,
    /// The deferred charges that this plan's calls carry, with the index of their charge.
    deferred: Mutex<Vec<(usize, DeferredCharge)>>,
    /// Local shares that admitted a charge which the store surely does not have, with the index of
    /// the charge. They become deferred charges once the whole decision stands. Until then another
    /// call could take them along.
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

    /// Makes the call to the store for a plan. It carries the deferred charges of its counters.
    pub(crate) fn store_call<'q>(
        &'q self,
        plan: &'q mut Plan,
        policy: Option<&'q Policy>,
    ) -> StoreCall<'q, Outage<'q>> {
        let deferred = Mutex::new(self.take_deferred(&mut plan.transaction));
        let plan = &*plan;
        let rule = |counter| plan.rule_of(policy, counter);
        let rules = plan.transaction.counters.iter().map(rule).collect();
        let fallback = Outage { fallback: self, rules, deferred, incurred: Mutex::default() };
        StoreCall { transaction: &plan.transaction, order: plan.order(policy), fallback }
    }

    /// Stores the result of a call: last known state, deferred charges that were charged, and those
    /// that arose.
    pub(crate) fn settle(&self, call: &StoreCall<'_, Outage<'_>>, outcomes: &ChargeOutcomes) {
        let now_us = self.clock.now_us();
        for (counter, outcome) in call.transaction.counters.iter().zip(outcomes) {
            if let ChargeOutcome::Store(reply) = outcome {
                self.known.note(counter.name(), &reply.reading, now_us);
            }
        }
        for (index, deferred) in call.fallback.deferred.lock().drain(..) {
            // Not evaluated means not sent. Everything else counts as charged, since a charge that
            // may have been executed is never sent twice.
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

    /// Charges some deferred charges of subjects that have no requests.
    pub(crate) async fn repay(&self, redis: &Redis) {
        if self.deferred_charges.are_none() {
            return;
        }
        let payable = |deferred: &DeferredCharge| redis.is_asked(deferred.key.tag);
        for name in self.deferred_charges.some(REPAID_IN_A_ROUND, payable) {
            // Each is taken out only when its turn comes. Until then it stays deferred, so that no
            // local share begins afresh over it.
            let Some(deferred) = self.deferred_charges.take_named(name) else { continue };
            // Quota that has drained since the admission is not charged.
            let occupied = self.occupied_by(&deferred);
            if occupied == 0 {
                continue;
            }
            let counter = PlannedCharge::new(deferred.key, deferred.limit.clone());
            match redis.change(&counter, Change::Force(occupied)).await {
                Ok((_, reply)) => {
                    // The share begins from the current state. Otherwise each such charge would
                    // renew the share while the store works but is too slow for some callers.
                    self.known.note(counter.name(), &reply.reading, self.clock.now_us());
                    self.forget(&deferred);
                }
                Err(error) if error.is_uncharged() => self.deferred_charges.put_back(deferred),
                // Unknown means charged.
                Err(_) => {}
            }
        }
    }

    /// Notes the number of live instances that a heartbeat counted. `now_us` is monotonic.
    pub(crate) fn note_live_instances(&self, live: u32, now_us: u64) {
        let largest = self.live.lock().note(live, now_us);
        self.live_instances.store(largest, Ordering::Relaxed);
    }

    /// Returns the number of instances that share each limit while the store is out of reach.
    pub(crate) fn nodes(&self) -> u32 {
        let reply = self.live_instances.load(Ordering::Relaxed).max(self.expected_instances);
        if reply > 0 { reply } else { INSTANCES_UNKNOWN }
    }

    /// Returns the setting `expected_instances`, which holds for an instance that starts during an
    /// outage; `None` if unset.
    pub(crate) fn expected_instances(&self) -> Option<u32> {
        Some(self.expected_instances).filter(|nodes| *nodes > 0)
    }

    /// Notes that every shard is back. Local use of shares is forgotten once it is charged to the
    /// store.
    pub(crate) fn note_recovery(&self) {
        if self.deferred_charges.are_none() {
            self.alone.lock().clear();
        }
    }

    /// Returns, for each rule, the most that one subject has used of its local share in this
    /// outage.
    #[cfg(feature = "metrics")]
    pub(crate) fn overshoot_observed(&self) -> Vec<(String, u64)> {
        self.alone.lock().iter().map(|(rule, most)| (rule.clone(), *most)).collect()
    }

    /// Returns the overshoot bound: the most that all instances together can admit to one subject
    /// beyond a rule's limits while the store is out of reach. It is the sum of all local shares
    /// and of leased tokens, or `None` if there is no bound.
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

    /// Notes how much of a local share is used after an admission.
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

    /// Counts a failed call. Logs the first, second, fourth and so on, since an outage fails very
    /// many.
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

    /// Counts a failed call to the store.
    pub(crate) fn note_error(&self) {
        self.errors.fetch_add(1, Ordering::Relaxed);
    }

    /// Returns the number of failed calls to the store.
    pub(crate) fn store_errors(&self) -> u64 {
        self.errors.load(Ordering::Relaxed)
    }

    /// Returns this instance's local share of a limit, for a rule or an inline limit.
    fn share_of(&self, rule: Option<&Rule>, params: &LimitParams) -> LimitParams {
        let own = rule.and_then(Rule::local_share);
        share::part_of(params, own.unwrap_or_else(|| Share::one_of(self.nodes())))
    }

    /// Charges the local share in proportion to the usage that the store last reported. Does
    /// nothing if the share has been used since. A window may then have ended here that has not
    /// ended on the store.
    fn begin(&self, counter: &PlannedCharge, local: &PlannedCharge) {
        let Some(left) = self.known.remaining(counter, self.clock.now_us()) else { return };
        if self.look(local).reading.reset_after_us > 0 || self.deferred_charges.is_deferred(counter)
        {
            return;
        }
        let (part, whole) = (local.params().capacity(), counter.params().capacity());
        let left = u128::from(left) * u128::from(part) / u128::from(whole);
        // The part that is left is at most the whole share.
        let used = part - left as u64;
        if used > 0 {
            self.memory.change(local, Change::Force(used));
        }
    }

    /// Takes the deferred charges that a call can carry. Only a call that writes carries any.
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
            // A drained admission occupies no quota any more, so it is dropped whatever happens to
            // the call.
            if counter.deferred > 0 {
                taken.push((index, deferred));
            }
        }
        taken
    }

    /// Returns how much of a deferred charge still occupies quota. Drained tokens and past windows
    /// do not.
    fn occupied_by(&self, deferred: &DeferredCharge) -> u64 {
        let counter =
            PlannedCharge::new(deferred.key, deferred.limit.with_params(deferred.share.clone()));
        // The share has other users too, so the deferred charge is at most what was admitted.
        let used = deferred.share.capacity().saturating_sub(self.look(&counter).reading.remaining);
        used.min(deferred.admitted)
    }

    /// Resets the local share, since the store has the charge now and decides from here on.
    fn forget(&self, deferred: &DeferredCharge) {
        self.memory.reset(deferred.key, std::slice::from_ref(&deferred.limit));
    }

    fn look(&self, counter: &PlannedCharge) -> ChargeReply {
        self.memory.decide_one(counter, Intent::Peek)
    }
}

impl ShardFallback for Outage<'_> {
    type Error = Infallible;

    /// Decides all or none over all charges of the failed leg, each by its rule's `on_outage`.
    fn decide(
        &self,
        transaction: &Transaction,
        indices: &[usize],
        error: StoreError,
    ) -> Result<ChargeOutcomes, Infallible> {
        self.fallback.count_error(&error);
        self.note_unpaid(indices, &error);
        // The store works, so its shares are not this instance's to enforce. The exception is a
        // caller with a short deadline that admits by itself afterwards, as Envoy does.
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
            // Only `local` needs a state. `deny` and `allow` are answered by the rule below.
            if says == OnOutage::Local {
                let limit = counter.limit.with_params(share.clone());
                let share = PlannedCharge {
                    cost: if fits { counter.cost } else { 0 },
                    // A cost above the share is only peeked at, to get the numbers for the answer.
                    deferred: 0,
                    ..counter.under(limit)
                };
                self.fallback.begin(counter, &share);
                local.counters.push(share);
                local_places.push(*index);
            }
            // An enforced charge that is denied for certain turns the whole transaction into a
            // peek, so that no share is charged for nothing.
            if counter.group == 0 && (says == OnOutage::Deny || says == OnOutage::Local && !fits) {
                local.intent = Intent::Peek;
            }
        }
        let is_full = local.intent != Intent::Peek && !self.fallback.has_room(transaction);
        if is_full {
            local.intent = Intent::Peek;
        }
        let reply = self.fallback.memory.decide(&local);
        // A denial by a local share takes precedence over one for lack of room.
        let is_refused = is_full && reply.allowed;
        if let RecordAction::Open(opening) = &transaction.record
            && is_refused
        {
            opening.note_full();
        }
        if reply.allowed && local.intent != Intent::Peek {
            // A charge that the store may have executed must not become a deferred charge.
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
                    let mut reply = reply.next().expect("each local charge has a reply");
                    if counter.cost > share.capacity() {
                        // The whole limit may have room for it once the store is back, so the wait
                        // is unknown.
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
        // A refunded admission must not become a deferred charge.
        self.incurred.lock().retain(|(incurred, _)| *incurred != index);
        let local = counter.under(counter.limit.with_params(share));
        Some(self.fallback.memory.change(&local, Change::Refund(what)).1)
    }
}

impl Outage<'_> {
    /// Answers by the rule for a store that works but did not answer in time. Its limits are not
    /// this instance's to enforce.
    fn overloaded(&self, index: usize) -> ChargeOutcome {
        let passes = self.says(index) == OnOutage::Allow;
        ChargeOutcome::OutagePolicy { passes, cause: Cause::Overload }
    }

    /// Returns the rule's `on_outage`. Inline limits are enforced locally.
    fn says(&self, index: usize) -> OnOutage {
        self.rules[index].map_or(OnOutage::Local, Rule::on_outage)
    }

    /// Puts back the deferred charges of a leg that was surely not executed. After an unknown
    /// result they count as charged.
    fn note_unpaid(&self, indices: &[usize], error: &StoreError) {
        let mut deferred = self.deferred.lock();
        for (_, deferred) in deferred.extract_if(.., |(index, _)| indices.contains(index)) {
            if error.is_uncharged() {
                self.fallback.deferred_charges.put_back(deferred);
            }
        }
    }
}

/// The number of instances to assume if neither heartbeats nor settings give one. Most fleets are
/// no larger.
pub(crate) const INSTANCES_UNKNOWN: u32 = 16;
/// The number of rules that have metrics of their own.
const RULES_MAX: usize = 1_000;
/// Deferred charges in one round of upkeep. They take less than a hundredth of what a server does
/// in a second.
const REPAID_IN_A_ROUND: usize = 256;
