//! A store that is gone: the local decisions of each process, and how answers show them.

use std::error::Error as _;
use std::time::Duration;

use spillgate::{BuildError, Limit, LimitSpec, Limiter, Policy, Reason, Request, Source};
use spillgate_testkit::{Fault, FaultProxy, RedisServer};

use super::{ALL, CEILING, Patient, SHARE, counted_at, counted_by, limit};
use crate::support::clock::Clock;
use crate::support::world::{TODAY_US, runtime};

/// ACCIDENTS 43, A11. Every process enforced the whole limit by itself: ten processes admitted ten times the
/// limit.
#[test]
fn processes_without_the_store_stay_within_the_limit_together() {
    let mut server = RedisServer::start();
    server.kill();
    let processes: Vec<Patient> = (0..16).map(|_| Patient::on(&server.url())).collect();
    let admitted: Vec<u64> = processes
        .iter()
        .map(|process| process.admitted(2 * SHARE as usize, "me", &limit()))
        .collect();
    assert_eq!(admitted, [SHARE; 16]);
    assert_eq!(admitted.iter().sum::<u64>(), ALL);
}

/// ACCIDENTS 48. Failing open was invisible, and headers claimed a full quota.
#[test]
fn decisions_without_the_store_name_their_source_and_invent_no_numbers() {
    let mut server = RedisServer::start();
    server.kill();
    let rules = r#"
        [[rule]]
        name = "local"
        match = { route = "/local" }
        key = ["ip"]
        limits = ["160/day"]
        on_outage = "local"

        [[rule]]
        name = "allow"
        match = { route = "/allow" }
        key = ["ip"]
        limits = ["160/day"]
        on_outage = "allow"

        [[rule]]
        name = "deny"
        match = { route = "/deny" }
        key = ["ip"]
        limits = ["160/day"]
        on_outage = "deny"
    "#;
    let policy = Policy::from_toml(rules).unwrap();
    let patient = Patient::built(Limiter::builder().policy(policy).redis(server.url()));
    let decision = |route: &str| {
        let request = Request::new().with("ip", "203.0.113.7").with("route", route);
        patient.run(async {
            let check = patient.limiter.check(&request);
            tokio::time::timeout(CEILING, check).await.expect("a decision")
        })
    };
    let local = decision("/local");
    assert_eq!((local.reason(), local.source()), (None, Source::Fallback));
    let remaining = local.remaining().unwrap();
    assert!(remaining < SHARE, "{remaining} is of the local share, not of the limit");

    let allowed = decision("/allow");
    assert_eq!((allowed.reason(), allowed.source()), (None, Source::OutagePolicy));
    assert_eq!((allowed.remaining(), allowed.reset_after()), (None, None));

    let denied = decision("/deny");
    assert_eq!(
        (denied.reason(), denied.source()),
        (Some(Reason::StoreUnavailable), Source::OutagePolicy)
    );
    assert_eq!((denied.remaining(), denied.retry_after()), (None, None));

    assert!([&local, &allowed, &denied].iter().all(|decision| decision.degraded()));
    let stats = patient.limiter.stats();
    assert_eq!(stats.degraded, 3);
    assert!(stats.store_errors > 0);
}

/// An outage and its end: local admissions and the store's stay within the limit plus one local share.
#[test]
fn an_outage_costs_at_most_one_local_share() {
    let server = RedisServer::start();
    let patient = Patient::on(&server.url());
    patient.heals();
    let before = patient.admitted(100, "me", &limit());
    assert_eq!(before, 100);
    server.become_a_replica();
    patient.falls_back();
    let local = patient.admitted(50, "me", &limit());
    assert!(local <= SHARE, "{local}");
    server.become_a_primary();
    patient.heals();
    let after = patient.admitted(100, "me", &limit());
    let all = before + local + after;
    assert!((ALL..=ALL + SHARE).contains(&all), "{before} + {local} + {after}");
    assert_eq!(counted_by(&server, "me", &limit()), ALL);
}

