//! Faults of the connection between a process and its store.

use std::future::pending;
use std::net::{Ipv4Addr, TcpListener};
use std::pin::Pin;
use std::sync::mpsc;
use std::task::{Context, Waker};
use std::thread;
use std::time::Duration;

use spillgate::{Decision, Limit, Limiter, Request, Source};
use spillgate_core::time::monotonic_us;
use spillgate_testkit::{Direction, Fault, FaultProxy, RedisServer, eventually, poll};
use tokio::runtime::Builder;

use super::{ALL, CEILING, Patient, SHARE, TIMEOUT, counted_by, evidence, field, limit};
use crate::support::random::Random;
use crate::support::storm;
use crate::support::world::assert_every_key_ends;

fn through() -> (RedisServer, FaultProxy, Patient) {
    let server = RedisServer::start();
    let proxy = FaultProxy::before(server.port());
    let patient = Patient::on(&proxy.url());
    patient.heals();
    (server, proxy, patient)
}

/// F30, ACCIDENTS 42. The connection breaks at any byte, in either direction: each check gets a decision,
/// every key has a TTL, and nothing is counted twice.
#[test]
fn a_connection_cut_at_any_byte_still_yields_a_decision() {
    let (server, proxy, patient) = through();
    let step = if evidence() { 1 } else { 37 };
    let (mut checks, mut by_the_store, mut local) = (0, 0, 0);
    for (direction, bytes) in [(Direction::ToServer, 450), (Direction::ToClient, 60)] {
        for cut in (0..bytes).step_by(step) {
            patient.heals();
            proxy.set(Fault::CutAfter(direction, cut));
            let decision = patient.check("me", &limit());
            proxy.set(Fault::None);
            checks += 1;
            by_the_store += u64::from(decision.source() == Source::Store && decision.allowed());
            local += u64::from(decision.source() == Source::Fallback);
            assert_every_key_ends(&server);
        }
    }
    patient.heals();
    println!("{checks} checks, {by_the_store} by the store, {local} locally");
    assert!(local > 0 && by_the_store > 0, "no connection was cut, or all of them");
    let counted = counted_by(&server, "me", &limit());
    assert!((by_the_store..=checks).contains(&counted), "{counted} of {checks}");
}

/// ACCIDENTS 47. The reply is lost after the script has run; sent again, the call would charge twice. If the
/// lost reply is a heartbeat's, the check may be lost with its connection before it runs: the test tries
/// again.
#[test]
fn a_call_with_a_lost_reply_is_charged_once() {
    let (server, proxy, patient) = through();
    let lost = (0..20).any(|attempt| {
        let key = format!("subject {attempt}");
        proxy.set(Fault::LoseNextReply);
        let decision = patient.check(&key, &limit());
        assert!(decision.allowed());
        patient.heals();
        let counted = counted_by(&server, &key, &limit());
        assert!(counted <= 1, "{counted} counted");
        assert_eq!(patient.check(&key, &limit()).remaining(), Some(ALL - counted - 1));
        decision.source() == Source::Fallback && counted == 1
    });
    assert!(lost, "no check lost its own reply");
}

/// ACCIDENTS 40. The store accepts every call and answers none: callers queued behind each other's timeouts.
#[test]
fn a_black_hole_delays_no_caller_and_opens_few_connections() {
    let (_server, proxy, patient) = through();
    let before = proxy.connections();
    proxy.set(Fault::BlackHole);
    let admitted = patient.run(async {
        let checks = (0..500).map(|_| {
            let limiter = patient.limiter.clone();
            tokio::spawn(async move {
                let limit = limit();
                let request = Request::keyed("me", &limit);
                let check = limiter.check(&request);
                tokio::time::timeout(CEILING, check).await.expect("a decision").allowed()
            })
        });
        let mut admitted = 0;
        for check in checks.collect::<Vec<_>>() {
            admitted += u64::from(check.await.unwrap());
        }
        admitted
    });
    assert_eq!(admitted, SHARE, "exactly the local share");
    // Once the outage is known, no caller waits for the store.
    patient.falls_back();
    assert_eq!(patient.admitted(300, "another", &limit()), SHARE);
    let drawn = proxy.connections() - before;
    assert!(drawn <= 20, "{drawn} connections for 800 checks");
    proxy.set(Fault::None);
    patient.heals();
}

