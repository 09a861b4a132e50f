//! Decides while a shard is out of reach, by each rule's `on_outage`. No other place does. Admissions by a local share
//! become deferred charges, which the store gets once it is back.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use smallvec::SmallVec;

use super::engine::Redis;
use crate::algorithm::{Charge, Intent, LimitParams, Refund};
use crate::counter::{Change, ChargeReply, PlannedCharge};
use crate::error::StoreError;
use crate::limit::NamedLimit;
use crate::memory::Memory;
use crate::plan::{ChargeOutcome, ChargeOutcomes, Plan, RecordAction, Transaction};
use crate::policy::{OnOutage, Policy, Rule, Share};
use crate::time::{Clock, monotonic_us};

mod deferred_charges;
mod given_back;
mod known;
mod live;
mod outage;
mod reserved;

pub use outage::Outage;
pub use reserved::{Alone, ChargedHere};

use deferred_charges::{DeferredCharge, DeferredCharges};
use given_back::GivenBack;
use known::Known;
use live::LiveInstances;

/// The local fallback of this instance: a memory engine that enforces the local share of every
/// limit, starting from the last known state of each subject.
#[derive(Debug)]
pub struct Fallback {
    memory: Memory,
    clock: Clock,
    known: Known,
    deferred_charges: DeferredCharges,
    given_back: GivenBack,
    /// The largest count of recent heartbeats; 0 before the first.
    live_instances: AtomicU32,
    live: Mutex<LiveInstances>,
    /// The setting `expected_instances`; 0 if unset.
    expected_instances: u32,
    errors: AtomicU64,
    /// Decisions for which the store worked but was too slow.
    overloaded: AtomicU64,
    /// For each rule, the most that one subject has used of its local share in this outage.
    most_used: Mutex<BTreeMap<String, u64>>,
}

/// A transaction, and what to do for shards that fail.
pub struct StoreCall<'q> {
    /// The charges.
    pub transaction: &'q Transaction,
    /// Decides for shards that fail.
    pub outage: Outage<'q>,
}

impl Fallback {
    /// Creates a fallback that holds at most `max_keys` counters. `expected_instances` is 0 if unset.
    pub fn new(max_keys: usize, clock: Clock, expected_instances: u32) -> Fallback {
        Fallback {
            memory: Memory::new(max_keys, clock.clone()),
            clock,
            known: Known::new(),
            deferred_charges: DeferredCharges::default(),
            given_back: GivenBack::default(),
            live_instances: AtomicU32::new(0),
            live: Mutex::new(LiveInstances::new(monotonic_us())),
            expected_instances,
            errors: AtomicU64::new(0),
            overloaded: AtomicU64::new(0),
            most_used: Mutex::default(),
        }
    }

