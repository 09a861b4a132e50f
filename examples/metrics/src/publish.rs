//! The counts of a limiter as metrics, under the names that its text for Prometheus has.

use metrics::{Label, counter, gauge};
use spillgate::metrics::{DecisionCount, RuleCounts};
use spillgate::{Limiter, Reason};

/// Publishes the counts. Call it every few seconds: they are totals, so nothing is counted twice.
pub fn publish(limiter: &Limiter) {
    let counts = limiter.counts();
    for rule in &counts.rules {
        for kind in rule.decisions() {
            counter!("spillgate_decisions_total", labels(rule, kind)).absolute(kind.count);
        }
    }
    counter!("spillgate_unmatched_total").absolute(counts.unmatched);
    for shard in limiter.shards() {
        gauge!("spillgate_degraded", "shard" => shard.name).set(u8::from(shard.degraded));
    }
}

fn labels(rule: &RuleCounts, kind: &DecisionCount) -> Vec<Label> {
    vec![
        Label::new("domain", rule.domain().to_owned()),
        Label::new("rule", rule.rule().to_owned()),
        Label::new("mode", kind.mode.name()),
        Label::new("decision", kind.decision()),
        Label::new("reason", kind.reason.map_or("", Reason::as_str)),
        Label::new("limit", kind.limit.to_string()),
        Label::new("source", kind.source),
    ]
}
