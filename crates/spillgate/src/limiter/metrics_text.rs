//! A limiter's metrics as an operator reads them: the subjects that use most, and all counters as text.

use super::Limiter;
use crate::engine::Engine;
use crate::engine::memory::RecordsHeld;
#[cfg(feature = "redis")]
use crate::metrics::RULES_MAX;
use crate::metrics::{Kind, Text, Top};
#[cfg(feature = "redis")]
use crate::policy::Policy;
#[cfg(feature = "redis")]
use crate::store::ShardStatus;
#[cfg(feature = "redis")]
use crate::time::boottime_us;

impl Limiter {
    /// The subjects that used most and those that were refused most, `n` of each for each rule, or for
    /// one rule; as this process has seen it within the last minute or two. Counts are estimates, and
    /// no subject with more than a thousandth of a rule's is missed. A reservation counts once, with its estimate.
    ///
    /// ```
    /// # tokio::runtime::Runtime::new().unwrap().block_on(async {
    /// use spillgate::{Limiter, Policy, Request};
    /// let policy = "[[rule]]\nname = \"api\"\nkey = [\"user\"]\nlimits = [\"100/minute\"]";
    /// let limiter = Limiter::builder().policy(Policy::from_toml(policy)?).build().await?;
    /// for user in ["ann", "bob", "ann"] {
    ///     limiter.check(&Request::new().with("user", user)).await;
    /// }
    /// let top = limiter.top(Some("api"), 10);
    /// let first = &top.rules()[0].consumers()[0];
    /// assert_eq!(first.attributes().collect::<Vec<_>>(), [("user", b"ann".as_slice())]);
    /// # Ok::<(), Box<dyn std::error::Error>>(()) }).unwrap();
    /// ```
    pub fn top(&self, rule: Option<&str>, n: usize) -> Top {
        self.inner.metrics.top(rule, n)
    }

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
        let in_force = self.inner.in_force.load_full();
        let metrics = &self.inner.metrics;
        let mut text = Text::default();
        metrics.write(&in_force.meters, &mut text);
        text.engine(&self.inner.engine);
        #[cfg(feature = "redis")]
        if let Engine::Redis(_) = &self.inner.engine {
            text.records(self.inner.fallback.records());
            text.lookups("denial", self.inner.denials.lookups());
            text.store(self, &in_force.policy);
        }
        text.into_string()
    }
}

impl Text {
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
            Engine::Redis(redis) => self.shards(&redis.meters()),
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
            let held = limiter.inner.leases.outstanding_of(rule.name(), boottime_us());
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
}

#[cfg(feature = "redis")]
const CACHE_LOOKUPS: &str = "Decisions that a cache was bound for before the store; a hit of the \
    denial cache is a refusal.";
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
const LEASE_OUTSTANDING: &str = "What this process has taken ahead of the rule's counters, and not spent or \
    returned yet.";
#[cfg(feature = "redis")]
const EXCESS_OBSERVED: &str = "The most that one subject held of what this process admitted alone in \
    the present outage; absent when there is none.";
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
