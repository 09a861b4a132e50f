//! While a ring changes, a subject that moves has two owners, and each of its tiers is judged and
//! charged at both, all or none: as tiers of their own, until the answer is made of both.

use smallvec::SmallVec;

use super::super::Redis;
use super::super::topology::Place;
use super::{Heard, Heards};
use crate::engine::{Ask, ToldTier};

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

    /// Whether something heard is of an old owner.
    pub(super) fn is_old(&self, heard: usize) -> bool {
        heard >= self.tiers
    }

    /// What was heard of each tier.
    pub(super) fn joined(&self, mut heard: Heards) -> Heards {
        for (copy, (tier, _)) in self.copies.iter().enumerate() {
            heard[*tier] = of_both(heard[*tier], heard[self.tiers + copy]);
        }
        heard.truncate(self.tiers);
        heard
    }
}

/// What counts of what two owners say: the refusal, the longer wait, the smaller rest. An old owner
/// that was given up says nothing.
fn of_both(new: Heard, old: Heard) -> Heard {
    match (new, old) {
        // What a cache refused was asked of nobody.
        (Heard::Refused { .. }, _) | (_, Heard::Refused { .. }) => new,
        (_, Heard::Nobody | Heard::OutagePolicy { .. }) => new,
        (Heard::Nobody, _) => old,
        (Heard::OutagePolicy { passes }, _) => {
            if passes && refuses(old) {
                old
            } else {
                new
            }
        }
        (
            Heard::Store(one) | Heard::Fallback(one),
            Heard::Store(other) | Heard::Fallback(other),
        ) => {
            if tightness(&other) > tightness(&one) {
                old
            } else {
                new
            }
        }
    }
}

fn refuses(heard: Heard) -> bool {
    matches!(heard, Heard::Store(tier) | Heard::Fallback(tier) if !tier.fits)
}

fn tightness(tier: &ToldTier) -> (bool, u64, std::cmp::Reverse<u64>) {
    // A wait that nobody knows is the longest.
    let wait_us = tier.reading.retry_after_us.unwrap_or(u64::MAX);
    (!tier.fits, wait_us, std::cmp::Reverse(tier.reading.remaining))
}
