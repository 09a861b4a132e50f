//! Leases of a limiter: paying for decisions, and the task that takes and returns leases.

use std::sync::{Arc, Weak};
use std::time::Duration;

use futures_util::future::join_all;
use smallvec::SmallVec;
use tokio::time::{Instant, timeout};

use super::RedisStore;
use crate::deciding::lease::{Exchange, Spent, leased_by};
use crate::decision::{CounterOutcome, CounterOutcomes};
use crate::jitter::jittered;
use crate::plan::Plan;
use crate::policy::{Mode, Policy};
use crate::subject::Secret;
use crate::time::boottime_us;

/// The charges that leases paid for one decision.
pub type Paid = SmallVec<[Spent; 1]>;

impl RedisStore {
    /// Returns all unspent leases and takes no more, within a second.
    pub async fn end_leases(&self) {
        self.leases.stop();
        let deadline = Instant::now() + STOP;
        while self.leases.are_any() && Instant::now() < deadline {
            let exchange = async {
                self.exchange_all().await;
                tokio::time::sleep(STOPPING).await;
            };
            let _ = tokio::time::timeout_at(deadline, exchange).await;
        }
    }

    /// Pays with leases for as many counters of a plan as possible. The store evaluates the others.
    pub(crate) fn pay(&self, plan: &mut Plan, policy: Option<&Policy>) -> Paid {
        let mut paid = Paid::new();
        if policy.is_none() || !plan.may_be_leased() {
            return paid;
        }
        let mut number = 0;
        let mut now_us = None;
        while let Some(counter) = plan.transaction.charges.get(number) {
            let spent = plan.rule_of(policy, counter).and_then(|rule| {
                let terms = leased_by(counter, rule)?;
                let now_us = *now_us.get_or_insert_with(boottime_us);
                self.leases.take_or_want(counter, rule, terms, now_us)
            });
            match spent {
                Some(spent) => {
                    plan.paid(number, spent.remaining);
                    paid.push(spent);
                }
                None => number += 1,
            }
        }
        paid
    }

    /// Puts the leases' tokens back if the decision denies.
    pub(crate) fn put_back_if_denied(&self, paid: Paid, counters: &CounterOutcomes) {
        if !paid.is_empty() && counters.iter().any(CounterOutcome::denies) {
            paid.into_iter().for_each(|spent| self.leases.put_back(spent));
        }
    }

    /// Returns the answer that leases alone would give, or `None` if the store must evaluate a
    /// counter.
    pub fn would_pay(
        &self,
        mut plan: Box<Plan>,
        policy: Option<&Policy>,
    ) -> Option<CounterOutcomes> {
        if !plan.asks() || !plan.may_be_leased() {
            return None;
        }
        let now_us = boottime_us();
        while let Some(counter) = plan.transaction.charges.first() {
            let rule = plan.rule_of(policy, counter)?;
            let terms = leased_by(counter, rule)?;
            let remaining = self.leases.would_take(counter, terms, now_us)?;
            plan.paid(0, remaining);
        }
        Some(plan.outcomes)
    }

    /// Takes leases for the subjects that the policy lists as hot, before any request comes.
    ///
    /// This also loads the lease script and opens connections to their shards. A store that does not
    /// answer delays the start only briefly; later grants are kept.
    pub async fn warm_up(self: &Arc<Self>, policy: &Policy, secret: &Secret) {
        let now_us = boottime_us();
        let mut are_expected = false;
        for rule in policy.rules().filter(|rule| rule.mode() == Mode::Enforce) {
            for subject in rule.hot() {
                let subject = policy.typed(&subject);
                let Some(matched) = policy.matched_by_subject(rule, &subject) else { continue };
                let plan: Plan = Plan::of_subject(&matched, &subject, secret);
                for counter in &plan.transaction.charges {
                    are_expected |= self.leases.expect(counter, rule, now_us);
                }
            }
        }
        if are_expected {
            let store = Arc::clone(self);
            let taken = tokio::spawn(async move { store.exchange_all().await });
            let _ = timeout(WARM_UP, taken).await;
        }
    }

    /// Starts the task that takes and returns leases. It ends with the limiter.
    pub fn begin_leasing(self: &Arc<Self>) {
        tokio::spawn(keep(Arc::downgrade(self)));
    }
}

/// Takes and returns leases in rounds, off the path of checks. Meanwhile the store decides for
/// subjects without a lease.
async fn keep(store: Weak<RedisStore>) {
    let mut epoch = None;
    loop {
        let Some(strong) = store.upgrade() else { return };
        let known = strong.servers.state_losses();
        // A store that lost its data has lost the charges of all leases.
        if epoch.replace(known).is_some_and(|before| before != known) {
            strong.leases.void();
        }
        strong.exchange_all().await;
        // Without leases there is nothing to return in time. The task still wakes up, to end if the
        // limiter is gone.
        let pause = match strong.leases.are_any() {
            true => ROUND + jittered(JITTER),
            false => REST,
        };
        let wants = Arc::clone(&strong.leases.wants);
        drop(strong);
        let _ = timeout(pause, wants.notified()).await;
    }
}

impl RedisStore {
    /// Makes the calls to the store that are due, a limited number at once.
    async fn exchange_all(&self) {
        let wanted = self.leases.wanted(self.servers.instance_id, boottime_us(), CALLS_MAX);
        join_all(wanted.iter().map(|exchange| self.exchange_lease(exchange))).await;
    }

    async fn exchange_lease(&self, exchange: &Exchange) {
        let redis = &self.servers;
        // A loss of state during the call would leave a lease whose charge the store no longer has.
        let epoch = redis.state_losses();
        let answer = redis.lease(exchange).await;
        let now_us = boottime_us();
        match answer {
            Ok(granted) if redis.state_losses() == epoch => {
                self.leases.answered(exchange, &granted, now_us);
                // Returned tokens make room for callers that were denied.
                if exchange.closes.iter().any(|close| close.unused > 0) {
                    self.note_room();
                }
            }
            Err(error) if error.is_uncharged() => self.leases.unanswered(exchange, false, now_us),
            // The state was lost during the call, or the result is unknown. If the lease was
            // granted, the next call returns it.
            Ok(_) | Err(_) => self.leases.unanswered(exchange, true, now_us),
        }
    }
}

/// The time between rounds while there are leases. Ended leases go back soon after.
const ROUND: Duration = Duration::from_millis(20);
const JITTER: Duration = Duration::from_millis(3);
/// The time between rounds while there are none.
const REST: Duration = Duration::from_secs(1);
/// The longest time that a start waits for its first leases.
const WARM_UP: Duration = Duration::from_millis(250);
/// The most calls under way at once, which a server can take beside its checks.
const CALLS_MAX: usize = 64;
/// The longest time that a stopping service waits to return its leases.
const STOP: Duration = Duration::from_secs(1);
const STOPPING: Duration = Duration::from_millis(5);
