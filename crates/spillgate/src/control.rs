//! What operators set while the limiter runs, as data: entries and how they merge, what each shard's copy
//! holds of them, how they are sealed there, and how an operator sees them.
//!
//! The limiter's `control` module stamps entries, puts them in force and exchanges them with the shards.

use std::hash::{BuildHasher, RandomState};

#[cfg(feature = "redis")]
mod copies;
mod error;
mod listing;
#[cfg(feature = "redis")]
pub(crate) mod sealed;
mod table;

#[cfg(feature = "redis")]
pub(crate) use copies::Copies;
pub use error::ControlError;
pub use listing::{Missed, Override, RuleMode, Written};
#[cfg(all(test, feature = "redis"))]
pub(crate) use sealed::Seal;
#[cfg(all(test, feature = "redis"))]
pub(crate) use table::Stamp;
pub(crate) use table::{Entry, EntryId, Table, id_of};

/// Not to be guessed from the last one, nor drawn twice: the standard library's hash keys are
/// random.
pub(crate) fn random() -> u64 {
    #[cfg(feature = "simulation")]
    if let Some(number) = crate::simulation::random() {
        return number >> 16;
    }
    RandomState::new().hash_one(0) >> 16
}

/// Ten thousand entries of this size are as much as a process should have to read when it starts.
pub(crate) const SUBJECT_BYTES_MAX: usize = 8_192;
