//! The results of a bench, as text and as JSON.

use std::fmt;
use std::time::Duration;

use serde::Serialize;

use super::args::Pace;
use super::subjects::Scenario;
use super::tally::{Tally, quantiles};
use crate::output::{grouped, table};
use crate::{counted, printable};

/// The whole report; its fields are those of `--json`.
#[derive(Serialize)]
pub struct Report {
    pub(crate) scenario: Scenario,
    pub(crate) subjects: u64,
    pub(crate) rate: Pace,
    pub(crate) duration_ms: u64,
    pub(crate) callers: u32,
    /// The limit or the rules that were checked.
    pub(crate) checks: String,
    /// Whether the run ended early.
    pub(crate) stopped: bool,
    /// The limiter or server first, then the baseline.
    #[serde(rename = "contenders")]
    pub(crate) targets: Vec<TargetReport>,
    /// The limiter divided by the baseline.
    pub(crate) ratio: Option<Ratio>,
}

/// The results of one target.
#[derive(Serialize)]
pub struct TargetReport {
    name: &'static str,
    place: String,
    sent: u64,
    errors: u64,
    /// Decisions a second.
    per_second: u64,
    #[serde(flatten)]
    tally: Tally,
}

/// The limiter divided by the baseline in each pair of runs.
#[derive(Serialize)]
pub struct Ratio {
    rounds: usize,
    rate: Option<MedianAndRange>,
    p50: Option<MedianAndRange>,
    p99: Option<MedianAndRange>,
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
struct MedianAndRange {
    median: f64,
    min: f64,
    max: f64,
}

/// The results of one run.
pub struct Run {
    pub(crate) tally: Tally,
    pub(crate) length: Duration,
}

impl Run {
    fn per_second(&self) -> u64 {
        let us = self.length.as_micros().max(1);
        u64::try_from(u128::from(self.tally.decisions()) * 1_000_000 / us).unwrap_or(u64::MAX)
    }
}

impl TargetReport {
    pub fn new(name: &'static str, place: String, runs: &[Run]) -> TargetReport {
        let mut whole = Run { tally: Tally::new(), length: Duration::ZERO };
        for run in runs {
            whole.tally.merge(&run.tally);
            whole.length += run.length;
        }
        let (per_second, tally) = (whole.per_second(), whole.tally);
        let errors = tally.errors();
        TargetReport { name, place, sent: tally.decisions() + errors, errors, per_second, tally }
    }
}

impl Ratio {
    /// Divides the figures of runs that took turns.
    pub fn new(ours: &[Run], theirs: &[Run]) -> Ratio {
        let ratio = |figure: fn(&Run) -> u64| {
            let pairs = ours.iter().zip(theirs);
            MedianAndRange::new(pairs.map(|(ours, theirs)| (figure(ours), figure(theirs))))
        };
        Ratio {
            rounds: ours.len().min(theirs.len()),
            rate: ratio(Run::per_second),
            p50: ratio(|run| run.tally.latency.value_at_quantile(0.5)),
            p99: ratio(|run| run.tally.latency.value_at_quantile(0.99)),
        }
    }
}

impl MedianAndRange {
    /// Returns `None` if every divisor is 0.
    #[expect(clippy::float_arithmetic, reason = "a ratio for people, on which nothing depends")]
    fn new(pairs: impl Iterator<Item = (u64, u64)>) -> Option<MedianAndRange> {
        let divided = pairs.filter(|(_, theirs)| *theirs > 0);
        let mut all: Vec<f64> = divided.map(|(ours, theirs)| ours as f64 / theirs as f64).collect();
        all.sort_by(f64::total_cmp);
        Some(MedianAndRange {
            median: *all.get(all.len() / 2)?,
            min: *all.first()?,
            max: *all.last()?,
        })
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Report { scenario, checks, .. } = self;
        let subjects = match self.subjects {
            1 => "1 subject".to_owned(),
            subjects => format!("{} subjects", grouped(subjects)),
        };
        let (rate, kind) = match self.rate {
            Pace::PerSecond(rate) => (format!("{}/second", grouped(rate)), OPEN_LOOP),
            Pace::Max => ("as fast as answers come".to_owned(), CLOSED_LOOP),
        };
        let (callers, length) =
            (counted(self.callers as usize, "caller"), Duration::from_millis(self.duration_ms));
        writeln!(f, "{scenario}: {subjects}, {checks}, {rate} for {length:?}, {callers} at most")?;
        writeln!(f, "  {kind}")?;
        if self.stopped {
            writeln!(f, "  stopped before its end: these are the answers so far")?;
        }
        writeln!(f, "{}", table(&rows(&self.targets), 1))?;
        self.targets.iter().try_for_each(|target| write_details(f, target))?;
        let Some(ratio) = &self.ratio else { return Ok(()) };
        write!(f, "\nto the baseline, median (range) of {}:", counted(ratio.rounds, "pair"))?;
        for (name, it) in [("rate", ratio.rate), ("p50", ratio.p50), ("p99", ratio.p99)] {
            match it {
                Some(MedianAndRange { median, min, max }) => {
                    write!(f, "  {name} {median:.2} ({min:.2}-{max:.2})")?;
                }
                None => write!(f, "  {name} -")?,
            }
        }
        Ok(())
    }
}

fn rows(targets: &[TargetReport]) -> Vec<Vec<String>> {
    let heads =
        ["", "sent", "allowed", "denied", "errors", "rate", "p50", "p90", "p99", "p99.9", "max"];
    let mut rows = vec![heads.map(str::to_owned).to_vec()];
    rows.extend(targets.iter().map(|it| {
        let counts = [it.sent, it.tally.allowed, it.tally.denied, it.errors];
        let mut row = vec![it.name.to_owned()];
        row.extend(counts.map(grouped));
        row.push(format!("{}/s", grouped(it.per_second)));
        row.extend(quantiles(&it.tally.latency).map(|(_, ns)| time(ns)));
        row
    }));
    rows
}

fn write_details(f: &mut fmt::Formatter<'_>, target: &TargetReport) -> fmt::Result {
    let tally = &target.tally;
    write!(f, "\n{}: {}", target.name, target.place)?;
    let sources = tally.by_source.iter().map(|(name, count)| format!("{name} {}", grouped(*count)));
    match sources.collect::<Vec<_>>().join(", ").as_str() {
        "" => {}
        sources => write!(f, "\n  decided by: {sources}")?,
    }
    if tally.sent_late.max() > 0 {
        let [(_, p50), _, (_, p99), _, (_, max)] = quantiles(&tally.sent_late);
        let [p50, p99, max] = [p50, p99, max].map(time);
        write!(
            f,
            "\n  sent late by: p50 {p50}, p99 {p99}, at most {max} (within the times above)"
        )?;
    }
    if tally.unsent > 0 {
        write!(
            f,
            "\n  never sent: {}, since all callers waited for answers; counted as waiting until the end. \
             Lower --rate, or raise --callers",
            grouped(tally.unsent)
        )?;
    }
    if tally.timed_out > 0 {
        write!(f, "\n  no answer in time: {}", grouped(tally.timed_out))?;
    }
    for (why, count) in &tally.failed {
        // Without control characters, so that a reply cannot steer a terminal.
        write!(f, "\n  failed: {} by {}", grouped(*count), printable(why))?;
    }
    Ok(())
}

/// Returns nanoseconds in the unit that fits: `67.34µs`, `1.23ms`.
pub fn time(ns: u64) -> String {
    match ns {
        0..1_000 => format!("{ns}ns"),
        _ => format!("{:.2?}", Duration::from_nanos(ns)),
    }
}

const OPEN_LOOP: &str =
    "open loop: calls are made on time even while answers are late, and times count from then";
const CLOSED_LOOP: &str = "closed loop: each caller calls again when it is answered, so a slow target gets fewer \
                           calls, and its times look better than users would see them";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_have_a_unit() {
        let times = [0, 999, 67_340, 1_234_567, 12_000_000_000].map(time);
        assert_eq!(times, ["0ns", "999ns", "67.34µs", "1.23ms", "12.00s"]);
    }

    #[test]
    fn a_ratio_is_the_median_of_pairs_with_its_range() {
        let run = |allowed| {
            let tally = Tally { allowed, ..Tally::new() };
            Run { tally, length: Duration::from_secs(1) }
        };
        let ratio = Ratio::new(&[300, 100, 220].map(run), &[100, 100, 110].map(run));
        assert_eq!(ratio.rate, Some(MedianAndRange { median: 2.0, min: 1.0, max: 3.0 }));
        assert_eq!(ratio.p99, None, "a baseline of 0 has no ratio");
    }
}