    /// Makes the call to the store for a plan. It carries the deferred charges of its counters.
    pub fn store_call<'q>(
        &'q self,
        plan: &'q mut Plan,
        policy: Option<&'q Policy>,
    ) -> StoreCall<'q> {
        // Taken out before the call is sent, so that no other call carries them too. What the store surely did not
        // get is put back after the answer.
        let deferred = self.take_deferred(&mut plan.transaction);
        let plan = &*plan;
        let rule = |counter| plan.rule_of(policy, counter);
        let rules = plan.transaction.charges.iter().map(rule).collect();
        let (incurred, uncharged) = (Vec::new(), SmallVec::new());
        let outage =
            Outage { fallback: self, rules, deferred, incurred, uncharged, is_full: false };
        StoreCall { transaction: &plan.transaction, outage }
    }

    /// Stores the result of a call: last known state, deferred charges that were charged, and those
    /// that arose.
    pub fn note_outcomes(&self, call: &mut StoreCall<'_>, outcomes: &ChargeOutcomes) {
        let now_us = self.clock.now_us();
        for (counter, outcome) in call.transaction.charges.iter().zip(outcomes) {
            if let ChargeOutcome::Store(reply) = outcome {
                self.known.note(counter.name(), &reply.reading, now_us);
            }
        }
        for (index, deferred) in call.outage.deferred.drain(..) {
            // Not evaluated means not sent. Everything else counts as charged, since a charge that
            // may have been executed is never sent twice.
            match outcomes[index] {
                ChargeOutcome::NotAsked => self.deferred_charges.put_back(deferred),
                ChargeOutcome::Store(_) => {
                    self.note_paid(&deferred, call.transaction.charges[index].deferred);
                }
                _ => self.end_share(&deferred),
            }
        }
        let is_reserved = matches!(call.transaction.record, RecordAction::Open(_));
        for (index, share) in call.outage.incurred.drain(..) {
            let counter = &call.transaction.charges[index];
            self.deferred_charges.add(counter, &share, counter.cost, is_reserved);
        }
    }

    /// Charges some of the deferred charges, for subjects whose requests do not take them along, and gives back what
    /// reservations did not use of those that were charged.
    pub async fn repay(&self, redis: &Redis) {
        let until_us = monotonic_us() + REPAYING_US;
        self.give_back(redis, until_us).await;
        if self.deferred_charges.are_none() {
            return;
        }
        let payable = |deferred: &DeferredCharge| redis.is_asked(deferred.counter.key.tag);
        for name in self.deferred_charges.some(REPAID_IN_A_ROUND, payable) {
            let Some(redis) = redis_until(redis, until_us) else { return };
            // Each is taken out only when its turn comes. Until then it stays deferred, so that no
            // local share begins afresh over it.
            let Some(deferred) = self.deferred_charges.take_named(name) else { continue };
            // Quota that has drained since the admission is not charged.
            let occupied = self.occupied_by(&deferred);
            if occupied == 0 {
                continue;
            }
            let counter = &deferred.counter;
            match redis.change(counter, Change::Force(occupied)).await {
                Ok((_, reply)) => {
                    // The share begins from the current state. Otherwise each such charge would
                    // renew the share while the store works but is too slow for some callers.
                    self.known.note(counter.name(), &reply.reading, self.clock.now_us());
                    self.note_paid(&deferred, occupied);
                }
                Err(error) if error.is_uncharged() => self.deferred_charges.put_back(deferred),
                // Unknown means charged.
                Err(_) => {}
            }
        }
    }

    /// Notes the number of live instances that a heartbeat counted. `now_us` is monotonic.
    pub fn note_live_instances(&self, live: u32, now_us: u64) {
        let largest = self.live.lock().note(live, now_us);
        self.live_instances.store(largest, Ordering::Relaxed);
    }

    /// Returns the number of instances that share each limit while the store is out of reach.
    pub fn instances(&self) -> u32 {
        let known = self.live_instances.load(Ordering::Relaxed).max(self.expected_instances);
        if known > 0 { known } else { INSTANCES_UNKNOWN }
    }

    /// Returns the setting `expected_instances`, which holds for an instance that starts during an
    /// outage; `None` if unset.
    pub fn expected_instances(&self) -> Option<u32> {
        Some(self.expected_instances).filter(|nodes| *nodes > 0)
    }

    /// Notes that every shard is back. Local use of shares is forgotten once it is charged to the
    /// store.
    pub fn note_recovery(&self) {
        if self.deferred_charges.are_none() {
            self.most_used.lock().clear();
        }
    }

    /// Returns, for each rule, the most that one subject has used of its local share in this
    /// outage.
    pub fn overshoot_observed(&self) -> Vec<(String, u64)> {
        self.most_used.lock().iter().map(|(rule, most)| (rule.clone(), *most)).collect()
    }

    /// Returns the overshoot bound: the most that all instances together can admit to one subject
    /// beyond a rule's limits while the store is out of reach. It is the sum of all local shares
    /// and of leased tokens, or `None` if there is no bound.
    pub fn overshoot_bound(&self, rule: &Rule) -> Option<u64> {
        let share = |params| self.share_of(Some(rule), params).capacity();
        let shares = rule.named_limits().iter().filter_map(NamedLimit::params).map(share);
        let local = match rule.on_outage() {
            OnOutage::Allow => return None,
            OnOutage::Deny => 0,
            OnOutage::Local => {
                shares.max().unwrap_or_default().saturating_mul(self.instances().into())
            }
        };
        let leased = rule.lease().and_then(|lease| {
            rule.limits()
                .filter(|limit| !limit.algorithm().profile().lease_ends_with_window)
                .map(|limit| lease.tokens_of(limit))
                .max()
        });
        Some(local.saturating_add(leased.unwrap_or_default()))
    }

    /// Notes how much of a local share is used after an admission.
    fn note_share_used(&self, rule: &Rule, share: &LimitParams, reply: &ChargeReply) {
        let used = share.capacity().saturating_sub(reply.reading.remaining);
        let mut most_used = self.most_used.lock();
        let full = most_used.len() >= RULES_MAX;
        match most_used.get_mut(rule.name()) {
            Some(most) => *most = used.max(*most),
            None if full => {}
            None => drop(most_used.insert(rule.name().to_owned(), used)),
        }
    }

    /// Counts a decision, or its part on one location, that the store did not make. Logs the first, second, fourth
    /// and so on, since an outage fails very many.
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
            tracing::warn!(target: "spillgate", errors, %error, "a decision was made without the store");
        }
    }

    /// Counts an action that the store did not execute.
    pub fn note_error(&self) {
        self.errors.fetch_add(1, Ordering::Relaxed);
    }

    /// Returns the number of decisions, or their parts on one location, that the store did not make.
    pub fn store_errors(&self) -> u64 {
        self.errors.load(Ordering::Relaxed)
    }

    /// Returns this instance's local share of a limit, for a rule or an inline limit.
    fn share_of(&self, rule: Option<&Rule>, params: &LimitParams) -> LimitParams {
        let own = rule.and_then(Rule::local_share);
        params.counting().share(own.unwrap_or_else(|| Share::one_of(self.instances())))
    }

    /// Charges the local share up to the usage that the store last reported, in proportion. Does
    /// nothing if the share has started from that report before. A window may then have ended here
    /// that has not ended on the store.
    fn start_from_known(&self, counter: &PlannedCharge, local: &PlannedCharge) {
        self.known.start(counter, self.clock.now_us(), |left| {
            // The report may lack a deferred charge, which the share counts.
            if self.deferred_charges.is_deferred(counter) {
                return false;
            }
            let (part, whole) = (local.params().capacity(), counter.params().capacity());
            // At most the share, so it fits.
            let left = (u128::from(left) * u128::from(part) / u128::from(whole)) as u64;
            // Use of an earlier outage counts, so only the difference is charged.
            let missing = self.decide_one(local, Intent::Peek).saturating_sub(left);
            if missing > 0 {
                self.memory.change(local, Change::Force(missing));
            }
            true
        });
    }

    /// Takes the deferred charges that a call can carry. Only a call that writes carries any.
    fn take_deferred(&self, transaction: &mut Transaction) -> Vec<(usize, DeferredCharge)> {
        let writes = transaction.intent != Intent::Peek
            && transaction.charges.iter().any(|counter| counter.cost > 0);
        if self.deferred_charges.are_none() || !writes {
            return Vec::new();
        }
        let mut taken = Vec::new();
        for (index, counter) in transaction.charges.iter_mut().enumerate() {
            let Some(deferred) = self.deferred_charges.take_named(counter.name()) else {
                continue;
            };
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
        let DeferredCharge { counter, share, .. } = deferred;
        let local = counter.under(counter.limit.with_params(*share));
        // The share has other users too, so the deferred charge is at most what was admitted.
        let used = share.capacity().saturating_sub(self.decide_one(&local, Intent::Peek));
        used.min(deferred.admitted)
    }

    /// Resets the local share, since the store has the charge now and decides from here on. A share that has admitted
    /// more meanwhile stays: it shows how much of that still occupies quota.
    fn end_share(&self, deferred: &DeferredCharge) {
        let counter = &deferred.counter;
        if !self.deferred_charges.is_deferred(counter) {
            self.memory.reset(counter.key, std::slice::from_ref(&counter.limit));
            // The empty share may start from the last report again.
            self.known.note_reset(counter.name());
        }
    }

    /// Refunds a charge that a local share made, and returns the counter's state afterwards.
    pub(crate) fn refund_share(
        &self,
        counter: &PlannedCharge,
        share: LimitParams,
        charge: Charge,
    ) -> ChargeReply {
        let what = Refund::Unused { charge, unused: charge.amount };
        let local = counter.under(counter.limit.with_params(share));
        self.memory.change(&local, Change::Refund(what)).1
    }

    /// Decides over one local share, and returns what is left of it.
    fn decide_one(&self, counter: &PlannedCharge, intent: Intent) -> u64 {
        let (record, charges) = (RecordAction::None, [counter.clone()].into());
        let one: Transaction = Transaction { intent, record, charges };
        self.memory.decide(&one).replies[0].reading.remaining
    }
}

