//! The task of a limiter with a store, once a second. It sends heartbeats, warns of instances that
//! differ, and charges deferred charges.

use std::collections::BTreeMap;
use std::sync::{Arc, Weak};
use std::time::Duration;

use spillgate_redis::jitter::jittered;
use spillgate_redis::store::Decided;

use super::last_minute::LastMinute;
use super::{Inner, Stats};
use crate::engine::Engine;
use crate::store::{InstanceMismatch, ShardStatus};
use crate::time::monotonic_us;

/// Starts the task. It ends with the last clone of the limiter.
pub(super) fn begin(inner: &Arc<Inner>) {
    if matches!(inner.engine, Engine::Redis(_)) {
        tokio::spawn(keep_up(Arc::downgrade(inner)));
    }
}

async fn keep_up(inner: Weak<Inner>) {
    let mut degraded = BTreeMap::new();
    let mut last_minute = LastMinute::new(monotonic_us());
    while let Some(inner) = inner.upgrade() {
        if let Engine::Redis(redis) = &inner.engine {
            report_degraded(&redis.shards(), &mut degraded);
            let Stats { allowed, denied, .. } = inner.counts.read();
            let load = last_minute.note(monotonic_us(), Decided { allowed, denied });
            let living = redis.heartbeat(load).await;
            *inner.fleet_load.lock() = living.map(|living| living.load);
            if let Some(living) = living {
                inner.fallback.note_live_instances(living.mismatch.live, monotonic_us());
                let before = std::mem::replace(&mut *inner.mismatch.lock(), living.mismatch);
                report_mismatch(before, living.mismatch);
            }
            inner.fallback.repay(redis).await;
            if degraded.is_empty() {
                inner.fallback.note_recovery();
            }
        }
        drop(inner);
        tokio::time::sleep(ROUND + jittered(JITTER)).await;
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
