//! The decisions of the last minute, from totals that are read about once a second.

use std::collections::VecDeque;

use crate::store::Decided;

/// Readings of the totals: the oldest is a minute old, or as old as the limiter.
#[derive(Debug)]
pub struct LastMinute(VecDeque<(u64, Decided)>);

impl LastMinute {
    /// Begins at a time of a monotonic clock, when nothing is decided.
    pub fn new(now_us: u64) -> LastMinute {
        LastMinute([(now_us, Decided::default())].into())
    }

    /// Adds a reading of the totals, and returns the decisions of the last minute.
    pub fn note(&mut self, now_us: u64, totals: Decided) -> Decided {
        self.0.push_back((now_us, totals));
        while self.0.get(1).is_some_and(|(at_us, _)| now_us.saturating_sub(*at_us) >= MINUTE_US) {
            self.0.pop_front();
        }
        let (_, before) = self.0[0];
        Decided {
            allowed: totals.allowed.saturating_sub(before.allowed),
            denied: totals.denied.saturating_sub(before.denied),
        }
    }
}

const MINUTE_US: u64 = 60_000_000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_decisions_of_a_minute_are_those_since_the_reading_a_minute_ago() {
        let mut last_minute = LastMinute::new(0);
        let mut in_last_minute = Decided::default();
        for second in 1..=200 {
            let totals = Decided { allowed: 10 * second, denied: 3 * second };
            in_last_minute = last_minute.note(second * 1_000_000, totals);
            let seconds = second.min(60);
            assert_eq!(in_last_minute, Decided { allowed: 10 * seconds, denied: 3 * seconds });
        }
        assert!(last_minute.0.len() <= 62, "{}", last_minute.0.len());
        // Nothing more is decided, and a minute later nothing was.
        let still = Decided { allowed: 2_000, denied: 600 };
        assert_eq!(last_minute.note(201_000_000, still).allowed, in_last_minute.allowed - 10);
        assert_eq!(last_minute.note(270_000_000, still), Decided::default());
    }
}
