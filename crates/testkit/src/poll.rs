//! Waiting for the world outside, always with a bound: the one place here that reads a clock or
//! sleeps.

use std::thread;
use std::time::{Duration, Instant};

/// Tries until there is a result, or `None` once `bound` has passed; tries at least once.
#[expect(clippy::disallowed_methods, reason = "real processes take real time")]
pub(crate) fn poll<T>(bound: Duration, mut attempt: impl FnMut() -> Option<T>) -> Option<T> {
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

/// Short beside the 10 to 30 ms a server takes to start, long enough to leave it the processor.
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
