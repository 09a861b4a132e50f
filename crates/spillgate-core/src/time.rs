//! Clocks. No other module reads one.

#[cfg(feature = "simulation")]
use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock};
use std::time::{SystemTime, UNIX_EPOCH};

#[cfg(target_os = "linux")]
use rustix::time::{ClockId, Timespec, clock_getres, clock_gettime};

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
        /// The interval between the ticks of its coarse reading; 0 if that is exact.
        tick_us: u64,
    },
}

impl Clock {
    /// Makes a clock that stands at `now_us` until it is set.
    pub fn given(now_us: u64) -> Clock {
        Clock::Given { now_us: Arc::new(AtomicU64::new(now_us)), tick_us: 0 }
    }

    /// Makes a clock that stands at 0 until it is set, and ticks every `tick_us`.
    pub fn ticking(tick_us: u64) -> Clock {
        Clock::Given { now_us: Arc::default(), tick_us }
    }

    /// Sets a given clock. Does nothing to the system's clock.
    pub fn set(&self, now_us: u64) {
        if let Clock::Given { now_us: given, .. } = self {
            given.store(now_us, Ordering::SeqCst);
        }
    }

    /// Returns the microseconds since the epoch; 0 before it.
    pub fn now_us(&self) -> u64 {
        match self {
            Clock::System => system_us(),
            Clock::Given { now_us, .. } => now_us.load(Ordering::SeqCst),
        }
    }

    /// Returns the coarse time. An exact reading of the processor's counter waits for all pending
    /// fetches from memory; this one does not.
    #[inline]
    pub fn coarse(&self) -> CoarseTime {
        #[cfg(feature = "simulation")]
        if let (Clock::System, Some(now_us)) = (self, simulated_us()) {
            return CoarseTime::exactly(now_us);
        }
        match self {
            #[cfg(target_os = "linux")]
            Clock::System => CoarseTime { at_us: coarse_us(), tick_us: *TICK_US, late_us: LATE_US },
            #[cfg(not(target_os = "linux"))]
            Clock::System => CoarseTime::exactly(self.now_us()),
            Clock::Given { tick_us, .. } => {
                let now_us = self.now_us();
                let at_us = now_us - now_us % (*tick_us).max(1);
                CoarseTime { at_us, tick_us: *tick_us, late_us: *tick_us }
            }
        }
    }
}

/// A reading of the coarse clock: now is `at_us` or somewhat later.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CoarseTime {
    /// The reading, in µs. The current time is never before it.
    pub at_us: u64,
    /// The normal bound of the current time after `at_us`, unless the machine is very busy.
    pub tick_us: u64,
    /// The bound of the current time after `at_us`, unless the whole machine stood still.
    pub late_us: u64,
}

impl CoarseTime {
    /// Returns a reading that is exact.
    pub fn exactly(now_us: u64) -> CoarseTime {
        CoarseTime { at_us: now_us, tick_us: 0, late_us: 0 }
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
fn system_us() -> u64 {
    #[cfg(feature = "simulation")]
    if let Some(now_us) = simulated_us() {
        return now_us;
    }
    FAST.now_us()
}

/// Derives the wall clock from the processor's counter, which is faster to read. The wall clock
/// itself is read again at intervals. A new reading may step back by a few microseconds; the
/// algorithms tolerate a second. A change of the wall clock is noticed by the kernel's coarse
/// clock, or up to [`LOOK_EVERY_US`] later on systems without one.
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
        let counter_us = self.counter_us();
        let now_us = counter_us.wrapping_add(self.wall_less_counter_us.load(Ordering::Relaxed));
        if counter_us < self.look_again_us.load(Ordering::Relaxed) && was_not_set(now_us) {
            return now_us;
        }
        let wall_us = wall_us();
        // A thread that was stopped between the readings would move the time of all by as much.
        if self.counter_us().wrapping_sub(counter_us) > READ_WITHIN_US {
            return wall_us;
        }
        let offset = wall_us.wrapping_sub(counter_us);
        // Two threads may read the wall clock at once. Both store almost the same offset.
        self.wall_less_counter_us.store(offset, Ordering::Relaxed);
        self.look_again_us.store(counter_us + LOOK_EVERY_US, Ordering::Relaxed);
        wall_us
    }

    fn counter_us(&self) -> u64 {
        self.counter.delta_as_nanos(0, self.counter.raw()) / 1_000
    }
}

/// The interval between readings of the wall clock. A counter's error of 20 parts in a million
/// stays below 1 µs for this long.
const LOOK_EVERY_US: u64 = 50_000;
/// Both clocks are read in less, unless the thread is stopped meanwhile.
const READ_WITHIN_US: u64 = 5;

/// Returns whether the coarse clock agrees with `now_us`. If not, the wall clock was set.
#[cfg(target_os = "linux")]
fn was_not_set(now_us: u64) -> bool {
    (now_us + ERROR_US).checked_sub(coarse_us()).is_some_and(|behind_us| behind_us <= LATE_US)
}

#[cfg(not(target_os = "linux"))]
fn was_not_set(_now_us: u64) -> bool {
    true
}

/// Returns the wall clock as of the kernel's last tick.
#[cfg(target_os = "linux")]
fn coarse_us() -> u64 {
    us_of(clock_gettime(ClockId::RealtimeCoarse))
}

/// Returns whole microseconds; 0 for an instant before the clock's first.
#[cfg(target_os = "linux")]
fn us_of(time: Timespec) -> u64 {
    u64::try_from(time.tv_sec).unwrap_or(0) * 1_000_000 + time.tv_nsec as u64 / 1_000
}

/// A generous bound of the counter's error.
#[cfg(target_os = "linux")]
const ERROR_US: u64 = 100;
/// The interval of the kernel's ticks, with 1 ms added for their delay.
#[cfg(target_os = "linux")]
static TICK_US: LazyLock<u64> =
    LazyLock::new(|| us_of(clock_getres(ClockId::RealtimeCoarse)) + 1_000);

/// The longest delay of a tick. Longer delays occur only if a virtual machine stood still, with
/// everything on it.
#[cfg(target_os = "linux")]
const LATE_US: u64 = 100_000;

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
