//! A histogram of times, counted without a lock, and its counts as applications read them.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Counts by upper bound, and the sum of all times.
#[derive(Debug, Default)]
pub struct Histogram {
    /// The last is the count of times above every bound.
    counts: [AtomicU64; BUCKETS],
    sum_ns: AtomicU64,
}

/// The counts of a histogram of durations. Its bounds reach from 250 ns to 100 ms.
///
/// ```
/// # tokio::runtime::Runtime::new().unwrap().block_on(async {
/// use spillgate::{Limit, Limiter, Request};
/// let limiter = Limiter::builder().build().await.unwrap();
/// let before = limiter.counts().decisions;
/// for _ in 0..64 {
///     limiter.check(&Request::keyed("user:42", &Limit::per_second(5))).await;
/// }
/// let since = limiter.counts().decisions.since(&before);
/// assert_eq!(since.count(), 1);
/// assert!(since.percentile(99).is_some());
/// # });
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Durations([u64; BUCKETS]);

impl Histogram {
    /// Counts `times` events that took `ns` each.
    pub fn add_ns(&self, ns: u64, times: u64) {
        // Most times are short, so the search begins at the first bound.
        let place = BOUNDS_NS.iter().position(|bound_ns| ns <= *bound_ns);
        let bucket = place.unwrap_or(BOUNDS_NS.len());
        self.counts[bucket].fetch_add(times, Ordering::Relaxed);
        self.sum_ns.fetch_add(ns.saturating_mul(times), Ordering::Relaxed);
    }

    /// Returns each bound with the count of times up to it; `None` for the last, which is infinite.
    pub fn cumulated(&self) -> impl Iterator<Item = (Option<Duration>, u64)> {
        let bounds = BOUNDS_NS.iter().map(|ns| Some(Duration::from_nanos(*ns))).chain([None]);
        let counts = self.counts.iter().scan(0, |sum, count| {
            *sum += count.load(Ordering::Relaxed);
            Some(*sum)
        });
        bounds.zip(counts)
    }

    /// Returns the counts now.
    pub fn read(&self) -> Durations {
        Durations(self.counts.each_ref().map(|count| count.load(Ordering::Relaxed)))
    }

    /// Returns the sum of all times.
    pub fn sum(&self) -> Duration {
        Duration::from_nanos(self.sum_ns.load(Ordering::Relaxed))
    }
}

impl Durations {
    /// Makes the counts of [`buckets`](Self::buckets).
    #[doc(hidden)]
    pub fn from_buckets(buckets: [u64; BUCKETS]) -> Durations {
        Durations(buckets)
    }

    /// Returns the number of durations between each two bounds.
    #[doc(hidden)]
    pub fn buckets(&self) -> [u64; BUCKETS] {
        self.0
    }

    /// Returns the number of durations.
    pub fn count(&self) -> u64 {
        self.0.iter().sum()
    }

    /// Returns the durations that were counted after `before`.
    #[must_use]
    pub fn since(&self, before: &Durations) -> Durations {
        let mut counts = self.0;
        for (count, before) in counts.iter_mut().zip(before.0) {
            *count = count.saturating_sub(before);
        }
        Durations(counts)
    }

    /// Returns the durations of both.
    #[must_use]
    pub fn and(&self, other: &Durations) -> Durations {
        let mut counts = self.0;
        for (count, other) in counts.iter_mut().zip(other.0) {
            *count += other;
        }
        Durations(counts)
    }

    /// Returns an estimate of the duration that `percent` of 100 durations do not exceed; `None` if there are none. For
    /// durations beyond the largest bound it is that bound.
    pub fn percentile(&self, percent: u8) -> Option<Duration> {
        let all = u128::from(self.count());
        if all == 0 {
            return None;
        }
        let rank = (all * u128::from(percent)).div_ceil(100).max(1);
        let (mut below, mut low_ns) = (0, 0);
        for (count, bound_ns) in self.0.into_iter().zip(BOUNDS_NS) {
            let count = u128::from(count);
            if below + count >= rank {
                // The durations within two bounds are assumed to be spread evenly.
                let within_ns = u128::from(bound_ns - low_ns) * (rank - below) / count;
                return Some(Duration::from_nanos(low_ns + within_ns as u64));
            }
            (below, low_ns) = (below + count, bound_ns);
        }
        Some(Duration::from_nanos(low_ns))
    }
}

/// The number of buckets.
#[doc(hidden)]
pub const BUCKETS: usize = BOUNDS_NS.len() + 1;
/// The bounds reach from a decision in memory to a store that hangs.
const BOUNDS_NS: [u64; 18] = [
    250,
    500,
    1_000,
    2_500,
    5_000,
    10_000,
    25_000,
    50_000,
    100_000,
    250_000,
    500_000,
    1_000_000,
    2_500_000,
    5_000_000,
    10_000_000,
    25_000_000,
    50_000_000,
    100_000_000,
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_equal_to_a_bound_counts_below_it() {
        let histogram = Histogram::default();
        for ns in [0, 250, 251, 100_000_000, u64::from(u32::MAX)] {
            histogram.add_ns(ns, 1);
        }
        let counts: Vec<u64> = histogram.cumulated().map(|(_, count)| count).collect();
        assert_eq!((counts[0], counts[1], counts[17], counts[18]), (2, 3, 4, 5));
        assert_eq!(histogram.sum(), Duration::from_nanos(100_000_501 + u64::from(u32::MAX)));
    }

    #[test]
    fn a_percentile_lies_between_the_bounds_of_its_duration() {
        let histogram = Histogram::default();
        assert_eq!(histogram.read().percentile(50), None);
        histogram.add_ns(2_000, 99);
        let before = histogram.read();
        histogram.add_ns(40_000_000, 1);
        let all = histogram.read();
        let between = |percent, low_ns, high_ns| {
            let found = all.percentile(percent).unwrap();
            assert!(
                (Duration::from_nanos(low_ns)..=Duration::from_nanos(high_ns)).contains(&found),
                "p{percent}: {found:?}"
            );
        };
        between(0, 1_000, 2_500);
        between(50, 1_000, 2_500);
        between(99, 2_500, 2_500);
        between(100, 50_000_000, 50_000_000);
        let since = all.since(&before);
        assert_eq!((since.count(), since.percentile(1)), (1, all.percentile(100)));
        assert_eq!(before.and(&since), all);
    }

    #[test]
    fn a_duration_above_all_bounds_shows_the_largest_bound() {
        let histogram = Histogram::default();
        histogram.add_ns(u64::from(u32::MAX), 3);
        assert_eq!(histogram.read().percentile(50), Some(Duration::from_millis(100)));
    }
}
