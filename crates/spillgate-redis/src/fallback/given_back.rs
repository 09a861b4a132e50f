//! What reservations and permits of an outage did not use, although the store was charged for them in the meantime.
//!
//! The local share of such a counter outlives the catch-up, since it knows how much of a charge may still be refunded.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;

use super::deferred_charges::DeferredCharge;
use super::{Fallback, REPAID_IN_A_ROUND, redis_until};
use crate::Redis;
use crate::algorithm::{LimitParams, Refund};
use crate::counter::{Change, PlannedCharge};

/// By counter, at most `COUNTERS_MAX`.
#[derive(Debug, Default)]
pub(super) struct GivenBack {
    by_counter: Mutex<BTreeMap<u128, Paid>>,
    /// How often the store had lost its data when this was last used. What was charged before a loss is gone.
    losses: AtomicU64,
}

/// The part of a counter's use that the store was certainly charged for on behalf of reservations.
#[derive(Debug)]
struct Paid {
    counter: PlannedCharge,
    /// When the store was charged first.
    at_us: u64,
    amount: u64,
    /// The part that is to be given back.
    unused: u64,
}

impl GivenBack {
    fn note_paid(&self, counter: &PlannedCharge, amount: u64, now_us: u64) {
        let mut by_counter = self.by_counter.lock();
        by_counter.retain(|_, paid| paid.certain(now_us) > 0);
        let is_full = by_counter.len() >= COUNTERS_MAX;
        match by_counter.get_mut(&counter.name()) {
            Some(paid) => paid.amount = paid.amount.saturating_add(amount),
            None if is_full => {}
            None => {
                let counter = PlannedCharge::new(counter.key, counter.limit.clone());
                let paid = Paid { counter, at_us: now_us, amount, unused: 0 };
                by_counter.insert(paid.counter.name(), paid);
            }
        }
    }

    /// Notes that `unused` units are to be given back, or as many as the store certainly still counts.
    pub(super) fn add(&self, counter: &PlannedCharge, unused: u64, now_us: u64) {
        if unused == 0 {
            return;
        }
        if let Some(paid) = self.by_counter.lock().get_mut(&counter.name()) {
            paid.unused = paid.certain(now_us).min(paid.unused + unused);
        }
    }

    /// Returns the names of some that have something to give back.
    fn some(&self, at_most: usize, reachable: impl Fn(&PlannedCharge) -> bool) -> Vec<u128> {
        let by_counter = self.by_counter.lock();
        let due = by_counter.iter().filter(|(_, paid)| paid.unused > 0 && reachable(&paid.counter));
        due.map(|(name, _)| *name).take(at_most).collect()
    }

    /// Takes out what a counter has to give back.
    fn take_named(&self, name: u128, now_us: u64) -> Option<(PlannedCharge, u64)> {
        let mut by_counter = self.by_counter.lock();
        let paid = by_counter.get_mut(&name)?;
        let amount = std::mem::take(&mut paid.unused).min(paid.certain(now_us));
        paid.amount -= amount;
        (amount > 0).then(|| (paid.counter.clone(), amount))
    }

    /// Puts back what the store surely did not refund.
    fn put_back(&self, name: u128, amount: u64) {
        if let Some(paid) = self.by_counter.lock().get_mut(&name) {
            paid.amount += amount;
            paid.unused += amount;
        }
    }
}

impl Paid {
    /// Returns how much of the amount the store certainly still counts.
    fn certain(&self, now_us: u64) -> u64 {
        let (params, age_us) = (self.counter.params(), now_us.saturating_sub(self.at_us));
        match params {
            LimitParams::TokenBucket(bucket) => {
                let drained = u128::from(bucket.burst) * u128::from(age_us);
                let drained = drained.div_ceil(u128::from(bucket.refill_us().max(1)));
                self.amount.saturating_sub(drained.try_into().unwrap_or(u64::MAX))
            }
            _ if age_us < params.longest_wait_us() => self.amount,
            _ => 0,
        }
    }
}

impl Fallback {
    /// Notes that the store was charged `amount` for a deferred charge.
    pub(super) fn note_paid(&self, deferred: &DeferredCharge, amount: u64) {
        if deferred.is_reserved {
            self.given_back.note_paid(&deferred.counter, amount, self.clock.now_us());
        } else {
            self.end_share(deferred);
        }
    }

    /// Refunds at the store what reservations of an outage did not use. Ends at `until_us`.
    pub(super) async fn give_back(&self, redis: &Redis, until_us: u64) {
        let losses = redis.state_losses();
        if self.given_back.losses.swap(losses, Ordering::Relaxed) != losses {
            self.given_back.by_counter.lock().clear();
        }
        let reachable = |counter: &PlannedCharge| redis.is_asked(counter.key.tag);
        for name in self.given_back.some(REPAID_IN_A_ROUND, reachable) {
            let Some(redis) = redis_until(redis, until_us) else { return };
            let Some((counter, amount)) = self.given_back.take_named(name, self.clock.now_us())
            else {
                continue;
            };
            let refund = Change::Refund(Refund::Amount(amount));
            // After an unknown result the refund counts as made, since none is made twice.
            if let Err(error) = redis.change(&counter, refund).await
                && error.is_uncharged()
            {
                self.given_back.put_back(name, amount);
            }
        }
    }
}

/// About 30 MB.
const COUNTERS_MAX: usize = 100_000;