/// F26. A router has dropped the connection: bytes are lost, and neither side is informed.
#[test]
fn a_half_open_connection_is_closed() {
    let (_server, proxy, patient) = through();
    let before = proxy.connections();
    proxy.set(Fault::ForgetConnections);
    // Decided by the store if a background task met the silence first and has reconnected.
    assert!(patient.check("me", &limit()).allowed());
    patient.heals();
    assert!(proxy.connections() > before, "over another connection");
}

/// One of several connections loses its packets, as when a router forgets it. Once, it was never closed, because each
/// call that found it silent was forgotten: most decisions were local until the kernel gave up after a quarter of an hour.
#[test]
fn one_half_open_connection_among_several_is_closed() {
    let server = RedisServer::start();
    let proxy = FaultProxy::before(server.port());
    let builder = Limiter::builder().redis(proxy.url()).timeout(TIMEOUT).connections(4);
    let patient = Patient::built(builder);
    patient.heals();
    eventually(|| proxy.connections() == 4);
    proxy.forget_newest();
    let began = monotonic_us();
    while monotonic_us() - began < 3_000_000 {
        let _ = patient.check("me", &limit());
        thread::sleep(Duration::from_millis(5));
    }
    // Again only if the machine stops.
    eventually(|| (0..20).all(|_| patient.check("another", &limit()).source() == Source::Store));
    assert!(proxy.connections() >= 5);
}

/// Once, they kept the only places for calls until the timeout, and all later callers waited behind them.
#[test]
fn callers_that_wait_for_a_connection_end_when_the_breaker_opens() {
    let mut server = RedisServer::start();
    let patient = Patient::built(Limiter::builder().redis(server.url()).timeout(CEILING));
    patient.heals();
    server.kill();
    let checks = (0..20).map(|number| {
        let (limiter, key) = (patient.limiter.clone(), format!("me {number}"));
        patient.runtime.spawn(async move {
            let began = monotonic_us();
            assert_eq!(
                limiter.check(&Request::keyed(&key, limit())).await.source(),
                Source::Fallback
            );
            monotonic_us() - began
        })
    });
    let checks: Vec<_> = checks.collect();
    let longest = patient.run(async {
        let mut longest_us = 0;
        for check in checks {
            longest_us = longest_us.max(check.await.unwrap());
        }
        Duration::from_micros(longest_us)
    });
    assert!(longest < CEILING / 2, "{longest:?}");
    assert!(!patient.limiter.shards()[0].asked);
}

/// Once, such a call was denied as overloaded, because its deadline passed just before the silence was noticed.
#[test]
fn silence_is_an_outage_also_if_the_timeout_exceeds_the_overload_wait() {
    let server = RedisServer::start();
    let builder = Limiter::builder().redis(server.url()).timeout(Duration::from_millis(400));
    let patient = Patient::built(builder.overload_wait(Duration::from_millis(100)));
    patient.heals();
    server.pause();
    let decision = patient.check("me", &limit());
    assert_eq!((decision.reason(), decision.source()), (None, Source::Fallback));
    server.resume();
    patient.heals();
}

/// F22. The server stops for a moment: a fork, a slow disk, swapping.
#[test]
fn a_server_that_stutters_delays_no_caller_beyond_the_ceiling() {
    let server = RedisServer::start();
    let patient = Patient::on(&server.url());
    for stop_ms in [50, 200, 1_000] {
        patient.heals();
        server.pause();
        let decision = patient.check(&format!("me {stop_ms}"), &limit());
        assert!(decision.allowed(), "{decision:?}");
        std::thread::sleep(Duration::from_millis(stop_ms));
        server.resume();
    }
    patient.heals();
}

/// The network resets connections, refuses them, and closes one direction: each check gets a decision, and
/// the limiter recovers.
#[test]
fn recovers_from_resets_refused_connections_and_half_closes() {
    let (_server, proxy, patient) = through();
    for fault in [
        Fault::Reset,
        Fault::HalfClose(Direction::ToClient),
        Fault::HalfClose(Direction::ToServer),
        Fault::LoseAll(Direction::ToClient),
        Fault::LoseAll(Direction::ToServer),
        Fault::Delay(Duration::from_millis(400)),
        Fault::Bandwidth(200),
        Fault::Freeze,
    ] {
        proxy.set(fault);
        let decision = patient.check("me", &limit());
        assert!(decision.allowed(), "{fault:?}: {decision:?}");
        proxy.set(Fault::None);
        patient.heals();
    }
    proxy.set(Fault::Refuse);
    proxy.cut();
    patient.falls_back();
    proxy.set(Fault::None);
    patient.heals();
}

