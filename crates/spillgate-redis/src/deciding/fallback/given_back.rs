//! What reservations of an outage did not use, although the store was charged for them in the meantime.
//!
//! The local share of such a counter outlives the catch-up, since it knows how much of a charge may still be refunded.
//! Only buckets and windows get anything back. The entries of a log end at times of their own, and a permit is that of
//! its holder: there, a plain number would take from others.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;

use super::deferred_charges::DeferredCharge;
use super::{Fallback, REPAID_IN_A_ROUND, redis_until};
use crate::algorithm::Refund;
use crate::counter::{Change, PlannedCharge};
use crate::deciding::engine::Redis;

/// By counter, at most `COUNTERS_MAX`.
#[derive(Debug, Default)]
pub struct GivenBack {
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

    /// Returns whether a part of a counter's use may still be given back.
    fn knows(&self, counter: &PlannedCharge, now_us: u64) -> bool {
        let by_counter = self.by_counter.lock();
        by_counter.get(&counter.name()).is_some_and(|paid| paid.certain(now_us) > 0)
    }

    /// Notes that `unused` units are to be given back, or as many as the store certainly still counts.
    pub fn add(&self, counter: &PlannedCharge, unused: u64, now_us: u64) {
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
        let counting = self.counter.params().counting();
        counting.surely_counted(self.amount, self.at_us, now_us, MARGIN_US)
    }
}

impl Fallback {
    /// Notes that the store was charged `amount` for a deferred charge.
    pub(crate) fn note_paid(&self, deferred: &DeferredCharge, amount: u64) {
        let now_us = self.clock.now_us();
        if deferred.is_reserved {
            self.given_back.note_paid(&deferred.counter, amount, now_us);
        } else if !self.given_back.knows(&deferred.counter, now_us) {
            self.end_share(deferred);
        }
    }

    /// Refunds at the store what reservations of an outage did not use. Ends at `until_us`.
    pub(crate) async fn give_back(&self, redis: &Redis, until_us: u64) {
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

/// Longer than a refund is under way, and than clocks differ in a fleet that is well kept.
const MARGIN_US: u64 = 1_000_000;
/// About 30 MB.
const COUNTERS_MAX: usize = 100_000;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limit::{LimitSpec, NamedLimit};
    use crate::subject::SubjectKey;

    /// A refund once came off the window after the one that was charged, which then admitted 15 of 10.
    #[test]
    fn a_window_gets_back_only_while_it_is_surely_the_one_that_was_charged() {
        let certain = |algorithm: &str, at_us: u64, now_us: u64| {
            let limit = LimitSpec::new("10/10s").algorithm(algorithm).build().unwrap();
            let key = SubjectKey { tag: 1, id: 1, rule: 1 };
            let counter = PlannedCharge::new(key, NamedLimit::new(limit, 0));
            let at_us = at_us * 1_000_000;
            Paid { counter, at_us, amount: 5, unused: 0 }.certain(now_us * 1_000_000)
        };
        for algorithm in ["fixed-window", "sliding-window"] {
            assert_eq!(certain(algorithm, 102, 107), 5, "{algorithm}");
            for (at, now) in [(100, 107), (102, 109), (102, 110), (102, 113), (98, 103)] {
                assert_eq!(certain(algorithm, at, now), 0, "{algorithm} {at} {now}");
            }
        }
        assert_eq!(certain("sliding-log", 102, 103), 0);
        assert_eq!(certain("token-bucket", 102, 104), 3, "two have drained");
    }
}
