//! What operators set, where the store is several servers: it holds at every process, survives the
//! loss of one server's copy, and the restart of all processes.

use spillgate::{Limiter, LimiterBuilder, Mode, Policy};
use spillgate_testkit::{Cluster, RedisServer};

use super::{API, acme, ann, capacity, until};
use crate::support::world::{PATIENCE, ring_of};

#[test]
fn what_is_set_on_a_cluster_holds_everywhere_and_survives_a_flushed_node_and_restarts() {
    let cluster = Cluster::start(3, 0);
    holds_everywhere(cluster.nodes(), &|it| it.cluster(cluster.urls()));
}

#[test]
fn what_is_set_on_a_ring_holds_everywhere_and_survives_a_flushed_node_and_restarts() {
    let servers: Vec<_> = (0..3).map(|_| RedisServer::start()).collect();
    holds_everywhere(&servers, &|it| it.ring(ring_of(&servers)));
}

fn holds_everywhere(servers: &[RedisServer], on: &dyn Fn(LimiterBuilder) -> LimiterBuilder) {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let start = || async {
        let policy = Policy::from_toml(API).unwrap();
        on(Limiter::builder().policy(policy).timeout(PATIENCE)).build().await.unwrap()
    };
    runtime.block_on(async {
        let (one, other) = (start().await, start().await);
        let set = one.set_override("api", &acme(), ["20/day"], None).await.unwrap();
        assert!(set.everywhere(), "{set:?}");
        holds(&other, Some(20)).await;
        one.set_mode("api", Mode::Off, None).await.unwrap();
        holds(&other, None).await;
        other.set_mode("api", Mode::Enforce, None).await.unwrap();
        holds(&one, Some(20)).await;

        servers[0].command(&["FLUSHALL"]);
        until("the copy is there again", async || copies(&servers[0]) > 0).await;
        holds(&other, Some(20)).await;
        other.set_override("api", &ann(), ["none"], None).await.unwrap();
        until("a block", async || !one.check(&ann()).await.allowed()).await;
        drop((one, other));

        let late = start().await;
        until("the block", async || !late.check(&ann()).await.allowed()).await;
        assert_eq!(capacity(&late, &acme().with("user", "bob")).await, Some(20));
    });
}

async fn holds(limiter: &Limiter, expected: Option<u64>) {
    let what = format!("a capacity of {expected:?}");
    until(&what, async || capacity(limiter, &ann()).await == expected).await;
}

/// How many fields the copies on a server have.
fn copies(server: &RedisServer) -> i64 {
    let keys = server.command(&["KEYS", "sg1:*:c"]);
    let spillgate_testkit::Reply::Array(keys) = keys else { panic!("a list") };
    keys.iter().map(|key| server.command(&["HLEN", key.text()]).integer()).sum()
}
