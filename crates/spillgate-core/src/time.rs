//! Clocks. No other module reads one.

#[cfg(feature = "simulation")]
use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock};
use std::time::{SystemTime, UNIX_EPOCH};

#[cfg(target_os = "linux")]
use rustix::time::{ClockId, Timespec, clock_gettime};

/// The source of the current time: the system, or a test.
#[derive(Clone, Debug, Default)]
pub enum Clock {
    /// The system's wall clock.
    #[default]
    System,
    /// A clock that a test sets.
    Given {
        /// Microseconds since the epoch.
        now_us: Arc<AtomicU64>,
    },
}

impl Clock {
    /// Makes a clock that stands at `now_us` until it is set.
    pub fn given(now_us: u64) -> Clock {
        Clock::Given { now_us: Arc::new(AtomicU64::new(now_us)) }
    }

    /// Sets a given clock. Does nothing to the system's clock.
    pub fn set(&self, now_us: u64) {
        if let Clock::Given { now_us: given } = self {
            given.store(now_us, Ordering::SeqCst);
        }
    }

    /// Returns the microseconds since the epoch; 0 before it.
    #[inline]
    pub fn now_us(&self) -> u64 {
        match self {
            Clock::System => system_us(),
            Clock::Given { now_us } => now_us.load(Ordering::SeqCst),
        }
    }
}

/// Returns the nanoseconds of the processor's counter. Only differences have a meaning.
pub fn counter_ns() -> u64 {
    FAST.counter.delta_as_nanos(0, FAST.counter.raw())
}

/// Returns the microseconds of a clock that is never set. Only differences have a meaning.
pub fn monotonic_us() -> u64 {
    #[cfg(feature = "simulation")]
    if let Some(now_us) = simulated_us() {
        return now_us;
    }
    FAST.counter_us()
}

/// Returns the microseconds of a clock that is never set and goes on while the machine sleeps. Only
/// differences have a meaning. On systems without such a clock, sleep is not counted.
pub fn boottime_us() -> u64 {
    #[cfg(feature = "simulation")]
    if let Some(now_us) = simulated_us() {
        return now_us;
    }
    #[cfg(target_os = "linux")]
    return us_of(clock_gettime(ClockId::Boottime));
    #[cfg(not(target_os = "linux"))]
    FAST.counter_us()
}

/// Returns the microseconds since the epoch, by the system's clock.
#[inline]
fn system_us() -> u64 {
    #[cfg(feature = "simulation")]
    if let Some(now_us) = simulated_us() {
        return now_us;
    }
    FAST.now_us()
}

/// Derives the wall clock from the processor's counter, which is faster to read. The wall clock
/// itself is read again at intervals. A new reading may step back by a few microseconds; the
/// algorithms tolerate a second. A change of the wall clock is noticed up to [`LOOK_EVERY_US`] later.
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
    #[inline]
    fn now_us(&self) -> u64 {
        let counter_us = self.counter_us();
        let left_us = self.look_again_us.load(Ordering::Acquire).wrapping_sub(counter_us);
        // Also false if the counter went back behind the last look: then it is out of step with the offset.
        if left_us.wrapping_sub(1) < LOOK_EVERY_US {
            return counter_us.wrapping_add(self.wall_less_counter_us.load(Ordering::Relaxed));
        }
        self.look(counter_us)
    }

    /// Reads the wall clock, and compares it with the counter.
    #[cold]
    fn look(&self, counter_us: u64) -> u64 {
        let wall_us = wall_us();
        // A thread that was stopped between the readings would move the time of all by as much.
        if self.counter_us().wrapping_sub(counter_us) > READ_WITHIN_US {
            return wall_us;
        }
        let offset = wall_us.wrapping_sub(counter_us);
        // Two threads may read the wall clock at once. The offset that is stored last holds until the next look.
        self.wall_less_counter_us.store(offset, Ordering::Relaxed);
        self.look_again_us.store(counter_us + LOOK_EVERY_US, Ordering::Release);
        wall_us
    }

    fn counter_us(&self) -> u64 {
        self.counter.delta_as_nanos(0, self.counter.raw()) / 1_000
    }
}

/// The interval between readings of the wall clock: how late a change of it may be noticed. A counter's error of 20 parts
/// in a million stays far below 1 µs for this long.
const LOOK_EVERY_US: u64 = 1_000;
/// Both clocks are read in less, unless the thread is stopped meanwhile.
const READ_WITHIN_US: u64 = 5;

/// Returns whole microseconds; 0 for an instant before the clock's first.
#[cfg(target_os = "linux")]
fn us_of(time: Timespec) -> u64 {
    u64::try_from(time.tv_sec).unwrap_or(0) * 1_000_000 + time.tv_nsec as u64 / 1_000
}

#[allow(clippy::disallowed_methods, reason = "this is the place that the lint points at")]
fn wall_us() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    since.as_secs() * 1_000_000 + u64::from(since.subsec_micros())
}

#[cfg(feature = "simulation")]
thread_local! {
    static SIMULATED: Cell<Option<fn() -> u64>> = const { Cell::new(None) };
}

/// Makes all clocks of this thread show `now_us` instead of the system's time, until it is called
/// with `None`.
#[cfg(feature = "simulation")]
pub fn simulate(now_us: Option<fn() -> u64>) {
    SIMULATED.set(now_us);
}

/// Returns the simulated time if this thread has one.
#[cfg(feature = "simulation")]
fn simulated_us() -> Option<u64> {
    SIMULATED.get().map(|now_us| now_us())
}
