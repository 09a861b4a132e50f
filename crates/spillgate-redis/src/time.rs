//! Deadlines of calls, beside the clocks of the core.

use std::time::Duration;

use ::redis::Value;

pub use spillgate_core::time::*;

/// The time until which an answer is useful to its caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Deadline(tokio::time::Instant);

impl Deadline {
    /// Returns the deadline `wait` from now.
    pub fn after(wait: Duration) -> Deadline {
        Deadline(tokio::time::Instant::now() + wait)
    }

    /// Returns a deadline that never comes in practice, for futures that end by themselves.
    pub fn none() -> Deadline {
        Deadline::after(NEVER)
    }

    /// Waits for `future`; returns `None` if the deadline comes first.
    pub async fn bound<F: Future>(self, future: F) -> Option<F::Output> {
        tokio::time::timeout_at(self.0, future).await.ok()
    }

    /// Returns the time left.
    pub fn left(self) -> Duration {
        self.0.saturating_duration_since(tokio::time::Instant::now())
    }

    /// Returns a later deadline, or `None` if it cannot be represented.
    pub fn later(self, wait: Duration) -> Option<Deadline> {
        self.0.checked_add(wait).map(Deadline)
    }

    /// Returns whether the deadline has passed.
    pub fn has_passed(self) -> bool {
        tokio::time::Instant::now() >= self.0
    }
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

/// Longer than any process runs, and within the range of timers.
const NEVER: Duration = Duration::from_secs(365 * 86_400);

#[cfg(test)]
mod tests {
    use super::*;

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
