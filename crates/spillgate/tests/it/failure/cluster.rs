//! A cluster that moves slots, fails over and loses a part, under load.

use std::collections::BTreeSet;

use spillgate::{Limit, Limiter, Policy, Request, Source};
use spillgate_testkit::{Cluster, Node, RedisServer, eventually, poll};

use super::{ALL, CEILING, Patient, SHARE, evidence, limit};

fn on(cluster: &Cluster) -> Patient {
    let patient = Patient::built(Limiter::builder().cluster(cluster.urls()).timeout(CEILING));
    everywhere(&patient);
    patient
}

/// Waits until the store decides for keys of every shard.
#[track_caller]
fn everywhere(patient: &Patient) {
    let wide = Limit::per_second(1_000_000);
    let settled = poll(super::HEALING, || {
        let by_the_store =
            |key: u32| patient.check(&format!("bystander {key}"), &wide).source() == Source::Store;
        (0..20).all(by_the_store).then_some(())
    });
    assert!(settled.is_some(), "{:?}", patient.limiter.stats());
}

/// The hash tags of all our keys on a server.
fn tags(server: &RedisServer) -> BTreeSet<String> {
    let keys = crate::support::world::keys(server);
    let tag = |key: &String| Some(key.split_once('}')?.0.to_owned());
    keys.iter().filter_map(tag).collect()
}

/// A server that is no node of a Cluster passed for a store that answers, since there was no shard to be away.
#[test]
fn a_cluster_that_gives_no_slots_is_degraded() {
    let server = RedisServer::start();
    let patient = Patient::built(Limiter::builder().cluster([server.url()]).timeout(CEILING));
    assert_eq!(patient.check("me", &limit()).source(), Source::Fallback);
    let shards = patient.limiter.shards();
    let [shard] = &shards[..] else { panic!("{shards:?}") };
    let trouble = shard.trouble.as_deref().unwrap_or_default();
    assert!(shard.degraded && trouble.contains("cluster support disabled"), "{shard:?}");
    assert!(patient.limiter.metrics_text().contains("spillgate_degraded{"));
}

/// ACCIDENTS 30, 32, A8. Keys of one decision lay in several slots, which a cluster rejects, so the limiter
/// failed open; or all lay in one slot, and one node did all the work.
#[test]
fn many_subjects_are_spread_over_slots_and_no_decision_crosses_one() {
    let cluster = Cluster::start(3, 0);
    let rules = r#"
        [[rule]]
        name = "user"
        key = ["user"]
        limits = ["9/day", { quota = "20/day", algorithm = "sliding-log" }, { quota = "5", algorithm = "concurrency", max_hold = "1m" }]

        [[rule]]
        name = "tenant"
        key = ["tenant"]
        limits = [{ quota = "1000/day", algorithm = "fixed-window" }, { quota = "1000/day", algorithm = "sliding-window" }]

        [[rule]]
        name = "all"
        key = []
        limits = ["100000/day"]
    "#;
    let policy = Policy::from_toml(rules).unwrap();
    let patient =
        Patient::built(Limiter::builder().policy(policy).cluster(cluster.urls()).timeout(CEILING));
    everywhere(&patient);
    for user in 0..200 {
        let (user, tenant) = (user.to_string(), (user % 7).to_string());
        let request = Request::new().with("user", &user).with("tenant", &tenant);
        let decision = patient.run(patient.limiter.check(&request));
        assert_eq!((decision.allowed(), decision.source()), (true, Source::Store), "{decision:?}");
    }
    assert_eq!(patient.limiter.stats().store_errors, 0);
    let held: Vec<usize> = cluster.nodes().iter().map(|node| tags(node).len()).collect();
    println!("tags by node: {held:?}");
    assert!(held.iter().all(|tags| *tags > 40), "{held:?}");
}

/// F19. A slot moves while it is in use: the client follows ASK, TRYAGAIN and MOVED, and no count is lost.
#[test]
fn a_slot_that_moves_under_load_keeps_its_counts() {
    let cluster = Cluster::start(3, 0);
    let patient = on(&cluster);
    let before = patient.admitted(20, "me", &limit());
    assert_eq!(before, 20);
    let (slot, from) = slot_of_mine(&cluster);
    let mut to = from;
    let mut used = before;
    for _ in 0..if evidence() { 20 } else { 2 } {
        let from = to;
        to = Node((from.0 + 1) % 3);
        cluster.begin_migration(slot, to);
        used += patient.admitted(5, "me", &limit());
        while cluster.migrate_keys(slot, from, to, 1) > 0 {
            used += patient.admitted(1, "me", &limit());
        }
        used += patient.admitted(5, "me", &limit());
        cluster.end_migration(slot, from, to);
        used += patient.admitted(5, "me", &limit());
        let decision = patient.check("me", &limit());
        assert_eq!(decision.source(), Source::Store, "{decision:?}");
        used += u64::from(decision.allowed());
    }
    let all = used + patient.admitted(2 * ALL as usize, "me", &limit());
    assert_eq!(all, ALL, "{:?}", patient.limiter.stats());
}

