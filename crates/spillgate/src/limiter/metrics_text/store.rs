//! The metrics of a shared store as text.

use std::sync::Arc;

use spillgate_redis::meter::ShardMeter;

use super::super::Limiter;
use crate::engine::RedisStore;
use crate::metrics::{Kind, RULES_MAX, ShardCounts, Text};
use crate::policy::Policy;
use crate::store::ShardStatus;
use crate::time::boottime_us;

/// Returns the counts of each shard.
pub fn counts(store: &RedisStore) -> Vec<ShardCounts> {
    store.servers.meters().iter().map(|meter| ShardCounts::from_meter(meter)).collect()
}

impl Text {
    /// Writes the state of the store as this instance sees it.
    pub fn store(&mut self, limiter: &Limiter, store: &RedisStore, policy: &Policy) {
        self.shards(&store.servers.meters());
        self.records(store.fallback.records());
        self.lookups(store.denials.lookups());
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
        self.family(Kind::Counter, "state_losses_total", STATE_LOSSES);
        self.sample("state_losses_total", &[], stats.state_losses);
        self.family(Kind::Gauge, "live_instances", LIVE_INSTANCES);
        self.sample("live_instances", &[], stats.live_instances);
        self.family(Kind::Gauge, "instance_mismatch", INSTANCE_MISMATCH);
        for (part, instances) in limiter.instance_mismatch().parts() {
            self.sample("instance_mismatch", &[("part", part)], instances);
        }
        let fallback = &store.fallback;
        self.family(Kind::Gauge, "overshoot_bound", OVERSHOOT_BOUND);
        for rule in policy.rules().take(RULES_MAX) {
            let bound =
                fallback.overshoot_bound(rule).map_or("+Inf".to_owned(), |bound| bound.to_string());
            self.sample("overshoot_bound", &[("rule", rule.name())], bound);
        }
        self.family(Kind::Gauge, "lease_outstanding", LEASE_OUTSTANDING);
        for rule in policy.rules().take(RULES_MAX).filter(|rule| rule.lease().is_some()) {
            let held = store.leases.outstanding_of(rule.name(), boottime_us());
            self.sample("lease_outstanding", &[("rule", rule.name())], held);
        }
        self.family(Kind::Gauge, "overshoot_observed", OVERSHOOT_OBSERVED);
        for (rule, most) in fallback.overshoot_observed() {
            self.sample("overshoot_observed", &[("rule", &rule)], most);
        }
    }

    fn lookups(&mut self, results: [(&str, u64); 2]) {
        self.family(Kind::Counter, "cache_lookups_total", CACHE_LOOKUPS);
        for (result, count) in results {
            self.sample("cache_lookups_total", &[("cache", "denial"), ("result", result)], count);
        }
    }

    /// Writes the families about calls to each shard of the store.
    fn shards(&mut self, meters: &[Arc<ShardMeter>]) {
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
}

const CACHE_LOOKUPS: &str = "Decisions for which a cache was asked before the store. A hit of the denial cache is a denial.";
const BREAKER_OPEN: &str = "1 while the circuit breaker of the shard is open and no call is sent.";
const DEGRADED: &str = "1 while decisions on the subjects of the shard are made without it.";
const CLOCK_SKEW: &str = "Clock of the shard minus clock of this instance.";
const CLOCK_STEPS: &str = "Steps of the shard's clock, by itself or with a failover. A step forward can cost each \
    subject one fresh quota.";
const STATE_LOSSES: &str =
    "Shards that lost their data. Each loss can cost each subject one fresh quota.";
const LIVE_INSTANCES: &str = "Instances that share each limit while the store is unavailable.";
const INSTANCE_MISMATCH: &str = "Live instances on the store that differ from this one in the part. With another \
    secret, ring or schema they keep separate counters; with another policy they decide by other limits.";
const OVERSHOOT_BOUND: &str = "The most that all instances together can admit to one subject beyond the limits of \
    the rule, by local shares and leases. +Inf if on_outage is allow.";
const OVERSHOOT_OBSERVED: &str = "The most that this instance admitted to one subject by its local share in the \
    present outage. Absent without an outage.";
const LEASE_OUTSTANDING: &str =
    "Leased tokens that this instance holds, neither spent nor returned.";
const STORE_SECONDS: &str = "Time of a call to a shard of the store.";
const STORE_ERRORS: &str =
    "Calls to a shard without a usable answer. Calls of the class unknown may have charged.";
