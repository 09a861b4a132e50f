//! The report as charts: rate and latency over time.

use super::{Report, TargetReport};
use crate::bench::run::Slice;
use crate::output::grouped;
use crate::plot::{Chart, Drawn, Figure, Ink, OverTime, Series, Span, TimeLabels};

pub(in crate::bench) fn figure(report: &Report) -> Figure {
    let charts = report
        .targets
        .iter()
        .flat_map(|target| [rate(report, target), latency(report, target)].map(Chart::OverTime));
    let mut subtitle = vec![report.checks.clone(), report.rate.clone()];
    subtitle.extend(
        report.events.iter().map(|event| format!("{} at {} ms", event.event, grouped(event.at_ms))),
    );
    Figure {
        title: format!("spillgate bench {}", report.scenario),
        subtitle: subtitle.join(", "),
        charts: charts.collect(),
    }
}

fn rate(report: &Report, target: &TargetReport) -> OverTime {
    let series = |label: &str, ink, shape, value: fn(&Slice) -> u64| Series {
        label: label.into(),
        ink,
        shape,
        steps: steps(target, |slice| slice.per_second(value(slice))),
    };
    let mut all = vec![
        series("denied", Ink::Refused, Drawn::Area, |slice| slice.allowed + slice.denied),
        series("allowed", Ink::Allowed, Drawn::Area, |slice| slice.allowed),
    ];
    if target.errors > 0 {
        all.push(series("errors", Ink::Asked, Drawn::Line, |slice| slice.errors));
    }
    OverTime {
        title: format!("{}: {}", target.name, target.place),
        counts: "answers a second".to_owned(),
        span: span(report, target),
        series: all,
        bound: None,
    }
}

fn latency(report: &Report, target: &TargetReport) -> OverTime {
    // The unit follows the p99: nanoseconds would all be 0 in microseconds.
    let (unit_ns, unit) = match target.latency.p99_ns {
        0..20_000 => (1, "ns"),
        20_000..20_000_000 => (1_000, "µs"),
        _ => (1_000_000, "ms"),
    };
    let series = |label: &str, ink, value: fn(&Slice) -> u64| Series {
        label: label.into(),
        ink,
        shape: Drawn::Line,
        steps: steps(target, |slice| value(slice) / unit_ns),
    };
    let from = match report.kind {
        "open" => "from when a call was due",
        _ => "from when a call was sent",
    };
    OverTime {
        title: format!("{}: latency", target.name),
        counts: format!("{unit}, {from}"),
        span: span(report, target),
        series: vec![
            series("p99", Ink::Refused, |slice| slice.p99_ns),
            series("p50", Ink::Allowed, |slice| slice.p50_ns),
        ],
        bound: None,
    }
}

fn span(report: &Report, target: &TargetReport) -> Span {
    let until_us = target.over_time.last().map_or(0, |slice| slice.until_us);
    let to_us = until_us.max(report.duration_ms * 1_000).max(1);
    Span { from_us: 0, to_us, written: TimeLabels::SinceStart }
}

/// Returns each interval's value from its beginning on, and 0 after the last.
fn steps(target: &TargetReport, value: impl Fn(&Slice) -> u64) -> Vec<(u64, u64)> {
    // The last answers arrive after the end, in an interval too short for a rate.
    let long = target.over_time.iter().filter(|slice| slice.until_us - slice.from_us >= 5_000);
    let mut steps: Vec<_> = long.map(|slice| (slice.from_us, value(slice))).collect();
    if let Some(last) = target.over_time.last() {
        steps.push((last.until_us, 0));
    }
    steps
}
