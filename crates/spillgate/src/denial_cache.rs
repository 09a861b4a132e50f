//! Refusals of the store, remembered for as long as they are sure to hold: whoever asks again is refused
//! here. What was allowed is never remembered, for each admission has to be counted.
//!
//! A refusal holds for its counter, under the same numbers, for costs as large or larger, until the wait that
//! was told with it is over, counted from before the call left. Admissions elsewhere only prolong it; a
//! give-back or a reset elsewhere is not heard of, so nothing is believed for longer than a second. The wait that
//! others are told counts from when the answer came, so that whoever waits for it has room.

use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;

use crate::algorithm::{Intent, LimitParams};
use crate::counter::{ChargeReply, PlannedCharge};
use crate::engine::Redis;
use crate::limit::Algorithm;
use crate::plan::{ChargeOutcome, ChargeOutcomes, Transaction};
use crate::time::monotonic_us;

#[cfg(test)]
mod model;

/// A table of fixed size: each refusal in a place by its counter's hash, where a newer one takes it over.
#[derive(Debug)]
pub(crate) struct DenialCache {
    indices: Box<[Mutex<Option<Refusal>>]>,
    /// How often all that was remembered has ended.
    ended: AtomicU64,
    /// No refusal is believed for longer.
    latest_us: AtomicU64,
    hits: AtomicU64,
    misses: AtomicU64,
}

/// What the store said of one counter.
#[derive(Clone, Debug)]
struct Refusal {
    counter: u128,
    params: LimitParams,
    cost: u64,
    /// By our monotonic clock: when this cost surely has room, if nobody charges the counter until then.
    room_at_us: u64,
    /// The same: when the counter is untouched.
    reset_at_us: u64,
    /// How long it is believed: no longer than that.
    ends_us: u64,
    era: u64,
}

/// When a decision began to be made, and what was forgotten by then.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sent {
    at_us: u64,
    era: u64,
}

impl DenialCache {
    /// One that remembers, or one that does not.
    pub(crate) fn new(remembers: bool) -> DenialCache {
        let indices = if remembers { PLACES } else { 0 };
        DenialCache {
            indices: (0..indices).map(|_| Mutex::default()).collect(),
            ended: AtomicU64::new(0),
            latest_us: AtomicU64::new(0),
            hits: AtomicU64::new(0),
            misses: AtomicU64::new(0),
        }
    }

    /// Before a decision is asked for.
    pub(crate) fn begin(&self, redis: &Redis) -> Sent {
        let era = self.ended.load(Ordering::Acquire) + redis.epoch_changes();
        Sent { at_us: monotonic_us(), era }
    }

    /// What was heard before, if that refuses this decision.
    pub(crate) fn refuses(
        &self,
        redis: &Redis,
        transaction: &Transaction,
        sent: Sent,
    ) -> Option<ChargeOutcomes> {
        if !self.is_for(redis, transaction) {
            return None;
        }
        let refused = self.would_refuse(redis, transaction, sent);
        let counter = if refused.is_some() { &self.hits } else { &self.misses };
        counter.fetch_add(1, Ordering::Relaxed);
        refused
    }

    /// The same for who only wants to know.
    pub(crate) fn would_refuse(
        &self,
        redis: &Redis,
        transaction: &Transaction,
        sent: Sent,
    ) -> Option<ChargeOutcomes> {
        // Mostly no denial is remembered, or none lasts until now.
        if sent.at_us >= self.latest_us.load(Ordering::Relaxed) || !self.is_for(redis, transaction)
        {
            return None;
        }
        let outcomes: ChargeOutcomes =
            transaction.counters.iter().map(|counter| self.outcome_of(counter, sent)).collect();
        outcomes
            .iter()
            .any(|outcome| matches!(outcome, ChargeOutcome::Remembered { .. }))
            .then_some(outcomes)
    }

