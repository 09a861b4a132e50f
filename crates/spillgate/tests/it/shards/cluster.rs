//! A real Redis Cluster whose slots move, and whose primaries change and die.

use std::time::Duration;

use spillgate::{Limit, Limiter, Request, Source};
use spillgate_testkit::{Cluster, Node, eventually};
use tokio::runtime::Runtime;

use crate::support::storm;
use crate::support::world::PATIENCE;

/// ACCIDENTS 32; F19. Slots moved under load: MOVED and ASK went to the caller.
#[test]
fn slots_that_move_under_load_are_followed_without_an_error() {
    let cluster = Cluster::start(3, 0);
    let store = Subjects::on(&cluster, PATIENCE);
    let sources = store.check_all();
    assert!(
        sources.iter().all(|source| *source == Source::Store),
        "{sources:?} {:?} {:?}",
        store.limiter.stats(),
        store.limiter.shards()
    );
    let sources = std::thread::scope(|scope| {
        let moving = scope.spawn(|| {
            for slot in (0..SLOTS).step_by(400) {
                let to = Node((cluster.owner_of(slot).0 + 1) % 3);
                cluster.migrate(slot, to);
            }
        });
        let mut sources = Vec::new();
        while !moving.is_finished() {
            sources.extend(store.check_all());
        }
        sources
    });
    let failed = sources.iter().filter(|source| **source != Source::Store).count();
    println!("{} decisions while slots moved", sources.len());
    assert_eq!((failed, store.limiter.stats().store_errors), (0, 0));
}

/// F9. READONLY after a failover reached the caller, and the client did not look for the new primary.
#[test]
fn a_planned_failover_is_followed() {
    let cluster = Cluster::start(3, 1);
    let store = Subjects::on(&cluster, PATIENCE);
    assert!(store.check_all().iter().all(|source| *source == Source::Store));
    let before = store.admitted();
    cluster.fail_over(cluster.owner_of(0));
    eventually(|| store.check_all().iter().all(|source| *source == Source::Store));
    assert!(store.admitted() > before);
}

/// F20. One dead primary of three took all down. Here only its own subjects are degraded, until its replica
/// has taken over.
#[test]
fn a_killed_primary_degrades_its_own_subjects_until_its_replica_takes_over() {
    let mut cluster = Cluster::start_with(
        &spillgate_testkit::RedisServer::versions()[0].path,
        3,
        1,
        &["--cluster-require-full-coverage", "no"],
    );
    let store = Subjects::on(&cluster, Duration::from_secs(2));
    assert!(store.check_all().iter().all(|source| *source == Source::Store));
    let killed = cluster.owner_of(0);
    cluster.node_mut(killed).kill();
    let mut degraded = 0;
    eventually(|| {
        let sources = store.check_all();
        degraded = degraded.max(sources.iter().filter(|s| **s != Source::Store).count());
        sources.iter().all(|source| *source == Source::Store)
    });
    assert!((1..SUBJECTS / 2).contains(&degraded), "{degraded} of {SUBJECTS} were degraded");
}

/// Subjects spread over the slots, with a limit that admits all.
struct Subjects {
    limiter: Limiter,
    runtime: Runtime,
}

impl Subjects {
    fn on(cluster: &Cluster, wait: Duration) -> Subjects {
        let runtime = storm::threads();
        let builder = Limiter::builder().cluster(cluster.urls()).timeout(wait);
        Subjects { limiter: runtime.block_on(builder.build()).unwrap(), runtime }
    }

    /// Returns the source of each decision.
    fn check_all(&self) -> Vec<Source> {
        let mut under_way = tokio::task::JoinSet::new();
        for subject in 0..SUBJECTS {
            let limiter = self.limiter.clone();
            let check = async move {
                let limit = Limit::per_second(1_000_000);
                limiter.check(&Request::keyed(subject.to_string(), &limit)).await.source()
            };
            under_way.spawn_on(check, self.runtime.handle());
        }
        self.runtime.block_on(under_way.join_all())
    }

    fn admitted(&self) -> u64 {
        self.limiter.stats().allowed
    }
}

const SLOTS: u16 = 16_384;
const SUBJECTS: usize = 200;
