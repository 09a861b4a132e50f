//! Servers that answer with errors and do not count: nothing is executed, and each process uses its local
//! share.

use std::time::Duration;

use spillgate::Source;
use spillgate_testkit::{RedisServer, poll};

use super::{ALL, Patient, SHARE, counted_by, is_error, limit};
use crate::support::world::assert_every_key_ends;

/// F13. Out of memory, with `noeviction`.
#[test]
fn oom_leaves_each_process_its_local_share_and_recovers() {
    each_version(RedisServer::run_out_of_memory, RedisServer::find_memory);
}

/// F15. A snapshot failed, and by default the server rejects every write, and PING too.
#[test]
fn misconf_leaves_each_process_its_local_share_and_recovers() {
    each_version(RedisServer::fail_to_save, RedisServer::save_again);
}

/// F16. Replicas are required, and there are none.
#[test]
fn noreplicas_leaves_each_process_its_local_share_and_recovers() {
    each_version(|server| server.demand_replicas(1), |server| server.demand_replicas(0));
}

/// F9. The server has become a replica, as the old primary does at a failover, and no new primary is known.
#[test]
fn readonly_leaves_each_process_its_local_share_and_recovers() {
    each_version(RedisServer::become_a_replica, RedisServer::become_a_primary);
}

/// Asserts, for each error: decisions by the local share, no count at the store meanwhile except deferred
/// charges, and decisions of the store again as soon as it can.
#[track_caller]
fn each_version(break_it: impl Fn(&RedisServer), fix_it: impl Fn(&RedisServer)) {
    for version in RedisServer::versions() {
        println!("{}", version.name);
        let server = RedisServer::start_with(&version.path, &[]);
        let patient = Patient::on(&server.url());
        patient.heals();
        assert_eq!(patient.admitted(5, "me", &limit()), 5);

        break_it(&server);
        patient.falls_back();
        let local = patient.admitted(3 * SHARE as usize, "me", &limit());
        assert!(local <= SHARE, "{local} admitted locally");
        // A subject without usage gets the local share; otherwise denying everything would pass.
        assert_eq!(patient.admitted(3 * SHARE as usize, "another", &limit()), SHARE);
        assert!(patient.limiter.stats().degraded >= 60);

        fix_it(&server);
        patient.heals();
        let decision = patient.check("me", &limit());
        assert_eq!((decision.allowed(), decision.source()), (true, Source::Store));
        let counted = counted_by(&server, "me", &limit());
        assert!((6..=6 + local).contains(&counted), "{counted} counted, {local} admitted locally");
        assert_every_key_ends(&server);
    }
}

/// F12. Another client's script occupies the server: first it does not answer, then it answers BUSY.
#[test]
fn busy_and_the_silence_before_it_delay_no_caller() {
    for version in RedisServer::versions() {
        println!("{}", version.name);
        let server = RedisServer::start_with(&version.path, &[]);
        let patient = Patient::on(&server.url());
        patient.heals();
        let busy = server.keep_busy(Duration::from_millis(600));
        let silent = patient.check("me", &limit());
        assert_eq!((silent.allowed(), silent.source()), (true, Source::Fallback));
        let reply = poll(Duration::from_secs(10), || {
            is_error(&server.command(&["PING"]), "BUSY").then_some(())
        });
        assert!(reply.is_some(), "the server never answered BUSY");
        assert!(patient.admitted(3 * SHARE as usize, "me", &limit()) <= SHARE);
        drop(busy);
        patient.heals();
    }
}

/// F17. A restarted server loads its data and answers LOADING.
#[test]
fn loading_delays_no_caller_until_it_ends() {
    for version in RedisServer::versions() {
        println!("{}", version.name);
        let mut server = RedisServer::start_with(&version.path, &[]);
        let patient = Patient::on(&server.url());
        patient.heals();
        server.restart_loading(Duration::from_millis(1_500));
        assert!(is_error(&server.command(&["PING"]), "LOADING"));
        let decision = patient.check("me", &limit());
        assert_eq!((decision.allowed(), decision.source()), (true, Source::Fallback));
        patient.heals();
        assert_eq!(patient.check("another", &limit()).remaining(), Some(ALL - 1));
    }
}

/// F18. A managed failover pauses the clients that write: paused calls run afterwards and count.
#[test]
fn a_paused_server_counts_paused_calls_once() {
    let server = RedisServer::start();
    let patient = Patient::on(&server.url());
    patient.heals();
    assert_eq!(server.command(&["CLIENT", "PAUSE", "600", "WRITE"]).text(), "OK");
    let paused = patient.check("me", &limit());
    assert_eq!((paused.allowed(), paused.source()), (true, Source::Fallback));
    patient.heals();
    // Sent once, perhaps executed: an unknown result counts as charged, and never twice.
    let after = patient.check("me", &limit());
    assert_eq!(after.source(), Source::Store);
    let counted = counted_by(&server, "me", &limit());
    assert!((1..=2).contains(&counted), "{counted}");
}
