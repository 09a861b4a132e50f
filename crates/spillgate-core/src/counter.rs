//! One counter of a decision: what a store is asked about it, and what the store answers.

use std::borrow::Borrow;
use std::cmp::Reverse;

use crate::algorithm::{Charge, LimitParams, Reading, Refund, StepCounter};
use crate::limit::NamedLimit;
use crate::subject::SubjectKey;

/// One counter of a decision, and its charge. `L` is how it holds its limit: by reference in memory, where a decision
/// ends before its caller goes on, and by value on a store, where a charge outlives its caller.
#[derive(Clone, Copy, Debug)]
pub struct PlannedCharge<L = NamedLimit> {
    /// The subject.
    pub key: SubjectKey,
    /// A limit that keeps state.
    pub limit: L,
    /// At most the capacity; 0 peeks.
    pub cost: u64,
    /// An earlier admission of this instance that the store does not know of. It is charged by force, before anything
    /// else; in memory it is always 0.
    pub deferred: u64,
    /// 0 is enforced; each other number is a shadow rule.
    pub group: u16,
    /// The index of the counter in the decision.
    pub index: u16,
    /// The number of attributes of the subject: the fewer, the more requests share it.
    pub attributes: u8,
}

/// How a plan holds its limits.
pub trait LimitHandle: Borrow<NamedLimit> + Clone {
    /// As many charges as need no memory of their own. A plan on a store has room for one, since it is moved more
    /// often than it is made; one in memory for as many as most decisions over several counters have.
    type Inline: smallvec::Array<Item = PlannedCharge<Self>>;
}

impl LimitHandle for &NamedLimit {
    type Inline = [PlannedCharge<Self>; COUNTERS_INLINE];
}

impl LimitHandle for NamedLimit {
    type Inline = [PlannedCharge<Self>; 1];
}

impl<L: Borrow<NamedLimit>> PlannedCharge<L> {
    /// Returns a counter with a charge of 0.
    pub fn new(key: SubjectKey, limit: L) -> PlannedCharge<L> {
        PlannedCharge { key, limit, cost: 0, deferred: 0, group: 0, index: 0, attributes: 0 }
    }

    /// Returns the limit.
    #[inline]
    pub fn limit(&self) -> &NamedLimit {
        self.limit.borrow()
    }

    /// Returns the parameters of the limit.
    #[inline]
    pub fn params(&self) -> &LimitParams {
        self.limit().params().expect("a limit without state is never asked for")
    }

    /// Returns the number that names the counter among all: two keyed hashes joined, so that no caller can aim two
    /// counters at one name.
    #[inline]
    pub fn name(&self) -> u128 {
        self.key.id ^ self.limit().mix()
    }

    /// Returns the charge with a limit of its own.
    pub fn to_owned(&self) -> PlannedCharge {
        self.under(self.limit().clone())
    }

    /// Returns the charge under another limit.
    pub fn under<M>(&self, limit: M) -> PlannedCharge<M> {
        let PlannedCharge { key, cost, deferred, group, index, attributes, .. } = *self;
        PlannedCharge { key, limit, cost, deferred, group, index, attributes }
    }
}

/// What became of one counter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChargeReply {
    /// Whether the cost had room.
    pub fits: bool,
    /// The numbers for people.
    pub reading: Reading,
    /// The receipt's part.
    pub charge: Option<Charge>,
}

impl ChargeReply {
    /// Returns the reply of a store that has stepped the counter.
    pub fn from_step(counter: &StepCounter<'_>) -> ChargeReply {
        ChargeReply { fits: counter.fits, reading: counter.reading, charge: counter.charge }
    }

    /// What is kept in two places holds by the one that is tighter: by its refusal, its wait, its rest.
    pub fn tightness(&self) -> (bool, u64, Reverse<u64>) {
        // An unknown wait is the longest.
        let wait_us = self.reading.retry_after_us.unwrap_or(u64::MAX);
        (!self.fits, wait_us, Reverse(self.reading.remaining))
    }
}

/// Something done to one counter that is no decision.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// Charge so much, room or not.
    Force(u64),
    /// Refund.
    Refund(Refund),
}

/// Leaves a counter as it was charged when a reservation ends.
pub const AS_CHARGED: u64 = 1 << 41;
/// As many counters as most decisions over several have: they are decided without allocating.
pub const COUNTERS_INLINE: usize = 4;
