//! Remembers denials of the store while they are sure to hold, and answers repeated requests
//! without a call. Admissions are never remembered, since each must be charged.
//!
//! A denial holds for its counter under the same parameters, for costs at least as large, until its
//! wait is over. That wait counts from before the call was sent. Admissions by other instances only
//! prolong it. A refund or reset elsewhere goes unnoticed, so no denial is used for longer than 1
//! second. The `retry_after` of later answers counts from when the reply came, so that a caller
//! that waits for it has room.

use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;

use super::engine::Redis;
use crate::algorithm::{Intent, LimitParams};
use crate::counter::{ChargeReply, PlannedCharge};
use crate::plan::{ChargeOutcome, ChargeOutcomes, Plan, Transaction};
use crate::time::monotonic_us;

#[cfg(test)]
mod model;

/// A table of fixed size. Each denial has one slot by its counter's hash, and a newer one replaces
/// it. Boxed, so that the slots stay in the processor's cache: most lookups find an empty one.
#[derive(Debug)]
pub struct DenialCache {
    slots: Box<[Mutex<Option<Box<CachedDenial>>>]>,
    /// The number of times that all denials were dropped.
    ended: AtomicU64,
    /// No denial holds after this time.
    latest_us: AtomicU64,
    hits: AtomicU64,
    misses: AtomicU64,
}

/// A denial by the store of one counter.
#[derive(Clone, Debug)]
struct CachedDenial {
    counter: u128,
    params: LimitParams,
    cost: u64,
    /// The time, by our monotonic clock, at which this cost surely has room if nothing else is
    /// charged until then.
    room_at_us: u64,
    /// The time, by our monotonic clock, at which the counter is full again under the same
    /// condition.
    reset_at_us: u64,
    /// The time until which the denial may be used. It is at most `room_at_us`.
    ends_us: u64,
    /// The era in which the call was sent. In a later era the denial is void.
    era: u64,
}

/// The time at which a decision began, and the era at that time.
#[derive(Clone, Copy, Debug)]
pub struct Sent {
    at_us: u64,
    era: u64,
}

impl DenialCache {
    /// Makes a cache that remembers denials, or one that does not.
    pub fn new(remembers: bool) -> DenialCache {
        let slots = if remembers { SLOTS } else { 0 };
        DenialCache {
            slots: (0..slots).map(|_| Mutex::default()).collect(),
            ended: AtomicU64::new(0),
            latest_us: AtomicU64::new(0),
            hits: AtomicU64::new(0),
            misses: AtomicU64::new(0),
        }
    }

    /// Notes the time and era before a decision is sent to the store.
    pub fn begin(&self, redis: &Redis) -> Sent {
        let era = self.ended.load(Ordering::Acquire) + redis.state_losses();
        Sent { at_us: monotonic_us(), era }
    }

    /// Denies a plan if a remembered denial applies to it, and counts the lookup. Returns whether it did.
    pub fn refuses(&self, redis: &Redis, plan: &mut Plan, sent: Sent) -> bool {
        if !self.is_for(redis, &plan.transaction) {
            return false;
        }
        let refused = self.deny(plan, sent);
        let counter = if refused { &self.hits } else { &self.misses };
        counter.fetch_add(1, Ordering::Relaxed);
        refused
    }

    /// Denies a plan as [`DenialCache::refuses`] does, without counting the lookup.
    pub fn would_refuse(&self, redis: &Redis, plan: &mut Plan, sent: Sent) -> bool {
        self.is_for(redis, &plan.transaction) && self.deny(plan, sent)
    }

    /// Passes remembered denials to their counters, and returns whether there was one. One denied
    /// counter denies the whole decision. The others are not evaluated.
    fn deny(&self, plan: &mut Plan, sent: Sent) -> bool {
        // Mostly no denial is remembered, or none is still in use.
        if sent.at_us >= self.latest_us.load(Ordering::Relaxed) {
            return false;
        }
        let charges = plan.transaction.charges.iter();
        let outcomes: ChargeOutcomes = charges.map(|one| self.outcome_of(one, sent)).collect();
        plan.take(&outcomes);
        outcomes.iter().any(|outcome| matches!(outcome, ChargeOutcome::Remembered { .. }))
    }

