//! Many concurrent callers.

use std::sync::Arc;

use spillgate_core::algorithm::Intent;
use spillgate_core::limit::NamedLimit;
use spillgate_core::memory::Memory;
use spillgate_core::time::Clock;
use spillgate_redis::Redis;
use tokio::runtime::Runtime;
use tokio::task::JoinSet;

use super::world::{PATIENCE, TODAY_US, transaction};
use crate::support::engine::Engine;

/// Returns an engine in memory if there is no URL, and otherwise one on Redis with the store's own clock.
pub(crate) fn engine(runtime: &Runtime, url: Option<&str>) -> Arc<Engine> {
    Arc::new(match url {
        None => Engine::Memory(Memory::new(100_000, Clock::given(TODAY_US))),
        Some(url) => Engine::Redis(runtime.block_on(Redis::connect(url, PATIENCE)).unwrap()),
    })
}

/// A runtime with enough threads for callers to run concurrently.
pub(crate) fn threads() -> Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(4).enable_all().build().unwrap()
}

/// Runs one caller for each of `costs`, all at once, each charging all `counters`. Returns how many were
/// admitted.
pub(crate) fn admitted(
    runtime: &Runtime,
    engine: &Arc<Engine>,
    counters: &[(u128, &NamedLimit)],
    costs: impl IntoIterator<Item = u64>,
) -> usize {
    let counters: Arc<[(u128, NamedLimit)]> =
        counters.iter().map(|(subject, limit)| (*subject, (*limit).clone())).collect();
    let mut callers = JoinSet::new();
    for cost in costs {
        let (engine, counters) = (Arc::clone(engine), Arc::clone(&counters));
        callers.spawn_on(
            async move {
                let costs: Vec<_> =
                    counters.iter().map(|(subject, limit)| (*subject, limit, cost)).collect();
                engine.decide_one(&transaction(Intent::Charge, &costs)).await.unwrap().allowed
            },
            runtime.handle(),
        );
    }
    runtime.block_on(callers.join_all()).into_iter().filter(|allowed| *allowed).count()
}
