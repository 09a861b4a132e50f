//! The metrics as text, in version 0.0.4 of Prometheus's format, which all that scrape can read.

use std::fmt::{Display, Write};
use std::sync::atomic::Ordering;

use super::histogram::Histogram;
use super::meter::Meter;
#[cfg(feature = "redis")]
use super::meter::RULES_MAX;
use crate::engine::Engine;
use crate::engine::memory::{RecordsHeld, SteadyOf};
use crate::limiter::Limiter;
#[cfg(feature = "redis")]
use crate::policy::Policy;
#[cfg(feature = "redis")]
use crate::store::ShardStatus;
#[cfg(feature = "redis")]
use crate::time::awake_or_not_us;
use crate::time::counter_ns;

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
        metrics.take_over_steady(self.inner.engine.steady(SteadyOf::AdHoc));
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
        text.by_rule("overloaded_decisions_total", OVERLOADED, meters(), Meter::overloaded);
        text.family(Kind::Counter, "unmatched_total", UNMATCHED);
        text.sample("unmatched_total", &[], metrics.unmatched.load(Ordering::Relaxed));
        text.family(Kind::Histogram, "decision_seconds", DECISION_SECONDS);
        text.histogram("decision_seconds", &[], &metrics.decision);
        let rates = metrics.rates.read(meters(), counter_ns());
        text.family(Kind::Gauge, "decision_rate", DECISION_RATE);
        for ([domain, rule], verdict, rate) in rates {
            let labels = [("domain", &*domain), ("rule", &*rule), ("verdict", verdict)];
            text.sample("decision_rate", &labels, rate);
        }
        text.engine(&self.inner.engine);
        #[cfg(feature = "redis")]
        if let Engine::Redis(_) = &self.inner.engine {
            text.records(self.inner.fallback.records());
            text.lookups("denial", self.inner.denials.lookups());
            text.store(self, &policy);
        }
        text.0
    }
}

/// What grows.
#[derive(Default)]
struct Text(String);

#[derive(Clone, Copy)]
enum Kind {
    Counter,
    Gauge,
    Histogram,
}

