//! What the store last said of its counters, for as many as fit: where deciding alone begins.

use parking_lot::Mutex;

use crate::algorithm::Reading;
use crate::counter::PlannedCharge;

/// A table of fixed size, each counter in a place of its own or none: what is forgotten begins afresh.
#[derive(Debug)]
pub(super) struct Known {
    indices: Box<[Mutex<Last>]>,
}

/// What the store last said of one counter.
#[derive(Clone, Copy, Debug, Default)]
struct Last {
    counter: u128,
    at_us: u64,
    remaining: u64,
    reset_after_us: u64,
}

impl Known {
    pub(super) fn new() -> Known {
        Known { indices: (0..PLACES).map(|_| Mutex::default()).collect() }
    }

    /// Notes what the store said at an instant of the counter of a name.
    pub(super) fn note(&self, counter: u128, reading: &Reading, at_us: u64) {
        let Reading { remaining, reset_after_us, .. } = *reading;
        let said = Last { counter, at_us, remaining, reset_after_us };
        let mut index = self.index(said.counter).lock();
        let keeps = index.counter != said.counter && index.remaining == 0 && remaining > 0;
        // Whoever sprays keys must not make anybody forget who is exhausted.
        if !(keeps && index.is_live(at_us)) {
            *index = said;
        }
    }

    /// What is left of a counter, as far as can be told; nothing where it is unknown or untouched by
    /// now. What drains is taken to drain evenly.
    pub(super) fn remaining(&self, counter: &PlannedCharge, now_us: u64) -> Option<u64> {
        let name = counter.name();
        let last = *self.index(name).lock();
        if last.counter != name || !last.is_live(now_us) {
            return None;
        }
        let used = counter.params().capacity().saturating_sub(last.remaining);
        let left_us = last.reset_after_us - now_us.saturating_sub(last.at_us);
        // Not more than the whole of `used`, so it fits.
        let still =
            (u128::from(used) * u128::from(left_us)).div_ceil(u128::from(last.reset_after_us));
        Some(counter.params().capacity().saturating_sub(still as u64))
    }

    fn index(&self, counter: u128) -> &Mutex<Last> {
        &self.indices[counter as usize % PLACES]
    }
}

impl Last {
    fn is_live(&self, now_us: u64) -> bool {
        now_us < self.at_us.saturating_add(self.reset_after_us)
    }
}

/// About 4 MB, and as many subjects as are busy at once.
const PLACES: usize = 1 << 16;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limit::{Limit, NamedLimit};
    use crate::subject::SubjectKey;

    fn counter(id: u128, limit: &NamedLimit) -> PlannedCharge {
        let key = SubjectKey { tag: id, id, rule: 0 };
        PlannedCharge { cost: 1, attributes: 1, ..PlannedCharge::new(key, limit.clone()) }
    }

    fn said(remaining: u64, reset_after_us: u64) -> Reading {
        Reading { remaining, retry_after_us: None, reset_after_us }
    }

    #[test]
    fn what_was_used_drains_evenly_until_it_is_forgotten() {
        let (known, limit) = (Known::new(), NamedLimit::new(Limit::per_second(100), 0));
        let counter = counter(7, &limit);
        assert_eq!(known.remaining(&counter, 1_000), None);
        known.note(counter.name(), &said(0, 1_000_000), 1_000);
        let left = |after_us: u64| known.remaining(&counter, 1_000 + after_us);
        assert_eq!(left(0), Some(0));
        assert_eq!(left(500_000), Some(50));
        assert_eq!(left(999_999), Some(99));
        assert_eq!(left(1_000_000), None);
    }

    #[test]
    fn the_exhausted_are_not_forgotten_for_those_who_are_not() {
        let (known, limit) = (Known::new(), NamedLimit::new(Limit::per_second(100), 0));
        let (mine, other) = (counter(7, &limit), counter(7 + PLACES as u128, &limit));
        known.note(mine.name(), &said(0, 1_000_000), 0);
        known.note(other.name(), &said(99, 10_000), 10);
        assert_eq!((known.remaining(&mine, 10), known.remaining(&other, 10)), (Some(0), None));
        known.note(other.name(), &said(99, 10_000), 1_000_000);
        assert_eq!(known.remaining(&other, 1_000_000), Some(99));
    }
}
