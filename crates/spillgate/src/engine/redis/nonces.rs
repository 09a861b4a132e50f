//! Names for what begins in a call of the script.

use std::sync::atomic::{AtomicU64, Ordering};

use super::jitter;

/// The names of one process.
#[derive(Debug)]
pub(super) struct Nonces(AtomicU64);

impl Nonces {
    /// Begins anywhere.
    pub(super) fn begin() -> Nonces {
        Nonces(AtomicU64::new(jitter::random()))
    }

    /// Below 2^48, never 0, and never the same twice in a process: an odd multiplier scatters a
    /// counter over all values.
    pub(super) fn next(&self) -> u64 {
        let count = self.0.fetch_add(1, Ordering::Relaxed);
        (count.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 16).max(1)
    }
}
