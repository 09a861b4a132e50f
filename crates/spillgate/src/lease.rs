//! Leases: tokens of a counter that a process took ahead, to decide with until they are spent, returned
//! or too old.
//!
//! What a process holds is a [`Holder`]; what the store knows of all of them is a [`Ledger`], of which
//! `lease.lua` is the same in Redis. Both are pure, and every short history of them is tried in `tests/it/leases/model.rs`.
//! [`Leases`] holds what this process has of all counters, and how much of each is worth taking; it sends
//! nothing: `limiter/leasing.rs` does.
//!
//! What must hold: tokens are charged before they are granted, spent or returned once, and never both;
//! and no more than the rule's share of a counter is held at once, over all processes. So a crash loses
//! tokens, and nothing admits more than the limit's bound and that share.

use crate::algorithm::Reading;
use crate::counter::PlannedCharge;

mod demand;
mod holder;
mod ledger;
mod table;

pub use holder::Holder;
use holder::Taken;
pub use ledger::Ledger;
pub(crate) use table::{Candidate, Leases, Spent, Wanted};

/// What a process says to the ledger of a counter: which leases it is done with, and what it would take.
#[derive(Clone, Debug)]
pub struct Exchange<'a> {
    /// Of which counter; its cost means nothing.
    pub counter: PlannedCharge,
    /// Who asks, and how.
    pub asked: Asked<'a>,
}

/// The same without the counter.
#[derive(Clone, Copy, Debug)]
pub struct Asked<'a> {
    /// Who asks: a number that no other process draws.
    pub node: u64,
    /// Which call of that process this is; with `node` it names the lease that is granted.
    pub seq: u32,
    /// What it is done with.
    pub closes: &'a [Close],
    /// The most that all processes may hold together.
    pub share: u64,
    /// How much it could use; 0: nothing.
    pub wanted: u64,
    /// For how long.
    pub ttl_us: u64,
}

/// A lease that its holder is done with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Close {
    /// Which.
    pub seq: u32,
    /// How much of it was not spent; [`ALL`] where nobody knows how much there was.
    pub unused: u64,
}

/// What the ledger answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Granted {
    /// So many tokens, charged already.
    pub amount: u64,
    /// For how long they may be spent, counted from before the call left.
    pub lasts_us: u64,
    /// How the counter stands after it.
    pub reading: Reading,
}

/// More than was ever granted.
pub const ALL: u64 = 1 << 40;
