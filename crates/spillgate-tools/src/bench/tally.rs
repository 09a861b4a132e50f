//! Counts the results of calls while they are made.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use hdrhistogram::Histogram;
use serde::{Serialize, Serializer};

/// The result of one call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// Allowed, and the name of the part that decided.
    Allowed(&'static str),
    /// Denied, and the name of the part that decided.
    Denied(&'static str),
    /// No decision, and the reason.
    Failed(String),
    /// No answer within the time that a call may take.
    TimedOut,
}

/// The counts and times of calls.
#[derive(Clone, Debug, Serialize)]
pub struct Tally {
    pub(crate) allowed: u64,
    pub(crate) denied: u64,
    pub(crate) by_source: BTreeMap<&'static str, u64>,
    pub(crate) timed_out: u64,
    /// Calls without a decision by reason: the first few reasons, then [`OTHER_REASONS`].
    pub(crate) failed: BTreeMap<String, u64>,
    /// Calls that were due before the end and never sent, since all callers waited for answers.
    pub(crate) unsent: u64,
    /// From when a call was due until its answer, in nanoseconds. Calls that were never sent count until the end.
    /// Calls that failed at once are not in it.
    #[serde(serialize_with = "as_quantiles")]
    pub(crate) latency: Histogram<u64>,
    /// How much later than due a call was sent, in nanoseconds.
    #[serde(serialize_with = "as_quantiles")]
    pub(crate) sent_late: Histogram<u64>,
}

impl Tally {
    pub fn new() -> Tally {
        let histogram = |digits| {
            Histogram::new_with_bounds(1, LONGEST_NS, digits)
                .expect("a range of more than two and a digit or more make a histogram")
        };
        Tally {
            allowed: 0,
            denied: 0,
            by_source: BTreeMap::new(),
            timed_out: 0,
            failed: BTreeMap::new(),
            unsent: 0,
            latency: histogram(3),
            sent_late: histogram(2),
        }
    }

    pub fn errors(&self) -> u64 {
        self.timed_out + self.failed.values().sum::<u64>()
    }

    /// Returns the number of decisions, allowed or denied.
    pub fn decisions(&self) -> u64 {
        self.allowed + self.denied
    }

    fn add(&mut self, late: Duration, latency: Duration, answer: Answer) {
        self.sent_late.saturating_record(late.as_nanos() as u64);
        match answer {
            Answer::Allowed(source) => {
                self.allowed += 1;
                *self.by_source.entry(source).or_default() += 1;
            }
            Answer::Denied(source) => {
                self.denied += 1;
                *self.by_source.entry(source).or_default() += 1;
            }
            Answer::TimedOut => self.timed_out += 1,
            // Failures are fast; in the histogram they would make the target look fast.
            Answer::Failed(why) => return self.fail(why, 1),
        }
        self.latency.saturating_record(latency.as_nanos() as u64);
    }

    fn fail(&mut self, why: String, times: u64) {
        let known = self.failed.contains_key(&why) || self.failed.len() < REASONS_MAX;
        let why = if known { why } else { OTHER_REASONS.to_owned() };
        *self.failed.entry(why).or_default() += times;
    }

    /// Adds all counts of another tally.
    pub fn merge(&mut self, other: &Tally) {
        self.allowed += other.allowed;
        self.denied += other.denied;
        for (source, count) in &other.by_source {
            *self.by_source.entry(source).or_default() += count;
        }
        self.timed_out += other.timed_out;
        for (why, times) in &other.failed {
            self.fail(why.clone(), *times);
        }
        self.unsent += other.unsent;
        self.latency.add(&other.latency).expect("all have the same range");
        self.sent_late.add(&other.sent_late).expect("all have the same range");
    }
}

/// Returns the quantiles of a report, in nanoseconds.
pub fn quantiles(times: &Histogram<u64>) -> [(&'static str, u64); 5] {
    let quantile = |name, quantile| (name, times.value_at_quantile(quantile));
    [
        quantile("p50_ns", 0.5),
        quantile("p90_ns", 0.9),
        quantile("p99_ns", 0.99),
        quantile("p99.9_ns", 0.999),
        ("max_ns", times.max()),
    ]
}

fn as_quantiles<S: Serializer>(times: &Histogram<u64>, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_map(quantiles(times))
}

/// Counts the calls of all callers, in parts with a lock each, so that callers seldom wait for each other.
pub struct Recorder {
    parts: [Mutex<Tally>; PARTS],
}

impl Recorder {
    pub fn new() -> Recorder {
        Recorder { parts: std::array::from_fn(|_| Mutex::new(Tally::new())) }
    }

    /// Adds a call that was sent this late and answered this long after it was due. `number`, the caller's or the
    /// call's, chooses the part.
    pub fn add(&self, number: u64, late: Duration, latency: Duration, answer: Answer) {
        held(&self.parts[number as usize % PARTS]).add(late, latency, answer);
    }

    /// Adds a call that has been due for this long and will not be made.
    pub fn add_unsent(&self, waited: Duration) {
        let mut part = held(&self.parts[0]);
        part.unsent += 1;
        part.latency.saturating_record(waited.as_nanos() as u64);
    }

    /// Returns all counts so far.
    pub fn total(&self) -> Tally {
        let mut all = Tally::new();
        self.parts.iter().for_each(|part| all.merge(&held(part)));
        all
    }
}

fn held(part: &Mutex<Tally>) -> MutexGuard<'_, Tally> {
    part.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The last entry of the list of reasons.
const OTHER_REASONS: &str = "others";
/// As many reasons as a person reads.
const REASONS_MAX: usize = 8;
/// Usually as many as there are cores, or more.
const PARTS: usize = 8;
/// An hour, longer than any call waits.
const LONGEST_NS: u64 = 3_600_000_000_000;

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn a_fast_failure_is_counted_but_not_timed() {
        let recorder = Recorder::new();
        recorder.add(1, Duration::ZERO, Duration::ZERO, Answer::Failed("refused".into()));
        recorder.add(2, Duration::ZERO, MS, Answer::Denied("store"));
        recorder.add(3, Duration::ZERO, MS, Answer::Allowed("lease"));
        recorder.add(4, Duration::ZERO, MS, Answer::TimedOut);
        let tally = recorder.total();
        assert_eq!((tally.decisions(), tally.errors()), (2, 2));
        assert_eq!(tally.by_source, [("lease", 1), ("store", 1)].into());
        assert_eq!(tally.latency.len(), 3);
        assert!(tally.latency.min() > 990_000, "{}", tally.latency.min());
    }

    #[test]
    fn reasons_are_bounded() {
        let recorder = Recorder::new();
        (0..100).for_each(|n| recorder.add(n, MS, MS, Answer::Failed(format!("reason {n}"))));
        let whole = recorder.total();
        assert!(whole.failed.len() <= REASONS_MAX + 1, "{:?}", whole.failed);
        assert_eq!((whole.errors(), whole.failed.contains_key(OTHER_REASONS)), (100, true));
    }
}
