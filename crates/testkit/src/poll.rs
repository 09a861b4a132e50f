//! Waits for real processes, always with a bound. Only this module reads a clock or sleeps.

use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Calls `attempt` until it returns a result, at least once. Returns `None` after `bound`.
#[expect(clippy::disallowed_methods, reason = "real processes take real time")]
pub fn poll<T>(bound: Duration, mut attempt: impl FnMut() -> Option<T>) -> Option<T> {
    let start = Instant::now();
    loop {
        if let Some(result) = attempt() {
            return Some(result);
        }
        if start.elapsed() >= bound {
            return None;
        }
        thread::sleep(PAUSE);
    }
}

/// Waits until a claim is true, and fails the test if it does not become true in time.
#[track_caller]
pub fn eventually(mut claim: impl FnMut() -> bool) {
    let came_true = poll(PATIENCE, || claim().then_some(()));
    assert!(came_true.is_some(), "the claim did not become true within {} s", PATIENCE.as_secs());
}

/// Returns this machine's wall clock, in microseconds since the epoch.
#[expect(clippy::disallowed_methods, reason = "a stepped clock is set relative to this one")]
pub(crate) fn wall_us() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_micros()).unwrap_or(i64::MAX)
}

/// Far longer than any healthy step takes on this machine, and short enough to see which test hangs.
pub(crate) const PATIENCE: Duration = Duration::from_secs(10);

/// Meeting takes the nodes of a Cluster and Sentinels some seconds, and many more on a busy machine.
pub(crate) const COMPLETE_BOUND: Duration = Duration::from_secs(60);
/// A failover takes a time-out, an election, and messages to all.
pub(crate) const AGREEMENT_BOUND: Duration = Duration::from_secs(30);
/// A requested failover that has not happened by then was given up, and is requested again.
pub(crate) const FAILOVER_BOUND: Duration = Duration::from_secs(6);

/// Short beside the 10 to 30 ms of a server's start, and long enough to leave it the processor.
const PAUSE: Duration = Duration::from_millis(2);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tries_once_even_with_no_time_left() {
        assert_eq!(poll(Duration::ZERO, || Some(7)), Some(7));
    }

    #[test]
    fn gives_up_at_the_bound() {
        assert_eq!(poll(Duration::from_millis(5), || None::<()>), None);
    }
}
