//! The one place that reads clocks.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

#[cfg(target_os = "linux")]
use rustix::time::{ClockId, Timespec, clock_getres, clock_gettime};
pub use spillgate_core::time::CoarseTime;

/// The system's monotonic clock, as it is told to other programs of the machine; elsewhere than on
/// Linux nothing of it is known.
pub fn machine_us() -> u64 {
    #[cfg(target_os = "linux")]
    return us_of(clock_gettime(ClockId::Monotonic));
    #[cfg(not(target_os = "linux"))]
    0
}

/// Where `now` comes from: the system, or a hand that sets it.
#[derive(Clone, Debug, Default)]
pub enum Clock {
    /// The system's wall clock.
    #[default]
    System,
    /// Microseconds since the epoch, set by whoever holds the other end.
    Given(Arc<AtomicU64>),
    /// The same, with a coarse reading as of a kernel that ticks every so many microseconds.
    Ticking(Arc<AtomicU64>, u64),
}

impl Clock {
    /// A clock that stands at `now_us` until moved.
    pub fn given(now_us: u64) -> Clock {
        Clock::Given(Arc::new(AtomicU64::new(now_us)))
    }

    /// A clock that stands at 0 until moved, and ticks every `tick_us`.
    pub fn ticking(tick_us: u64) -> Clock {
        Clock::Ticking(Arc::default(), tick_us)
    }

    /// Moves a given clock; the system's is nobody's to move.
    pub fn set(&self, now_us: u64) {
        if let Clock::Given(given) | Clock::Ticking(given, _) = self {
            given.store(now_us, Ordering::SeqCst);
        }
    }

    /// Microseconds since the epoch; 0 before it.
    pub fn now_us(&self) -> u64 {
        match self {
            Clock::System => system_us(),
            Clock::Given(given) | Clock::Ticking(given, _) => given.load(Ordering::SeqCst),
        }
    }

    /// Returns the coarse time. Reading the processor's counter waits for everything that is being fetched
    /// from memory; this does not.
    #[inline]
    pub fn coarse(&self) -> CoarseTime {
        #[cfg(feature = "simulation")]
        if let (Clock::System, Some(now_us)) = (self, crate::simulation::now_us()) {
            return CoarseTime::exactly(now_us);
        }
        match self {
            #[cfg(target_os = "linux")]
            Clock::System => CoarseTime { at_us: coarse_us(), tick_us: *TICK_US, late_us: LATE_US },
            #[cfg(not(target_os = "linux"))]
            Clock::System => CoarseTime::exactly(self.now_us()),
            Clock::Given(_) => CoarseTime::exactly(self.now_us()),
            Clock::Ticking(_, tick_us) => {
                let at_us = self.now_us() / tick_us * tick_us;
                CoarseTime { at_us, tick_us: *tick_us, late_us: *tick_us }
            }
        }
    }
}

/// Nanoseconds of the processor's counter, for the time between two looks.
pub(crate) fn counter_ns() -> u64 {
    FAST.counter.delta_as_nanos(0, FAST.counter.raw())
}

/// Microseconds on a clock that nobody steps; only differences mean something.
#[cfg(feature = "redis")]
pub fn monotonic_us() -> u64 {
    #[cfg(feature = "simulation")]
    if let Some(now_us) = crate::simulation::now_us() {
        return now_us;
    }
    FAST.counter_us()
}

/// Microseconds on a clock that nobody steps and that goes on while the machine sleeps; only differences
/// mean something. Where the system has none, sleep is not counted.
#[cfg(feature = "redis")]
pub fn boottime_us() -> u64 {
    #[cfg(feature = "simulation")]
    if let Some(now_us) = crate::simulation::now_us() {
        return now_us;
    }
    #[cfg(target_os = "linux")]
    return us_of(clock_gettime(ClockId::Boottime));
    #[cfg(not(target_os = "linux"))]
    FAST.counter_us()
}

/// Until when an answer is of use to whoever asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Deadline(tokio::time::Instant);

