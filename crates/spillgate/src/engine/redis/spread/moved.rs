//! While a ring changes, a subject that moves has two owners, and each of its tiers is judged and
//! charged at both, all or none: as tiers of their own, until the answer is made of both.

use smallvec::SmallVec;

use super::super::Redis;
use super::super::topology::Place;
use super::{Heard, Heards};
use crate::engine::Ask;

/// The tiers of one decision that have an old owner beside the new one. What is heard of them stands
/// behind what is heard of all tiers, in this order.
pub(super) struct Moved {
    /// How many tiers the decision has.
    tiers: usize,
    /// The tier by its place in the decision, and where its subject lived.
    copies: SmallVec<[(usize, Place); 2]>,
}

impl Moved {
    pub(super) fn of(redis: &Redis, ask: &Ask<'_>) -> Moved {
        let old = ask.tiers.iter().map(|tier| redis.topology.old_place(tier)).enumerate();
        let copies = old.filter_map(|(number, old)| Some((number, old?))).collect();
        Moved { tiers: ask.tiers.len(), copies }
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

    /// Whether the old owner of a tier has spoken.
    pub(super) fn is_known(&self, number: usize, heard: &Heards) -> bool {
        self.old(number).is_some_and(|(_, copy)| matches!(heard[copy], Heard::Store(_)))
    }

    /// Whether something heard is of an old owner.
    pub(super) fn is_old(&self, heard: usize) -> bool {
        heard >= self.tiers
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
