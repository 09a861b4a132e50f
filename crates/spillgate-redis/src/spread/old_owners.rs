//! Lists the counters that have two owners while a ring changes.
//!
//! A subject that moves has an old and a new owner until its old state no longer counts. Each of its counters
//! is charged at both owners, all or none. Internally the two are separate counters with separate outcomes;
//! `OldOwners::joined` merges them into one outcome at the end.

use std::time::Duration;

use parking_lot::Mutex;
use smallvec::{SmallVec, smallvec};

use super::super::Redis;
use super::super::topology::Location;
use super::{ChargeOutcome, ChargeOutcomes};
use crate::algorithm::Intent;
use crate::counter::PlannedCharge;
use crate::limit::Algorithm;
use crate::plan::{RecordAction, Transaction};

/// The counters of one transaction that also have an old owner.
///
/// Outcomes are kept in one list: first one for each counter of the transaction, then one for each copy at an
/// old owner, in the order of `copies`.
pub(super) struct OldOwners {
    /// The number of counters in the transaction.
    counters: usize,
    /// The index of the counter in the transaction, and the location of its old owner.
    copies: SmallVec<[(usize, Location); 2]>,
    /// Indices of counters that may have been charged by an old owner that did not reply.
    in_doubt: Mutex<SmallVec<[usize; 2]>>,
}

impl OldOwners {
    pub(super) fn of(redis: &Redis, transaction: &Transaction) -> OldOwners {
        let old = transaction
            .charges
            .iter()
            .map(|counter| redis.topology.old_location(counter))
            .enumerate();
        let copies = old.filter_map(|(number, old)| Some((number, old?))).collect();
        OldOwners { counters: transaction.charges.len(), copies, in_doubt: Mutex::default() }
    }

    /// Returns the number of outcomes: counters and copies.
    pub(super) fn count(&self) -> usize {
        self.counters + self.copies.len()
    }

    /// Returns the location of a counter's old owner, and the index of the outcome there.
    pub(super) fn old(&self, number: usize) -> Option<(Location, usize)> {
        let copy = self.copies.iter().position(|(counter, _)| *counter == number)?;
        Some((self.copies[copy].1, self.counters + copy))
    }

    /// Returns the index of the counter that an outcome belongs to.
    pub(super) fn counter_of(&self, number: usize) -> usize {
        if number < self.counters { number } else { self.copies[number - self.counters].0 }
    }

    /// Returns whether no counter has an old owner.
    pub(super) fn is_none(&self) -> bool {
        self.copies.is_empty()
    }

    /// Records that the old owner of a counter may have charged it without a reply.
    pub(super) fn note_doubt(&self, number: usize) {
        self.in_doubt.lock().push(number);
    }

    /// Returns whether the other owner of an outcome's counter counts the charge, or may: it has replied, may have
    /// charged without a reply, or is still to be called.
    pub(super) fn is_known_elsewhere(&self, number: usize, outcomes: &ChargeOutcomes) -> bool {
        let counter = self.counter_of(number);
        let other = match self.is_old(number) {
            true => Some(counter),
            false => self.old(number).map(|(_, copy)| copy),
        };
        let counts = |other: usize| {
            matches!(outcomes[other], ChargeOutcome::Store(_) | ChargeOutcome::NotAsked)
        };
        other.is_some_and(counts) || self.in_doubt.lock().contains(&counter)
    }

    /// Returns whether an outcome belongs to an old owner.
    pub(super) fn is_old(&self, number: usize) -> bool {
        number >= self.counters
    }

    /// Charges the new owner with use that only the old owner knows of.
    ///
    /// A token bucket in constant use never becomes full, so its old use always counts. Without this, the new
    /// owner would admit it a second time when the old owner is no longer called.
    ///
    /// It charges only a difference of more than half of the new owner's remaining quota. Several instances
    /// may see and charge the same difference at once; then only the first charge finds room.
    pub(super) fn level(
        &self,
        redis: &Redis,
        transaction: &Transaction,
        outcomes: &ChargeOutcomes,
    ) {
        for (copy, (number, _)) in self.copies.iter().enumerate() {
            let (counter, both) = (
                &transaction.charges[*number],
                (outcomes[*number], outcomes[self.counters + copy]),
            );
            let (ChargeOutcome::Store(new), ChargeOutcome::Store(old)) = both else { continue };
            // The new owner has `left` free and the old one less: the difference was charged before the ring changed.
            let left = new.reading.remaining;
            let missing = left.saturating_sub(old.reading.remaining);
            let charges = transaction.intent != Intent::Peek && counter.cost > 0;
            let wait_us = u128::from(counter.params().longest_wait_us());
            if charges
                && missing > left / 2
                && counter.limit.limit().algorithm() == Algorithm::TokenBucket
                && wait_us <= LEVELLED.as_micros()
            {
                charge_once(redis, counter, missing);
            }
        }
    }

    /// Merges the outcomes of both owners, and returns one outcome for each counter.
    pub(super) fn joined(&self, mut outcomes: ChargeOutcomes) -> ChargeOutcomes {
        for (copy, (counter, _)) in self.copies.iter().enumerate() {
            outcomes[*counter] = outcomes[*counter].and(outcomes[self.counters + copy]);
        }
        outcomes.truncate(self.counters);
        outcomes
    }
}

/// Charges a counter in the background. If the charge fails or finds no room, a later decision tries again.
fn charge_once(redis: &Redis, counter: &PlannedCharge, cost: u64) {
    let Ok(runtime) = tokio::runtime::Handle::try_current() else { return };
    let redis = redis.clone();
    let counter = PlannedCharge { cost, ..PlannedCharge::new(counter.key, counter.limit.clone()) };
    runtime.spawn(async move {
        let location = redis.topology.location(counter.key.tag);
        let transaction = Transaction {
            intent: Intent::Charge,
            record: RecordAction::None,
            charges: smallvec![counter],
        };
        let _ = redis.decide_one_at(location, &transaction, redis.deadline()).await;
    });
}

/// Buckets that take longer to refill are not levelled. Their old owner is called for days, and a unit
/// charged by mistake would be missing for as long.
const LEVELLED: Duration = Duration::from_secs(86_400);
