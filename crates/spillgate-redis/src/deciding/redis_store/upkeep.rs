//! The task of a limiter with a store, once a second. It looks for shards that are down or lost their data, and
//! charges deferred charges.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use super::RedisStore;
use crate::jitter::jittered;
use crate::store::{InstanceMismatch, ShardStatus};
use crate::time::{Clock, monotonic_us};

impl RedisStore {
    /// Starts the task that keeps this store up, until the store is dropped.
    pub fn begin_upkeep(self: &Arc<Self>) {
        let store = Arc::downgrade(self);
        tokio::spawn(async move {
            let mut degraded = BTreeMap::new();
            for round in 0_u64.. {
                let Some(store) = store.upgrade() else { return };
                store.upkeep(round, &mut degraded).await;
                drop(store);
                tokio::time::sleep(ROUND + jittered(JITTER)).await;
            }
        });
    }

    /// Does what is due once a second. `degraded` has the start of each outage.
    async fn upkeep(&self, round: u64, degraded: &mut BTreeMap<String, u64>) {
        let servers = &self.servers;
        report_degraded(&servers.shards(), degraded);
        let degraded_us = degraded.values().min().map(|began_us| monotonic_us() - began_us);
        let now_ms = Clock::System.now_us() / 1_000;
        self.fleet.lock().degraded_since_ms = degraded_us.map(|long_us| now_ms - long_us / 1_000);
        if round.is_multiple_of(ROUNDS_UNTIL_KINDS) {
            let other_kinds = servers.member().meet_other_kinds().await;
            self.fleet.lock().other_kinds = InstanceMismatch { live: 0, ..other_kinds };
        } else {
            servers.member().look_at_guards(self.knows_guard()).await;
        }
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
pub fn report_mismatch(before: InstanceMismatch, now: InstanceMismatch) {
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
            "policy" => "give all instances the same policy",
            _ => "run the same version everywhere",
        };
        tracing::warn!(
            target: "spillgate",
            part,
            instances,
            of = now.live,
            remedy,
            "live instances on this store differ from this one: a subject can get up to its whole limit from \
             each kind, or, with another policy, other limits"
        );
    }
}

/// With the jitter, two rounds are at most a second apart.
const ROUND: Duration = Duration::from_millis(800);
const JITTER: Duration = Duration::from_millis(200);
/// About ten seconds.
const ROUNDS_UNTIL_KINDS: u64 = 11;
