//! Nonces: names for the incarnations and permits that begin in a call of the script.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::jitter;

/// The nonces of one instance.
#[derive(Debug)]
pub struct Nonces(AtomicU64);

impl Nonces {
    /// Starts at a random number.
    pub fn begin() -> Nonces {
        Nonces(AtomicU64::new(jitter::random()))
    }

    /// Returns a number below 2^48, never 0, and practically unique within the instance.
    ///
    /// An odd multiplier scatters a counter over all values.
    pub fn next(&self) -> u64 {
        let count = self.0.fetch_add(1, Ordering::Relaxed);
        (count.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 16).max(1)
    }
}