    /// Remembers the counters that the store denied.
    pub fn note(
        &self,
        redis: &Redis,
        transaction: &Transaction,
        outcomes: &[ChargeOutcome],
        sent: Sent,
    ) {
        let refused = |(counter, outcome): (&PlannedCharge, &ChargeOutcome)| match outcome {
            ChargeOutcome::Store(reply)
                // Only enforced charges count, and only algorithms where nothing but time makes
                // room.
                if !reply.fits && counter.group == 0 && is_steadfast(counter) =>
            {
                CachedDenial::from_reply(counter, reply, sent, monotonic_us())
            }
            _ => None,
        };
        let mut refused = transaction.charges.iter().zip(outcomes).filter_map(refused).peekable();
        if refused.peek().is_some() && self.is_for(redis, transaction) {
            refused.for_each(|denial| self.remember(denial));
        }
    }

    fn remember(&self, denial: CachedDenial) {
        self.latest_us.fetch_max(denial.ends_us, Ordering::Relaxed);
        let mut slot = self.slot(denial.counter).lock();
        *slot = Some(Box::new(denial));
    }

    /// Drops all denials, because quota was refunded, reset or raised.
    pub fn end(&self) {
        self.ended.fetch_add(1, Ordering::Release);
    }

    /// Returns how many decisions were denied here, and how many went on to the store.
    pub fn lookups(&self) -> [(&'static str, u64); 2] {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        [("hit", read(&self.hits)), ("miss", read(&self.misses))]
    }

    /// Returns whether the cache may answer a transaction. A peek must show the stored state. In a
    /// decision over several locations, provisional charges that are refunded later can deny a
    /// counter for a moment.
    fn is_for(&self, redis: &Redis, transaction: &Transaction) -> bool {
        !self.slots.is_empty()
            && transaction.intent != Intent::Peek
            && transaction.charges.iter().any(|counter| counter.cost > 0)
            && redis.only_location(transaction).is_some()
    }

    fn outcome_of(&self, counter: &PlannedCharge, sent: Sent) -> ChargeOutcome {
        // A shadow rule never denies.
        if counter.group > 0 || !is_steadfast(counter) {
            return ChargeOutcome::NotAsked;
        }
        let slot = self.slot(counter.name()).lock();
        match &*slot {
            Some(denial) if denial.holds(counter, sent) => denial.outcome(counter.cost, sent),
            _ => ChargeOutcome::NotAsked,
        }
    }

    fn slot(&self, counter: u128) -> &Mutex<Option<Box<CachedDenial>>> {
        &self.slots[counter as usize % self.slots.len()]
    }
}

impl CachedDenial {
    /// Returns `None` if the wait is unknown.
    fn from_reply(
        counter: &PlannedCharge,
        reply: &ChargeReply,
        sent: Sent,
        received_us: u64,
    ) -> Option<CachedDenial> {
        let wait_us = reply.reading.retry_after_us?;
        Some(CachedDenial {
            counter: counter.name(),
            params: *counter.params(),
            cost: counter.cost.max(1),
            // Counted from the reply, so that a caller that waits this long surely finds room.
            room_at_us: received_us.saturating_add(wait_us),
            reset_at_us: received_us.saturating_add(reply.reading.reset_after_us),
            // Counted from before the call was sent: the store may have decided at any time since
            // then.
            ends_us: sent.at_us.saturating_add(wait_us.min(BELIEVED_US)),
            era: sent.era,
        })
    }

    fn holds(&self, counter: &PlannedCharge, sent: Sent) -> bool {
        self.counter == counter.name()
            && self.cost <= counter.cost.max(1)
            && sent.at_us < self.ends_us
            && self.era == sent.era
            && self.params == *counter.params()
    }

    /// Returns the numbers that are still known. A larger cost waits longer than the remembered
    /// one, by an unknown time. If even a cost of 1 was denied, nothing has been admitted since.
    /// Otherwise smaller costs may have been.
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

/// Returns whether only time makes room again. A permit may be released at any time.
fn is_steadfast(counter: &PlannedCharge) -> bool {
    !counter.limit.algorithm().counts_permits()
}

/// More subjects than one instance denies repeatedly within a second. The slots take 256 KB, and as
/// many denials about 2 MB more.
const SLOTS: usize = 1 << 14;
/// The longest time that a refund elsewhere goes unnoticed.
const BELIEVED_US: u64 = 1_000_000;
