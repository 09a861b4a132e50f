//! Makes the calls: at their due times even while answers are late ([`open_loop`]), or as fast as answers arrive
//! ([`closed_loop`]).
//!
//! In the open loop a time counts from when the call was due. If the target stalls for a second, every call of that
//! second is late, as it would be for users. A generator that waits with the target and counts from when it finally
//! sent would report one slow call. (Coordinated omission.)

use std::sync::Arc;
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::sync::{Semaphore, oneshot, watch};
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout};

use super::args::Pace;
use super::subjects::Subjects;
use super::tally::{Answer, Recorder};
use super::target::Target;
use crate::Failure;

/// The calls of one run.
#[derive(Clone)]
pub struct Load {
    pub(crate) pace: Pace,
    pub(crate) subjects: Subjects,
    /// The most calls that wait for answers at once.
    pub(crate) callers: usize,
    /// No call is made after this time.
    pub(crate) length: Duration,
    /// How long an answer may take.
    pub(crate) patience: Duration,
    /// Becomes true when the run is to end early.
    pub(crate) stop: watch::Receiver<bool>,
}

/// Starts the loop that fits the pace; the receiver returns when the last answer has arrived.
pub fn start(
    target: &Arc<Target>,
    load: Load,
    recorder: &Arc<Recorder>,
) -> Result<oneshot::Receiver<()>, Failure> {
    let (done, over) = oneshot::channel();
    let (target, recorder) = (Arc::clone(target), Arc::clone(recorder));
    let ask = move |subject| {
        let target = Arc::clone(&target);
        async move { target.ask(subject).await }
    };
    let runtime = Handle::current();
    // A thread of its own wakes in time, however busy the runtime is.
    std::thread::Builder::new().name("bench-pace".to_owned()).spawn(move || {
        runtime.block_on(async {
            match load.pace {
                Pace::PerSecond(rate) => open_loop(load, rate, &recorder, ask, sleep_exactly).await,
                Pace::Max => closed_loop(load, &recorder, ask).await,
            }
        });
        drop(done);
    })?;
    Ok(over)
}

/// Makes each call when it is due or, while all callers wait, as soon as one is free. Calls that are still unsent at
/// the end count as waiting until then. `sleep_until` waits for an instant.
async fn open_loop<A, F>(
    load: Load,
    rate: u64,
    recorder: &Arc<Recorder>,
    ask: A,
    mut sleep_until: impl AsyncFnMut(Instant),
) where
    A: Fn(u64) -> F,
    F: Future<Output = Answer> + Send + 'static,
{
    let Load { mut subjects, callers, length, patience, mut stop, .. } = load;
    let start = Instant::now();
    let end = start + length;
    let due_at = |number: u64| start + Duration::from_nanos(scaled(number, SECOND_NS, rate));
    let calls = scaled(length.as_nanos() as u64, rate, SECOND_NS).max(1);
    let free = Arc::new(Semaphore::new(callers));
    let mut number = 0;
    while number < calls {
        let due = due_at(number);
        let caller = tokio::select! {
            biased;
            () = stopped(&mut stop) => break,
            caller = async {
                sleep_until(due).await;
                Arc::clone(&free).acquire_owned().await.expect("the semaphore is never closed")
            } => caller,
        };
        let sent = Instant::now();
        if sent >= end.max(due + GRACE) {
            break;
        }
        let (recorder, call) = (Arc::clone(recorder), ask(subjects.draw()));
        tokio::spawn(async move {
            let answer = timeout(patience, call).await.unwrap_or(Answer::TimedOut);
            recorder.add(number, sent - due, Instant::now() - due, answer);
            drop(caller);
        });
        number += 1;
    }
    let over = Instant::now().min(end);
    (number..calls)
        .map(due_at)
        .take_while(|due| *due < over)
        .for_each(|due| recorder.add_unsent(over - due));
    // Waits for all callers: each gives up at the end of its patience.
    let _ = free.acquire_many(callers as u32).await;
}

/// Runs callers that each call again as soon as they are answered.
async fn closed_loop<A, F>(load: Load, recorder: &Arc<Recorder>, ask: A)
where
    A: Fn(u64) -> F + Clone + Send + 'static,
    F: Future<Output = Answer> + Send + 'static,
{
    let Load { callers, patience, .. } = load;
    let end = Instant::now() + load.length;
    let mut running = JoinSet::new();
    for caller in 0..callers as u64 {
        let mut subjects = load.subjects.seeded(caller);
        let (recorder, ask, stop) = (Arc::clone(recorder), ask.clone(), load.stop.clone());
        running.spawn(async move {
            let mut sent = Instant::now();
            let mut calls: u32 = 0;
            while sent < end && !*stop.borrow() {
                let answer = timeout(patience, ask(subjects.draw())).await;
                // One reading of the clock serves two calls: in memory a reading is a good part of a call.
                let answered = Instant::now();
                let answer = answer.unwrap_or(Answer::TimedOut);
                recorder.add(caller, Duration::ZERO, answered - sent, answer);
                sent = answered;
                calls = calls.wrapping_add(1);
                if calls.is_multiple_of(TURN) {
                    // Calls in memory never wait, so the task would not let others run.
                    tokio::task::yield_now().await;
                    sent = Instant::now();
                }
            }
        });
    }
    while running.join_next().await.is_some() {}
}

