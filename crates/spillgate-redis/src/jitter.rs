//! Random waits, so that a fleet does not return all at once.

use std::time::Duration;

/// Returns a random duration up to `longest`.
pub fn jittered(longest: Duration) -> Duration {
    let longest_us = u64::try_from(longest.as_micros()).unwrap_or(u64::MAX).max(1);
    Duration::from_micros(random() % longest_us)
}

/// Returns a random number, good enough to separate instances and to start counters at different values.
pub(crate) fn random() -> u64 {
    #[cfg(feature = "simulation")]
    if let Some(number) = crate::simulation::random() {
        return number;
    }
    spillgate_core::random::random()
}
