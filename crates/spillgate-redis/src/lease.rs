//! Leases: tokens of a counter that an instance takes from the store ahead of use.
//!
//! A [`Holder`] has the leases of one instance on one counter. The ledger of `lease.lua` has all
//! leases on it. `tests/it/leases/model.rs` tries every short history of holders and a ledger in
//! Rust, which other tests compare with the one in Redis. [`Leases`] holds the leases of this
//! instance on all counters and decides how much to take. It sends nothing: `limiter/leasing.rs`
//! does.
//!
//! Invariants: tokens are charged before they are granted. They are spent or returned, once, never
//! both. All instances together hold at most the rule's lease share of a counter. So a crash loses
//! tokens, and admissions exceed the limit's bound by at most that share.

use smallvec::SmallVec;

use crate::algorithm::Reading;
use crate::counter::PlannedCharge;

mod demand;
mod holder;
mod table;

pub use holder::Holder;
use holder::Taken;
pub use table::{Leases, Spent, leased_by};

/// A call of an instance to the ledger of a counter: the leases it closes, and the tokens it wants.
#[derive(Clone, Debug)]
pub struct Exchange {
    /// The counter. Its cost is ignored.
    pub counter: PlannedCharge,
    /// The instance: a random number that no other instance has.
    pub node: u64,
    /// The number of this call of the instance. With `node` it identifies the lease that is
    /// granted.
    pub seq: u32,
    /// The leases that the instance closes.
    pub closes: SmallVec<[Close; 4]>,
    /// The most tokens that all instances may hold together.
    pub share: u64,
    /// The tokens that the instance could use; 0 for none.
    pub wanted: u64,
    /// The duration of the lease in µs.
    pub ttl_us: u64,
}

/// A lease that its holder closes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Close {
    /// The number of the call that got the lease.
    pub seq: u32,
    /// The tokens of it that were not spent, or [`ALL`] if the holder does not know how many there
    /// were.
    pub unused: u64,
}

/// The ledger's reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Granted {
    /// The tokens granted. They are charged already.
    pub amount: u64,
    /// The time in µs for which they may be spent, from before the call was sent.
    pub lasts_us: u64,
    /// The state of the counter after the call.
    pub reading: Reading,
}

/// Larger than any grant.
pub const ALL: u64 = 1 << 40;
