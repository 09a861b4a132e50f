//! Deadlines of a connection, told in ticks so that no request costs a timer.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use hyper::rt::{Sleep, Timer};
use tokio::time::{self, Interval, MissedTickBehavior, interval};

/// What hyper sleeps by. Nobody is woken at a deadline, but each tick has whoever holds the connection
/// look at it.
#[derive(Clone, Debug)]
pub(super) struct Ticks {
    began: Instant,
    passed: Arc<AtomicU64>,
}

impl Ticks {
    pub(super) fn new() -> Ticks {
        Ticks { began: time::Instant::now().into_std(), passed: Arc::default() }
    }

    /// What each tick is waited for by.
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
        // The tick that is under way does not count.
        Box::pin(Until { passed: Arc::clone(&self.passed), until: ticks + 1 })
    }

    /// The last tick.
    fn now(&self) -> Instant {
        let ticks = u32::try_from(self.passed.load(Ordering::Relaxed)).unwrap_or(u32::MAX);
        self.began + TICK * ticks
    }
}

/// Over with a tick.
struct Until {
    passed: Arc<AtomicU64>,
    until: u64,
}

impl Future for Until {
    type Output = ();

    fn poll(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<()> {
        match self.passed.load(Ordering::Relaxed) < self.until {
            true => Poll::Pending,
            false => Poll::Ready(()),
        }
    }
}

impl Sleep for Until {}

/// A deadline is met so much later at most.
const TICK: Duration = Duration::from_secs(5);
