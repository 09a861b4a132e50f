//! The last known state of counters, for as many as fit. The local fallback starts from it.

use parking_lot::Mutex;

use crate::algorithm::Reading;
use crate::counter::PlannedCharge;

/// A table of fixed size. Each counter has one fixed slot, which it may lose to another. A counter
/// that lost its slot starts afresh.
#[derive(Debug)]
pub struct Known {
    slots: Box<[Mutex<Last>]>,
}

/// The last state of one counter that the store reported.
#[derive(Clone, Copy, Debug, Default)]
struct Last {
    counter: u128,
    at_us: u64,
    remaining: u64,
    reset_after_us: u64,
    /// Whether the local share has started from this report.
    has_started: bool,
}

impl Known {
    pub fn new() -> Known {
        Known { slots: (0..SLOTS).map(|_| Mutex::default()).collect() }
    }

    /// Stores the state that the store reported for a counter at `at_us`.
    pub fn note(&self, counter: u128, reading: &Reading, at_us: u64) {
        let Reading { remaining, reset_after_us, .. } = *reading;
        let last = Last { counter, at_us, remaining, reset_after_us, has_started: false };
        let mut slot = self.slot(counter).lock();
        let keeps = slot.counter != counter && slot.remaining == 0 && remaining > 0;
        // A client that sends many keys must not displace the state of an exhausted subject.
        if !(keeps && slot.is_live(at_us)) {
            *slot = last;
        }
    }

    /// Passes an estimate of the quota left to `start`, unless the local share has started from
    /// this report before. Does nothing if the state is unknown or the counter is full again by
    /// now.
    ///
    /// `start` returns whether the share has started. The slot stays locked meanwhile, so that no
    /// other caller uses the share before.
    pub fn start(&self, counter: &PlannedCharge, now_us: u64, start: impl FnOnce(u64) -> bool) {
        let name = counter.name();
        let mut last = self.slot(name).lock();
        if last.counter == name && last.is_live(now_us) && !last.has_started {
            last.has_started = start(last.estimate(counter, now_us));
        }
    }

    /// Notes that the local share of a counter was reset, so that it may start again.
    pub fn note_reset(&self, counter: u128) {
        let mut last = self.slot(counter).lock();
        if last.counter == counter {
            last.has_started = false;
        }
    }

    fn slot(&self, counter: u128) -> &Mutex<Last> {
        &self.slots[counter as usize % SLOTS]
    }
}

impl Last {
    fn is_live(&self, now_us: u64) -> bool {
        now_us < self.at_us.saturating_add(self.reset_after_us)
    }

    /// Returns an estimate of the quota left while the state is live.
    fn estimate(&self, counter: &PlannedCharge, now_us: u64) -> u64 {
        let capacity = counter.params().capacity();
        let used = capacity.saturating_sub(self.remaining);
        // `is_live` has checked that this does not underflow.
        let left_us = self.reset_after_us - now_us.saturating_sub(self.at_us);
        let still = counter.params().counting().used_after(used, left_us, self.reset_after_us);
        capacity.saturating_sub(still)
    }
}

/// About 4 MB. That is more subjects than are busy at once.
const SLOTS: usize = 1 << 16;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limit::{Limit, NamedLimit};
    use crate::subject::SubjectKey;

    fn counter(id: u128, limit: &NamedLimit) -> PlannedCharge {
        let key = SubjectKey { tag: id, id, rule: 0 };
        PlannedCharge { cost: 1, attributes: 1, ..PlannedCharge::new(key, limit.clone()) }
    }

    fn reading(remaining: u64, reset_after_us: u64) -> Reading {
        Reading { remaining, retry_after_us: None, reset_after_us }
    }

    /// Returns the estimate from which a share would start at `now_us`.
    fn estimate(known: &Known, counter: &PlannedCharge, now_us: u64) -> Option<u64> {
        let mut left = None;
        known.start(counter, now_us, |estimate| {
            left = Some(estimate);
            false
        });
        left
    }

    #[test]
    fn used_quota_drains_evenly_until_it_is_forgotten() {
        let (known, limit) = (Known::new(), NamedLimit::new(Limit::per_second(100), 0));
        let counter = counter(7, &limit);
        assert_eq!(estimate(&known, &counter, 1_000), None);
        known.note(counter.name(), &reading(0, 1_000_000), 1_000);
        let left = |after_us: u64| estimate(&known, &counter, 1_000 + after_us);
        assert_eq!(left(0), Some(0));
        assert_eq!(left(500_000), Some(50));
        assert_eq!(left(999_999), Some(99));
        assert_eq!(left(1_000_000), None);
    }

    #[test]
    fn exhausted_counters_are_not_displaced_by_others() {
        let (known, limit) = (Known::new(), NamedLimit::new(Limit::per_second(100), 0));
        let (mine, other) = (counter(7, &limit), counter(7 + SLOTS as u128, &limit));
        known.note(mine.name(), &reading(0, 1_000_000), 0);
        known.note(other.name(), &reading(99, 10_000), 10);
        let left = |counter, at_us| estimate(&known, counter, at_us);
        assert_eq!((left(&mine, 10), left(&other, 10)), (Some(0), None));
        known.note(other.name(), &reading(99, 10_000), 1_000_000);
        assert_eq!(left(&other, 1_000_000), Some(99));
    }

    #[test]
    fn a_share_starts_once_from_each_report() {
        let (known, limit) = (Known::new(), NamedLimit::new(Limit::per_second(100), 0));
        let counter = counter(7, &limit);
        let starts = || {
            let mut starts = 0;
            (0..3).for_each(|_| {
                known.start(&counter, 1, |_| {
                    starts += 1;
                    true
                });
            });
            starts
        };
        known.note(counter.name(), &reading(7, 1_000_000), 0);
        assert_eq!((starts(), starts()), (1, 0));
        known.note(counter.name(), &reading(0, 1_000_000), 0);
        assert_eq!((starts(), starts()), (1, 0), "a newer report");
        known.note_reset(counter.name());
        assert_eq!((starts(), starts()), (1, 0), "the share was reset");
    }
}
