//! The results of a bench: as text, as JSON, as charts.

use std::fmt;

use hdrhistogram::Histogram;
use serde::{Serialize, Serializer};
use serde_json::value::RawValue;

use super::run::{Slice, per_second};
use super::tally::{SOURCES, Tally};
use crate::output::grouped;

pub(super) mod charts;
mod text;

/// The whole report; its fields are those of `--json`.
#[derive(Serialize)]
pub(super) struct Report {
    pub(super) scenario: String,
    pub(super) subjects: u64,
    pub(super) seed: u64,
    /// `open`: calls are made at their due times even while answers are late. `closed`: each caller calls again when
    /// it is answered, so that a slow target gets fewer calls.
    #[serde(rename = "loop")]
    pub(super) kind: &'static str,
    /// The rate as the flag gave it.
    pub(super) rate: String,
    pub(super) duration_ms: u64,
    pub(super) callers: usize,
    /// The limit or the rules that were checked.
    pub(super) checks: String,
    /// Whether the run ended early.
    pub(super) stopped: bool,
    /// The faults of the store, and when they happened.
    pub(super) events: Vec<Fault>,
    /// The limiter or service first, then the baseline.
    #[serde(rename = "contenders")]
    pub(super) targets: Vec<TargetReport>,
    /// The limiter or service divided by the baseline.
    pub(super) ratios: Vec<Ratio>,
}

/// A fault of the store.
#[derive(Clone, Serialize)]
pub(super) struct Fault {
    pub(super) at_ms: u64,
    pub(super) event: &'static str,
}

/// The results of one target.
#[derive(Serialize)]
pub(super) struct TargetReport {
    pub(super) name: &'static str,
    pub(super) place: String,
    pub(super) sent: u64,
    pub(super) allowed: u64,
    pub(super) denied: u64,
    pub(super) by_source: BySource,
    pub(super) errors: u64,
    pub(super) timed_out: u64,
    pub(super) failed: std::collections::BTreeMap<String, u64>,
    pub(super) unsent: u64,
    /// Decisions a second.
    pub(super) per_second: u64,
    pub(super) latency: Quantiles,
    pub(super) sent_late: Quantiles,
    pub(super) over_time: Vec<Slice>,
}

/// Decisions by source.
pub(super) struct BySource([u64; SOURCES.len() + 1]);

/// Quantiles in nanoseconds.
#[derive(Clone, Copy, Serialize)]
pub(super) struct Quantiles {
    pub(super) p50_ns: u64,
    pub(super) p90_ns: u64,
    pub(super) p99_ns: u64,
    #[serde(rename = "p99.9_ns")]
    pub(super) p999_ns: u64,
    pub(super) max_ns: u64,
}

/// The limiter or service divided by a baseline in each pair of runs: the median and the range.
#[derive(Serialize)]
pub(super) struct Ratio {
    pub(super) to: &'static str,
    pub(super) rounds: usize,
    pub(super) rate: Option<MedianAndRange>,
    pub(super) p50: Option<MedianAndRange>,
    pub(super) p99: Option<MedianAndRange>,
}

/// Ratios in thousandths.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct MedianAndRange {
    median: u64,
    min: u64,
    max: u64,
}

/// The figures of one run.
#[derive(Clone, Copy)]
pub(super) struct Figures {
    pub(super) per_second: u64,
    pub(super) p50_ns: u64,
    pub(super) p99_ns: u64,
}

impl TargetReport {
    pub(super) fn new(
        name: &'static str,
        place: String,
        tally: &Tally,
        length_us: u64,
        over_time: Vec<Slice>,
    ) -> TargetReport {
        TargetReport {
            name,
            place,
            sent: tally.sent,
            allowed: tally.allowed,
            denied: tally.denied,
            by_source: BySource(tally.by_source),
            errors: tally.errors(),
            timed_out: tally.timed_out,
            failed: tally.failed.clone(),
            unsent: tally.unsent,
            per_second: per_second(tally.answered(), length_us),
            latency: Quantiles::of(&tally.latency),
            sent_late: Quantiles::of(&tally.late),
            over_time,
        }
    }
}

impl Figures {
    pub(super) fn of(tally: &Tally, length_us: u64) -> Figures {
        Figures {
            per_second: per_second(tally.answered(), length_us),
            p50_ns: tally.latency.value_at_quantile(0.5),
            p99_ns: tally.latency.value_at_quantile(0.99),
        }
    }
}

impl Quantiles {
    fn of(histogram: &Histogram<u64>) -> Quantiles {
        Quantiles {
            p50_ns: histogram.value_at_quantile(0.5),
            p90_ns: histogram.value_at_quantile(0.9),
            p99_ns: histogram.value_at_quantile(0.99),
            p999_ns: histogram.value_at_quantile(0.999),
            max_ns: histogram.max(),
        }
    }
}

