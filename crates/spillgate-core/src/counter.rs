//! One charge of a decision to one counter, and the store's reply to it.

use std::borrow::Borrow;

use crate::algorithm::{Charge, LimitParams, Reading, Refund};
use crate::limit::NamedLimit;
use crate::subject::SubjectKey;

/// One charge of a decision to one counter. `L` holds the limit: by reference in memory, where a
/// decision ends before its caller goes on, and by value on a store, where a charge outlives its
/// caller.
#[derive(Clone, Copy, Debug)]
pub struct PlannedCharge<L = NamedLimit> {
    /// The subject.
    pub key: SubjectKey,
    /// The limit. It keeps state: it is neither unlimited nor blocked.
    pub limit: L,
    /// The cost in the limit's unit, at most the capacity; 0 only reads.
    pub cost: u64,
    /// An earlier admission of this instance that the store does not know of. It is charged by
    /// force before the cost. In memory it is always 0.
    pub deferred: u64,
    /// The group that is charged all or none: 0 for enforced rules. Each other number is a group
    /// that cannot deny: a shadow rule, a post-paid limit, or a refund.
    pub group: u16,
    /// The index of the counter in the decision.
    pub index: u16,
    /// The number of the subject's key attributes. The fewer it has, the more requests share it.
    pub attributes: u8,
}

/// The way a plan holds its limits: by reference or by value.
pub trait LimitHandle: Borrow<NamedLimit> + Clone {
    /// The list that a plan holds its charges in without allocating. A plan on a store has room for
    /// one, since it is moved more often than it is made. A plan in memory has room for as many as
    /// most decisions have.
    type Inline: smallvec::Array<Item = PlannedCharge<Self>>;
}

impl LimitHandle for &NamedLimit {
    type Inline = [PlannedCharge<Self>; COUNTERS_INLINE];
}

impl LimitHandle for NamedLimit {
    type Inline = [PlannedCharge<Self>; 1];
}

impl<L: Borrow<NamedLimit>> PlannedCharge<L> {
    /// Returns a charge of 0, which only reads the counter.
    pub fn new(key: SubjectKey, limit: L) -> PlannedCharge<L> {
        PlannedCharge { key, limit, cost: 0, deferred: 0, group: 0, index: 0, attributes: 0 }
    }

    /// Returns the limit.
    pub fn limit(&self) -> &NamedLimit {
        self.limit.borrow()
    }

    /// Returns the parameters of the limit.
    pub fn params(&self) -> &LimitParams {
        // Plans send unlimited and blocked limits to no store, so every charge has parameters.
        self.limit().params().expect("a plan has no charge for a limit without state")
    }

    /// Returns the number that names the counter among all: a keyed hash with another joined to it, so that no
    /// caller can aim two counters at one name.
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

/// The store's reply about one counter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChargeReply {
    /// Whether the cost had room.
    pub fits: bool,
    /// The numbers that the answer shows.
    pub reading: Reading,
    /// The details that a receipt keeps of the charge.
    pub charge: Option<Charge>,
}

/// A change to one counter without a decision.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// Charge this amount, whether there is room or not.
    Force(u64),
    /// Refund.
    Refund(Refund),
}

/// Leaves a counter as it was charged when a reservation ends.
pub const AS_CHARGED: u64 = 1 << 41;
/// The number of charges that a plan in memory holds without allocating. Most decisions over
/// several counters need no more.
pub const COUNTERS_INLINE: usize = 4;
