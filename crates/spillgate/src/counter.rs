//! One counter of a decision: what a store is asked about it, and what the store answers.

use std::cmp::Reverse;

use crate::algorithm::{Charge, GiveBack, Numbers, Reading};
use crate::limit::NamedLimit;
use crate::subject::SubjectKey;

/// One tier of a decision, and what it is to be charged.
#[derive(Clone, Copy, Debug)]
pub struct AskTier<'a> {
    /// Whose state.
    pub key: SubjectKey,
    /// Under which name.
    pub limit: &'a NamedLimit,
    /// With which numbers.
    pub numbers: &'a Numbers,
    /// At most the capacity; 0 peeks.
    pub cost: u64,
    /// 0 is enforced; each other number is a shadow rule.
    pub group: u16,
    /// How many attributes its subject goes by: the fewer, the more requests share it.
    pub attributes: u8,
    /// What was admitted while the store was out of reach and is charged now by force, before
    /// anything else. In memory nothing is ever owed.
    pub owed: u64,
}

impl<'a> AskTier<'a> {
    /// A tier by itself, of which nothing is asked.
    pub(crate) fn of(key: SubjectKey, limit: &'a NamedLimit, numbers: &'a Numbers) -> AskTier<'a> {
        AskTier { key, limit, numbers, cost: 0, group: 0, attributes: 0, owed: 0 }
    }

    /// Returns the number that names the counter among all: two keyed hashes joined, so that no caller can aim two
    /// counters at one name.
    #[inline]
    pub(crate) fn name(&self) -> u128 {
        self.key.id ^ self.limit.mix()
    }
}

/// What became of one tier.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ToldTier {
    /// Whether the cost had room.
    pub fits: bool,
    /// The numbers for people.
    pub reading: Reading,
    /// The receipt's part.
    pub charge: Option<Charge>,
}

impl ToldTier {
    /// What is kept in two places holds by the one that is tighter: by its refusal, its wait, its rest.
    pub(crate) fn tightness(&self) -> (bool, u64, Reverse<u64>) {
        // An unknown wait is the longest.
        let wait_us = self.reading.retry_after_us.unwrap_or(u64::MAX);
        (!self.fits, wait_us, Reverse(self.reading.remaining))
    }
}

/// Something done to one tier that is no decision.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// Charge so much, room or not.
    Force(u64),
    /// Give back.
    GiveBack(GiveBack),
}

/// Leaves a tier as it was charged when a reservation ends.
#[cfg(feature = "redis")]
pub const AS_CHARGED: u64 = 1 << 41;
/// As many tiers as most decisions over several have: they are decided without allocating.
pub(crate) const TIERS_INLINE: usize = 4;