/// F24. Every process lost the store at once and came back at once: the storm of connections kept it down.
#[test]
fn many_processes_reconnect_without_a_storm() {
    let mut server = RedisServer::start();
    let count = if evidence() { 200 } else { 20 };
    let patients: Vec<Patient> = (0..count).map(|_| Patient::on(&server.url())).collect();
    patients.iter().for_each(Patient::heals);
    server.restart();
    patients.iter().for_each(Patient::heals);
    let connections = field(&server, "stats", "total_connections_received");
    // A few connections each, plus those of this test.
    assert!(connections <= count * 8 + 20, "{connections} connections for {count} processes");
    let refused = field(&server, "stats", "rejected_connections");
    assert_eq!(refused, 0);
}

/// ACCIDENTS 41. Other limiters opened a connection for each call, and a service did not even start without
/// the store.
#[test]
fn a_limiter_starts_without_its_store_and_keeps_few_connections() {
    let mut server = RedisServer::start();
    server.kill();
    let patient = Patient::on(&server.url());
    let decision = patient.check("me", &limit());
    assert_eq!((decision.allowed(), decision.source()), (true, Source::Fallback));
    server.restart();
    patient.heals();
    patient.admitted(500, "another", &limit());
    let connections = field(&server, "stats", "total_connections_received");
    assert!(connections <= 12, "{connections} connections for 500 checks");
}

/// F25. A caller left before its reply came, and every later caller got the reply of the caller before.
#[test]
fn cancelled_callers_do_not_shift_the_replies_of_others() {
    let server = RedisServer::start();
    let patient = Patient::built(Limiter::builder().redis(server.url()).timeout(CEILING));
    patient.heals();
    let seed = 7;
    println!("seed {seed}");
    let mut random = Random::new(seed);
    let rounds = if evidence() { 200 } else { 10 };
    let answered = patient.run(async {
        let mut answered = 0;
        for round in 0..rounds {
            let checks = (0..50_u64).map(|caller| {
                let limiter = patient.limiter.clone();
                let leaves_us = random.below(2_000);
                tokio::spawn(async move {
                    // Each caller recognises its own reply by the capacity.
                    let (key, limit) =
                        (format!("{round}:{caller}"), Limit::per_day(1_000 + caller));
                    let request = Request::keyed(&key, &limit);
                    let check = limiter.check(&request);
                    let wait = Duration::from_micros(leaves_us);
                    let Ok(decision) = tokio::time::timeout(wait, check).await else {
                        return false;
                    };
                    assert_eq!(decision.capacity(), Some(1_000 + caller));
                    if decision.source() == Source::Store {
                        assert_eq!(decision.remaining(), Some(999 + caller), "another's answer");
                    }
                    true
                })
            });
            for check in checks.collect::<Vec<_>>() {
                answered += u32::from(check.await.unwrap());
            }
        }
        answered
    });
    println!("{answered} of {} stayed", rounds * 50);
    // After all of them the connection still pairs calls and replies.
    for caller in 0..20 {
        let decision = patient.check(&format!("after {caller}"), &Limit::per_day(50 + caller));
        assert_eq!(decision.remaining(), Some(49 + caller));
    }
}

/// ACCIDENTS 45. A background task died of an error without notice: from then on there was no store. Here
/// connections are killed under it, again and again.
#[test]
fn killed_connections_are_reopened_every_time() {
    let server = RedisServer::start();
    let patient = Patient::on(&server.url());
    for _ in 0..if evidence() { 50 } else { 5 } {
        patient.heals();
        server.command(&["CLIENT", "KILL", "TYPE", "normal"]);
        let _ = patient.check("me", &limit());
    }
    patient.heals();
}

