//! Helpers that the suites share: operations on counters, and the targets that perform them.

pub(crate) mod clock;
pub(crate) mod engine;
pub(crate) mod given;
pub(crate) mod limits;
pub mod random;
pub mod script;
pub mod step;
pub mod storm;
pub mod target;
pub mod world;
