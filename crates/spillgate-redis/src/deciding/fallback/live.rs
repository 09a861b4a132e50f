//! Determines how many instances share a limit: the largest count of recent heartbeats.
//!
//! A store that comes back empty counts only the instances that have reported since: one, then two.
//! An instance that used such a count would enforce half of each limit alone, or all of it.

/// The largest count of the last 60 seconds in which the store answered.
///
/// Time without an answer does not age a count. Otherwise a store that comes back empty after an
/// outage of an hour would lower it.
#[derive(Debug)]
pub struct LiveInstances {
    /// The largest count of each period, the current period first.
    largest: [u32; PERIODS],
    /// The elapsed time of the current period.
    elapsed_us: u64,
    /// The time of the last count, on a monotonic clock.
    last_us: u64,
}

impl LiveInstances {
    pub fn new(now_us: u64) -> LiveInstances {
        LiveInstances { largest: [0; PERIODS], elapsed_us: 0, last_us: now_us }
    }

    /// Adds a count and returns the number of instances to assume.
    pub fn note(&mut self, live: u32, now_us: u64) -> u32 {
        let silent_us = now_us.saturating_sub(self.last_us);
        self.last_us = now_us;
        self.elapsed_us += silent_us.min(GAP_MAX_US);
        // A gap is shorter than a period, so at most one period has ended.
        if self.elapsed_us >= PERIOD_US {
            self.elapsed_us -= PERIOD_US;
            self.largest.rotate_right(1);
            self.largest[0] = 0;
        }
        self.largest[0] = self.largest[0].max(live);
        self.largest.iter().copied().max().unwrap_or(live)
    }
}

/// Six whole periods and the current one, so a count lasts 60 to 70 seconds.
const PERIODS: usize = 7;
const PERIOD_US: u64 = 10_000_000;
/// Heartbeats come every second. In a longer gap the store was out of reach.
const GAP_MAX_US: u64 = 2_000_000;

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND_US: u64 = 1_000_000;

    /// Adds the same count each second for `seconds`. Returns the number to assume at the end.
    fn hold(live: &mut LiveInstances, count: u32, from_us: &mut u64, seconds: u64) -> u32 {
        let mut number = 0;
        for _ in 0..seconds {
            *from_us += SECOND_US;
            number = live.note(count, *from_us);
        }
        number
    }

    #[test]
    fn a_store_that_came_back_empty_lowers_no_count() {
        let mut live = LiveInstances::new(0);
        let mut now_us = 0;
        assert_eq!(hold(&mut live, 3, &mut now_us, 5), 3);
        assert_eq!(hold(&mut live, 1, &mut now_us, 1), 3);
        assert_eq!(hold(&mut live, 2, &mut now_us, 1), 3);
        assert_eq!(hold(&mut live, 4, &mut now_us, 1), 4, "a larger count holds at once");
    }

    #[test]
    fn a_count_lasts_60_to_70_seconds_of_heartbeats() {
        for phase in 0..20 {
            let mut live = LiveInstances::new(0);
            let mut now_us = 0;
            hold(&mut live, 1, &mut now_us, phase);
            hold(&mut live, 9, &mut now_us, 1);
            assert_eq!(hold(&mut live, 2, &mut now_us, 60), 9, "phase {phase}");
            assert_eq!(hold(&mut live, 2, &mut now_us, 10), 2, "phase {phase}");
        }
    }

    #[test]
    fn an_outage_of_an_hour_ages_a_count_by_two_seconds() {
        let mut live = LiveInstances::new(0);
        let mut now_us = 0;
        hold(&mut live, 3, &mut now_us, 30);
        now_us += 3_600 * SECOND_US;
        assert_eq!(live.note(1, now_us), 3);
        assert_eq!(hold(&mut live, 1, &mut now_us, 57), 3);
        assert_eq!(hold(&mut live, 1, &mut now_us, 13), 1);
    }

    #[test]
    fn a_clock_that_steps_back_ages_nothing() {
        let mut live = LiveInstances::new(100 * SECOND_US);
        assert_eq!(live.note(3, 101 * SECOND_US), 3);
        assert_eq!(live.note(1, 50 * SECOND_US), 3);
    }
}
