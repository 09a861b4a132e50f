//! Spaces out the calls of callers that wait for room and poll a shard, so that other decisions get most of its time.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Mutex;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until};

/// When the next poll may be sent.
#[derive(Debug, Default)]
pub(crate) struct Polls {
    /// Locked by the caller whose turn is next. Locks are given in order of arrival.
    next: Mutex<Option<Instant>>,
}

impl Polls {
    /// Waits for the caller's turn, in order of arrival. A caller that is dropped before takes no turn.
    pub(crate) async fn turn(self: &Arc<Self>) {
        let polls = Arc::clone(self);
        // In a task of its own, which ends with this caller: a caller that is not polled must not hold up the others.
        let mut turn = JoinSet::new();
        turn.spawn(async move { polls.take().await });
        turn.join_next().await;
    }

    async fn take(&self) {
        let mut next = self.next.lock().await;
        let now = Instant::now();
        let at = next.unwrap_or(now);
        if at > now {
            sleep_until(at).await;
        }
        // A timer may be late by a tick, which the following turns make up.
        *next = Some((at + SPACING).max(Instant::now() - TICK));
    }
}

/// 4,000 polls a second, some tenth of a server's time: the rate of a hundred callers that wait for different permits.
const SPACING: Duration = Duration::from_micros(250);
/// The precision of timers.
const TICK: Duration = Duration::from_millis(1);

#[cfg(test)]
mod tests {
    use std::task::{Context, Waker};

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_thousand_polls_take_a_quarter_of_a_second() {
        let (polls, began) = (Arc::<Polls>::default(), Instant::now());
        let all = (0..1_000).map(|_| polls.turn());
        futures_util::future::join_all(all).await;
        let took = began.elapsed();
        assert!((249..=251).contains(&took.as_millis()), "{took:?}");
        tokio::time::sleep(Duration::from_secs(1)).await;
        let before = Instant::now();
        polls.turn().await;
        assert_eq!(before.elapsed(), Duration::ZERO, "a caller alone waits for nothing");
    }

    /// Once, each of them kept its turn, and the next caller waited for all.
    #[tokio::test(start_paused = true)]
    async fn callers_that_leave_take_no_turn() {
        let polls = Arc::<Polls>::default();
        polls.turn().await;
        let leaving = (0..10_000).map(|_| tokio::time::timeout(Duration::ZERO, polls.turn()));
        assert!(futures_util::future::join_all(leaving).await.iter().all(Result::is_err));
        let began = Instant::now();
        polls.turn().await;
        assert!(began.elapsed() <= Duration::from_millis(1), "{:?}", began.elapsed());
    }

    #[tokio::test(start_paused = true)]
    async fn a_caller_that_is_not_polled_holds_up_no_other() {
        let polls = Arc::<Polls>::default();
        polls.turn().await;
        let mut first = Box::pin(polls.turn());
        let began = Instant::now();
        let mut no_waker = Context::from_waker(Waker::noop());
        assert!(first.as_mut().poll(&mut no_waker).is_pending());
        polls.turn().await;
        assert!(began.elapsed() <= Duration::from_millis(2), "{:?}", began.elapsed());
        first.await;
    }
}
