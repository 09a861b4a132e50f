//! Runs one target under load, and counts its answers over time.

use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;
use tokio::runtime::Handle;
use tokio::sync::{oneshot, watch};
use tokio::time::Instant;

use super::load::{self, Terms};
use super::schedule::{Pace, Schedule};
use super::tally::{Recorder, Tally};
use super::target::Target;
use crate::Failure;

/// The results of a run.
pub(super) struct Ran {
    pub(super) tally: Tally,
    pub(super) slices: Vec<Slice>,
    /// How long calls were made.
    pub(super) length_us: u64,
}

/// The figures of a short interval of a run, or of all runs of a target one after another.
#[derive(Clone, Copy, Debug, Serialize)]
pub(super) struct Slice {
    /// Since the start of the first run.
    pub(super) from_us: u64,
    pub(super) until_us: u64,
    pub(super) allowed: u64,
    pub(super) denied: u64,
    pub(super) errors: u64,
    /// Quantiles of the answers of this interval, in nanoseconds.
    pub(super) p50_ns: u64,
    pub(super) p99_ns: u64,
}

impl Slice {
    pub(super) fn per_second(&self, count: u64) -> u64 {
        per_second(count, self.until_us - self.from_us)
    }
}

/// Makes the calls of a schedule to a target, and passes each slice to `show`.
pub(super) async fn run(
    target: &Arc<Target>,
    schedule: &Schedule,
    terms: Terms,
    mut show: impl FnMut(&Slice),
) -> Result<Ran, Failure> {
    let recorder = Arc::new(Recorder::new());
    let begun = Instant::now();
    let since_begun = || begun.elapsed().as_micros() as u64;
    let mut over = begin(target, schedule, terms.clone(), &recorder)?;
    let (mut tally, mut slices) = (Tally::new(), Vec::new());
    let slice_length = (terms.length / SLICES).max(SLICE_MIN);
    let mut from_us = 0;
    let mut is_over = false;
    while !is_over {
        tokio::select! {
            _ = &mut over => is_over = true,
            () = tokio::time::sleep(slice_length) => {}
        }
        let mut part = recorder.collect();
        let slice = Slice {
            from_us,
            until_us: since_begun().max(from_us + 1),
            allowed: part.allowed,
            denied: part.denied,
            errors: part.errors(),
            p50_ns: part.latency.value_at_quantile(0.5),
            p99_ns: part.latency.value_at_quantile(0.99),
        };
        from_us = slice.until_us;
        tally.take(&mut part);
        show(&slice);
        slices.push(slice);
    }
    let length_us = since_begun().min(terms.length.as_micros() as u64).max(1);
    Ok(Ran { tally, slices, length_us })
}

/// Starts the loop that fits the schedule; the receiver returns when the last answer has arrived.
fn begin(
    target: &Arc<Target>,
    schedule: &Schedule,
    terms: Terms,
    recorder: &Arc<Recorder>,
) -> Result<oneshot::Receiver<()>, Failure> {
    let (done, over) = oneshot::channel();
    let (target, recorder) = (Arc::clone(target), Arc::clone(recorder));
    let ask = move |subject| {
        let target = Arc::clone(&target);
        async move { target.ask(subject).await }
    };
    match schedule.pace {
        Pace::At(_) => {
            let (arrivals, runtime) = (schedule.arrivals(), Handle::current());
            // A thread of its own wakes in time, however busy the runtime is.
            std::thread::Builder::new().name("bench-pace".to_owned()).spawn(move || {
                runtime.block_on(async {
                    load::open_loop(terms, arrivals, &recorder, ask, load::sleep_exactly).await;
                });
                drop(done);
            })?;
        }
        Pace::Max => {
            let schedule = schedule.clone();
            tokio::spawn(async move {
                let subjects = |caller| schedule.subjects_of_caller(caller);
                load::closed_loop(terms, subjects, &recorder, ask).await;
                drop(done);
            });
        }
    }
    Ok(over)
}

/// Returns a rate per second from a count in a number of microseconds.
pub(super) fn per_second(count: u64, us: u64) -> u64 {
    u64::try_from(u128::from(count) * 1_000_000 / u128::from(us.max(1))).unwrap_or(u64::MAX)
}

/// Returns whether the run is to end early.
pub(super) fn is_stopped(stop: &watch::Receiver<bool>) -> bool {
    *stop.borrow()
}

/// As many points as a chart shows well.
const SLICES: u32 = 150;
/// A shorter slice holds too few calls for a quantile.
const SLICE_MIN: Duration = Duration::from_millis(50);
