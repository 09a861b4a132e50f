//! Estimates the offset of a server's clock from the local monotonic clock, and detects steps of the server's clock.

use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};

use crate::time::{Clock, monotonic_us};

/// The store's clock minus the local monotonic clock.
#[derive(Debug)]
pub struct Offset {
    us: AtomicI64,
    /// Whether a reply has shown it; before, it is a guess.
    seen: AtomicBool,
    steps: AtomicU64,
}

impl Offset {
    /// Starts with the offset of the local wall clock, until a reply shows the store's.
    pub fn guessed() -> Offset {
        let us = Clock::System.now_us().wrapping_sub(monotonic_us()).cast_signed();
        Offset { us: AtomicI64::new(us), seen: AtomicBool::new(false), steps: AtomicU64::new(0) }
    }

    /// Returns the estimate of the store's time.
    pub fn now_us(&self) -> u64 {
        monotonic_us().saturating_add_signed(self.us.load(Ordering::Relaxed))
    }

    /// Returns how far the store's clock is ahead of the local wall clock.
    pub fn ahead_us(&self) -> i64 {
        self.now_us().wrapping_sub(Clock::System.now_us()).cast_signed()
    }

    /// Returns how often the clock stepped by more than half a second.
    pub fn steps(&self) -> u64 {
        self.steps.load(Ordering::Relaxed)
    }

    /// Records the store's time, which was read between two local instants.
    ///
    /// Returns the size of a step, if no moment between the instants fits the offset known before.
    pub fn note(&self, store_us: u64, sent_us: u64, answered_us: u64) -> Option<i64> {
        // The clock was read at an unknown moment of the call, so the offset lies between these two bounds.
        let offset_us = store_us.wrapping_sub(answered_us).cast_signed();
        let most_us = store_us.wrapping_sub(sent_us).cast_signed();
        let before_us = self.us.load(Ordering::Relaxed);
        let seen = self.seen.swap(true, Ordering::Relaxed);
        let fits = (offset_us - STEP_US..=most_us + STEP_US).contains(&before_us);
        if fits && seen {
            // A slow call gives wide bounds: the known offset is kept, moved only as far as the bounds require.
            self.us.store(before_us.clamp(offset_us, most_us), Ordering::Relaxed);
            return None;
        }
        self.us.store(offset_us, Ordering::Relaxed);
        if !seen {
            return None;
        }
        self.steps.fetch_add(1, Ordering::Relaxed);
        Some(offset_us - before_us)
    }
}

/// Two clocks drift apart by less than this between two calls.
const STEP_US: i64 = 500_000;

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000;

    #[test]
    fn reports_a_step_of_the_clock_once_and_no_late_reply() {
        let offset = Offset::guessed();
        assert_eq!(offset.note(5 * SECOND, 10 * SECOND, 10 * SECOND), None, "the first sight");
        assert_eq!(
            offset.note(6 * SECOND, 11 * SECOND, 15 * SECOND),
            None,
            "four seconds on its way"
        );
        assert_eq!(offset.note(11 * SECOND, 16 * SECOND, 16 * SECOND), None);
        assert_eq!(offset.note(12 * SECOND + 400_000, 17 * SECOND, 17 * SECOND), None, "it drifts");
        let hour = 3_600 * SECOND;
        assert_eq!(offset.note(hour + 13 * SECOND, 18 * SECOND, 18 * SECOND), Some(3_599_600_000));
        assert_eq!(offset.note(14 * SECOND, 19 * SECOND, 19 * SECOND), Some(-3_600_000_000));
        assert_eq!(offset.steps(), 2);
    }
}
