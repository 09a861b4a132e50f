//! The report as charts.

use super::{FollowedReport, PolicyReport, Report};
use crate::plot::{Bound, Chart, Drawn, Figure, Ink, OverTime, Ranking, Series, Span, TimeLabels};
use crate::simulate::bins::Bins;
use crate::simulate::duration;

/// Returns the figure for a file: each followed subject's window; for a single policy also requests over time and the
/// most denied subjects.
pub(in crate::simulate) fn figure(report: &Report) -> Figure {
    let one = report.policies.len() == 1;
    let mut charts = followed(report);
    if one || charts.is_empty() {
        charts.extend(over_time(report));
    }
    if one {
        charts.extend(rankings(report));
    }
    Figure { title: title(report), subtitle: subtitle(report), charts }
}

fn title(report: &Report) -> String {
    let names: Vec<&str> = report.policies.iter().map(|policy| policy.policy.as_str()).collect();
    names.join(", ")
}

fn subtitle(report: &Report) -> String {
    let input = &report.input;
    match (&input.from, &input.to) {
        (Some(from), Some(to)) if !input.is_made_up => {
            format!("{}, {from} to {to}, UTC", input.source)
        }
        _ => input.source.clone(),
    }
}

fn followed(report: &Report) -> Vec<Chart> {
    let each = report.policies.iter().flat_map(|policy| {
        policy.followed.iter().map(|followed| window_chart(report, policy, followed))
    });
    each.map(Chart::OverTime).collect()
}

fn window_chart(report: &Report, policy: &PolicyReport, followed: &FollowedReport) -> OverTime {
    let window = duration::shown(followed.window_ms * 1_000);
    let FollowedReport { subject, rule, limit, algorithm, unit, .. } = followed;
    let steps = |number: usize| steps(report, &followed.bins, |counts| counts[number]);
    let subject = match policy.rules.len() {
        1 => subject.clone(),
        _ => format!("{subject}, by {rule}"),
    };
    OverTime {
        title: format!("{algorithm}, {limit}: {subject}"),
        counts: format!("{unit} in the last {window}"),
        span: span(report),
        series: vec![
            Series {
                label: "admitted".into(),
                ink: Ink::Allowed,
                shape: Drawn::Area,
                steps: steps(0),
            },
            Series {
                label: "asked for".into(),
                ink: Ink::Asked,
                shape: Drawn::Line,
                steps: steps(1),
            },
        ],
        bound: Some(Bound {
            label: format!("limit {}", followed.capacity),
            value: followed.capacity,
        }),
    }
}

fn over_time(report: &Report) -> Vec<Chart> {
    let chart = |policy: &PolicyReport| {
        let bins = &policy.over_time.joined(BINS_DRAWN);
        let width = duration::shown(bins.width_us());
        let series = |label: &str, ink, steps| Series {
            label: label.into(),
            ink,
            shape: Drawn::Area,
            steps,
        };
        Chart::OverTime(OverTime {
            title: policy.policy.clone(),
            counts: format!("requests in {width}"),
            span: span(report),
            series: vec![
                series("denied", Ink::Refused, steps(report, bins, |[requests, _]| requests)),
                series(
                    "admitted",
                    Ink::Allowed,
                    steps(report, bins, |[requests, denied]| requests - denied),
                ),
            ],
            bound: None,
        })
    };
    report.policies.iter().map(chart).collect()
}

fn rankings(report: &Report) -> Vec<Chart> {
    let denying = report.policies.iter().filter(|policy| !policy.denied_most.is_empty());
    let chart = |policy: &PolicyReport| {
        let several = policy.rules.len() > 1;
        let rows = policy.denied_most.iter().map(|subject| {
            let name = match several {
                true => format!("{} {}", subject.rule, subject.subject),
                false => subject.subject.clone(),
            };
            (name, subject.denied)
        });
        Chart::Ranking(Ranking {
            title: format!("{}: denied most", policy.policy),
            rows: rows.collect(),
            ink: Ink::Refused,
        })
    };
    denying.map(chart).collect()
}

fn span(report: &Report) -> Span {
    let (from_us, to_us) = report.input.span_us.unwrap_or_default();
    let written =
        if report.input.is_made_up { TimeLabels::SinceStart } else { TimeLabels::ByClock };
    Span { from_us, to_us: to_us.max(from_us + 1_000), written }
}

/// Returns the values of bins as steps, with 0 before the first and after the last.
fn steps(report: &Report, bins: &Bins, value: impl Fn([u64; 2]) -> u64) -> Vec<(u64, u64)> {
    let Span { from_us, to_us, .. } = span(report);
    let mut steps = vec![(from_us, 0)];
    let mut end_us = from_us;
    for (at_us, counts) in bins.all() {
        steps.push((at_us.max(from_us), value(counts)));
        end_us = at_us + bins.width_us();
    }
    if end_us < to_us {
        steps.push((end_us, 0));
    }
    steps
}

/// Columns of two pixels; finer ones blur.
const BINS_DRAWN: usize = 400;
