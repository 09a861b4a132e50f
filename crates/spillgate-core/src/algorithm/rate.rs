//! Rates that callers ask for in place of a limit's own.

/// A number of requests in a period, and the most at once. A window counts further than a bucket, so the numbers of
/// a caller may be above what an algorithm has.
#[derive(Clone, Copy, Debug)]
pub struct Rate {
    /// Requests per period.
    pub count: u32,
    /// The period.
    pub period_us: u64,
    /// The most at once.
    pub burst: u32,
}

impl Rate {
    /// Creates the rate of windows, which let their whole count pass at once.
    pub fn of_windows(count: u32, period_us: u64) -> Rate {
        Rate { count, period_us, burst: count }
    }

    /// Returns the rate with no number above `most`.
    pub fn at_most(self, most: u32) -> Rate {
        Rate { count: self.count.min(most), burst: self.burst.min(most), ..self }
    }

    /// Returns the rate that is lower in the long run.
    pub fn lower(self, other: Rate) -> Rate {
        let product = |count: u32, period_us: u64| u128::from(count) * u128::from(period_us);
        let other_is_lower =
            product(other.count, self.period_us) <= product(self.count, other.period_us);
        if other_is_lower { other } else { self }
    }

    /// Returns the count of windows of the period of `asked` that hold no more than ours and no more than `asked`.
    /// Returns `None` if even those would allow more in the long run than ours.
    pub fn capped(self, asked: &Rate) -> Option<u32> {
        let capped = Rate::of_windows(self.count.min(asked.count), asked.period_us);
        let lower = self.lower(capped);
        let is_lower = (lower.count, lower.period_us) == (capped.count, capped.period_us);
        is_lower.then_some(capped.count)
    }
}
