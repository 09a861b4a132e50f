//! Runs one story on each store: in memory, on one Redis, and on a ring of three; or only on the store that the
//! environment names.

use std::time::Duration;

use spillgate::{Limiter, LimiterBuilder, Policy};
use spillgate_testkit::RedisServer;
use tokio::runtime::Runtime;

use crate::support::clock::Clock;
use crate::support::given::Given;
use crate::support::world::{TODAY_US, ring_of};

/// Runs a body on a limiter on each store.
pub(crate) fn on_each<F: Future<Output = ()>>(policy: &str, body: impl Fn(Limiter) -> F) {
    stores(async |on_store| {
        let policy = Policy::from_toml(policy).unwrap();
        body(on_store().policy(policy).build().await.unwrap()).await;
    });
}

/// Runs a body on two limiters on each store, with a clock that the test sets. The second limiter stands for
/// another process.
pub(crate) fn pair_on_each<F: Future<Output = ()>>(
    policy: &str,
    body: impl Fn(Limiter, Limiter, Clock) -> F,
) {
    stores(async |on_store| {
        let (policy, clock) = (Policy::from_toml(policy).unwrap(), Clock::given(TODAY_US));
        let build = || {
            // Remembered denials use a clock that the test does not set.
            let builder = on_store().denial_cache(false).policy(policy.clone());
            builder.manual_clock(clock.manual()).build()
        };
        let one = build().await.unwrap();
        // State in memory is not shared with another process.
        let is_in_memory = one.memory_stats().is_some();
        let other = if is_in_memory { one.clone() } else { build().await.unwrap() };
        body(one, other, clock).await;
    });
}

/// Runs a body once for each store, with a function that makes builders on it.
fn stores(body: impl AsyncFn(&dyn Fn() -> LimiterBuilder)) {
    let patient = || Limiter::builder().timeout(Duration::from_secs(10));
    // A runtime of its own: no task of an earlier limiter writes to the next store.
    let run = |on_store: &dyn Fn() -> LimiterBuilder| {
        Runtime::new().unwrap().block_on(body(on_store));
    };
    if let Some(given) = Given::emptied() {
        return run(&|| given.under(patient()));
    }
    run(&patient);
    let nodes: Vec<_> = (0..3).map(|_| RedisServer::start()).collect();
    run(&|| patient().redis(nodes[0].url()));
    nodes[0].command(&["FLUSHALL"]);
    run(&|| patient().ring(ring_of(&nodes)));
}
