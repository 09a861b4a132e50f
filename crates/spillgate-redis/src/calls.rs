//! What a call carries: the program of a transaction, the scripts that run it, and their keys.
//!
//! Nothing here sends anything.

pub mod guard;
pub mod keys;
pub mod nonces;
pub mod program;
pub mod script;
