//! The metrics as text, in version 0.0.4 of Prometheus's format, which all that scrape can read.

use std::fmt::{Display, Write};
use std::sync::atomic::Ordering;

use super::histogram::Histogram;
use super::meter::Meter;
use crate::engine::Engine;
use crate::limiter::Limiter;

impl Limiter {
    /// What this limiter has counted, for Prometheus: `text/plain; version=0.0.4`.
    ///
    /// ```
    /// # tokio::runtime::Runtime::new().unwrap().block_on(async {
    /// use spillgate::{Limiter, Request};
    /// let limiter = Limiter::builder().build().await.unwrap();
    /// limiter.check(&Request::new()).await;
    /// assert!(limiter.metrics_text().contains("\nspillgate_unmatched_total 1\n"));
    /// # });
    /// ```
    pub fn metrics_text(&self) -> String {
        let policy = self.policy();
        let metrics = &self.inner.metrics;
        let meters = || policy.meters.all().chain([&metrics.ad_hoc]);
        let mut text = Text::default();

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
        text.family(Kind::Counter, "unmatched_total", UNMATCHED);
        text.sample("unmatched_total", &[], metrics.unmatched.load(Ordering::Relaxed));
        text.family(Kind::Histogram, "decision_seconds", DECISION_SECONDS);
        text.histogram("decision_seconds", &[], &metrics.decision);
        text.engine(&self.inner.engine);
        #[cfg(feature = "redis")]
        text.lookups("denial", self.inner.denials.lookups());
        text.0
    }
}

/// What grows.
#[derive(Default)]
struct Text(String);

#[derive(Clone, Copy)]
enum Kind {
    Counter,
    Histogram,
}

impl Text {
    fn family(&mut self, kind: Kind, name: &str, help: &str) {
        let kind = match kind {
            Kind::Counter => "counter",
            Kind::Histogram => "histogram",
        };
        self.line(format_args!("# HELP {PREFIX}{name} {help}"));
        self.line(format_args!("# TYPE {PREFIX}{name} {kind}"));
    }

    fn sample(&mut self, name: &str, labels: &[(&str, &str)], value: impl Display) {
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

    fn engine(&mut self, engine: &Engine) {
        match engine {
            Engine::Memory(memory) => {
                let evictions = memory.evictions();
                self.family(Kind::Counter, "evictions_total", EVICTIONS);
                self.sample("evictions_total", &[("live", "true")], evictions.live);
                self.family(Kind::Counter, "overflows_total", OVERFLOWS);
                self.sample("overflows_total", &[], evictions.overflowed);
            }
            #[cfg(feature = "redis")]
            Engine::Redis(redis) => {
                let meters = redis.meters();
                self.family(Kind::Histogram, "store_seconds", STORE_SECONDS);
                for meter in &meters {
                    self.histogram("store_seconds", &[("shard", &meter.shard)], &meter.seconds);
                }
                self.family(Kind::Counter, "store_errors_total", STORE_ERRORS);
                for meter in &meters {
                    for (class, count) in meter.errors() {
                        let labels = [("shard", meter.shard.as_str()), ("class", class)];
                        self.sample("store_errors_total", &labels, count);
                    }
                }
                self.family(Kind::Counter, "epoch_changes_total", EPOCH_CHANGES);
                self.sample("epoch_changes_total", &[], redis.epoch_changes());
                self.family(Kind::Counter, "clock_steps_total", CLOCK_STEPS);
                for shard in redis.shards() {
                    self.sample("clock_steps_total", &[("shard", &shard.name)], shard.clock_steps);
                }
            }
        }
    }

    #[cfg(feature = "redis")]
    fn lookups(&mut self, cache: &str, results: [(&str, u64); 2]) {
        self.family(Kind::Counter, "cache_lookups_total", CACHE_LOOKUPS);
        for (result, count) in results {
            self.sample("cache_lookups_total", &[("cache", cache), ("result", result)], count);
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
const DECISIONS: &str = "Verdicts of each rule that a request met, shadow rules as they would have \
    decided; limits that came with the question have no rule.";
const NEAR_LIMIT: &str = "Admissions that left a fifth of the limit or less.";
const FALLBACK: &str = "Verdicts that the store had no part in.";
const UNMATCHED: &str = "Requests that met no rule, and were allowed.";
const DECISION_SECONDS: &str = "Time to a decision, a batch counting once; with state in memory, \
    of one in 64.";
#[cfg(feature = "redis")]
const CACHE_LOOKUPS: &str = "Decisions that a cache was asked for before the store; a hit of the \
    denial cache is a refusal.";
const STORE_SECONDS: &str = "Time of a call to the store.";
const STORE_ERRORS: &str = "Calls that brought no answer; those that are unknown may have charged.";
#[cfg(feature = "redis")]
const EPOCH_CHANGES: &str = "Servers of the store that had lost what they held: each may have cost \
    every subject there one allowance.";
#[cfg(feature = "redis")]
const CLOCK_STEPS: &str = "Steps of a server's clock, its own or with a failover: forward, each may \
    have cost every subject there one allowance.";
const EVICTIONS: &str = "State that had to go for want of room.";
const OVERFLOWS: &str = "Charges of subjects that found no room, and shared one limit.";
