//! The one place that reads clocks.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

/// Where `now` comes from: the system, or a hand that sets it.
#[derive(Clone, Debug, Default)]
pub enum Clock {
    /// The system's wall clock.
    #[default]
    System,
    /// Microseconds since the epoch, set by whoever holds the other end.
    Given(Arc<AtomicU64>),
}

impl Clock {
    /// A clock that stands at `now_us` until moved.
    pub fn given(now_us: u64) -> Clock {
        Clock::Given(Arc::new(AtomicU64::new(now_us)))
    }

    /// Moves a given clock; the system's is nobody's to move.
    pub fn set(&self, now_us: u64) {
        if let Clock::Given(given) = self {
            given.store(now_us, Ordering::SeqCst);
        }
    }

    /// Microseconds since the epoch; 0 before it.
    pub fn now_us(&self) -> u64 {
        match self {
            Clock::System => wall_us(),
            Clock::Given(given) => given.load(Ordering::SeqCst),
        }
    }
}

#[allow(clippy::disallowed_methods, reason = "this is the place that the lint points at")]
fn wall_us() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    since.as_secs() * 1_000_000 + u64::from(since.subsec_micros())
}
