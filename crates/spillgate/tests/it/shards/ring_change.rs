//! Processes on two rings, or under two secrets, at the same time: each kind has counters of its own.

use std::time::Duration;

use spillgate::store::{InstanceMismatch, Ring};
use spillgate::{Limit, Limiter, LimiterBuilder, Request, Source};
use spillgate_testkit::{RedisServer, eventually, poll};
use tokio::runtime::Runtime;

use crate::failure::YEAR;
use crate::support::storm;
use crate::support::world::{PATIENCE, ring_of};

/// F27. A node that joined refused the processes on the old ring, or was refused: they stayed on local shares.
#[test]
fn while_a_node_joins_only_subjects_that_move_get_a_second_quota() {
    let world = World::new(4);
    let (old, new) = (world.on_ring(3), world.on_ring(4));
    let admitted: Vec<u64> = (0..SUBJECTS).map(|it| world.admitted(&[&old, &new], it)).collect();
    let moved = admitted.iter().filter(|count| **count == 2 * EACH).count();
    let stayed = admitted.iter().filter(|count| **count == EACH).count();
    println!("{moved} of {SUBJECTS} subjects moved");
    assert_eq!(moved + stayed, SUBJECTS, "{admitted:?}");
    assert!((SUBJECTS / 6..=SUBJECTS / 3).contains(&moved), "{moved} of {SUBJECTS} moved");
    let moved = admitted.iter().position(|count| *count == 2 * EACH).unwrap();

    // Stopping all and starting all gives one fresh quota too, to subjects that move.
    drop((old, new));
    let only = world.on_ring(2);
    let again: Vec<u64> = (0..SUBJECTS).map(|it| world.admitted(&[&only], it)).collect();
    assert!(again.iter().all(|count| [0, EACH].contains(count)), "{again:?}");
    assert!(again.contains(&0) && again.contains(&EACH), "{again:?}");
    // A ring of the same nodes finds its counters again, in whatever order they are listed.
    let back = world.limiter(Limiter::builder().ring(world.ring([3, 1, 0, 2])));
    assert_eq!(world.admitted(&[&back], moved), 0);
}

#[test]
fn processes_on_two_rings_count_each_other() {
    let world = World::new(3);
    let (old, new) = (world.on_ring(2), [world.on_ring(3), world.on_ring(3)]);
    let counted = |limiter: &Limiter| {
        let InstanceMismatch { ring, secret, schema, live, .. } = limiter.instance_mismatch();
        (ring, secret + schema, live)
    };
    eventually(|| counted(&old) == (2, 0, 3));
    new.iter().for_each(|limiter| eventually(|| counted(limiter) == (1, 0, 3)));
    drop(new);
    eventually(|| old.instance_mismatch().is_none());
}

/// Their records are in two places, so neither lists the other.
#[test]
fn processes_on_rings_with_different_first_nodes_know_of_each_other() {
    let world = World::new(3);
    let ring = |nodes: [usize; 2]| {
        let named = nodes.into_iter().fold(Ring::new(), |ring, node| {
            ring.node(["a", "b", "c"][node], world.servers[node].url())
        });
        world.limiter(Limiter::builder().ring(named))
    };
    let (one, other) = (ring([0, 1]), ring([1, 2]));
    let knows = |limiter: &Limiter| {
        poll(Duration::from_secs(30), || (limiter.instance_mismatch().ring == 1).then_some(()))
            .is_some()
    };
    assert!(knows(&other) && knows(&one));
    assert_eq!(one.instance_mismatch().live, 1);
}

#[test]
fn under_two_secrets_each_subject_gets_at_most_two_quotas() {
    let server = RedisServer::start();
    let world = World::new(0);
    let under =
        |secret| world.limiter(Limiter::builder().redis(server.url()).key_secret([secret; 16]));
    let fleet = [under(1), under(1), under(2)];
    let fleet: Vec<&Limiter> = fleet.iter().collect();
    assert!((0..10).all(|subject| world.admitted(&fleet, subject) == 2 * EACH));
    eventually(|| fleet[2].instance_mismatch().secret == 2);
    eventually(|| fleet[0].instance_mismatch().secret == 1);
}

/// Servers that rings are made of, and limiters on them.
struct World {
    servers: Vec<RedisServer>,
    runtime: Runtime,
}

impl World {
    fn new(servers: usize) -> World {
        World {
            servers: (0..servers).map(|_| RedisServer::start()).collect(),
            runtime: storm::threads(),
        }
    }

    /// Returns a limiter on a ring of the first servers.
    fn on_ring(&self, nodes: usize) -> Limiter {
        self.limiter(Limiter::builder().ring(ring_of(&self.servers[..nodes])))
    }

    /// Returns a ring of these servers in this order, each with its name in `ring_of`.
    fn ring(&self, order: impl IntoIterator<Item = usize>) -> Ring {
        order.into_iter().fold(Ring::new(), |ring, number| {
            ring.node(["a", "b", "c", "d"][number], self.servers[number].url())
        })
    }

    fn limiter(&self, on_store: LimiterBuilder) -> Limiter {
        // The tests look at what the nodes decide.
        let builder = on_store.timeout(PATIENCE).denial_cache(false);
        self.runtime.block_on(builder.build()).unwrap()
    }

    /// Returns how many calls of a subject the store admits, if each limiter sends more than the limit.
    fn admitted(&self, limiters: &[&Limiter], subject: usize) -> u64 {
        let (limit, key) = (Limit::per(EACH, YEAR), format!("subject {subject}"));
        let mut admitted = 0;
        for _ in 0..=EACH {
            for limiter in limiters {
                let decision = self.runtime.block_on(limiter.check(&Request::keyed(&key, &limit)));
                assert_eq!(decision.source(), Source::Store, "{decision:?}");
                admitted += u64::from(decision.allowed());
            }
        }
        admitted
    }
}

const SUBJECTS: usize = 200;
const EACH: u64 = 3;