/// Waits for an instant more exactly than the runtime's timer, whose tick is a millisecond. It blocks the thread for
/// the last part, so it needs a thread that does nothing else.
async fn sleep_exactly(until: Instant) {
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

async fn stopped(stop: &mut watch::Receiver<bool>) {
    if stop.wait_for(|stop| *stop).await.is_err() {
        // The sender was dropped, so a stop can no longer come.
        std::future::pending::<()>().await;
    }
}

fn scaled(number: u64, by: u64, of: u64) -> u64 {
    (u128::from(number) * u128::from(by) / u128::from(of)) as u64
}

const SECOND_NS: u64 = 1_000_000_000;
/// Twice the tick of the runtime's timer: one until it fires, one until the task runs.
const TICK: Duration = Duration::from_millis(2);
/// How late the last call may be sent, since the sending thread wakes a little late.
const GRACE: Duration = Duration::from_millis(20);
/// A caller makes this many calls before it lets other tasks run.
const TURN: u32 = 64;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::subjects::Scenario;
    use crate::bench::tally::Tally;

    fn load(callers: usize, stop: watch::Receiver<bool>) -> Load {
        Load {
            pace: Pace::Max,
            subjects: Subjects::new(Scenario::Steady, 1_000),
            callers,
            length: Duration::from_secs(2),
            patience: Duration::from_secs(10),
            stop,
        }
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
            Answer::Allowed("store")
        };
        open_loop(load(callers, stop), 1_000, &recorder, ask, tokio::time::sleep_until).await;
        recorder.total()
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
            assert_eq!((tally.allowed, tally.unsent), (2_000, 0));
            let (p50, p80, p99) = (ms(&tally, 0.5), ms(&tally, 0.8), ms(&tally, 0.99));
            assert!(p50 <= 1, "{callers} callers: {p50} ms");
            assert!((90..=110).contains(&p80), "{callers} callers: {p80} ms");
            assert!((470..=501).contains(&p99), "{callers} callers: {p99} ms");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn calls_that_are_never_sent_count_as_waiting_until_the_end() {
        let tally = calls_to_a_stalling_target(4, (1_000, 3_000)).await;
        assert_eq!((tally.allowed, tally.unsent), (1_004, 996));
        assert_eq!(tally.latency.len(), 2_000);
        let p75 = ms(&tally, 0.75);
        assert!((480..=520).contains(&p75), "{p75} ms");
    }

    #[tokio::test(start_paused = true)]
    async fn a_call_without_an_answer_times_out_at_its_patience() {
        let (_keep, stop) = watch::channel(false);
        let load = Load { patience: Duration::from_millis(100), ..load(1_000, stop) };
        let recorder = Arc::new(Recorder::new());
        let begun = Instant::now();
        open_loop(load, 50, &recorder, |_| std::future::pending(), tokio::time::sleep_until).await;
        let tally = recorder.total();
        assert_eq!((tally.timed_out, tally.decisions()), (100, 0));
        assert!((99..=101).contains(&ms(&tally, 0.5)));
        assert!(Instant::now() - begun < Duration::from_millis(2_200));
    }

    #[tokio::test(start_paused = true)]
    async fn a_stopped_run_keeps_the_answers_so_far() {
        let (stopper, stop) = watch::channel(false);
        let recorder = Arc::new(Recorder::new());
        tokio::spawn(async move {
            tokio::time::sleep(Duration::from_millis(500)).await;
            stopper.send_replace(true);
        });
        let ask = |_| async { Answer::Denied("store") };
        open_loop(load(8, stop), 1_000, &recorder, ask, tokio::time::sleep_until).await;
        let tally = recorder.total();
        assert!((499..=502).contains(&tally.denied), "{}", tally.denied);
        assert!(tally.unsent <= 1, "calls that were not due yet are not missing: {}", tally.unsent);
    }

    #[tokio::test(start_paused = true)]
    async fn callers_of_a_closed_loop_call_again_when_they_are_answered() {
        let (_keep, stop) = watch::channel(false);
        let recorder = Arc::new(Recorder::new());
        let ask = |_| async {
            tokio::time::sleep(Duration::from_millis(10)).await;
            Answer::Allowed("store")
        };
        closed_loop(load(5, stop), &recorder, ask).await;
        let tally = recorder.total();
        // The timer's tick turns 10 ms into up to 11.
        assert!((900..=1_000).contains(&tally.allowed), "{}", tally.allowed);
        assert!((9..=11).contains(&ms(&tally, 0.99)));
    }
}
