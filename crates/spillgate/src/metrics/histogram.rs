//! A histogram of times, counted without a lock.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Counts by upper bound, and the sum of all times.
#[derive(Debug, Default)]
pub(super) struct Histogram {
    /// The last is the count of times above every bound.
    counts: [AtomicU64; BOUNDS_NS.len() + 1],
    sum_ns: AtomicU64,
}

impl Histogram {
    /// Counts `times` events that took `ns` each.
    pub(super) fn add_ns(&self, ns: u64, times: u64) {
        let bucket = BOUNDS_NS.partition_point(|bound_ns| *bound_ns < ns);
        self.counts[bucket].fetch_add(times, Ordering::Relaxed);
        self.sum_ns.fetch_add(ns.saturating_mul(times), Ordering::Relaxed);
    }

    /// Returns each bound with the count of times up to it; `None` for the last, which is infinite.
    pub(super) fn cumulated(&self) -> impl Iterator<Item = (Option<Duration>, u64)> {
        let bounds = BOUNDS_NS.iter().map(|ns| Some(Duration::from_nanos(*ns))).chain([None]);
        let counts = self.counts.iter().scan(0, |sum, count| {
            *sum += count.load(Ordering::Relaxed);
            Some(*sum)
        });
        bounds.zip(counts)
    }

    pub(super) fn sum(&self) -> Duration {
        Duration::from_nanos(self.sum_ns.load(Ordering::Relaxed))
    }
}

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
}
