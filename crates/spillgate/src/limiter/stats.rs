//! The counts of a limiter's own decisions, for [`Stats`].

use std::sync::atomic::{AtomicU64, Ordering};

use crate::decision::Summary;
use crate::tally::Tally;

/// Counts since the limiter was built, and its state now.
///
/// [`Limiter::stats`](crate::Limiter::stats) returns it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stats {
    /// Decisions that allowed.
    pub allowed: u64,
    /// Decisions that denied.
    pub denied: u64,
    /// Requests that no rule matched.
    pub unmatched: u64,
    /// Decisions that were made without the store.
    pub degraded: u64,
    /// Decisions, or their parts on one location, that the store did not make. Denials because it was overloaded are not
    /// among them. `spillgate_store_errors_total` counts the failed calls instead.
    pub store_errors: u64,
    /// Shards that lost their data.
    pub state_losses: u64,
    /// Steps of a shard's clock, by itself or with a failover. A step forward can cost each subject one fresh quota.
    pub clock_steps: u64,
    /// Instances that share each limit while the store is unavailable: the larger of those that the store counted in
    /// the last 60 seconds and those that are expected. 16 if neither is known, 0 with the memory store.
    pub live_instances: u32,
    /// Units that operators refunded without a receipt. They can admit more than a limit allows.
    pub refunded: u64,
    /// Callers that wait for room in this process.
    pub waiting: usize,
    /// Counters for which this instance has leases, or soon may have.
    pub leased_counters: usize,
    /// Leased tokens that this instance holds, neither spent nor returned.
    pub lease_outstanding: u64,
    /// Counters that the memory store evicted for want of room, though they still limited.
    pub evictions: u64,
    /// Charges to an overflow counter of the full memory store.
    pub overflows: u64,
    /// Minutes of denials that were dropped, because the store did not take them for an hour.
    pub denial_minutes_dropped: u64,
}

/// The counts behind [`Stats`].
#[derive(Debug, Default)]
pub struct DecisionCounts {
    decisions: Tally<COUNTS>,
    pub(crate) refunded: AtomicU64,
}

impl DecisionCounts {
    #[inline]
    pub fn count(&self, summary: Summary, is_unmatched: bool) {
        let counts = self.decisions.of_this_thread();
        counts.add(if summary.allows() { ALLOWED } else { DENIED });
        if is_unmatched {
            counts.add(UNMATCHED);
        }
        if summary.is_degraded() {
            counts.add(DEGRADED);
        }
    }

    /// Returns the counts, with 0 for all that the limiter reads elsewhere.
    pub fn read(&self) -> Stats {
        let counts = self.decisions.read();
        Stats {
            allowed: counts[ALLOWED],
            denied: counts[DENIED],
            unmatched: counts[UNMATCHED],
            degraded: counts[DEGRADED],
            refunded: self.refunded.load(Ordering::Relaxed),
            ..Stats::default()
        }
    }
}

// The places of the counts of decisions.
const ALLOWED: usize = 0;
const DENIED: usize = 1;
const UNMATCHED: usize = 2;
const DEGRADED: usize = 3;
const COUNTS: usize = 4;
