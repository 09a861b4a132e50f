//! Deadlines of calls, beside the clocks of the core.

use std::time::Duration;

pub use spillgate_core::time::*;

/// The time until which an answer is useful to its caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Deadline(tokio::time::Instant);

impl Deadline {
    /// Returns the deadline `wait` from now.
    pub fn after(wait: Duration) -> Deadline {
        Deadline(tokio::time::Instant::now() + wait)
    }

    /// Returns a deadline that never comes in practice, for futures that end by themselves.
    pub fn none() -> Deadline {
        Deadline::after(NEVER)
    }

    /// Waits for `future`; returns `None` if the deadline comes first.
    pub async fn bound<F: Future>(self, future: F) -> Option<F::Output> {
        tokio::time::timeout_at(self.0, future).await.ok()
    }

    /// Returns the time left.
    pub fn left(self) -> Duration {
        self.0.saturating_duration_since(tokio::time::Instant::now())
    }

    /// Returns a later deadline, or `None` if it cannot be represented.
    pub fn later(self, wait: Duration) -> Option<Deadline> {
        self.0.checked_add(wait).map(Deadline)
    }

    /// Returns whether the deadline has passed.
    pub fn has_passed(self) -> bool {
        tokio::time::Instant::now() >= self.0
    }
}

/// Longer than any process runs, and within the range of timers.
const NEVER: Duration = Duration::from_secs(365 * 86_400);
