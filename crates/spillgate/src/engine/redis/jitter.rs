//! Waiting for a random time, so that a fleet does not come back all at once.

use std::hash::{BuildHasher, RandomState};
use std::time::Duration;

/// A random time up to `longest`.
pub(crate) fn jittered(longest: Duration) -> Duration {
    let longest_us = u64::try_from(longest.as_micros()).unwrap_or(u64::MAX).max(1);
    Duration::from_micros(random() % longest_us)
}

/// Good enough to part neighbours, and to begin counters at different places.
pub(super) fn random() -> u64 {
    #[cfg(feature = "simulation")]
    if let Some(number) = crate::simulation::random() {
        return number;
    }
    RandomState::new().hash_one(())
}
