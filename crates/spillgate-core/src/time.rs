//! Readings of clocks. The core reads none: callers pass instants in.

/// A reading of the coarse clock: now is `at_us` or somewhat later.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CoarseTime {
    /// Not after now.
    pub at_us: u64,
    /// Now is no later than this after `at_us`, unless the machine is very busy.
    pub tick_us: u64,
    /// Nor later than this, unless the whole machine stood still in between.
    pub late_us: u64,
}

impl CoarseTime {
    /// Returns a reading that is exact.
    #[inline]
    pub fn exactly(now_us: u64) -> CoarseTime {
        CoarseTime { at_us: now_us, tick_us: 0, late_us: 0 }
    }
}
