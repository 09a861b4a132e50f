//! Deadlines of calls, beside the clocks of the core.

use std::pin::pin;
use std::time::Duration;

use ::redis::Value;
use tokio::time::Instant;

pub use spillgate_core::time::*;

/// The time until which an answer is useful to its caller.
///
/// A wait is counted in slices, and one that ended late counts little: time in which this process could not run shows
/// nothing about the server. The wait ends at `latest` at any rate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Deadline {
    at: Instant,
    latest: Instant,
}

impl Deadline {
    /// Returns the deadline `wait` from now.
    pub fn after(wait: Duration) -> Deadline {
        let at = Instant::now() + wait;
        Deadline { at, latest: at + (STARVED - 1) * wait }
    }

    /// Returns the deadline `wait` from now of a caller that goes by the clock, whether or not this process could run.
    pub fn of_caller(wait: Duration) -> Deadline {
        let at = Instant::now() + wait;
        Deadline { at, latest: at }
    }

    /// Returns a deadline that never comes in practice, for futures that end by themselves.
    pub fn none() -> Deadline {
        Deadline::of_caller(NEVER)
    }

    /// Waits for `future`; returns `None` if the deadline comes first.
    pub async fn bound<F: Future>(self, future: F) -> Option<F::Output> {
        let (mut future, mut from) = (pin!(future), Instant::now());
        let mut left = self.at.saturating_duration_since(from);
        let slice = left / SLICES;
        loop {
            let until = self.latest.min(from + slice.min(left));
            if let Ok(output) = tokio::time::timeout_at(until, &mut future).await {
                return Some(output);
            }
            let now = Instant::now();
            left = left.saturating_sub(counted([from, until, now], TICK, STARVED));
            if left.is_zero() || now >= self.latest {
                return None;
            }
            from = now;
        }
    }

    /// Returns the time left.
    pub fn left(self) -> Duration {
        self.at.saturating_duration_since(Instant::now())
    }

    /// Returns whether the caller has surely left: a wait until this deadline has ended.
    pub fn has_passed(self) -> bool {
        Instant::now() >= self.latest
    }
}

/// Returns how much of a slice counts that began at `from`, was to end at `due`, and ended `now`: all of it, or the
/// `part`th of its own length if it ended more than `tolerated` late.
pub(crate) fn counted([from, due, now]: [Instant; 3], tolerated: Duration, part: u32) -> Duration {
    let is_late = now.saturating_duration_since(due) > tolerated;
    let (slice, all) = (due.saturating_duration_since(from), now.saturating_duration_since(from));
    if is_late { slice / part } else { all }
}

/// Parses the reply to TIME, seconds and microseconds, into microseconds.
pub(crate) fn us_of(time: &Value) -> Option<u64> {
    let Value::Array(parts) = time else { return None };
    let number = |part: &Value| match part {
        Value::BulkString(digits) => std::str::from_utf8(digits).ok()?.parse::<u64>().ok(),
        _ => None,
    };
    number(parts.first()?)?.checked_mul(1_000_000)?.checked_add(number(parts.get(1)?)?)
}

/// The parts in which a wait is counted. If this process stalls in one of them, the others still count in full.
pub(crate) const SLICES: u32 = 5;
/// The resolution of the runtime's timers, by which each may end late, and as much again.
pub(crate) const TICK: Duration = Duration::from_millis(2);
/// A slice that ended late counts for this part of its own length. So a wait takes at most about this many times its
/// length, however little this process runs.
const STARVED: u32 = 8;
/// Longer than any process runs, and within the range of timers.
const NEVER: Duration = Duration::from_secs(365 * 86_400);

#[cfg(test)]
mod tests {
    use super::*;

    /// The clock jumps over the end of each timer: this process could not run.
    #[tokio::test(start_paused = true)]
    async fn time_in_which_this_process_could_not_run_counts_only_for_a_caller_that_goes_by_the_clock()
     {
        let (wait, jump) = (Duration::from_millis(250), Duration::from_millis(149));
        let ends = async |deadline: Deadline, after: Duration| {
            let began = Instant::now();
            let waiting = tokio::spawn(deadline.bound(tokio::time::sleep(after)));
            while !waiting.is_finished() {
                tokio::time::advance(jump).await;
                tokio::task::yield_now().await;
            }
            (waiting.await.unwrap().is_some(), began.elapsed())
        };
        assert!(ends(Deadline::after(wait), 2 * wait).await.0);
        assert!(!ends(Deadline::of_caller(wait), 2 * wait).await.0);
        let (in_time, taken) = ends(Deadline::after(wait), NEVER).await;
        assert!(!in_time && taken <= STARVED * wait + jump, "{taken:?}");
    }

    #[test]
    fn a_reply_that_is_no_time_is_none() {
        let time = |parts: &[&str]| {
            us_of(&Value::Array(
                parts.iter().map(|part| Value::BulkString(part.as_bytes().to_vec())).collect(),
            ))
        };
        assert_eq!(time(&["1700000000", "25"]), Some(1_700_000_000_000_025));
        for parts in [&["18446744073709551615", "0"], &["-1", "0"], &["1", ""]] {
            assert_eq!(time(parts), None, "{parts:?}");
        }
        assert_eq!(time(&["1"]), None);
        assert_eq!(us_of(&Value::Nil), None);
    }
}
