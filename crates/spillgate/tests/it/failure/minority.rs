//! A primary that its replicas cannot reach any more, and that goes on counting.

use spillgate::Limiter;
use spillgate_testkit::{Fault, FaultProxy, RedisServer};

use super::{ALL, CEILING, Patient, SHARE, caught_up, limit, replica};

/// F21. The network separates a primary from its replica, which takes its place. Both count for the clients
/// that reach the old one, which costs a second bound, unless the primary requires its replicas.
#[test]
fn a_primary_on_the_minority_side_costs_a_second_bound_unless_it_requires_replicas() {
    let primary = RedisServer::start();
    let between = FaultProxy::before(primary.port());
    let replica = replica(&between);
    let on = |server: &RedisServer| {
        let patient = Patient::built(Limiter::builder().redis(server.url()).timeout(CEILING));
        patient.heals();
        patient
    };
    let minority = on(&primary);
    let before = minority.admitted(ALL as usize / 2, "me", &limit());
    caught_up(&replica, &primary);

    between.set(Fault::BlackHole);
    replica.become_a_primary();
    let majority = on(&replica);
    let here = minority.admitted(ALL as usize, "me", &limit());
    let there = majority.admitted(ALL as usize, "me", &limit());
    println!(
        "{before} before, {here} and {there} on the two sides: {} over",
        before + here + there - ALL
    );
    assert_eq!((before, here, there), (ALL / 2, ALL / 2, ALL / 2));

    primary.demand_replicas(1);
    primary.set("min-replicas-max-lag", "1");
    minority.falls_back();
    assert!(minority.admitted(2 * SHARE as usize, "another", &limit()) <= SHARE);
    assert_eq!(majority.admitted(2 * ALL as usize, "another", &limit()), ALL);
}
