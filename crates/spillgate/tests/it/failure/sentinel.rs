//! A primary watched by sentinels that dies, hands over, or is watched badly.

use std::time::Duration;

use spillgate::{Limiter, Source};
use spillgate_testkit::{RedisServer, Sentinels};

use super::{ALL, Patient, SHARE, TIMEOUT, limit};

fn on(watched: &Sentinels) -> Patient {
    let builder = Limiter::builder().sentinel(Sentinels::NAME, watched.urls());
    let patient = Patient::built(builder.timeout(TIMEOUT));
    patient.heals();
    patient
}

/// F1, F8, ACCIDENTS 44. The primary dies in a burst: the limiter finds the primary that the sentinels name.
/// The bound is the data that the new primary had not received.
#[test]
fn a_dead_primary_is_followed_to_its_successor() {
    let mut watched = Sentinels::start(2, 3);
    let patient = on(&watched);
    let before = patient.admitted(100, "me", &limit());
    assert_eq!(before, 100);
    watched.server_mut(0).kill();
    let mut after = patient.admitted(30, "me", &limit());
    assert_ne!(watched.primary(), 0);
    patient.heals();
    after += patient.admitted(2 * ALL as usize, "me", &limit());
    println!("{before} before, {after} after");
    assert!((ALL..=2 * ALL + SHARE).contains(&(before + after)), "{before} + {after}");
}

/// F8, F9. The primary hands over and continues as a replica that answers READONLY.
#[test]
fn a_primary_that_became_a_replica_is_abandoned() {
    let watched = Sentinels::start(1, 3);
    let patient = on(&watched);
    assert_eq!(patient.admitted(50, "me", &limit()), 50);
    let now = watched.fail_over();
    let mut after = patient.admitted(20, "me", &limit());
    patient.heals();
    after += patient.admitted(2 * ALL as usize, "me", &limit());
    assert!((ALL..=ALL + SHARE).contains(&(50 + after)), "50 + {after}");
    assert!(watched.servers()[now].command(&["DBSIZE"]).integer() > 0);
}

/// F7. The sentinels are stopped while the primary dies, as they are for half a minute when their own clock
/// has jumped. There is no failover, and each process uses its local share meanwhile.
#[test]
fn without_sentinels_the_local_share_holds_until_they_return() {
    let mut watched = Sentinels::start(1, 3);
    let patient = on(&watched);
    watched.sentinels_mut().iter().for_each(RedisServer::pause);
    watched.server_mut(0).kill();
    patient.falls_back();
    std::thread::sleep(Duration::from_secs(2));
    let alone = patient.admitted(3 * SHARE as usize, "another", &limit());
    assert_eq!(alone, SHARE);
    assert_eq!(patient.check("another", &limit()).source(), Source::Fallback);
}
