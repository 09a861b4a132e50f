//! The report as charts: rate and latency over time.

use super::{Contender, Moment, Report};
use crate::plot::{Chart, Figure, Ink, OverTime, Series, Shape, Span, Written, grouped};

pub(in crate::bench) fn figure(report: &Report) -> Figure {
    let charts = report.contenders.iter().flat_map(|contender| {
        [rate(report, contender), latency(report, contender)].map(Chart::OverTime)
    });
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

fn rate(report: &Report, contender: &Contender) -> OverTime {
    let series = |label: &str, ink, shape, value: fn(&Moment) -> u64| Series {
        label: label.into(),
        ink,
        shape,
        steps: steps(contender, |moment| {
            super::per_second(value(moment), (moment.until_ms - moment.from_ms) * 1_000)
        }),
    };
    let mut all = vec![
        series("denied", Ink::Refused, Shape::Area, |moment| moment.allowed + moment.denied),
        series("allowed", Ink::Allowed, Shape::Area, |moment| moment.allowed),
    ];
    if contender.errors > 0 {
        all.push(series("errors", Ink::Asked, Shape::Line, |moment| moment.errors));
    }
    OverTime {
        title: format!("{}: {}", contender.name, contender.place),
        counts: "answers a second".to_owned(),
        span: span(report, contender),
        series: all,
        bound: None,
    }
}

fn latency(report: &Report, contender: &Contender) -> OverTime {
    // The unit follows the p99: nanoseconds would all be 0 in microseconds.
    let (unit_ns, unit) = match contender.latency.p99_ns {
        0..20_000 => (1, "ns"),
        20_000..20_000_000 => (1_000, "µs"),
        _ => (1_000_000, "ms"),
    };
    let series = |label: &str, ink, value: fn(&Moment) -> u64| Series {
        label: label.into(),
        ink,
        shape: Shape::Line,
        steps: steps(contender, |moment| value(moment) / unit_ns),
    };
    let from = match report.kind {
        "open" => "from when a call was due",
        _ => "from when a call was sent",
    };
    OverTime {
        title: format!("{}: latency", contender.name),
        counts: format!("{unit}, {from}"),
        span: span(report, contender),
        series: vec![
            series("p99", Ink::Refused, |moment| moment.p99_ns),
            series("p50", Ink::Allowed, |moment| moment.p50_ns),
        ],
        bound: None,
    }
}

fn span(report: &Report, contender: &Contender) -> Span {
    let until_ms = contender.over_time.last().map_or(0, |moment| moment.until_ms);
    let to_us = until_ms.max(report.duration_ms).max(1) * 1_000;
    Span { from_us: 0, to_us, written: Written::SinceStart }
}

/// Returns each interval's value from its beginning on, and 0 after the last.
fn steps(contender: &Contender, value: impl Fn(&Moment) -> u64) -> Vec<(u64, u64)> {
    // The last answers arrive after the end, in an interval too short for a rate.
    let long = contender.over_time.iter().filter(|moment| moment.until_ms > moment.from_ms + 4);
    let mut steps: Vec<_> = long.map(|moment| (moment.from_ms * 1_000, value(moment))).collect();
    if let Some(last) = contender.over_time.last() {
        steps.push((last.until_ms * 1_000, 0));
    }
    steps
}
