//! Helpers of both test binaries.

#[allow(dead_code, reason = "not all of it is used by both")]
#[path = "../it/support/limits.rs"]
pub(crate) mod limits;
#[allow(dead_code, reason = "not all of it is used by both")]
#[path = "../it/support/random.rs"]
pub(crate) mod random;
