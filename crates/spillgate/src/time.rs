//! The one place that reads clocks.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock};
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
            Clock::System => FAST.now_us(),
            Clock::Given(given) => given.load(Ordering::SeqCst),
        }
    }
}

/// The wall clock at the last look, and the processor's counter then. A stepped wall clock is seen up
/// to [`LOOK_EVERY_US`] late, and a new look may step back by a few microseconds: the algorithms
/// tolerate a second.
struct Fast {
    counter: quanta::Clock,
    wall_less_counter_us: AtomicU64,
    look_again_us: AtomicU64,
}

static FAST: LazyLock<Fast> = LazyLock::new(|| Fast {
    counter: quanta::Clock::new(),
    wall_less_counter_us: AtomicU64::new(0),
    look_again_us: AtomicU64::new(0),
});

impl Fast {
    fn now_us(&self) -> u64 {
        let counter_us = self.counter.delta_as_nanos(0, self.counter.raw()) / 1_000;
        if counter_us >= self.look_again_us.load(Ordering::Relaxed) {
            let offset = wall_us().wrapping_sub(counter_us);
            self.wall_less_counter_us.store(offset, Ordering::Relaxed);
            self.look_again_us.store(counter_us + LOOK_EVERY_US, Ordering::Relaxed);
        }
        counter_us.wrapping_add(self.wall_less_counter_us.load(Ordering::Relaxed))
    }
}

/// A counter's error of 20 parts in a million stays below a microsecond for so long.
const LOOK_EVERY_US: u64 = 50_000;

#[allow(clippy::disallowed_methods, reason = "this is the place that the lint points at")]
fn wall_us() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    since.as_secs() * 1_000_000 + u64::from(since.subsec_micros())
}
