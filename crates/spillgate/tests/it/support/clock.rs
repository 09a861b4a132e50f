//! A manual clock that is set and read in µs since the epoch, as the algorithms count.

use std::time::Duration;

use spillgate::testing::ManualClock;

#[derive(Clone)]
pub(crate) struct Clock(ManualClock);

impl Clock {
    pub(crate) fn given(now_us: u64) -> Clock {
        let clock = Clock(ManualClock::new());
        clock.set(now_us);
        clock
    }

    pub(crate) fn set(&self, now_us: u64) {
        self.0.set(Duration::from_micros(now_us));
    }

    pub(crate) fn now_us(&self) -> u64 {
        self.0.now().as_micros() as u64
    }

    /// Returns the clock for `LimiterBuilder::manual_clock`.
    pub(crate) fn manual(&self) -> &ManualClock {
        &self.0
    }
}