impl Text {
    fn family(&mut self, kind: Kind, name: &str, help: &str) {
        let kind = match kind {
            Kind::Counter => "counter",
            Kind::Gauge => "gauge",
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
                self.records(memory.records());
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
            }
        }
    }

    /// What this process holds of reservations: on a store, those that it charged alone.
    fn records(&mut self, held: RecordsHeld) {
        self.family(Kind::Gauge, "reservations", RESERVATIONS);
        self.sample("reservations", &[("state", "open")], held.open);
        self.sample("reservations", &[("state", "ended")], held.ended);
        self.family(Kind::Gauge, "reservation_bytes", RESERVATION_BYTES);
        self.sample("reservation_bytes", &[], held.bytes);
    }

    /// How the store stands, as this process sees it.
    #[cfg(feature = "redis")]
    fn store(&mut self, limiter: &Limiter, policy: &Policy) {
        let (stats, shards) = (limiter.stats(), limiter.shards());
        let mut by_shard = |kind, name, help, value: fn(&ShardStatus) -> String| {
            self.family(kind, name, help);
            for shard in &shards {
                self.sample(name, &[("shard", &shard.name)], value(shard));
            }
        };
        by_shard(Kind::Gauge, "breaker_open", BREAKER_OPEN, |shard| {
            u8::from(!shard.asked).to_string()
        });
        by_shard(Kind::Gauge, "degraded", DEGRADED, |shard| u8::from(shard.degraded).to_string());
        by_shard(Kind::Gauge, "clock_skew_seconds", CLOCK_SKEW, |shard| {
            let sign = if shard.clock_ahead_us < 0 { "-" } else { "" };
            let us = shard.clock_ahead_us.unsigned_abs();
            format!("{sign}{}.{:06}", us / 1_000_000, us % 1_000_000)
        });
        by_shard(Kind::Counter, "clock_steps_total", CLOCK_STEPS, |shard| {
            shard.clock_steps.to_string()
        });
        self.family(Kind::Counter, "epoch_changes_total", EPOCH_CHANGES);
        self.sample("epoch_changes_total", &[], stats.epoch_changes);
        self.family(Kind::Gauge, "live_nodes", LIVE_NODES);
        self.sample("live_nodes", &[], stats.nodes);
        self.family(Kind::Gauge, "instance_mismatch", INSTANCE_MISMATCH);
        for (part, instances) in limiter.instance_mismatch().parts() {
            self.sample("instance_mismatch", &[("part", part)], instances);
        }
        let fallback = &limiter.inner.fallback;
        self.family(Kind::Gauge, "excess_bound", EXCESS_BOUND);
        for rule in policy.rules().take(RULES_MAX) {
            let bound =
                fallback.excess_bound(rule).map_or("+Inf".to_owned(), |bound| bound.to_string());
            self.sample("excess_bound", &[("rule", rule.name())], bound);
        }
        self.family(Kind::Gauge, "lease_outstanding", LEASE_OUTSTANDING);
        for rule in policy.rules().take(RULES_MAX).filter(|rule| rule.lease().is_some()) {
            let held = limiter.inner.leases.outstanding_of(rule.name(), awake_or_not_us());
            self.sample("lease_outstanding", &[("rule", rule.name())], held);
        }
        self.family(Kind::Gauge, "excess_observed", EXCESS_OBSERVED);
        for (rule, most) in fallback.observed_excess() {
            self.sample("excess_observed", &[("rule", &rule)], most);
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
const OVERLOADED: &str = "Decisions for which the store works and did not answer in time.";
const UNMATCHED: &str = "Requests that met no rule, and were allowed.";
const DECISION_SECONDS: &str = "Time to a decision, a batch counting once; with state in memory, \
    of one in 64.";
#[cfg(feature = "redis")]
const CACHE_LOOKUPS: &str = "Decisions that a cache was asked for before the store; a hit of the \
    denial cache is a refusal.";
const DECISION_RATE: &str = "Verdicts of each rule in a second, over the last ten seconds or more.";
#[cfg(feature = "redis")]
const BREAKER_OPEN: &str = "Whether the shard fails too many calls, and is left alone.";
#[cfg(feature = "redis")]
const DEGRADED: &str = "Whether decisions on the shard's subjects are made without it.";
#[cfg(feature = "redis")]
const CLOCK_SKEW: &str = "How far the shard's clock is ahead of this process's.";
#[cfg(feature = "redis")]
const LIVE_NODES: &str = "Processes that share each limit while the store is out of reach.";
#[cfg(feature = "redis")]
const INSTANCE_MISMATCH: &str = "Live instances on the store that differ from this one: each part that differs \
    gives them separate counters.";
#[cfg(feature = "redis")]
const EXCESS_BOUND: &str = "What all processes together may admit to one subject of the rule beyond its \
    limits: what they hold by leases, and their shares while the store is out of reach.";
#[cfg(feature = "redis")]
const LEASE_OUTSTANDING: &str = "What this process has taken ahead of the rule's tiers, and not spent or \
    returned yet.";
#[cfg(feature = "redis")]
const EXCESS_OBSERVED: &str = "The most that one subject held of what this process admitted alone in \
    the present outage; absent when there is none.";
const STORE_SECONDS: &str = "Time of a call to the store.";
const STORE_ERRORS: &str = "Calls that brought no answer; those that are unknown may have charged.";
#[cfg(feature = "redis")]
const EPOCH_CHANGES: &str = "Servers of the store that had lost what they held: each may have cost \
    every subject there one allowance.";
#[cfg(feature = "redis")]
const CLOCK_STEPS: &str = "Steps of a server's clock, its own or with a failover: forward, each may \
    have cost every subject there one allowance.";
const EVICTIONS: &str = "State that had to go for want of room.";
const RESERVATIONS: &str = "Records of reservations in this process.";
const RESERVATION_BYTES: &str = "Bytes of the records of reservations in this process.";
const OVERFLOWS: &str = "Charges of subjects that found no room, and shared one limit.";
