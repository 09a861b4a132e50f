//! What a limiter shows of its shared store.

use spillgate_redis::probe::StoreProbe;

use super::{Inner, Limiter, Stats};
use crate::control::ControlError;
use crate::engine::RedisStore;
use crate::store::{Decided, FleetInstance, InstanceMismatch, Report, ShardStatus};
use crate::time::boottime_us;

impl Limiter {
    /// Returns the shards of the store as this instance sees them; none if state is in memory.
    ///
    /// ```
    /// # tokio::runtime::Runtime::new().unwrap().block_on(async {
    /// use spillgate::Limiter;
    ///
    /// // No server listens on this port.
    /// let limiter = Limiter::builder().redis("redis://127.0.0.1:1").build().await.unwrap();
    /// for shard in limiter.shards() {
    ///     println!("{}: degraded {}, {:?}", shard.name, shard.degraded, shard.trouble);
    /// }
    /// # });
    /// ```
    pub fn shards(&self) -> Vec<ShardStatus> {
        self.inner.engine.store().map(|store| store.servers.shards()).unwrap_or_default()
    }

    /// Returns the number of live instances on the store that differ from this one in key secret,
    /// ring, schema or policy.
    ///
    /// The numbers come from the last heartbeat and are 0 if state is in memory. A stopped instance
    /// is counted for 5 seconds more.
    ///
    /// ```
    /// # tokio::runtime::Runtime::new().unwrap().block_on(async {
    /// use spillgate::Limiter;
    ///
    /// let limiter = Limiter::builder().build().await.unwrap();
    /// for (setting, instances) in limiter.instance_mismatch().parts() {
    ///     println!("{instances} instances differ in {setting}");
    /// }
    /// assert!(limiter.instance_mismatch().is_none(), "state is in memory");
    /// # });
    /// ```
    pub fn instance_mismatch(&self) -> InstanceMismatch {
        self.inner.engine.store().map(|store| store.mismatch()).unwrap_or_default()
    }

    /// Returns the live instances on the store, as they reported themselves in the last second. With state in
    /// memory this instance is the only one.
    ///
    /// An instance that was not closed is listed for 5 seconds more. The store is read at most every two seconds.
    ///
    /// # Errors
    /// Returns [`ControlError::Store`] if the store does not answer.
    ///
    /// ```
    /// # tokio::runtime::Runtime::new().unwrap().block_on(async {
    /// use spillgate::Limiter;
    ///
    /// let limiter = Limiter::builder().instance_name("web-1").build().await.unwrap();
    /// for instance in limiter.fleet().await? {
    ///     println!("{}: {} allowed", instance.report.name, instance.report.decided.allowed);
    /// }
    /// # Ok::<(), spillgate::control::ControlError>(()) }).unwrap();
    /// ```
    pub async fn fleet(&self) -> Result<Vec<FleetInstance>, ControlError> {
        let report = self.inner.report();
        match self.inner.engine.store() {
            None => Ok(vec![FleetInstance::alone(report)]),
            Some(store) => store.instances(report.policy).await.map_err(ControlError::Store),
        }
    }

    /// Returns the live instances that differ from this one in secret, ring, schema or policy, as they were last
    /// read: within seconds after a difference began, and then once a minute.
    ///
    /// ```
    /// # tokio::runtime::Runtime::new().unwrap().block_on(async {
    /// use spillgate::Limiter;
    ///
    /// let limiter = Limiter::builder().build().await.unwrap();
    /// assert!(limiter.differing_instances().is_empty(), "state is in memory");
    /// # });
    /// ```
    pub fn differing_instances(&self) -> Vec<FleetInstance> {
        self.inner.engine.store().map(|store| store.differing_instances()).unwrap_or_default()
    }

    /// Examines every shard of the store: its settings, whether the script decides correctly there,
    /// and how long each of `samples` calls takes.
    ///
    /// ```
    /// # tokio::runtime::Runtime::new().unwrap().block_on(async {
    /// use spillgate::Limiter;
    ///
    /// let limiter = Limiter::builder().build().await.unwrap();
    /// let probe = limiter.probe(10).await;
    /// for (server, facts) in probe.reached() {
    ///     println!("{server}: {} µs ahead of us", facts.ahead_us);
    /// }
    /// assert_eq!(probe.unreachable().count(), 0, "state is in memory");
    /// # });
    /// ```
    pub async fn probe(&self, samples: usize) -> StoreProbe {
        match self.inner.engine.store() {
            None => StoreProbe::default(),
            Some(store) => store.probe(samples).await,
        }
    }
}

impl Limiter {
    /// Returns all unspent leases to the store and takes no more, adds the counts of the present minute to the history and the
    /// denials of the fleet, and removes this instance from it. A service calls this before it stops: afterwards it learns of no
    /// more changes.
    ///
    /// Waits at most 2 seconds. Tokens that could not be returned by then stay charged, and minutes that could not be added are
    /// lost.
    ///
    /// ```
    /// # tokio::runtime::Runtime::new().unwrap().block_on(async {
    /// use spillgate::Limiter;
    ///
    /// let limiter = Limiter::builder().build().await.unwrap();
    /// // At the end of the process, after the last check:
    /// limiter.close().await;
    /// # });
    /// ```
    pub async fn close(&self) {
        if let Some(store) = self.inner.engine.store() {
            store.end_leases().await;
            self.inner.end_minutes().await;
        }
    }
}

impl Inner {
    /// Returns what this instance reports of itself. The decisions are totals.
    pub fn report(&self) -> Report {
        let Stats { allowed, denied, .. } = self.counts.read();
        Report {
            name: self.identity.name.clone(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            started_ms: self.identity.started_ms,
            policy: self.in_force.load().policy.fingerprint(),
            policy_loaded_ms: self.control.policy_loaded_us() / 1_000,
            decided: Decided { allowed, denied },
            p99_us: self.identity.p99_us(|| self.metrics.times()),
            degraded_since_ms: None,
            changes: self.control.record.revision(),
        }
    }

    /// Adds the counts of the store to those of the limiter.
    pub fn store_stats(&self, stats: Stats) -> Stats {
        let Some(store) = self.engine.store() else { return stats };
        let RedisStore { servers, fallback, leases, .. } = &**store;
        Stats {
            store_errors: fallback.store_errors(),
            state_losses: servers.state_losses(),
            clock_steps: servers.clock_steps(),
            live_instances: fallback.instances(),
            leased_counters: leases.counters(),
            lease_outstanding: leases.outstanding(boottime_us()),
            ..stats
        }
    }
}
