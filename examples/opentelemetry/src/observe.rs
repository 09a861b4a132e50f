//! The counts of a limiter as instruments of a meter.

use opentelemetry::KeyValue;
use opentelemetry::metrics::Meter;
use spillgate::Limiter;
use spillgate::metrics::RuleCounts;

/// Registers the counts. The SDK reads them whenever it exports.
pub fn observe(limiter: &Limiter, meter: &Meter) {
    let counted = limiter.clone();
    meter
        .u64_observable_counter("spillgate.decisions")
        .with_description("Decisions of each rule.")
        .with_callback(move |observer| {
            for rule in &counted.counts().rules {
                observer.observe(rule.allowed(), &attributes(rule, "allowed", ""));
                for (reason, count) in rule.by_reason() {
                    observer.observe(count, &attributes(rule, "denied", reason.as_str()));
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

fn attributes(rule: &RuleCounts, decision: &'static str, reason: &'static str) -> [KeyValue; 4] {
    [
        KeyValue::new("domain", rule.domain().to_owned()),
        KeyValue::new("rule", rule.rule().to_owned()),
        KeyValue::new("decision", decision),
        KeyValue::new("reason", reason),
    ]
}
