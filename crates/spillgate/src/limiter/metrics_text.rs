//! What operators read of a limiter: the subjects with the most use, and the metrics as text.

use super::Limiter;
use crate::engine::Engine;
use crate::metrics::{Counts, Kind, Text, Top};
#[cfg(feature = "redis")]
use crate::metrics::{RULES_MAX, ShardCounts};
#[cfg(feature = "redis")]
use crate::policy::Policy;
#[cfg(feature = "redis")]
use crate::store::ShardStatus;
#[cfg(feature = "redis")]
use crate::time::boottime_us;
use spillgate_core::memory::RecordsHeld;

impl Limiter {
    /// Returns the subjects with the most use and those with the most denials, `n` of each for each rule or for one
    /// rule, as this instance saw them in the last minute or two. Counts are estimates. No subject with more than a
    /// thousandth of a rule's use is missing. A reservation counts once, with its estimate.
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

    /// Returns the counts of each rule and shard since the limiter was built, for the application's own graphs.
    /// [`Limiter::metrics_text`] has the same numbers in Prometheus's format.
    ///
    /// ```
    /// # tokio::runtime::Runtime::new().unwrap().block_on(async {
    /// use spillgate::{Limiter, Policy, Reason, Request};
    /// let policy = "[[rule]]\nname = \"api\"\nkey = [\"user\"]\nlimits = [\"1/minute\"]";
    /// let limiter = Limiter::builder().policy(Policy::from_toml(policy)?).build().await?;
    /// for _ in 0..3 {
    ///     limiter.check(&Request::new().with("user", "ann")).await;
    /// }
    /// let api = &limiter.counts().rules[0];
    /// assert_eq!((api.rule(), api.allowed(), api.denied(Reason::LimitExceeded)), ("api", 1, 2));
    /// assert_eq!(api.by_reason().map(|(_, count)| count).sum::<u64>(), 2);
    /// # Ok::<(), Box<dyn std::error::Error>>(()) }).unwrap();
    /// ```
    pub fn counts(&self) -> Counts {
        let unmatched = self.inner.counts.read().unmatched;
        let counts = self.inner.metrics.read(&self.inner.in_force.load().meters, unmatched);
        match &self.inner.engine {
            Engine::Memory(_) => counts,
            #[cfg(feature = "redis")]
            Engine::Redis(redis) => {
                let shards = redis.meters().iter().map(|meter| ShardCounts::of(meter)).collect();
                Counts { shards, ..counts }
            }
        }
    }

    /// Returns the metrics of this limiter in Prometheus's text format, `text/plain; version=0.0.4`.
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
        metrics.write(&in_force.meters, self.inner.counts.read().unmatched, &mut text);
        text.engine(&self.inner.engine);
        #[cfg(feature = "redis")]
        if let Engine::Redis(_) = &self.inner.engine {
            text.records(self.inner.fallback.records());
            text.lookups(self.inner.denials.lookups());
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

    /// Writes the records of reservations in this process. With a store they are those of its local fallback.
    fn records(&mut self, held: RecordsHeld) {
        self.family(Kind::Gauge, "reservations", RESERVATIONS);
        self.sample("reservations", &[("state", "open")], held.open);
        self.sample("reservations", &[("state", "ended")], held.ended);
        self.family(Kind::Gauge, "reservation_bytes", RESERVATION_BYTES);
        self.sample("reservation_bytes", &[], held.bytes);
    }

    /// Writes the state of the store as this instance sees it.
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
        self.family(Kind::Counter, "state_losses_total", STATE_LOSSES);
        self.sample("state_losses_total", &[], stats.state_losses);
        self.family(Kind::Gauge, "live_instances", LIVE_INSTANCES);
        self.sample("live_instances", &[], stats.live_instances);
        self.family(Kind::Gauge, "instance_mismatch", INSTANCE_MISMATCH);
        for (part, instances) in limiter.instance_mismatch().parts() {
            self.sample("instance_mismatch", &[("part", part)], instances);
        }
        let fallback = &limiter.inner.fallback;
        self.family(Kind::Gauge, "overshoot_bound", OVERSHOOT_BOUND);
        for rule in policy.rules().take(RULES_MAX) {
            let bound =
                fallback.overshoot_bound(rule).map_or("+Inf".to_owned(), |bound| bound.to_string());
            self.sample("overshoot_bound", &[("rule", rule.name())], bound);
        }
        self.family(Kind::Gauge, "lease_outstanding", LEASE_OUTSTANDING);
        for rule in policy.rules().take(RULES_MAX).filter(|rule| rule.lease().is_some()) {
            let held = limiter.inner.leases.outstanding_of(rule.name(), boottime_us());
            self.sample("lease_outstanding", &[("rule", rule.name())], held);
        }
        self.family(Kind::Gauge, "overshoot_observed", OVERSHOOT_OBSERVED);
        for (rule, most) in fallback.overshoot_observed() {
            self.sample("overshoot_observed", &[("rule", &rule)], most);
        }
    }

    #[cfg(feature = "redis")]
    fn lookups(&mut self, results: [(&str, u64); 2]) {
        self.family(Kind::Counter, "cache_lookups_total", CACHE_LOOKUPS);
        for (result, count) in results {
            self.sample("cache_lookups_total", &[("cache", "denial"), ("result", result)], count);
        }
    }
}

#[cfg(feature = "redis")]
const CACHE_LOOKUPS: &str = "Decisions for which a cache was asked before the store. A hit of the denial cache is a denial.";
#[cfg(feature = "redis")]
const BREAKER_OPEN: &str = "1 while the circuit breaker of the shard is open and no call is sent.";
#[cfg(feature = "redis")]
const DEGRADED: &str = "1 while decisions on the subjects of the shard are made without it.";
#[cfg(feature = "redis")]
const CLOCK_SKEW: &str = "Clock of the shard minus clock of this instance.";
#[cfg(feature = "redis")]
const CLOCK_STEPS: &str = "Steps of the shard's clock, by itself or with a failover. A step forward can cost each \
    subject one fresh quota.";
#[cfg(feature = "redis")]
const STATE_LOSSES: &str =
    "Shards that lost their data. Each loss can cost each subject one fresh quota.";
#[cfg(feature = "redis")]
const LIVE_INSTANCES: &str = "Instances that share each limit while the store is unavailable.";
#[cfg(feature = "redis")]
const INSTANCE_MISMATCH: &str = "Live instances on the store that differ from this one in the part. They keep \
    separate counters.";
#[cfg(feature = "redis")]
const OVERSHOOT_BOUND: &str = "The most that all instances together can admit to one subject beyond the limits of \
    the rule, by local shares and leases. +Inf if on_outage is allow.";
#[cfg(feature = "redis")]
const OVERSHOOT_OBSERVED: &str = "The most that this instance admitted to one subject by its local share in the \
    present outage. Absent without an outage.";
#[cfg(feature = "redis")]
const LEASE_OUTSTANDING: &str =
    "Leased tokens that this instance holds, neither spent nor returned.";
const EVICTIONS: &str = "Counters that the memory store evicted for want of room.";
const OVERFLOWS: &str =
    "Charges of new subjects to a shared overflow counter of the full memory store.";
const RESERVATIONS: &str = "Records of reservations in this process.";
const RESERVATION_BYTES: &str = "Bytes of the records of reservations in this process.";