/// A command beside the script followed ASK without ASKING, and the server sent it back: no subject of a slot that moves
/// could be reset.
#[test]
fn a_subject_is_reset_while_its_slot_moves() {
    let cluster = Cluster::start(3, 0);
    let policy =
        Policy::from_toml("[[rule]]\nname = \"user\"\nkey = [\"user\"]\nlimits = [\"100/366d\"]\n");
    let builder = Limiter::builder().policy(policy.unwrap()).cluster(cluster.urls());
    let patient = Patient::built(builder.timeout(CEILING));
    everywhere(&patient);
    let me = Request::new().with("user", "me");
    let left = || patient.run(patient.limiter.check(&me)).remaining();
    assert_eq!((left(), left()), (Some(99), Some(98)));
    let (slot, from) = slot_of_mine(&cluster);
    let to = Node((from.0 + 1) % 3);
    cluster.begin_migration(slot, to);
    while cluster.migrate_keys(slot, from, to, 1) > 0 {}
    let reset = patient.run(patient.limiter.reset("user", &me));
    assert!(reset.is_ok(), "{reset:?}");
    assert_eq!(left(), Some(99));
    cluster.end_migration(slot, from, to);
}

/// F9. The primary hands over to its replica under load: no caller fails, and the counts move along.
#[test]
fn a_planned_failover_loses_nothing() {
    let cluster = Cluster::start(3, 1);
    let patient = on(&cluster);
    assert_eq!(patient.admitted(50, "me", &limit()), 50);
    let (slot, primary) = slot_of_mine(&cluster);
    cluster.fail_over(primary);
    assert_ne!(cluster.owner_of(slot), primary);
    let mut after = patient.admitted(20, "me", &limit());
    everywhere(&patient);
    after += patient.admitted(2 * ALL as usize, "me", &limit());
    assert!((ALL..=ALL + SHARE).contains(&(50 + after)), "50 + {after}");
}

/// F9, ACCIDENTS 44. The primary dies in a burst: decisions continue, and the replica takes over with the
/// data that it has received.
#[test]
fn a_dead_primary_costs_its_subjects_at_most_one_quota() {
    let mut cluster = Cluster::start(3, 1);
    let patient =
        Patient::built(Limiter::builder().cluster(cluster.urls()).timeout(super::TIMEOUT));
    everywhere(&patient);
    let before = patient.admitted(100, "me", &limit());
    assert_eq!(before, 100);
    let (slot, primary) = slot_of_mine(&cluster);
    cluster.node_mut(primary).kill();
    let mut after = patient.admitted(30, "me", &limit());
    let _new = cluster.owner_of(slot);
    everywhere(&patient);
    after += patient.admitted(2 * ALL as usize, "me", &limit());
    println!("{before} before, {after} after");
    assert!(before + after >= ALL, "{before} + {after}");
    assert!(after <= ALL + SHARE, "{after}");
}

/// F20. One of three primaries is gone, without a replica: subjects of the other primaries are limited
/// exactly.
#[test]
fn a_dead_shard_degrades_its_own_subjects_only() {
    let settings = ["--cluster-require-full-coverage", "no"];
    let binary = &RedisServer::versions()[0].path;
    let mut cluster = Cluster::start_with(binary, 3, 0, &settings);
    let patient =
        Patient::built(Limiter::builder().cluster(cluster.urls()).timeout(super::TIMEOUT));
    everywhere(&patient);
    cluster.node_mut(Node(0)).kill();
    // Waits until the other nodes have noted the failure: they save that to disk and answer no call
    // meanwhile.
    eventually(|| {
        let notes = |node| cluster.node(Node(node)).command(&["CLUSTER", "NODES"]);
        (1..3).all(|node| notes(node).text().contains("master,fail "))
    });
    let (mut exact, mut local) = (0, 0);
    for subject in 0..30 {
        let key = format!("subject {subject}");
        match patient.check(&key, &limit()).source() {
            Source::Store => {
                exact += 1;
                let decisions: Vec<_> =
                    (0..2 * ALL).map(|_| patient.check(&key, &limit())).collect();
                let others: Vec<_> = decisions
                    .iter()
                    .filter(|decision| decision.source() != Source::Store)
                    .collect();
                let admitted =
                    decisions.iter().filter(|decision| decision.allowed()).count() as u64;
                assert_eq!(admitted, ALL - 1, "{key}: {others:?} {:?}", patient.limiter.stats());
            }
            Source::Fallback => {
                local += 1;
                assert!(patient.admitted(3 * SHARE as usize, &key, &limit()) <= SHARE, "{key}");
            }
            other => panic!("{key}: {other:?}"),
        }
    }
    println!("{exact} subjects by the store, {local} locally");
    assert!(exact >= 10 && local >= 3, "{exact} and {local}");
}

/// Returns slot and node of the one subject under test that has been charged.
pub(super) fn slot_of_mine(cluster: &Cluster) -> (u16, Node) {
    let mut found = None;
    for (place, node) in cluster.nodes().iter().enumerate() {
        if node.info("replication", "role") != "master" {
            continue;
        }
        let wanted = crate::support::world::keys(node).into_iter().find(|key| {
            // Only a key of a year's limit lives this long.
            key.starts_with("sg3:{") && node.command(&["PTTL", key]).integer() > 86_400_000
        });
        if let Some(key) = wanted {
            found = Some((cluster.slot_of(&key), Node(place)));
        }
    }
    found.expect("the subject was charged")
}