/// Returns the store with the time that a round has left; `None` if it has none. The next heartbeat waits for its end.
fn redis_until(redis: &Redis, until_us: u64) -> Option<Redis> {
    let left_us = until_us.saturating_sub(monotonic_us());
    (left_us > 0).then(|| redis.left_with(Duration::from_micros(left_us)))
}

/// The number of instances to assume if neither heartbeats nor settings give one. Most fleets are
/// no larger.
pub const INSTANCES_UNKNOWN: u32 = 16;
/// The number of rules that have metrics of their own.
const RULES_MAX: usize = 1_000;
/// How long one round goes on. A slow shard would delay heartbeats otherwise.
const REPAYING_US: u64 = 200_000;
/// Deferred charges in one round of upkeep. They take less than a hundredth of what a server does
/// in a second.
const REPAID_IN_A_ROUND: usize = 256;

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, TcpListener};

    use super::*;
    use crate::limit::Limit;
    use crate::store::{Store, StoreOptions};
    use crate::subject::SubjectKey;

    /// Each charge waited for as long as a decision may, and the next heartbeat with it.
    #[tokio::test(start_paused = true)]
    async fn a_round_of_deferred_charges_ends_in_time_on_a_silent_server() {
        // It accepts connections, and never answers.
        let silent = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let url = format!("redis://{}", silent.local_addr().unwrap());
        let options = StoreOptions::new(Duration::from_secs(5));
        let redis = Redis::open(&Store::Url(url), &options).await.unwrap();
        let fallback = Fallback::new(1_000, Clock::System, 1);
        let limit = NamedLimit::new(Limit::per_day(1_000), 0);
        let key = SubjectKey { tag: 1, id: 1, rule: 1 };
        let counter = PlannedCharge { cost: 1, ..PlannedCharge::new(key, limit) };
        fallback.decide_one(&counter, Intent::Charge);
        fallback.deferred_charges.add(&counter, counter.params(), 1, false);
        let round = tokio::time::Instant::now() + Duration::from_micros(2 * REPAYING_US);
        fallback.repay(&redis).await;
        assert!(tokio::time::Instant::now() < round, "the round went on");
        assert!(fallback.deferred_charges.is_deferred(&counter), "nothing was sent");
    }
}