/// A server, or a proxy before it, closes connections while no call is in flight: the next check opens another one.
#[test]
fn a_connection_closed_between_checks_degrades_no_check() {
    let server = RedisServer::start();
    // The limiter's calls in the background may find one of the closed connections first, but not all.
    let builder = Limiter::builder().redis(server.url()).connections(4).timeout(CEILING);
    let patient = Patient::built(builder);
    for _ in 0..3 {
        patient.heals();
        server.command(&["CLIENT", "KILL", "TYPE", "normal"]);
        // Gives the process time to notice: an earlier check would be lost with its connection.
        thread::sleep(Duration::from_millis(100));
        for _ in 0..4 {
            assert_eq!(patient.check("me", &limit()).source(), Source::Store);
        }
    }
}

/// A connection ends with the runtime that opened it. Checks on another runtime open their own.
#[test]
fn a_runtime_that_ended_degrades_no_check() {
    let server = RedisServer::start();
    let Patient { limiter, runtime } = Patient::on(&server.url());
    drop(runtime);
    let runtime = Builder::new_current_thread().enable_all().build().unwrap();
    let patient = Patient { limiter, runtime };
    assert_eq!(patient.check("me", &limit()).source(), Source::Store);
}

/// F8. After a failover a name resolves to another server, and the old one stays reachable as a replica.
#[test]
fn a_name_is_resolved_again_after_readonly() {
    let (old, proxy, patient) = through();
    let new = RedisServer::start();
    proxy.lead_to(new.port());
    old.become_a_replica();
    let found = poll(Duration::from_secs(15), || {
        let _ = patient.check("me", &limit());
        (counted_by(&new, "me", &limit()) > 0).then_some(())
    });
    assert!(found.is_some(), "still at the old primary: {:?}", patient.limiter.stats());
}

/// ACCIDENTS 34. The scripts are flushed under load, again and again: no caller notices.
#[test]
fn repeated_script_flushes_reach_no_caller() {
    let server = RedisServer::start();
    let patient = Patient::built(Limiter::builder().redis(server.url()).timeout(CEILING));
    patient.heals();
    let mut connection = server.connect();
    let before = patient.limiter.stats();
    for flush in 0..if evidence() { 500 } else { 30 } {
        connection.command(&["SCRIPT", "FLUSH"]).unwrap();
        for _ in 0..4 {
            let decision = patient.check(&format!("me {flush}"), &limit());
            assert_eq!(decision.source(), Source::Store);
        }
    }
    let after = patient.limiter.stats();
    assert_eq!((after.store_errors, after.degraded), (before.store_errors, before.degraded));
}

/// F10, F22. The connection is slow for a while and fast again: no late reply is taken for the reply to a
/// later call.
#[test]
fn late_replies_are_discarded() {
    let (server, proxy, patient) = through();
    for round in 0..3 {
        proxy.set(Fault::Delay(TIMEOUT * 2));
        let _ = patient.check(&format!("slow {round}"), &Limit::per_day(77));
        proxy.set(Fault::None);
        patient.heals();
        let decision = patient.check(&format!("quick {round}"), &Limit::per_day(50));
        assert_eq!(decision.capacity(), Some(50));
        assert_eq!(decision.remaining(), Some(49));
    }
    eventually(|| counted_by(&server, "slow 0", &Limit::per_day(77)) <= 1);
}

/// A call that waited for a connection while its runtime ended spun on one of the runtime's threads: each connecting
/// task that it started was dropped at once, which woke the call. The runtime, and with it the process, never ended.
#[test]
fn a_call_that_waits_for_a_connection_lets_its_runtime_end() {
    // It accepts connections, and never answers.
    let silent = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let url = format!("redis://{}", silent.local_addr().unwrap());
    let (done, ended) = mpsc::channel();
    thread::spawn(move || {
        let runtime = storm::threads();
        let limiter = runtime.block_on(Limiter::builder().redis(url).build()).unwrap();
        let check = async move { limiter.check(&Request::keyed("me", limit())).await };
        let at_end = PolledAtEnd(Box::pin(check));
        runtime.spawn(async move {
            let _at_end = at_end;
            pending::<()>().await;
        });
        drop(runtime);
        done.send(()).unwrap();
    });
    ended.recv_timeout(Duration::from_secs(30)).expect("the runtime does not end");
}

/// Polls a call once when its task is dropped, as another thread of an ending runtime may do.
struct PolledAtEnd(Pin<Box<dyn Future<Output = Decision> + Send>>);

impl Drop for PolledAtEnd {
    fn drop(&mut self) {
        let _ = self.0.as_mut().poll(&mut Context::from_waker(Waker::noop()));
    }
}
