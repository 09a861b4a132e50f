//! The metrics as text, in version 0.0.4 of Prometheus's format, which every scraper reads.

use super::{Counts, Meters, Metrics, RuleCounts};
use crate::decision::{Reason, Source};
use crate::time::counter_ns;
use spillgate_core::histogram::Histogram;
use std::fmt::{Display, Write};

impl Metrics {
    /// Writes the families about decisions, from the meters of all rules in force.
    pub(crate) fn write(&self, rules: &Meters, unmatched: u64, text: &mut Text) {
        let Counts { rules, .. } = self.read(rules, unmatched);
        text.family(Kind::Counter, "decisions_total", DECISIONS_TOTAL);
        for rule in &rules {
            for kind in rule.decisions() {
                let labels = [
                    ("domain", &*rule.domain),
                    ("rule", &*rule.rule),
                    ("mode", kind.mode.name()),
                    ("decision", kind.decision()),
                    ("reason", kind.reason.map_or("", Reason::as_str)),
                    ("limit", &*kind.limit),
                    ("source", kind.source),
                ];
                text.sample("decisions_total", &labels, kind.count);
            }
        }
        text.by_rule("near_limit_total", NEAR_LIMIT, &rules, RuleCounts::near_limit);
        text.by_rule("fallback_decisions_total", FALLBACK, &rules, |rule| {
            let sources = [Source::Fallback, Source::OutagePolicy].map(Source::name);
            rule.sum(|kind| sources.contains(&kind.source))
        });
        text.by_rule("overloaded_decisions_total", OVERLOADED, &rules, |rule| rule.overloaded);
        text.family(Kind::Counter, "unmatched_total", UNMATCHED);
        text.sample("unmatched_total", &[], unmatched);
        text.family(Kind::Histogram, "decision_seconds", DECISION_SECONDS);
        text.histogram("decision_seconds", &[], &self.decision);
        text.family(Kind::Gauge, "decision_rate", DECISION_RATE);
        for ((domain, rule, mode, decision), rate) in self.rates.read(&rules, counter_ns()) {
            let labels =
                [("domain", &*domain), ("rule", &*rule), ("mode", mode), ("decision", decision)];
            text.sample("decision_rate", &labels, rate);
        }
    }
}

/// The text as it grows.
#[derive(Default)]
pub(crate) struct Text(String);

/// The type of a family.
#[derive(Clone, Copy)]
pub(crate) enum Kind {
    Counter,
    Gauge,
    Histogram,
}

impl Text {
    pub(crate) fn into_string(self) -> String {
        self.0
    }

    pub(crate) fn family(&mut self, kind: Kind, name: &str, help: &str) {
        let kind = match kind {
            Kind::Counter => "counter",
            Kind::Gauge => "gauge",
            Kind::Histogram => "histogram",
        };
        self.line(format_args!("# HELP {PREFIX}{name} {help}"));
        self.line(format_args!("# TYPE {PREFIX}{name} {kind}"));
    }

    pub(crate) fn sample(&mut self, name: &str, labels: &[(&str, &str)], value: impl Display) {
        let labels: Vec<String> =
            labels.iter().map(|(label, value)| format!("{label}=\"{}\"", escaped(value))).collect();
        match labels.is_empty() {
            true => self.line(format_args!("{PREFIX}{name} {value}")),
            false => self.line(format_args!("{PREFIX}{name}{{{}}} {value}", labels.join(","))),
        }
    }

    fn by_rule(
        &mut self,
        name: &str,
        help: &str,
        rules: &[RuleCounts],
        count_of: impl Fn(&RuleCounts) -> u64,
    ) {
        self.family(Kind::Counter, name, help);
        for (rule, count) in rules.iter().map(|rule| (rule, count_of(rule))) {
            if count > 0 {
                self.sample(name, &[("domain", &rule.domain), ("rule", &rule.rule)], count);
            }
        }
    }

    pub(crate) fn histogram(&mut self, name: &str, labels: &[(&str, &str)], histogram: &Histogram) {
        let mut all = 0;
        let bucket = format!("{name}_bucket");
        for (bound, count) in histogram.cumulated() {
            let bound = bound.map_or("+Inf".to_owned(), |bound| bound.as_secs_f64().to_string());
            self.sample(&bucket, &[labels, &[("le", &bound)]].concat(), count);
            all = count;
        }
        self.sample(&format!("{name}_sum"), labels, histogram.sum().as_secs_f64());
        self.sample(&format!("{name}_count"), labels, all);
    }

    fn line(&mut self, line: std::fmt::Arguments<'_>) {
        writeln!(self.0, "{line}").expect("a string takes all text");
    }
}

/// A domain may hold any characters.
fn escaped(value: &str) -> String {
    value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

const PREFIX: &str = "spillgate_";
const DECISIONS_TOTAL: &str = "Decisions of each rule that a request matched, with an empty reason and limit if \
    allowed. A denial with the mode shadow denied nothing. An inline limit has the domain other and no rule.";
const NEAR_LIMIT: &str = "Allowed decisions that left a fifth of the limit or less.";
const FALLBACK: &str = "Decisions that were made without the store.";
const OVERLOADED: &str =
    "Decisions by on_outage or a local share because the healthy store did not answer in time.";
const UNMATCHED: &str = "Requests that no rule matched.";
const DECISION_SECONDS: &str =
    "Time of a decision. A batch counts once. With the memory store one decision in 64 counts.";
const DECISION_RATE: &str = "Decisions per second of each rule, over the last 10 seconds or more.";