/// A day and a night without the store, in virtual time: the local admissions have drained except for the
/// last ones, and only these are charged.
#[test]
fn after_an_outage_of_a_day_only_charges_that_have_not_drained_are_sent() {
    let mut server = RedisServer::start();
    server.kill();
    let clock = Clock::given(TODAY_US);
    let patient =
        Patient::built(Limiter::builder().redis(server.url()).manual_clock(clock.manual()));
    let bucket = Limit::per(ALL, Duration::from_secs(3_600));
    let mut local = 0;
    for minute in 0..24 * 60 {
        clock.set(TODAY_US + minute * 60_000_000);
        local += patient.admitted(2, "me", &bucket);
    }
    // A bucket's local share, plus what drains of it in a day. Denying everything would not be correct.
    let most = SHARE + 24 * SHARE;
    println!("{local} admitted locally in a day, at most {most} allowed");
    assert!((24 * SHARE - 1..=most).contains(&local), "{local}");
    server.restart();
    patient.heals();
    assert!(patient.check("me", &bucket).allowed());
    let counted = counted_at(&clock, &server, "me", &bucket);
    println!("{counted} counted by the store afterwards");
    assert!((2..=SHARE + 1).contains(&counted), "{counted}");
}

/// ACCIDENTS 46. Admissions of one window, during a partition that outlasted it, were charged to the next
/// window.
#[test]
fn charges_of_a_window_that_ended_during_the_partition_do_not_land_in_the_next() {
    let server = RedisServer::start();
    let proxy = FaultProxy::before(server.port());
    proxy.set(Fault::BlackHole);
    let clock = Clock::given(TODAY_US);
    let patient =
        Patient::built(Limiter::builder().redis(proxy.url()).manual_clock(clock.manual()));
    let spec = LimitSpec::new(format!("{ALL}/hour")).algorithm("fixed-window");
    let window = spec.build().unwrap();
    patient.falls_back();
    assert_eq!(patient.admitted(2 * SHARE as usize, "me", &window), SHARE);
    clock.set(TODAY_US + 2 * 3_600_000_000);
    assert_eq!(patient.admitted(3, "me", &window), 3);
    proxy.set(Fault::None);
    patient.heals();
    assert!(patient.check("me", &window).allowed());
    assert_eq!(
        counted_at(&clock, &server, "me", &window),
        4,
        "three locally in this window, and one since"
    );
}

/// Used quota was taken to come back evenly, but a window gives nothing back before its end.
#[test]
fn an_exhausted_window_stays_exhausted_while_it_lasts() {
    let mut server = RedisServer::start();
    let clock = Clock::given(TODAY_US);
    let patient =
        Patient::built(Limiter::builder().redis(server.url()).manual_clock(clock.manual()));
    let spec = LimitSpec::new(format!("{ALL}/hour")).algorithm("fixed-window");
    let window = spec.build().unwrap();
    assert_eq!(patient.admitted(ALL as usize, "me", &window), ALL);
    let end_us = patient.check("me", &window).reset_after().unwrap().as_micros() as u64;
    server.kill();
    patient.falls_back();
    clock.set(TODAY_US + end_us * 9 / 10);
    assert_eq!(patient.admitted(3, "me", &window), 0);
    clock.set(TODAY_US + end_us);
    assert_eq!(patient.admitted(3, "me", &window), 3);
}

#[test]
fn a_required_store_is_waited_for_and_its_absence_fails_the_build() {
    let runtime = runtime();
    let server = RedisServer::start();
    let builder = || Limiter::builder().require_store(Duration::from_secs(5));
    let limiter = runtime.block_on(builder().redis(server.url()).build()).unwrap();
    assert!(runtime.block_on(limiter.store_answers()));

    let absent = builder().redis("redis://127.0.0.1:1").require_store(Duration::from_millis(200));
    let error = runtime.block_on(absent.build()).unwrap_err();
    assert!(error.to_string().starts_with("the store did not answer within 200ms: "), "{error}");
    assert!(error.source().unwrap().to_string().contains("refused"), "{error}");
    let BuildError::StoreUnavailable { waited, .. } = error else { panic!("{error}") };
    assert_eq!(waited, Duration::from_millis(200));
}
