//! Makes the calls: at their due times even while answers are late ([`open_loop`]), or as fast as answers arrive
//! ([`closed_loop`]).
//!
//! In the open loop a time counts from when the call was due. If the target stalls for a second, every call of that
//! second is late, as it would be for users. A generator that waits with the target and counts from when it finally
//! sent would report one slow call. (Coordinated omission.)

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Semaphore, watch};
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout};

use super::schedule::{Arrival, Subjects};
use super::tally::{Answer, Recorder, Times};

/// The settings of both loops.
#[derive(Clone)]
pub(super) struct Terms {
    /// The most calls that wait for answers at once.
    pub(super) callers: usize,
    /// No call is made after this time.
    pub(super) length: Duration,
    /// How long an answer may take.
    pub(super) patience: Duration,
    /// Becomes true when the run is to end early.
    pub(super) stop: watch::Receiver<bool>,
}

/// Makes each call when it is due or, while all callers wait, as soon as one is free. Calls that are still unsent at
/// the end count as waiting until then. `sleep_until` waits for an instant.
pub(super) async fn open_loop<A, F>(
    terms: Terms,
    mut arrivals: impl Iterator<Item = Arrival>,
    recorder: &Arc<Recorder>,
    ask: A,
    mut sleep_until: impl AsyncFnMut(Instant),
) where
    A: Fn(u64) -> F,
    F: Future<Output = Answer> + Send + 'static,
{
    let start = Instant::now();
    let end = start + terms.length;
    let free = Arc::new(Semaphore::new(terms.callers));
    let mut stop = terms.stop.clone();
    let mut number = 0;
    let waiting = loop {
        let Some(arrival) = arrivals.next() else { break None };
        let due = start + Duration::from_nanos(arrival.at_ns);
        let caller = tokio::select! {
            biased;
            () = stopped(&mut stop) => break Some(arrival),
            caller = async {
                sleep_until(due).await;
                Arc::clone(&free).acquire_owned().await.expect("the semaphore is never closed")
            } => caller,
        };
        let sent = Instant::now();
        if sent >= end.max(due + GRACE) {
            break Some(arrival);
        }
        let (recorder, call, patience) =
            (Arc::clone(recorder), ask(arrival.subject), terms.patience);
        number += 1;
        tokio::spawn(async move {
            let answer = timeout(patience, call).await.unwrap_or(Answer::TimedOut);
            let times = Times {
                due_ns: arrival.at_ns,
                sent_ns: since(start, sent),
                answered_ns: since(start, Instant::now()),
            };
            recorder.add(number, times, answer);
            drop(caller);
        });
    };
    let over_ns = since(start, Instant::now().min(end));
    for arrival in waiting.into_iter().chain(arrivals).take_while(|it| it.at_ns < over_ns) {
        recorder.add_unsent(over_ns - arrival.at_ns);
    }
    // Waits for all callers: each gives up at the end of its patience.
    let _ = free.acquire_many(terms.callers as u32).await;
}

/// Runs callers that each call again as soon as they are answered.
pub(super) async fn closed_loop<A, F>(
    terms: Terms,
    subjects: impl Fn(u64) -> Subjects,
    recorder: &Arc<Recorder>,
    ask: A,
) where
    A: Fn(u64) -> F + Clone + Send + 'static,
    F: Future<Output = Answer> + Send + 'static,
{
    let start = Instant::now();
    let length_ns = terms.length.as_nanos() as u64;
    let mut callers = JoinSet::new();
    for caller in 0..terms.callers as u64 {
        let (mut subjects, recorder, ask) = (subjects(caller), Arc::clone(recorder), ask.clone());
        let (patience, stop) = (terms.patience, terms.stop.clone());
        callers.spawn(async move {
            let mut sent_ns = since(start, Instant::now());
            let mut calls: u32 = 0;
            while sent_ns < length_ns && !*stop.borrow() {
                let answer = timeout(patience, ask(subjects.draw())).await;
                // One reading of the clock serves two calls: in memory a reading is a good part of a call.
                let answered_ns = since(start, Instant::now());
                let times = Times { due_ns: sent_ns, sent_ns, answered_ns };
                recorder.add(caller, times, answer.unwrap_or(Answer::TimedOut));
                sent_ns = answered_ns;
                calls = calls.wrapping_add(1);
                if calls.is_multiple_of(TURN) {
                    // Calls in memory never wait, so the task would not let others run.
                    tokio::task::yield_now().await;
                    sent_ns = since(start, Instant::now());
                }
            }
        });
    }
    while callers.join_next().await.is_some() {}
}

/// Waits for an instant more exactly than the runtime's timer, whose tick is a millisecond. It blocks the thread for
/// the last part, so it needs a thread that does nothing else.
pub(super) async fn sleep_exactly(until: Instant) {
    loop {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return;
        } else if left > 2 * TICK {
            tokio::time::sleep(left - TICK).await;
        } else {
            std::thread::sleep(left);
        }
    }
}

pub(super) async fn stopped(stop: &mut watch::Receiver<bool>) {
    if stop.wait_for(|stop| *stop).await.is_err() {
        // The sender was dropped, so a stop can no longer come.
        std::future::pending::<()>().await;
    }
}

fn since(start: Instant, now: Instant) -> u64 {
    now.saturating_duration_since(start).as_nanos() as u64
}

