//! What the suites share: the vocabulary of operations, and everything that can be asked.

pub(crate) mod given;
pub(crate) mod limits;
pub mod random;
pub mod script;
pub mod storm;
pub mod target;
pub mod world;