    /// Remembers what the store refused.
    pub(crate) fn note(
        &self,
        redis: &Redis,
        transaction: &Transaction,
        outcomes: &[ChargeOutcome],
        sent: Sent,
    ) {
        let refused = |(counter, outcome): (&PlannedCharge, &ChargeOutcome)| match outcome {
            ChargeOutcome::Store(reply)
                if !reply.fits && counter.group == 0 && is_steadfast(counter) =>
            {
                let received_us = monotonic_us();
                Refusal::of(
                    counter.name(),
                    counter.params(),
                    counter.cost,
                    reply,
                    sent,
                    received_us,
                )
            }
            _ => None,
        };
        let mut refused = transaction.counters.iter().zip(outcomes).filter_map(refused).peekable();
        if refused.peek().is_some() && self.is_for(redis, transaction) {
            refused.for_each(|refusal| self.remember(refusal));
        }
    }

    fn remember(&self, refusal: Refusal) {
        self.latest_us.fetch_max(refusal.ends_us, Ordering::Relaxed);
        let mut index = self.index(refusal.counter).lock();
        *index = Some(refusal);
    }

    /// All that is remembered ends: somebody has made room.
    pub(crate) fn end(&self) {
        self.ended.fetch_add(1, Ordering::Release);
    }

    /// How many decisions were refused here, and how many went on to the store.
    #[cfg(feature = "metrics")]
    pub(crate) fn lookups(&self) -> [(&'static str, u64); 2] {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        [("hit", read(&self.hits)), ("miss", read(&self.misses))]
    }

    /// A look changes nothing and is asked for to know; and what several places decide is burdened for a
    /// moment by charges that are refunded.
    fn is_for(&self, redis: &Redis, transaction: &Transaction) -> bool {
        !self.indices.is_empty()
            && transaction.intent != Intent::Peek
            && transaction.counters.iter().any(|counter| counter.cost > 0)
            && redis.is_one_location(transaction)
    }

    fn outcome_of(&self, counter: &PlannedCharge, sent: Sent) -> ChargeOutcome {
        if counter.group > 0 || !is_steadfast(counter) {
            return ChargeOutcome::NotAsked;
        }
        let name = counter.name();
        let index = self.index(name).lock();
        match &*index {
            Some(refusal) if refusal.holds(name, counter.params(), counter.cost, sent) => {
                refusal.outcome(counter.cost, sent)
            }
            _ => ChargeOutcome::NotAsked,
        }
    }

    fn index(&self, counter: u128) -> &Mutex<Option<Refusal>> {
        &self.indices[counter as usize % self.indices.len()]
    }
}

impl Refusal {
    /// Nothing where nobody can say when there will be room.
    fn of(
        counter: u128,
        params: &LimitParams,
        cost: u64,
        reply: &ChargeReply,
        sent: Sent,
        received_us: u64,
    ) -> Option<Refusal> {
        let wait_us = reply.reading.retry_after_us?;
        Some(Refusal {
            counter,
            params: params.clone(),
            cost: cost.max(1),
            room_at_us: received_us.saturating_add(wait_us),
            reset_at_us: received_us.saturating_add(reply.reading.reset_after_us),
            ends_us: sent.at_us.saturating_add(wait_us.min(BELIEVED_US)),
            era: sent.era,
        })
    }

    fn holds(&self, name: u128, params: &LimitParams, cost: u64, sent: Sent) -> bool {
        self.counter == name
            && self.cost <= cost.max(1)
            && sent.at_us < self.ends_us
            && self.era == sent.era
            && self.params == *params
    }

    /// What is known of it still. A larger cost waits longer, and nobody has said how long. Where not even
    /// one had room nobody was admitted since; smaller costs than the refused one may have been.
    fn outcome(&self, cost: u64, sent: Sent) -> ChargeOutcome {
        let until = |us: u64| Some(us.saturating_sub(sent.at_us));
        let is_full = self.cost == 1;
        ChargeOutcome::Remembered {
            retry_after_us: until(self.room_at_us).filter(|_| self.cost == cost.max(1)),
            remaining: Some(0).filter(|_| is_full),
            reset_after_us: until(self.reset_at_us).filter(|_| is_full),
        }
    }
}

/// Whether its room comes back with time alone: held slots are released.
fn is_steadfast(counter: &PlannedCharge) -> bool {
    counter.limit.algorithm() != Algorithm::Concurrency
}

/// About 2 MB, and more subjects than are refused more than once within a second by one process.
const PLACES: usize = 1 << 14;
/// Room that is made elsewhere is found after that.
const BELIEVED_US: u64 = 1_000_000;
