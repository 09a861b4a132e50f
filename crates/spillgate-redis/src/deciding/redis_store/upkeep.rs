//! The task of a limiter with a store, once a second. It sends heartbeats, warns of instances that
//! differ, and charges deferred charges.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use super::last_minute::LastMinute;
use super::{Fleet, RedisStore};
use crate::jitter::jittered;
use crate::store::{Decided, InstanceMismatch, ShardStatus};
use crate::time::monotonic_us;

impl RedisStore {
    /// Starts the task that keeps this store up. `decided` returns the totals of the limiter's decisions, and `None`
    /// once the limiter is gone, which ends the task.
    pub fn begin_upkeep(self: &Arc<Self>, decided: impl Fn() -> Option<Decided> + Send + 'static) {
        let store = Arc::downgrade(self);
        tokio::spawn(async move {
            let mut degraded = BTreeMap::new();
            let mut last_minute = LastMinute::new(monotonic_us());
            while let (Some(decided), Some(store)) = (decided(), store.upgrade()) {
                let load = last_minute.note(monotonic_us(), decided);
                store.upkeep(load, &mut degraded).await;
                drop(store);
                tokio::time::sleep(ROUND + jittered(JITTER)).await;
            }
        });
    }

    /// Does what is due once a second. `degraded` has the start of each outage.
    async fn upkeep(&self, load: Decided, degraded: &mut BTreeMap<String, u64>) {
        let servers = &self.servers;
        report_degraded(&servers.shards(), degraded);
        let living = servers.member().heartbeat(load).await;
        if let Some(living) = living {
            self.fallback.note_live_instances(living.mismatch.live, monotonic_us());
            report_mismatch(self.fleet().mismatch, living.mismatch);
        }
        let mismatch = living.map_or_else(|| self.fleet().mismatch, |living| living.mismatch);
        *self.fleet.lock() = Fleet { mismatch, load: living.map(|living| living.load) };
        self.fallback.repay(servers).await;
        if degraded.is_empty() {
            self.fallback.note_recovery();
        }
    }
}

/// Logs once when a shard goes out of reach, and once when it is back. `since_us` has the start of
/// each outage.
fn report_degraded(shards: &[ShardStatus], since_us: &mut BTreeMap<String, u64>) {
    for ShardStatus { name: shard, degraded, trouble, .. } in shards {
        match (degraded, since_us.contains_key(shard)) {
            (true, false) => {
                since_us.insert(shard.clone(), monotonic_us());
                let why = trouble.as_deref().unwrap_or("it does not answer");
                tracing::warn!(
                    target: "spillgate",
                    shard,
                    why,
                    "degraded: each rule's on_outage decides for this shard's subjects"
                );
            }
            (false, true) => {
                let began_us = since_us.remove(shard).unwrap_or_default();
                let seconds = monotonic_us().saturating_sub(began_us) / 1_000_000;
                tracing::info!(target: "spillgate", shard, seconds, "no longer degraded: the store decides");
            }
            _ => {}
        }
    }
    // Shards can leave a Cluster or ring.
    since_us.retain(|name, _| shards.iter().any(|shard| shard.name == *name));
}

/// Logs each property for which the number of differing instances has changed.
fn report_mismatch(before: InstanceMismatch, now: InstanceMismatch) {
    for ((part, before), (_, instances)) in before.parts().into_iter().zip(now.parts()) {
        if instances == before {
            continue;
        }
        if instances == 0 {
            tracing::info!(target: "spillgate", part, "all live instances agree again");
            continue;
        }
        let remedy = match part {
            "secret" => "give all instances the same key secret",
            "ring" => "give all instances the same ring",
            _ => "run the same version everywhere",
        };
        tracing::warn!(
            target: "spillgate",
            part,
            instances,
            of = now.live,
            remedy,
            "live instances on this store differ from this one: they keep separate counters, and a subject \
             can get up to its whole limit from each kind"
        );
    }
}

/// With the jitter, heartbeats are at most a second apart.
const ROUND: Duration = Duration::from_millis(800);
const JITTER: Duration = Duration::from_millis(200);
