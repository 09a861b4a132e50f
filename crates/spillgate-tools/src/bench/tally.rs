//! Counts the results of calls while they are made.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use hdrhistogram::Histogram;
use spillgate::Source;

/// The result of one call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Answer {
    /// Allowed, and the source of the decision if the answer names it.
    Allowed(Option<Source>),
    /// Denied, and the source of the decision if the answer names it.
    Denied(Option<Source>),
    /// No decision, and the reason.
    Failed(String),
    /// No answer within the time that a call may take.
    TimedOut,
}

/// When a call was due, was sent, and was answered, in nanoseconds since the start.
#[derive(Clone, Copy, Debug)]
pub(super) struct Times {
    pub(super) due_ns: u64,
    pub(super) sent_ns: u64,
    pub(super) answered_ns: u64,
}

/// The counts and times of calls.
#[derive(Clone)]
pub(super) struct Tally {
    pub(super) sent: u64,
    pub(super) allowed: u64,
    pub(super) denied: u64,
    /// In the order of [`SOURCES`], then the decisions whose answer names no source.
    pub(super) by_source: [u64; SOURCES.len() + 1],
    pub(super) timed_out: u64,
    /// Calls without a decision by reason: the first few reasons, then [`OTHER_REASONS`].
    pub(super) failed: BTreeMap<String, u64>,
    /// Calls that were due before the end and never sent, since all callers waited for answers.
    pub(super) unsent: u64,
    /// From when a call was due until its answer, in nanoseconds. Calls that were never sent count until the end.
    /// Calls that failed at once are not in it.
    pub(super) latency: Histogram<u64>,
    /// How much later than due a call was sent, in nanoseconds.
    pub(super) late: Histogram<u64>,
}

impl Tally {
    pub(super) fn new() -> Tally {
        let histogram = |digits| {
            Histogram::new_with_bounds(1, LONGEST_NS, digits)
                .expect("a range of more than two and a digit or more make a histogram")
        };
        Tally {
            sent: 0,
            allowed: 0,
            denied: 0,
            by_source: [0; SOURCES.len() + 1],
            timed_out: 0,
            failed: BTreeMap::new(),
            unsent: 0,
            latency: histogram(3),
            late: histogram(2),
        }
    }

    pub(super) fn errors(&self) -> u64 {
        self.timed_out + self.failed.values().sum::<u64>()
    }

    /// Returns the number of decisions, allowed or denied.
    pub(super) fn answered(&self) -> u64 {
        self.allowed + self.denied
    }

    fn add(&mut self, times: Times, answer: Answer) {
        self.sent += 1;
        self.late.saturating_record(times.sent_ns.saturating_sub(times.due_ns));
        let source = match answer {
            Answer::Allowed(source) => {
                self.allowed += 1;
                Some(source)
            }
            Answer::Denied(source) => {
                self.denied += 1;
                Some(source)
            }
            Answer::TimedOut => {
                self.timed_out += 1;
                None
            }
            Answer::Failed(why) => {
                self.fail(why, 1);
                // Failures are fast; in the histogram they would make the target look fast.
                return;
            }
        };
        if let Some(source) = source {
            let known = SOURCES.iter().position(|known| Some(*known) == source);
            self.by_source[known.unwrap_or(SOURCES.len())] += 1;
        }
        self.latency.saturating_record(times.answered_ns.saturating_sub(times.due_ns));
    }

    fn fail(&mut self, why: String, times: u64) {
        let known = self.failed.contains_key(&why) || self.failed.len() < REASONS_MAX;
        *self.failed.entry(if known { why } else { OTHER_REASONS.to_owned() }).or_default() +=
            times;
    }

    /// Adds all counts of another tally, and empties that one.
    pub(super) fn take(&mut self, other: &mut Tally) {
        self.sent += std::mem::take(&mut other.sent);
        self.allowed += std::mem::take(&mut other.allowed);
        self.denied += std::mem::take(&mut other.denied);
        for (mine, theirs) in self.by_source.iter_mut().zip(&mut other.by_source) {
            *mine += std::mem::take(theirs);
        }
        self.timed_out += std::mem::take(&mut other.timed_out);
        for (why, times) in std::mem::take(&mut other.failed) {
            self.fail(why, times);
        }
        self.unsent += std::mem::take(&mut other.unsent);
        for (mine, theirs) in
            [(&mut self.latency, &mut other.latency), (&mut self.late, &mut other.late)]
        {
            mine.add(&*theirs).expect("all have the same range");
            theirs.reset();
        }
    }
}

/// Counts the calls of all callers, in parts with a lock each, so that callers seldom wait for each other.
pub(super) struct Recorder {
    parts: Vec<Mutex<Tally>>,
}

impl Recorder {
    pub(super) fn new() -> Recorder {
        Recorder { parts: (0..PARTS).map(|_| Mutex::new(Tally::new())).collect() }
    }

    /// Adds a call. `number`, the caller's or the call's, chooses the part.
    pub(super) fn add(&self, number: u64, times: Times, answer: Answer) {
        held(&self.parts[number as usize % PARTS]).add(times, answer);
    }

    /// Adds a call that was due `waited_ns` ago and will not be made.
    pub(super) fn add_unsent(&self, waited_ns: u64) {
        let mut part = held(&self.parts[0]);
        part.unsent += 1;
        part.latency.saturating_record(waited_ns);
    }

    /// Takes all counts since the last call of this function.
    pub(super) fn collect(&self) -> Tally {
        let mut all = Tally::new();
        self.parts.iter().for_each(|part| all.take(&mut held(part)));
        all
    }
}

fn held(part: &Mutex<Tally>) -> MutexGuard<'_, Tally> {
    part.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The sources, best first.
pub(super) const SOURCES: [Source; 5] =
    [Source::Store, Source::Lease, Source::DenialCache, Source::Fallback, Source::OutagePolicy];

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

    const TIMES: Times = Times { due_ns: 0, sent_ns: 10, answered_ns: 1_000 };

    #[test]
    fn a_fast_failure_is_counted_but_not_timed() {
        let recorder = Recorder::new();
        recorder.add(1, Times { answered_ns: 20, ..TIMES }, Answer::Failed("refused".into()));
        recorder.add(2, TIMES, Answer::Denied(None));
        recorder.add(3, TIMES, Answer::Allowed(Some(Source::Lease)));
        recorder.add(4, TIMES, Answer::TimedOut);
        let tally = recorder.collect();
        assert_eq!((tally.sent, tally.answered(), tally.errors()), (4, 2, 2));
        assert_eq!(tally.by_source, [0, 1, 0, 0, 0, 1]);
        assert_eq!((tally.latency.len(), tally.latency.min()), (3, 1_000));
        assert_eq!(recorder.collect().sent, 0, "each call is collected once");
    }

    #[test]
    fn reasons_are_bounded() {
        let recorder = Recorder::new();
        (0..100).for_each(|n| recorder.add(n, TIMES, Answer::Failed(format!("reason {n}"))));
        let mut whole = Tally::new();
        whole.take(&mut recorder.collect());
        assert!(whole.failed.len() <= REASONS_MAX + 1, "{:?}", whole.failed);
        assert_eq!((whole.errors(), whole.failed.contains_key(OTHER_REASONS)), (100, true));
    }
}
