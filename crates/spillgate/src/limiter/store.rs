//! What a limiter shows of its shared store.

use spillgate_redis::probe::StoreProbe;

use super::{Inner, Limiter, Stats};
use crate::engine::Engine;
use crate::fallback::INSTANCES_UNKNOWN;
use crate::store::{FleetLoad, InstanceMismatch, ShardStatus};
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
        match &self.inner.engine {
            Engine::Memory(_) => Vec::new(),
            Engine::Redis(redis) => redis.shards(),
        }
    }

    /// Returns the number of live instances on the store that differ from this one in key secret,
    /// ring or schema.
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
        *self.inner.mismatch.lock()
    }

    /// Returns the decisions of all live instances on the store in the last minute, as they
    /// reported them.
    ///
    /// It is `None` if state is in memory, and while no shard answers heartbeats. A stopped
    /// instance is included for 5 seconds more.
    ///
    /// ```
    /// # tokio::runtime::Runtime::new().unwrap().block_on(async {
    /// use spillgate::Limiter;
    ///
    /// let limiter = Limiter::builder().build().await.unwrap();
    /// if let Some(fleet) = limiter.fleet_load() {
    ///     println!("{} instances denied {} requests", fleet.instances, fleet.denied);
    /// }
    /// assert_eq!(limiter.fleet_load(), None, "state is in memory");
    /// # });
    /// ```
    pub fn fleet_load(&self) -> Option<FleetLoad> {
        *self.inner.fleet_load.lock()
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
        let mut probe = match &self.inner.engine {
            Engine::Memory(_) => StoreProbe::default(),
            Engine::Redis(redis) => redis.probe(samples).await,
        };
        let expected = self.inner.fallback.expected_instances();
        probe.shares = expected.unwrap_or(INSTANCES_UNKNOWN);
        probe.share_is_guessed = expected.is_none();
        probe
    }
}

impl Inner {
    /// Adds the counts of the store to those of the limiter.
    pub(super) fn store_stats(&self, stats: Stats) -> Stats {
        let Engine::Redis(redis) = &self.engine else { return stats };
        Stats {
            store_errors: self.fallback.store_errors(),
            state_losses: redis.state_losses(),
            clock_steps: redis.clock_steps(),
            live_instances: self.fallback.instances(),
            leased_counters: self.leases.counters(),
            lease_outstanding: self.leases.outstanding(boottime_us()),
            ..stats
        }
    }
}
