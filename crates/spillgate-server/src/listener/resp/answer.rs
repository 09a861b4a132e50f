//! Writes decisions as replies: five to seven fields each, in the order that the command's clients expect.

use std::time::Duration;

use spillgate::reservation::Receipt;
use spillgate::{Decision, Reason};

use super::reply::Replies;
use crate::listener::http::answer::ms_up;

/// The form of an answer, with the numbers of the command that it repeats.
#[derive(Clone, Copy, Debug)]
pub enum Answer {
    /// `[limited, limit, remaining, retry_after, reset_after]`, as redis-cell.
    Cell(Throttled),
    /// `[allowed, remaining, retry_after_ms, reset_after_ms, rule, reason]`, and the receipt if there is one.
    Check,
    /// As `Check`, with a receipt that is nil if there is none.
    Reserved,
}

/// The numbers of `CL.THROTTLE`.
#[derive(Clone, Copy, Debug)]
pub struct Throttled {
    pub(crate) capacity: u64,
    pub(crate) quantity: u64,
}

impl Answer {
    pub fn write(self, decision: &Decision, replies: &mut Replies) {
        if decision.reason() == Some(Reason::Overloaded) {
            return replies.error(OVERLOADED);
        }
        let receipt = decision.receipt().map(Receipt::as_str);
        let has_receipt = match self {
            Answer::Cell(_) => false,
            Answer::Check => receipt.is_some(),
            Answer::Reserved => true,
        };
        let fields = match self {
            Answer::Cell(_) => 5,
            Answer::Check | Answer::Reserved => 6,
        };
        replies.array(fields + usize::from(has_receipt));
        match self {
            Answer::Cell(throttled) => {
                // A quantity of 0 always passes: its decision holds the answer that one more request would get.
                let passes = decision.allowed() || throttled.quantity == 0;
                let wait = decision.retry_after().filter(|_| !passes);
                replies.number(u64::from(!passes));
                replies.number(throttled.capacity);
                replies.number_or_unknown(decision.remaining());
                replies.number_or_unknown(wait.map(seconds_up));
                replies.number_or_unknown(decision.reset_after().map(seconds_up));
            }
            Answer::Check | Answer::Reserved => {
                replies.number(u64::from(decision.allowed()));
                replies.number_or_unknown(decision.remaining());
                replies.number_or_unknown(decision.retry_after().map(ms_up));
                replies.number_or_unknown(decision.reset_after().map(ms_up));
                string_or_nothing(decision.rule(), replies);
                string_or_nothing(decision.reason().map(Reason::as_str), replies);
            }
        }
        if has_receipt {
            string_or_nothing(receipt, replies);
        }
    }
}

/// The reply to a check that the store has no time for. Its code is that of reservations that find no room.
const OVERLOADED: &str =
    "OVERLOADED the store is busy, and did not answer in time; try again later";

fn string_or_nothing(text: Option<&str>, replies: &mut Replies) {
    match text {
        Some(text) => replies.string(text.as_bytes()),
        None => replies.nothing(),
    }
}

/// Rounds up, so that a client that waits for this time is not too early.
fn seconds_up(duration: Duration) -> u64 {
    duration.as_secs() + u64::from(duration.subsec_nanos() > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_are_rounded_up() {
        for (us, seconds) in [(0, 0), (1, 1), (1_000_000, 1), (1_000_001, 2)] {
            assert_eq!(seconds_up(Duration::from_micros(us)), seconds, "{us} µs");
        }
    }
}
