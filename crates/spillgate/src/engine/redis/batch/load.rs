//! How much work a shard has been given, and how long a newcomer would wait for it: what is refused is refused before it
//! is sent.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::time::Instant;

use crate::engine::{PlannedCharge, Transaction};
use crate::limit::Algorithm;

/// The work that a shard has been given and has not answered, by the time that it takes the shard.
#[derive(Debug)]
pub(in super::super) struct Load {
    given_us: AtomicU64,
    /// Of that, what is in calls under way.
    sent_us: AtomicU64,
    /// How long a microsecond of work takes here and now, in thousandths: other processes give the shard work too, and
    /// decisions that are alike take it less.
    pace: AtomicU64,
}

/// Work that a shard has been given. Dropped, it is done or given up.
#[derive(Debug)]
pub(in super::super) struct Given {
    load: Arc<Load>,
    weight_us: u64,
}

/// Work in a call under way.
pub(in super::super) struct Sent {
    load: Arc<Load>,
    weight_us: u64,
    /// All work under way when this was sent, this included.
    under_way_us: u64,
    at: Instant,
}

impl Load {
    pub(super) fn new() -> Arc<Load> {
        let (given_us, sent_us) = (AtomicU64::new(0), AtomicU64::new(0));
        Arc::new(Load { given_us, sent_us, pace: AtomicU64::new(ONE) })
    }

    /// Takes work on for a caller that waits for `patience`; nothing where it would not be done in time, or is too much.
    pub(super) fn take_on(self: &Arc<Load>, weight_us: u64, patience: Duration) -> Option<Given> {
        let before_us = self.given_us.fetch_add(weight_us, Ordering::Relaxed);
        let given = Given { load: Arc::clone(self), weight_us };
        let pace = self.pace.load(Ordering::Relaxed);
        let wait_us = u128::from(before_us) * u128::from(pace) / u128::from(ONE);
        (before_us <= GIVEN_MAX_US && wait_us <= patience.as_micros()).then_some(given)
    }

    /// Takes note that a call with work of this weight goes out.
    pub(super) fn send(self: &Arc<Load>, weight_us: u64) -> Sent {
        let under_way_us = weight_us + self.sent_us.fetch_add(weight_us, Ordering::Relaxed);
        Sent { load: Arc::clone(self), weight_us, under_way_us, at: Instant::now() }
    }
}

impl Given {
    pub(super) fn weight_us(&self) -> u64 {
        self.weight_us
    }
}

impl Drop for Given {
    fn drop(&mut self) {
        self.load.given_us.fetch_sub(self.weight_us, Ordering::Relaxed);
    }
}

/// The call has ended: how long the work under way took is how long such work takes.
impl Drop for Sent {
    fn drop(&mut self) {
        let Load { sent_us, pace, .. } = &*self.load;
        sent_us.fetch_sub(self.weight_us, Ordering::Relaxed);
        let before = pace.load(Ordering::Relaxed);
        let measured = if self.under_way_us >= MEASURED_FROM_US {
            let taken_us = u64::try_from(self.at.elapsed().as_micros()).unwrap_or(u64::MAX);
            (taken_us.saturating_mul(ONE) / self.under_way_us).clamp(1, PACE_MAX)
        } else {
            // Where little is under way nothing is slow.
            before.min(ONE)
        };
        // Two at once may lose one measurement: the next is as good.
        pace.store((7 * before + measured).div_ceil(8), Ordering::Relaxed);
    }
}

/// How long decisions hold a shard, each by itself.
pub(in super::super) fn weight_of(transactions: &[Transaction]) -> u64 {
    transactions.iter().map(|transaction| weight_of_counters(transaction.counters.iter())).sum()
}

/// How long one decision over these counters holds a shard, in microseconds.
pub(in super::super) fn weight_of_counters<'a>(
    counters: impl Iterator<Item = &'a PlannedCharge>,
) -> u64 {
    DECISION_US + counters.map(weight_of_counter).sum::<u64>()
}

/// As measured on a server of version 8, and doubled for slower ones: a charge in a call of many, its share of reading and
/// writing included. `no_call_of_a_large_batch_holds_the_store_for_long` prints the figures.
fn weight_of_counter(counter: &PlannedCharge) -> u64 {
    match counter.limit.algorithm() {
        Algorithm::TokenBucket => 3,
        Algorithm::FixedWindow => 5,
        Algorithm::SlidingWindow => 5,
        Algorithm::SlidingLog => 30,
        Algorithm::Concurrency => 30,
    }
}

/// How long one decision more holds a shard that decides an equal one anyway, in microseconds: a log has one entry more,
/// anything else only a larger number.
pub(in super::super) fn weight_of_one_more<'a>(
    counters: impl Iterator<Item = &'a PlannedCharge>,
) -> u64 {
    ENTRY_US
        * counters.filter(|counter| counter.limit.algorithm() == Algorithm::SlidingLog).count()
            as u64
}

/// Writing one more entry of a log.
const ENTRY_US: u64 = 2;
/// Reading a decision and writing its answer.
const DECISION_US: u64 = 2;
/// The pace of a server as fast as the one that was measured.
const ONE: u64 = 1_000;
/// A thousand times as slow: beyond that nothing is known, and a recovery has to be noticed soon.
const PACE_MAX: u64 = 1_000 * ONE;
/// Below that a call takes as long as its way there and back, which says nothing of a queue.
const MEASURED_FROM_US: u64 = 1_000;
/// A second of work, several times as long as anybody waits: some ten megabytes of decisions.
const GIVEN_MAX_US: u64 = 1_000_000;