impl BySource {
    /// Returns the sources with at least one decision, each with its name.
    fn all(&self) -> impl Iterator<Item = (&'static str, u64)> {
        let words = SOURCES.iter().map(|source| source.name()).chain([UNKNOWN_SOURCE]);
        words.zip(self.0).filter(|(_, count)| *count > 0)
    }
}

impl Serialize for BySource {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.all())
    }
}

impl Ratio {
    /// Divides the figures of runs that took turns.
    pub(super) fn new(to: &'static str, ours: &[Figures], theirs: &[Figures]) -> Ratio {
        let ratio = |of: fn(&Figures) -> u64| {
            MedianAndRange::of(ours.iter().zip(theirs).map(|(ours, theirs)| (of(ours), of(theirs))))
        };
        Ratio {
            to,
            rounds: ours.len().min(theirs.len()),
            rate: ratio(|figures| figures.per_second),
            p50: ratio(|figures| figures.p50_ns),
            p99: ratio(|figures| figures.p99_ns),
        }
    }
}

impl MedianAndRange {
    /// Returns `None` if every divisor is 0.
    fn of(pairs: impl Iterator<Item = (u64, u64)>) -> Option<MedianAndRange> {
        let ratio = |(ours, theirs): (u64, u64)| {
            let thousandths = (u128::from(ours) * 1_000).checked_div(u128::from(theirs))?;
            u64::try_from(thousandths).ok()
        };
        let mut sorted: Vec<u64> = pairs.filter_map(ratio).collect();
        sorted.sort_unstable();
        let (min, max) = (*sorted.first()?, *sorted.last()?);
        Some(MedianAndRange { median: sorted[sorted.len() / 2], min, max })
    }
}

impl Serialize for MedianAndRange {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let number = |thousandths| {
            RawValue::from_string(decimal(thousandths, 3)).map_err(serde::ser::Error::custom)
        };
        let all = [("median", self.median), ("min", self.min), ("max", self.max)];
        let all: Vec<_> = all
            .into_iter()
            .map(|(name, thousandths)| Ok((name, number(thousandths)?)))
            .collect::<Result<_, S::Error>>()?;
        serializer.collect_map(all)
    }
}

impl fmt::Display for MedianAndRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let digits = |thousandths: u64| decimal(thousandths.div_ceil(10), 2);
        write!(f, "{} ({}-{})", digits(self.median), digits(self.min), digits(self.max))
    }
}

/// Returns a number with `digits` digits behind the point.
fn decimal(number: u64, digits: u32) -> String {
    let one = 10_u64.pow(digits);
    format!("{}.{:0width$}", number / one, number % one, width = digits as usize)
}

/// Returns nanoseconds in the unit that fits, with three digits.
pub(super) fn time(ns: u64) -> String {
    let (unit, word) = match ns {
        0..1_000 => return format!("{ns} ns"),
        1_000..1_000_000 => (1_000, "µs"),
        1_000_000..1_000_000_000 => (1_000_000, "ms"),
        _ => (1_000_000_000, "s"),
    };
    match ns / unit {
        0..10 => format!("{} {word}", decimal(ns / (unit / 100), 2)),
        10..100 => format!("{} {word}", decimal(ns / (unit / 10), 1)),
        whole => format!("{} {word}", grouped(whole)),
    }
}

/// The source of decisions whose answer does not name one.
pub(super) const UNKNOWN_SOURCE: &str = "unknown";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_have_three_digits_and_a_unit() {
        for (ns, expected) in [
            (0, "0 ns"),
            (999, "999 ns"),
            (1_000, "1.00 µs"),
            (67_340, "67.3 µs"),
            (999_999, "999 µs"),
            (1_234_567, "1.23 ms"),
            (12_000_000_000, "12.0 s"),
            (3_600_000_000_000, "3,600 s"),
        ] {
            assert_eq!(time(ns), expected);
        }
    }

    #[test]
    fn a_ratio_is_the_median_of_pairs_with_its_range() {
        let figures = |per_second| Figures { per_second, p50_ns: 100, p99_ns: 0 };
        let (ours, theirs) = ([300, 100, 220].map(figures), [100, 100, 110].map(figures));
        let ratio = Ratio::new("evalsha", &ours, &theirs);
        assert_eq!(ratio.rate, Some(MedianAndRange { median: 2_000, min: 1_000, max: 3_000 }));
        assert_eq!(ratio.rate.unwrap().to_string(), "2.00 (1.00-3.00)");
        assert_eq!(ratio.p99, None, "a baseline of 0 has no ratio");
        let json = serde_json::to_value(&ratio).unwrap();
        assert_eq!(json["rate"]["median"], 2.0);
    }
}
