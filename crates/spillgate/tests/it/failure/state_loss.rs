//! State loss: each loss costs a subject at most one quota.

use spillgate::Source;
use spillgate_testkit::{Fault, FaultProxy, RedisServer, eventually};

use super::{ALL, Patient, SHARE, TIMEOUT, caught_up, limit, replica};

/// F28. An operator flushes all keys at half use.
#[test]
fn a_flush_costs_at_most_one_quota() {
    let server = RedisServer::start();
    let patient = Patient::on(&server.url());
    patient.heals();
    let before = patient.admitted(ALL as usize / 2, "me", &limit());
    server.command(&["FLUSHALL"]);
    let after = patient.admitted(2 * ALL as usize, "me", &limit());
    assert_eq!(before, ALL / 2);
    assert!(after <= ALL, "{after} after the flush");
    // Denying everything would not be correct either.
    assert!(before + after >= ALL, "{before} + {after}");
}

/// F4. A primary without persistence restarts so quickly that no failover happens, and is empty.
#[test]
fn a_restart_without_persistence_costs_at_most_one_quota_and_one_local_share() {
    let mut server = RedisServer::start();
    let patient = Patient::on(&server.url());
    patient.heals();
    let before = patient.admitted(ALL as usize / 2, "me", &limit());
    server.restart();
    let mut after = patient.admitted(SHARE as usize, "me", &limit());
    patient.heals();
    after += patient.admitted(2 * ALL as usize, "me", &limit());
    assert!(before + after >= ALL, "{before} + {after}");
    assert!(after <= ALL + SHARE, "{after} after the restart");
}

/// F1, ACCIDENTS 44. The primary acknowledged writes that its replica never received, and died.
#[test]
fn a_failover_loses_its_tail_and_costs_at_most_one_quota() {
    let mut primary = RedisServer::start();
    let between = FaultProxy::before(primary.port());
    let replica = replica(&between);
    let name = FaultProxy::before(primary.port());
    let patient = Patient::on(&name.url());
    patient.heals();
    let seen = patient.admitted(ALL as usize / 4, "me", &limit());
    caught_up(&replica, &primary);
    between.set(Fault::Freeze);
    let unseen = patient.admitted(ALL as usize / 2, "me", &limit());
    assert_eq!((seen, unseen), (ALL / 4, ALL / 2));

    primary.kill();
    between.set(Fault::BlackHole);
    replica.become_a_primary();
    name.lead_to(replica.port());
    name.cut();
    let mut after = patient.admitted(SHARE as usize, "me", &limit());
    patient.heals();
    after += patient.admitted(2 * ALL as usize, "me", &limit());
    println!("{seen} seen, {unseen} lost, {after} after: {} over", seen + unseen + after - ALL);
    // Writes that the replica received are not lost. The bound is the rest, plus one local share.
    assert!(seen + after >= ALL, "{seen} + {after}");
    assert!(seen + after <= ALL + SHARE, "{seen} + {after}");
}

/// F3. A restart of the store neither locks a subject out nor opens a limit for good: limits hold from the
/// first call on.
#[test]
fn after_a_loss_the_limit_holds_again() {
    let mut server = RedisServer::start();
    let patient = Patient::on(&server.url());
    for loss in 0..3 {
        patient.heals();
        let key = format!("me {loss}");
        eventually(|| patient.check(&key, &limit()).source() == Source::Store);
        patient.admitted(2 * ALL as usize, &key, &limit());
        assert!(!patient.check(&key, &limit()).allowed());
        server.restart();
        std::thread::sleep(TIMEOUT);
    }
}