impl Deadline {
    /// So long from now on.
    pub fn after(wait: Duration) -> Deadline {
        Deadline(tokio::time::Instant::now() + wait)
    }

    /// One that never comes while anybody waits: for what ends by itself.
    #[cfg(feature = "redis")]
    pub fn none() -> Deadline {
        Deadline::after(NEVER)
    }

    /// What comes of `future`, unless the deadline comes first.
    pub async fn bound<F: Future>(self, future: F) -> Option<F::Output> {
        tokio::time::timeout_at(self.0, future).await.ok()
    }

    /// What time is left.
    pub fn left(self) -> Duration {
        self.0.saturating_duration_since(tokio::time::Instant::now())
    }

    /// One that is so much later; nothing beyond what clocks can tell.
    pub fn later(self, wait: Duration) -> Option<Deadline> {
        self.0.checked_add(wait).map(Deadline)
    }

    /// Whether there is no time left.
    #[cfg(feature = "redis")]
    pub fn has_passed(self) -> bool {
        tokio::time::Instant::now() >= self.0
    }
}

/// Longer than any process runs, and within what timers can tell.
#[cfg(feature = "redis")]
const NEVER: Duration = Duration::from_secs(365 * 86_400);

/// Microseconds since the epoch, by the system's clock.
fn system_us() -> u64 {
    #[cfg(feature = "simulation")]
    if let Some(now_us) = crate::simulation::now_us() {
        return now_us;
    }
    FAST.now_us()
}

/// The wall clock at the last look, and the processor's counter then. A new look may step back by a few
/// microseconds: the algorithms tolerate a second. A wall clock that was set is looked at as soon as the
/// kernel's coarse one tells; where there is none, up to [`LOOK_EVERY_US`] later.
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
        let offset = wall_us().wrapping_sub(counter_us);
        self.wall_less_counter_us.store(offset, Ordering::Relaxed);
        self.look_again_us.store(counter_us + LOOK_EVERY_US, Ordering::Relaxed);
        counter_us.wrapping_add(offset)
    }

    fn counter_us(&self) -> u64 {
        self.counter.delta_as_nanos(0, self.counter.raw()) / 1_000
    }
}

/// A counter's error of 20 parts in a million stays below a microsecond for so long.
const LOOK_EVERY_US: u64 = 50_000;

/// Whether the coarse clock bears `now_us` out: else somebody set the wall clock.
#[cfg(target_os = "linux")]
fn was_not_set(now_us: u64) -> bool {
    (now_us + ERROR_US).checked_sub(coarse_us()).is_some_and(|behind_us| behind_us <= LATE_US)
}

#[cfg(not(target_os = "linux"))]
fn was_not_set(_now_us: u64) -> bool {
    true
}

/// The wall clock as the kernel last set it: at every tick.
#[cfg(target_os = "linux")]
fn coarse_us() -> u64 {
    us_of(clock_gettime(ClockId::RealtimeCoarse))
}

/// Whole microseconds; 0 for an instant before the clock's first.
#[cfg(target_os = "linux")]
#[inline]
fn us_of(time: Timespec) -> u64 {
    u64::try_from(time.tv_sec).unwrap_or(0) * 1_000_000 + time.tv_nsec as u64 / 1_000
}

/// How far off the counter may be, generously.
#[cfg(target_os = "linux")]
const ERROR_US: u64 = 100;
/// How often the kernel ticks, and a millisecond for it to be heard.
#[cfg(target_os = "linux")]
static TICK_US: LazyLock<u64> =
    LazyLock::new(|| us_of(clock_getres(ClockId::RealtimeCoarse)) + 1_000);

/// Ticks that come this late were held up with everything else: a virtual machine that stood still.
#[cfg(target_os = "linux")]
const LATE_US: u64 = 100_000;

#[allow(clippy::disallowed_methods, reason = "this is the place that the lint points at")]
fn wall_us() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    since.as_secs() * 1_000_000 + u64::from(since.subsec_micros())
}
