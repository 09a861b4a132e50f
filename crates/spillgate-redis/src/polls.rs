//! Spaces out the calls of callers that wait for room and poll a shard, so that other decisions get most of its time.

use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::{Instant, sleep_until};

/// When the next poll may be sent.
#[derive(Debug, Default)]
pub(super) struct Polls {
    next: Mutex<Option<Instant>>,
}

impl Polls {
    /// Waits for the caller's turn, in order of arrival. A caller that is dropped before loses its turn.
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

/// 4,000 polls a second, some tenth of a server's time: the rate of a hundred callers that wait for different permits.
const SPACING: Duration = Duration::from_micros(250);

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_thousand_polls_take_a_quarter_of_a_second() {
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
