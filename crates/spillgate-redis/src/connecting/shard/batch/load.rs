//! Measures the work given to a shard, and estimates how long new work would wait. Overload is denied before
//! anything is sent.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::time::Instant;

use crate::counter::PlannedCharge;
use crate::plan::Transaction;

/// Work given to a shard and not yet answered, in estimated microseconds of the shard's time.
#[derive(Debug)]
pub struct Load {
    given_us: AtomicU64,
    /// The part of it that is in calls in flight.
    sent_us: AtomicU64,
    /// How long one microsecond of estimated work takes now, in thousandths of a microsecond.
    ///
    /// It exceeds the estimate when other instances load the shard too, and is below it when groups save work.
    pace: AtomicU64,
}

/// Work given to a shard. Dropping it marks the work as done or given up.
#[derive(Debug)]
pub struct Given {
    load: Arc<Load>,
    weight_us: u64,
}

/// Work in a call in flight.
pub struct InCall {
    load: Arc<Load>,
    weight_us: u64,
    /// All work in flight when this call was sent, this call included.
    under_way_us: u64,
    at: Instant,
}

impl Load {
    pub fn new() -> Arc<Load> {
        let (given_us, sent_us) = (AtomicU64::new(0), AtomicU64::new(0));
        Arc::new(Load { given_us, sent_us, pace: AtomicU64::new(ONE) })
    }

    /// Accepts work for a caller that waits for `patience`.
    ///
    /// Returns `None` if the work would not be done in time, or if the shard has too much work already.
    pub fn take_on(self: &Arc<Load>, weight_us: u64, patience: Duration) -> Option<Given> {
        let before_us = self.given_us.fetch_add(weight_us, Ordering::Relaxed);
        let given = Given { load: Arc::clone(self), weight_us };
        let pace = self.pace.load(Ordering::Relaxed);
        let wait_us = u128::from(before_us) * u128::from(pace) / u128::from(ONE);
        // If it does not fit, dropping `given` here subtracts the weight again.
        (before_us <= GIVEN_MAX_US && wait_us <= patience.as_micros()).then_some(given)
    }

    /// Returns the work of one call if `calls` calls share all work given. It is at least 1.
    pub fn share_us(&self, calls: u64) -> u64 {
        self.given_us.load(Ordering::Relaxed).div_ceil(calls).max(1)
    }

    /// Records that a call with this weight is sent.
    pub fn send(self: &Arc<Load>, weight_us: u64) -> InCall {
        let under_way_us = weight_us + self.sent_us.fetch_add(weight_us, Ordering::Relaxed);
        InCall { load: Arc::clone(self), weight_us, under_way_us, at: Instant::now() }
    }
}

impl Given {
    pub fn weight_us(&self) -> u64 {
        self.weight_us
    }
}

impl Drop for Given {
    fn drop(&mut self) {
        self.load.given_us.fetch_sub(self.weight_us, Ordering::Relaxed);
    }
}

/// Updates the pace when a call ends: the time it took, divided by all work that was in flight when it was sent.
impl Drop for InCall {
    fn drop(&mut self) {
        let Load { sent_us, pace, .. } = &*self.load;
        sent_us.fetch_sub(self.weight_us, Ordering::Relaxed);
        let before = pace.load(Ordering::Relaxed);
        let measured = if self.under_way_us >= MEASURED_FROM_US {
            let taken_us = u64::try_from(self.at.elapsed().as_micros()).unwrap_or(u64::MAX);
            (taken_us.saturating_mul(ONE) / self.under_way_us).clamp(1, PACE_MAX)
        } else {
            // A call this short measures the network, not the server. It can only bring the pace back to normal.
            before.min(ONE)
        };
        // Two concurrent updates may lose one measurement, which does no harm: the next one follows.
        pace.store((7 * before + measured).div_ceil(8), Ordering::Relaxed);
    }
}

/// Returns the time that transactions occupy a shard without groups, in estimated microseconds.
pub fn weight_of(transactions: &[Transaction]) -> u64 {
    transactions.iter().map(|transaction| weight_of_counters(transaction.charges.iter())).sum()
}

/// Returns the time that one decision over these counters occupies a shard, in estimated microseconds.
pub fn weight_of_counters<'a>(counters: impl Iterator<Item = &'a PlannedCharge>) -> u64 {
    DECISION_US + counters.map(weight_of_counter).sum::<u64>()
}

/// Returns the time of one charge inside a large call, in estimated microseconds.
///
/// `no_call_of_a_large_batch_occupies_the_store_for_long` prints the measured figures.
fn weight_of_counter(counter: &PlannedCharge) -> u64 {
    counter.limit.algorithm().profile().charge_us
}

/// Returns the time of one more equal decision in a group, in estimated microseconds.
///
/// A sliding log writes one more entry. Every other algorithm only adds a larger number.
pub fn weight_of_one_more<'a>(counters: impl Iterator<Item = &'a PlannedCharge>) -> u64 {
    counters.map(|counter| counter.limit.algorithm().profile().unit_us).sum()
}

/// The time to parse a decision and write its reply.
const DECISION_US: u64 = 2;
/// The pace of a server as fast as the measured one.
const ONE: u64 = 1_000;
/// The slowest pace that is recorded, a factor of 1,000. A higher one would delay noticing a recovery.
const PACE_MAX: u64 = 1_000 * ONE;
/// Calls with less work take as long as the round trip, which does not measure the server's queue.
const MEASURED_FROM_US: u64 = 1_000;
/// A second of work, several times the longest wait of a caller, and some ten megabytes of decisions.
const GIVEN_MAX_US: u64 = 1_000_000;
