//! The metrics as text, in version 0.0.4 of Prometheus's format, which all that scrape can read.

use std::fmt::{Display, Write};
#[cfg(feature = "redis")]
use std::sync::Arc;
use std::sync::atomic::Ordering;

#[cfg(feature = "redis")]
use super::ShardMeter;
use super::histogram::Histogram;
use super::meter::Meter;
use super::{Meters, Metrics};
use crate::time::counter_ns;

impl Metrics {
    /// Writes what is counted of decisions: by the meters of all rules in force, and in all.
    pub(crate) fn write(&self, rules: &Meters, text: &mut Text) {
        let meters = || rules.all().chain([&self.inline]);
        text.family(Kind::Counter, "decisions_total", DECISIONS);
        for meter in meters() {
            for (verdict, source, count) in meter.verdicts() {
                let labels = [
                    ("domain", &*meter.domain),
                    ("rule", &*meter.rule),
                    ("verdict", verdict.name()),
                    ("source", source.name()),
                ];
                text.sample("decisions_total", &labels, count);
            }
        }
        text.by_rule("near_limit_total", NEAR_LIMIT, meters(), Meter::near_limit);
        text.by_rule("fallback_decisions_total", FALLBACK, meters(), Meter::fallback);
        text.by_rule("overloaded_decisions_total", OVERLOADED, meters(), Meter::overloaded);
        text.family(Kind::Counter, "unmatched_total", UNMATCHED);
        text.sample("unmatched_total", &[], self.unmatched.load(Ordering::Relaxed));
        text.family(Kind::Histogram, "decision_seconds", DECISION_SECONDS);
        text.histogram("decision_seconds", &[], &self.decision);
        let rates = self.rates.read(meters(), counter_ns());
        text.family(Kind::Gauge, "decision_rate", DECISION_RATE);
        for ([domain, rule], verdict, rate) in rates {
            let labels = [("domain", &*domain), ("rule", &*rule), ("verdict", verdict)];
            text.sample("decision_rate", &labels, rate);
        }
    }
}

/// The text as it grows.
#[derive(Default)]
pub(crate) struct Text(String);

/// What a family of samples is.
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

    fn by_rule<'m>(
        &mut self,
        name: &str,
        help: &str,
        meters: impl Iterator<Item = &'m Meter>,
        count_of: impl Fn(&Meter) -> u64,
    ) {
        self.family(Kind::Counter, name, help);
        for (meter, count) in meters.map(|meter| (meter, count_of(meter))) {
            if count > 0 {
                self.sample(name, &[("domain", &meter.domain), ("rule", &meter.rule)], count);
            }
        }
    }

    /// The calls to each shard of the store.
    #[cfg(feature = "redis")]
    pub(crate) fn shards(&mut self, meters: &[Arc<ShardMeter>]) {
        self.family(Kind::Histogram, "store_seconds", STORE_SECONDS);
        for meter in meters {
            self.histogram("store_seconds", &[("shard", &meter.shard)], &meter.seconds);
        }
        self.family(Kind::Counter, "store_errors_total", STORE_ERRORS);
        for meter in meters {
            for (class, count) in meter.errors() {
                let labels = [("shard", meter.shard.as_str()), ("class", class)];
                self.sample("store_errors_total", &labels, count);
            }
        }
    }

    fn histogram(&mut self, name: &str, labels: &[(&str, &str)], histogram: &Histogram) {
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
const DECISIONS: &str = "Verdicts of each rule that a request matched, shadow rules as they would have \
    decided; limits that came with the question have no rule.";
const NEAR_LIMIT: &str = "Admissions that left a fifth of the limit or less.";
const FALLBACK: &str = "Verdicts that the store had no part in.";
const OVERLOADED: &str = "Decisions for which the store works and did not answer in time.";
const UNMATCHED: &str = "Requests that met no rule, and were allowed.";
const DECISION_SECONDS: &str = "Time to a decision, a batch counting once; with state in memory, \
    of one in 64.";
const DECISION_RATE: &str = "Verdicts of each rule in a second, over the last ten seconds or more.";
#[cfg(feature = "redis")]
const STORE_SECONDS: &str = "Time of a call to the store.";
#[cfg(feature = "redis")]
const STORE_ERRORS: &str = "Calls that brought no answer; those that are unknown may have charged.";
