//! The budget of callers that wait for room and ask a shard time and again: one question after the other, at a pace that
//! leaves the shard to other decisions.

use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::{Instant, sleep_until};

/// When the next of them may ask.
#[derive(Debug, Default)]
pub(super) struct Polls {
    next: Mutex<Option<Instant>>,
}

impl Polls {
    /// Waits for its turn. Turns are given in the order of coming; a caller that leaves before loses its turn.
    pub(super) async fn turn(&self) {
        let now = Instant::now();
        let at = {
            let mut next = self.next.lock();
            let at = next.map_or(now, |next| next.max(now));
            *next = Some(at + SPACING);
            at
        };
        if at > now {
            sleep_until(at).await;
        }
    }
}

/// 4,000 questions a second, some tenth of a server's time: as often as a hundred callers ask that wait for a slot each.
const SPACING: Duration = Duration::from_micros(250);

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_thousand_callers_have_their_turns_within_a_quarter_of_a_second_and_no_sooner() {
        let (polls, began) = (Polls::default(), Instant::now());
        let all = (0..1_000).map(|_| polls.turn());
        futures_util::future::join_all(all).await;
        let took = began.elapsed();
        assert!((249..=251).contains(&took.as_millis()), "{took:?}");
        tokio::time::sleep(Duration::from_secs(1)).await;
        let before = Instant::now();
        polls.turn().await;
        assert_eq!(before.elapsed(), Duration::ZERO, "a caller alone waits for nothing");
    }
}
