//! Readings of clocks. The core reads no clock itself: callers pass instants in.

/// A reading of the coarse clock: now is `at_us` or somewhat later.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CoarseTime {
    /// The reading, in µs. The current time is never before it.
    pub at_us: u64,
    /// The normal bound of the current time after `at_us`, unless the machine is very busy.
    pub tick_us: u64,
    /// The bound of the current time after `at_us`, unless the whole machine stood still.
    pub late_us: u64,
}

impl CoarseTime {
    /// Returns a reading that is exact.
    #[inline]
    pub fn exactly(now_us: u64) -> CoarseTime {
        CoarseTime { at_us: now_us, tick_us: 0, late_us: 0 }
    }
}
