//! The counts of a limiter as metrics, under the names that its text for Prometheus has.

use metrics::{Label, counter, gauge};
use spillgate::Limiter;
use spillgate::metrics::RuleCounts;

/// Publishes the counts. Call it every few seconds: they are totals, so nothing is counted twice.
pub fn publish(limiter: &Limiter) {
    let counts = limiter.counts();
    for rule in &counts.rules {
        let allowed = labels(rule, "allowed", "");
        counter!("spillgate_decisions_total", allowed).absolute(rule.allowed());
        for (reason, count) in rule.by_reason() {
            let denied = labels(rule, "denied", reason.as_str());
            counter!("spillgate_decisions_total", denied).absolute(count);
        }
    }
    counter!("spillgate_unmatched_total").absolute(counts.unmatched);
    for shard in limiter.shards() {
        gauge!("spillgate_degraded", "shard" => shard.name).set(u8::from(shard.degraded));
    }
}

fn labels(rule: &RuleCounts, decision: &'static str, reason: &'static str) -> Vec<Label> {
    vec![
        Label::new("domain", rule.domain().to_owned()),
        Label::new("rule", rule.rule().to_owned()),
        Label::new("decision", decision),
        Label::new("reason", reason),
    ]
}
