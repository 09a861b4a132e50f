//! Changes that operators make when the store is several servers: they reach every process, and survive the
//! loss of one server's copy and the restart of all processes.

use std::time::Duration;

use spillgate::control::Override;
use spillgate::store::Ring;
use spillgate::{Limiter, LimiterBuilder, Mode, Policy};
use spillgate_core::time::monotonic_us;
use spillgate_testkit::{Cluster, RedisServer, Reply, Sentinels};

use super::{API, acme, ann, capacity, until};
use crate::failure::evidence;
use crate::support::world::{PATIENCE, ring_of};

#[test]
fn changes_on_a_cluster_reach_every_process_and_survive_a_flushed_node_and_restarts() {
    let cluster = Cluster::start(3, 0);
    holds_everywhere(cluster.nodes(), &|it| it.cluster(cluster.urls()));
}

#[test]
fn changes_on_a_ring_reach_every_process_and_survive_a_flushed_node_and_restarts() {
    let servers: Vec<_> = (0..3).map(|_| RedisServer::start()).collect();
    holds_everywhere(&servers, &|it| it.ring(ring_of(&servers)));
}

/// The primary that handed over is a replica now, and takes no more changes itself.
#[test]
fn a_change_is_saved_after_the_server_of_the_record_has_changed() {
    let cluster = Cluster::start(3, 1);
    tokio::runtime::Runtime::new().unwrap().block_on(async {
        let policy = Policy::from_toml(API).unwrap();
        let builder = Limiter::builder().policy(policy).timeout(PATIENCE);
        let limiter = builder.cluster(cluster.urls()).build().await.unwrap();
        let set = limiter.set_override("api", &acme(), ["20/day"], None).await.unwrap();
        assert!(set.is_saved(), "{set:?}");
        let slot = cluster.nodes()[0].command(&["CLUSTER", "KEYSLOT", "{fleet:default}"]).integer();
        cluster.fail_over(cluster.owner_of(slot as u16));
        limiter.set_override("api", &acme(), ["30/day"], None).await.unwrap();
        until("it is saved", async || limiter.overrides()[0].is_saved()).await;
    });
}

/// The new first node has no record. Its first instance brings the changes there, while the old ring is in use or shortly
/// after.
#[test]
fn changes_follow_a_ring_to_another_first_node() {
    let servers: Vec<_> = (0..3).map(|_| RedisServer::start()).collect();
    tokio::runtime::Runtime::new().unwrap().block_on(async {
        let start = async |ring| {
            let policy = Policy::from_toml(API).unwrap();
            Limiter::builder().policy(policy).timeout(PATIENCE).ring(ring).build().await.unwrap()
        };
        let old = start(Ring::new().node("b", servers[0].url()).node("c", servers[1].url())).await;
        assert!(old.set_override("api", &acme(), ["20/day"], None).await.unwrap().is_saved());
        drop(old);
        let ring = || {
            let ring = Ring::new().node("b", servers[0].url()).node("c", servers[1].url());
            ring.node("a", servers[2].url())
        };
        let new = start(ring()).await;
        until("the new first node has the change", async || {
            new.overrides().first().is_some_and(Override::is_saved)
        })
        .await;
        assert_eq!(fields_of_record(&servers[2]), 2, "its version and the change");
        drop(new);
        servers[0].command(&["FLUSHALL"]);
        let late = start(ring()).await;
        assert_eq!(capacity(&late, &ann()).await, Some(20));
    });
}

/// [`shared`](super::shared) covers one server in the gate.
#[test]
#[ignore = "needs evidence"]
fn changes_on_one_server_or_by_sentinels_reach_every_process_and_survive_a_flush_and_restarts() {
    let server = [RedisServer::start()];
    holds_everywhere(&server, &|it| it.redis(server[0].url()));
    let watched = Sentinels::start(1, 3);
    holds_everywhere(watched.servers(), &|it| it.sentinel(Sentinels::NAME, watched.urls()));
}

fn holds_everywhere(servers: &[RedisServer], on: &dyn Fn(LimiterBuilder) -> LimiterBuilder) {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let start = || async {
        let policy = Policy::from_toml(API).unwrap();
        on(Limiter::builder().policy(policy).timeout(PATIENCE)).build().await.unwrap()
    };
    runtime.block_on(async {
        let (one, other) = (start().await, start().await);
        let mut longest = Duration::ZERO;
        for round in 0..if evidence() { 20 } else { 1 } {
            let quota = 20 + round;
            let set =
                one.set_override("api", &acme(), [format!("{quota}/day")], None).await.unwrap();
            assert!(set.is_saved(), "{set:?}");
            longest = longest.max(holds(&other, Some(quota)).await);
            one.set_mode("api", Mode::Off, None).await.unwrap();
            longest = longest.max(holds(&other, None).await);
            other.set_mode("api", Mode::Enforce, None).await.unwrap();
            longest = longest.max(holds(&one, Some(quota)).await);
            one.set_override("api", &ann(), ["block"], None).await.unwrap();
            let blocked = async || !other.check(&ann()).await.allowed();
            longest = longest.max(timed(until("a block", blocked)).await);
            one.remove_override("api", &ann()).await.unwrap();
            longest = longest.max(holds(&other, Some(quota)).await);
        }
        println!(
            "{} servers: a change at one process reaches the other after at most {longest:?}",
            servers.len()
        );
        assert!(!evidence() || longest <= AT_MOST, "{longest:?}");
        one.set_override("api", &acme(), ["20/day"], None).await.unwrap();
        holds(&other, Some(20)).await;

        let fields = || servers.iter().map(fields_of_record).sum::<i64>();
        let before = fields();
        servers.iter().for_each(|server| {
            // A replica takes none, and gets its primary's.
            server.command(&["FLUSHALL"]);
        });
        until("the record is there again", async || fields() == before).await;
        holds(&other, Some(20)).await;
        other.set_override("api", &ann(), ["block"], None).await.unwrap();
        until("a block", async || !one.check(&ann()).await.allowed()).await;
        drop((one, other));

        let late = start().await;
        until("the block", async || !late.check(&ann()).await.allowed()).await;
        assert_eq!(capacity(&late, &acme().with("user", "bob")).await, Some(20));
    });
}

/// Waits for the capacity and returns how long that took.
async fn holds(limiter: &Limiter, expected: Option<u64>) -> Duration {
    let condition = format!("a capacity of {expected:?}");
    timed(until(&condition, async || capacity(limiter, &ann()).await == expected)).await
}

async fn timed(wait: impl Future<Output = ()>) -> Duration {
    let start_us = monotonic_us();
    wait.await;
    Duration::from_micros(monotonic_us() - start_us)
}

/// Returns how many fields the record of changes on a server has; 0 on a node that is not its owner.
fn fields_of_record(server: &RedisServer) -> i64 {
    match server.command(&["HLEN", "sg1:{fleet:default}:c"]) {
        Reply::Integer(fields) => fields,
        _ => 0,
    }
}

/// The promise to operators; the gate allows ten times as much.
const AT_MOST: Duration = Duration::from_secs(1);