/// Twice the tick of the runtime's timer: one until it fires, one until the task runs.
const TICK: Duration = Duration::from_millis(2);
/// How late the last call may be sent, since the sending thread wakes a little late.
const GRACE: Duration = Duration::from_millis(20);
/// A caller makes this many calls before it lets other tasks run.
const TURN: u32 = 64;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::schedule::{Pace, Scenario, Schedule};
    use crate::bench::tally::Tally;
    use crate::simulate::Rate;

    fn schedule(pace: Pace) -> Schedule {
        Schedule::new(Scenario::Steady, pace, 2_000_000, None, 1).unwrap()
    }

    fn terms(callers: usize, stop: watch::Receiver<bool>) -> Terms {
        let patience = Duration::from_secs(10);
        Terms { callers, length: Duration::from_secs(2), patience, stop }
    }

    /// Makes a thousand calls a second for two seconds of virtual time to a target that answers at once, except
    /// between two instants, when it stalls.
    async fn calls_to_a_stalling_target(callers: usize, stall_ms: (u64, u64)) -> Tally {
        let (_keep, stop) = watch::channel(false);
        let recorder = Arc::new(Recorder::new());
        let start = Instant::now();
        let ask = move |_| async move {
            let now = Instant::now() - start;
            let (from, to) = (Duration::from_millis(stall_ms.0), Duration::from_millis(stall_ms.1));
            if now >= from && now < to {
                tokio::time::sleep_until(start + to).await;
            }
            Answer::Allowed(None)
        };
        let rate = Rate { count: 1_000, period_us: 1_000_000 };
        let arrivals = schedule(Pace::At(rate)).arrivals();
        open_loop(terms(callers, stop), arrivals, &recorder, ask, tokio::time::sleep_until).await;
        recorder.collect()
    }

    fn ms(tally: &Tally, quantile: f64) -> u64 {
        tally.latency.value_at_quantile(quantile) / 1_000_000
    }

    // With one caller a single call is slow by itself: a generator that counts from when a call was sent would see
    // one slow call of 2,000, and a p99 of nothing.
    #[tokio::test(start_paused = true)]
    async fn a_stalled_target_makes_every_call_due_meanwhile_late() {
        for callers in [1, 10, 2_000] {
            let tally = calls_to_a_stalling_target(callers, (1_000, 1_500)).await;
            assert_eq!((tally.sent, tally.allowed, tally.unsent), (2_000, 2_000, 0));
            let (p50, p80, p99) = (ms(&tally, 0.5), ms(&tally, 0.8), ms(&tally, 0.99));
            assert!(p50 <= 1, "{callers} callers: {p50} ms");
            assert!((90..=110).contains(&p80), "{callers} callers: {p80} ms");
            assert!((470..=501).contains(&p99), "{callers} callers: {p99} ms");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn calls_that_are_never_sent_count_as_waiting_until_the_end() {
        let tally = calls_to_a_stalling_target(4, (1_000, 3_000)).await;
        assert_eq!((tally.sent, tally.unsent), (1_004, 996));
        assert_eq!(tally.latency.len(), 2_000);
        let p75 = ms(&tally, 0.75);
        assert!((480..=520).contains(&p75), "{p75} ms");
    }

    #[tokio::test(start_paused = true)]
    async fn a_call_without_an_answer_times_out_at_its_patience() {
        let (_keep, stop) = watch::channel(false);
        let terms = Terms { patience: Duration::from_millis(100), ..terms(1_000, stop) };
        let recorder = Arc::new(Recorder::new());
        let rate = Rate { count: 50, period_us: 1_000_000 };
        let arrivals = schedule(Pace::At(rate)).arrivals();
        let ask = |_| std::future::pending();
        let begun = Instant::now();
        open_loop(terms, arrivals, &recorder, ask, tokio::time::sleep_until).await;
        let tally = recorder.collect();
        assert_eq!((tally.timed_out, tally.answered()), (100, 0));
        assert!((99..=101).contains(&ms(&tally, 0.5)));
        assert!(Instant::now() - begun < Duration::from_millis(2_200));
    }

    #[tokio::test(start_paused = true)]
    async fn a_stopped_run_keeps_the_answers_so_far() {
        let (stopper, stop) = watch::channel(false);
        let recorder = Arc::new(Recorder::new());
        let rate = Rate { count: 1_000, period_us: 1_000_000 };
        let arrivals = schedule(Pace::At(rate)).arrivals();
        tokio::spawn(async move {
            tokio::time::sleep(Duration::from_millis(500)).await;
            stopper.send_replace(true);
        });
        let ask = |_| async { Answer::Denied(None) };
        open_loop(terms(8, stop), arrivals, &recorder, ask, tokio::time::sleep_until).await;
        let tally = recorder.collect();
        assert!((499..=502).contains(&tally.denied), "{}", tally.denied);
        assert!(tally.unsent <= 1, "calls that were not due yet are not missing: {}", tally.unsent);
    }

    #[tokio::test(start_paused = true)]
    async fn callers_of_a_closed_loop_call_again_when_they_are_answered() {
        let (_keep, stop) = watch::channel(false);
        let recorder = Arc::new(Recorder::new());
        let schedule = schedule(Pace::Max);
        let ask = |_| async {
            tokio::time::sleep(Duration::from_millis(10)).await;
            Answer::Allowed(None)
        };
        let subjects = move |caller| schedule.subjects_of_caller(caller);
        closed_loop(terms(5, stop), subjects, &recorder, ask).await;
        let tally = recorder.collect();
        // The timer's tick turns 10 ms into up to 11.
        assert!((900..=1_000).contains(&tally.allowed), "{}", tally.allowed);
        assert!((9..=11).contains(&ms(&tally, 0.99)));
    }
}
