//! Helpers for the tests of applications.

use std::time::Duration;

use crate::time::Clock;

/// A clock that a test sets, so that it need not sleep until a limit has room again.
///
/// Clones share the time. The clock sets the time of decisions only: [`Limiter::acquire`](crate::Limiter::acquire) and
/// time-outs wait by tokio's clock.
///
/// ```
/// # tokio::runtime::Runtime::new().unwrap().block_on(async {
/// use std::time::Duration;
/// use spillgate::testing::ManualClock;
/// use spillgate::{Limit, Limiter, Request};
///
/// let clock = ManualClock::new();
/// let limiter = Limiter::builder().manual_clock(&clock).build().await.unwrap();
/// let request = Request::keyed("user:42", Limit::per_minute(1));
/// assert!(limiter.check(&request).await.allowed());
/// assert!(!limiter.check(&request).await.allowed());
///
/// clock.advance(Duration::from_secs(60));
/// assert!(limiter.check(&request).await.allowed());
/// # });
/// ```
#[derive(Clone, Debug)]
pub struct ManualClock(Clock);

impl ManualClock {
    /// Returns a clock that stands at 2026-01-01T00:00:00Z.
    pub fn new() -> ManualClock {
        ManualClock(Clock::given(START_US))
    }

    /// Moves the clock forward.
    pub fn advance(&self, by: Duration) {
        let by_us = u64::try_from(by.as_micros()).unwrap_or(u64::MAX);
        self.0.set(self.0.now_us().saturating_add(by_us));
    }

    /// Sets the clock to a time since 1970-01-01T00:00:00Z, forward or back.
    ///
    /// ```
    /// use std::time::Duration;
    /// use spillgate::testing::ManualClock;
    ///
    /// let clock = ManualClock::new();
    /// clock.set(Duration::from_secs(1_800_000_000)); // 2027-01-15T08:00:00Z
    /// ```
    pub fn set(&self, since_epoch: Duration) {
        self.0.set(u64::try_from(since_epoch.as_micros()).unwrap_or(u64::MAX));
    }

    /// Returns the time since 1970-01-01T00:00:00Z.
    ///
    /// ```
    /// use std::time::Duration;
    /// use spillgate::testing::ManualClock;
    ///
    /// let clock = ManualClock::new();
    /// clock.set(Duration::from_secs(1_800_000_000));
    /// assert_eq!(clock.now(), Duration::from_secs(1_800_000_000));
    /// ```
    pub fn now(&self) -> Duration {
        Duration::from_micros(self.0.now_us())
    }

    pub(crate) fn clock(&self) -> Clock {
        self.0.clone()
    }
}

impl Default for ManualClock {
    fn default() -> ManualClock {
        ManualClock::new()
    }
}

/// 2026-01-01T00:00:00Z.
const START_US: u64 = 1_767_225_600_000_000;
