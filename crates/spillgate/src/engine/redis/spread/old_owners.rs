//! While a ring changes, a subject that moves has two owners, and each of its counters is judged and
//! charged at both, all or none: as counters of their own, until the answer is made of both.

use std::time::Duration;

use parking_lot::Mutex;
use smallvec::{SmallVec, smallvec};

use super::super::Redis;
use super::super::topology::Location;
use super::{ChargeOutcome, ChargeOutcomes};
use crate::algorithm::Intent;
use crate::engine::{PlannedCharge, RecordAction, Transaction};
use crate::limit::Algorithm;

/// The counters of one decision that have an old owner beside the new one. What is heard of them stands
/// behind what is heard of all counters, in this order.
pub(super) struct OldOwners {
    /// How many counters the decision has.
    counters: usize,
    /// The counter by its place in the decision, and where its subject lived.
    copies: SmallVec<[(usize, Location); 2]>,
    /// Those of them whose old owner gave no answer, and may have been charged.
    in_doubt: Mutex<SmallVec<[usize; 2]>>,
}

impl OldOwners {
    pub(super) fn of(redis: &Redis, transaction: &Transaction) -> OldOwners {
        let old = transaction
            .counters
            .iter()
            .map(|counter| redis.topology.old_location(counter))
            .enumerate();
        let copies = old.filter_map(|(number, old)| Some((number, old?))).collect();
        OldOwners { counters: transaction.counters.len(), copies, in_doubt: Mutex::default() }
    }

    /// How much there is to hear of.
    pub(super) fn count(&self) -> usize {
        self.counters + self.copies.len()
    }

    /// The old owner of a counter, and where what it says stands.
    pub(super) fn old(&self, number: usize) -> Option<(Location, usize)> {
        let copy = self.copies.iter().position(|(counter, _)| *counter == number)?;
        Some((self.copies[copy].1, self.counters + copy))
    }

    /// The counter that something heard is of, by its place in the decision.
    pub(super) fn counter_of(&self, number: usize) -> usize {
        if number < self.counters { number } else { self.copies[number - self.counters].0 }
    }

    /// Whether no subject has two owners.
    pub(super) fn is_none(&self) -> bool {
        self.copies.is_empty()
    }

    /// Takes note that an old owner may have executed what it did not answer.
    pub(super) fn note_doubt(&self, number: usize) {
        self.in_doubt.lock().push(number);
    }

    /// Whether the old owner of a counter has spoken, or may have been charged unheard.
    pub(super) fn is_known(&self, number: usize, outcomes: &ChargeOutcomes) -> bool {
        let spoke = self
            .old(number)
            .is_some_and(|(_, copy)| matches!(outcomes[copy], ChargeOutcome::Store(_)));
        spoke || self.in_doubt.lock().contains(&number)
    }

    /// Whether something heard is of an old owner.
    pub(super) fn is_old(&self, number: usize) -> bool {
        number >= self.counters
    }

    /// Charges to new owners what only the old ones know of. A bucket in constant use never forgets: its new
    /// owner, alone, would admit once more what was charged before the ring changed.
    ///
    /// Only where that is more than half of what is left there, so that of several who see it at once the
    /// first alone finds room for it.
    pub(super) fn level(
        &self,
        redis: &Redis,
        transaction: &Transaction,
        outcomes: &ChargeOutcomes,
    ) {
        for (copy, (number, _)) in self.copies.iter().enumerate() {
            let (counter, both) = (
                &transaction.counters[*number],
                (outcomes[*number], outcomes[self.counters + copy]),
            );
            let (ChargeOutcome::Store(new), ChargeOutcome::Store(old)) = both else { continue };
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

    /// What was heard of each counter.
    pub(super) fn joined(&self, mut outcomes: ChargeOutcomes) -> ChargeOutcomes {
        for (copy, (counter, _)) in self.copies.iter().enumerate() {
            outcomes[*counter] = outcomes[*counter].and(outcomes[self.counters + copy]);
        }
        outcomes.truncate(self.counters);
        outcomes
    }
}

/// In the background, if there is room; if not, the next decision sees.
fn charge_once(redis: &Redis, counter: &PlannedCharge, cost: u64) {
    let Ok(runtime) = tokio::runtime::Handle::try_current() else { return };
    let redis = redis.clone();
    let counter = PlannedCharge { cost, ..PlannedCharge::new(counter.key, counter.limit.clone()) };
    runtime.spawn(async move {
        let location = redis.topology.location(counter.key.tag);
        let transaction = Transaction {
            intent: Intent::Charge,
            record: RecordAction::None,
            counters: smallvec![counter],
        };
        let _ = redis.decide_one_at(location, &transaction, redis.deadline()).await;
    });
}

/// What takes longer to refill has its old owner for days, and a unit too many would be missed for as long.
const LEVELLED: Duration = Duration::from_secs(86_400);
