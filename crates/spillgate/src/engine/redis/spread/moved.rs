//! While a ring changes, a subject that moves has two owners, and each of its tiers is judged and
//! charged at both, all or none: as tiers of their own, until the answer is made of both.

use std::time::Duration;

use parking_lot::Mutex;
use smallvec::{SmallVec, smallvec};

use super::super::Redis;
use super::super::topology::Place;
use super::{Heard, Heards};
use crate::algorithm::Intent;
use crate::engine::{Ask, AskTier, AtRecord};
use crate::limit::Algorithm;

/// The tiers of one decision that have an old owner beside the new one. What is heard of them stands
/// behind what is heard of all tiers, in this order.
pub(super) struct Moved {
    /// How many tiers the decision has.
    tiers: usize,
    /// The tier by its place in the decision, and where its subject lived.
    copies: SmallVec<[(usize, Place); 2]>,
    /// Those of them whose old owner gave no answer, and may have been charged.
    in_doubt: Mutex<SmallVec<[usize; 2]>>,
}

impl Moved {
    pub(super) fn of(redis: &Redis, ask: &Ask) -> Moved {
        let old = ask.tiers.iter().map(|tier| redis.topology.old_place(tier)).enumerate();
        let copies = old.filter_map(|(number, old)| Some((number, old?))).collect();
        Moved { tiers: ask.tiers.len(), copies, in_doubt: Mutex::default() }
    }

    /// How much there is to hear of.
    pub(super) fn heards(&self) -> usize {
        self.tiers + self.copies.len()
    }

    /// The old owner of a tier, and where what it says stands.
    pub(super) fn old(&self, number: usize) -> Option<(Place, usize)> {
        let copy = self.copies.iter().position(|(tier, _)| *tier == number)?;
        Some((self.copies[copy].1, self.tiers + copy))
    }

    /// The tier that something heard is of, by its place in the decision.
    pub(super) fn tier_of(&self, heard: usize) -> usize {
        if heard < self.tiers { heard } else { self.copies[heard - self.tiers].0 }
    }

    /// Whether no subject has two owners.
    pub(super) fn is_none(&self) -> bool {
        self.copies.is_empty()
    }

    /// Takes note that an old owner may have executed what it did not answer.
    pub(super) fn note_doubt(&self, number: usize) {
        self.in_doubt.lock().push(number);
    }

    /// Whether the old owner of a tier has spoken, or may have been charged unheard.
    pub(super) fn is_known(&self, number: usize, heard: &Heards) -> bool {
        let spoke =
            self.old(number).is_some_and(|(_, copy)| matches!(heard[copy], Heard::Store(_)));
        spoke || self.in_doubt.lock().contains(&number)
    }

    /// Whether something heard is of an old owner.
    pub(super) fn is_old(&self, heard: usize) -> bool {
        heard >= self.tiers
    }

    /// Charges to new owners what only the old ones know of. A bucket in constant use never forgets: its new
    /// owner, alone, would admit once more what was charged before the ring changed.
    ///
    /// Only where that is more than half of what is left there, so that of several who see it at once the
    /// first alone finds room for it.
    pub(super) fn level(&self, redis: &Redis, ask: &Ask, heard: &Heards) {
        for (copy, (number, _)) in self.copies.iter().enumerate() {
            let (tier, both) = (&ask.tiers[*number], (heard[*number], heard[self.tiers + copy]));
            let (Heard::Store(new), Heard::Store(old)) = both else { continue };
            let left = new.reading.remaining;
            let missing = left.saturating_sub(old.reading.remaining);
            let charges = ask.intent != Intent::Peek && tier.cost > 0;
            let wait_us = u128::from(tier.numbers().longest_wait_us());
            if charges
                && missing > left / 2
                && tier.limit.limit().algorithm() == Algorithm::TokenBucket
                && wait_us <= LEVELLED.as_micros()
            {
                charge_once(redis, tier, missing);
            }
        }
    }

    /// What was heard of each tier.
    pub(super) fn joined(&self, mut heard: Heards) -> Heards {
        for (copy, (tier, _)) in self.copies.iter().enumerate() {
            heard[*tier] = heard[*tier].and(heard[self.tiers + copy]);
        }
        heard.truncate(self.tiers);
        heard
    }
}

/// In the background, if there is room; if not, the next decision sees.
fn charge_once(redis: &Redis, tier: &AskTier, cost: u64) {
    let Ok(runtime) = tokio::runtime::Handle::try_current() else { return };
    let redis = redis.clone();
    let tier = AskTier { cost, ..AskTier::new(tier.key, tier.limit.clone()) };
    runtime.spawn(async move {
        let place = redis.topology.place(tier.key.tag);
        let ask = Ask { intent: Intent::Charge, record: AtRecord::None, tiers: smallvec![tier] };
        let _ = redis.decide_one_at(place, &ask, redis.deadline()).await;
    });
}

/// What takes longer to refill has its old owner for days, and a unit too many would be missed for as long.
const LEVELLED: Duration = Duration::from_secs(86_400);
