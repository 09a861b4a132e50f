//! Leases: tokens of a counter that an instance takes from the store ahead of use.
//!
//! A [`Holder`] has the leases of one instance on one counter. The ledger of `lease.lua` has all
//! leases on it. `tests/it/leases/model.rs` tries every short history of holders and a ledger in
//! Rust, which other tests compare with the one in Redis. [`Leases`] holds the leases of this
//! instance on all counters and decides how much to take. It sends nothing:
//! `redis_store/leasing.rs` does.
//!
//! Invariants: tokens are charged before they are granted. They are spent or returned, once, never
//! both. All instances together hold at most the rule's lease share of a counter. So a crash loses
//! tokens, and admissions exceed the limit's bound by at most that share.

mod demand;
mod holder;
mod table;

pub use crate::calls::program::lease::{ALL, Close, Exchange, Granted};
pub use holder::Holder;
use holder::Taken;
pub use table::{Leases, Spent, leased_by};
