//! The counts of a limiter as instruments of a meter.

use opentelemetry::KeyValue;
use opentelemetry::metrics::Meter;
use spillgate::metrics::{DecisionCount, RuleCounts};
use spillgate::{Limiter, Reason};

/// Registers the counts. The SDK reads them whenever it exports.
pub fn observe(limiter: &Limiter, meter: &Meter) {
    let counted = limiter.clone();
    meter
        .u64_observable_counter("spillgate.decisions")
        .with_description("Decisions of each rule.")
        .with_callback(move |observer| {
            for rule in &counted.counts().rules {
                for kind in rule.decisions() {
                    observer.observe(kind.count, &attributes(rule, kind));
                }
            }
        })
        .build();
    let watched = limiter.clone();
    meter
        .u64_observable_gauge("spillgate.degraded")
        .with_description("1 while decisions are made without the shard.")
        .with_callback(move |observer| {
            for shard in watched.shards() {
                observer.observe(u64::from(shard.degraded), &[KeyValue::new("shard", shard.name)]);
            }
        })
        .build();
}

fn attributes(rule: &RuleCounts, kind: &DecisionCount) -> [KeyValue; 7] {
    [
        KeyValue::new("domain", rule.domain().to_owned()),
        KeyValue::new("rule", rule.rule().to_owned()),
        KeyValue::new("mode", kind.mode.name()),
        KeyValue::new("decision", kind.decision()),
        KeyValue::new("reason", kind.reason.map_or("", Reason::as_str)),
        KeyValue::new("limit", kind.limit.to_string()),
        KeyValue::new("source", kind.source),
    ]
}
