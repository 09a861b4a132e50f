//! Deadlines of a connection, measured in ticks of one shared interval, so that no request costs a timer.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use hyper::rt::{Sleep, Timer};
use tokio::time::{self, Interval, MissedTickBehavior, interval};

/// The timer of hyper. A deadline wakes no task: the connection's task wakes at each tick, polls the connection, and
/// hyper then finds its deadlines passed.
#[derive(Clone, Debug)]
pub(super) struct Ticks {
    began: Instant,
    passed: Arc<AtomicU64>,
}

impl Ticks {
    pub(super) fn new() -> Ticks {
        Ticks { began: time::Instant::now().into_std(), passed: Arc::default() }
    }

    /// Returns the interval of the ticks that the connection's task waits for.
    pub(super) fn clock(&self) -> Interval {
        let mut clock = interval(TICK);
        clock.set_missed_tick_behavior(MissedTickBehavior::Delay);
        clock
    }

    pub(super) fn note(&self) {
        self.passed.fetch_add(1, Ordering::Relaxed);
    }
}

impl Timer for Ticks {
    fn sleep(&self, duration: Duration) -> Pin<Box<dyn Sleep>> {
        self.sleep_until(self.now() + duration)
    }

    fn sleep_until(&self, deadline: Instant) -> Pin<Box<dyn Sleep>> {
        let ticks = deadline.saturating_duration_since(self.began).as_secs() / TICK.as_secs();
        // The current tick has begun already, so it does not count in full.
        Box::pin(TickSleep { passed: Arc::clone(&self.passed), until: ticks + 1 })
    }

    /// Returns the time of the last tick.
    fn now(&self) -> Instant {
        let ticks = u32::try_from(self.passed.load(Ordering::Relaxed)).unwrap_or(u32::MAX);
        self.began + TICK * ticks
    }
}

/// A sleep that ends with a tick. It registers no waker, because every tick polls the connection.
struct TickSleep {
    passed: Arc<AtomicU64>,
    until: u64,
}

impl Future for TickSleep {
    type Output = ();

    fn poll(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<()> {
        match self.passed.load(Ordering::Relaxed) < self.until {
            true => Poll::Pending,
            false => Poll::Ready(()),
        }
    }
}

impl Sleep for TickSleep {}

/// The time between two ticks, and so the most by which a deadline is late.
const TICK: Duration = Duration::from_secs(5);
