//! Load on a store that works: load alone is no outage, and no subject is admitted more than its limit. A
//! store that stops still releases all of its callers at once.
//!
//! Longer than 450 lines because each load is a story of its own over one fleet.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use spillgate::{Decision, Limit, Limiter, Policy, Reason, Request, Source};
use spillgate_core::time::monotonic_us;
use spillgate_testkit::{Fault, FaultProxy, RedisServer, Reply};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::runtime::Runtime;
use tokio::task::{JoinHandle, JoinSet};

use super::{CEILING, TIMEOUT, YEAR, evidence};
use crate::support::storm;

#[test]
fn one_client_with_batches_of_eight_limits_opens_no_breaker() {
    let fleet = Fleet::new();
    let row = fleet.under("one client, batches of 1,000 x 8", |fleet, until| {
        vec![fleet.spawn(0, batches(fleet.limiter(0), "eight", until))]
    });
    row.assert_overloaded_at_most_one_in_a_hundred();
}

#[test]
fn one_client_with_batches_of_sixty_four_limits_opens_no_breaker() {
    let fleet = Fleet::new();
    fleet.under("one client, batches of 1,000 x 64", |fleet, until| {
        vec![fleet.spawn(0, batches(fleet.limiter(0), "sixty-four", until))]
    });
}

#[test]
fn two_clients_with_large_batches_open_no_breaker() {
    let fleet = Fleet::new();
    let row = fleet.under("two clients, 1,000 x 8", |fleet, until| {
        (0..2).map(|at| fleet.spawn(at, batches(fleet.limiter(at), "eight", until))).collect()
    });
    row.assert_overloaded_at_most_one_in_a_hundred();
    let fleet = Fleet::new();
    fleet.under("two clients, 1,000 x 64", |fleet, until| {
        (0..2).map(|at| fleet.spawn(at, batches(fleet.limiter(at), "sixty-four", until))).collect()
    });
}

#[test]
fn three_processes_with_four_hundred_connections_each_open_no_breaker() {
    let fleet = Fleet::new();
    let row = fleet.under("3 x 400 connections", |fleet, until| {
        let callers = (0..PROCESSES).flat_map(|at| (0..400).map(move |caller| (at, caller)));
        callers
            .map(|(at, caller)| fleet.spawn(at, checks(fleet.limiter(at), caller, until)))
            .collect()
    });
    row.assert_overloaded_at_most_one_in_a_hundred();
}

#[test]
fn four_thousand_callers_that_wait_for_permits_open_no_breaker() {
    let fleet = Fleet::new();
    fleet.under("4,000 waiting callers", |fleet, until| {
        let waiting = (0..4_000).map(|caller| {
            let (limiter, at) = (fleet.limiter(caller % PROCESSES), caller % PROCESSES);
            fleet.spawn(at, waiting(limiter, caller, until))
        });
        waiting.collect()
    });
}

/// Envoy's clients send a deadline, and a client with one nanosecond left is gone already.
#[test]
fn callers_that_wait_for_a_nanosecond_are_not_sent_and_open_no_breaker() {
    let fleet = Fleet::new();
    let row = fleet.under("8,000 calls per second with a deadline of 1 ns", |fleet, until| {
        vec![fleet.spawn(0, hurried(fleet.limiter(0), until))]
    });
    assert!(row.load.local > 0, "the local share answers");
    // Admissions by the local share are charged to the store afterwards.
    assert!(row.load.admitted <= VICTIMS_LIMIT, "{} admitted", row.load.admitted);
}

#[test]
fn a_call_past_its_deadline_does_not_reach_the_store() {
    let server = RedisServer::start();
    let runtime = storm::threads();
    let limiter = runtime.block_on(limiter(&server));
    let of_victim = || Request::new().with("route", "/victim").with("user", "me");
    assert_eq!(runtime.block_on(limiter.check(&of_victim())).source(), Source::Store);
    server.command(&["CONFIG", "RESETSTAT"]);
    for _ in 0..200 {
        let requests = [of_victim().costing(0)];
        let within = Duration::from_nanos(1);
        let decision = runtime.block_on(limiter.check_atomic_within(&requests, within));
        assert_eq!(decision.whole().source(), Source::Fallback);
    }
    assert_eq!(server.decisions(), 0);
    assert!(limiter.shards()[0].asked);
    assert_eq!(runtime.block_on(limiter.check(&of_victim())).source(), Source::Store);
}

/// A call that paid a deferred charge reset the local share, and with it the use that was admitted meanwhile. That use
/// then counted as drained, and the store never got it.
#[test]
fn admissions_made_while_a_deferred_charge_is_paid_are_charged_too() {
    let server = RedisServer::start();
    let proxy = FaultProxy::before(server.port());
    let runtime = storm::threads();
    let build = |url: &str| {
        let builder = Limiter::builder().redis(url).timeout(Duration::from_secs(10));
        runtime.block_on(builder.expected_instances(1).denial_cache(false).build()).unwrap()
    };
    let (limiter, direct) = (build(&proxy.url()), build(&server.url()));
    let limit = Limit::per(1_600, YEAR);
    let request = Request::keyed("me", limit);
    let hurried = || {
        let within = Duration::from_nanos(1);
        let decision = limiter.check_atomic_within(std::slice::from_ref(&request), within);
        assert_eq!(runtime.block_on(decision).whole().source(), Source::Fallback);
    };
    hurried();
    proxy.set(Fault::Freeze);
    let paying = runtime.spawn({
        let (limiter, request) = (limiter.clone(), request.clone());
        async move { limiter.check(&request).await.source() }
    });
    // It takes the deferred charge along before it is sent.
    std::thread::sleep(Duration::from_millis(100));
    (0..3).for_each(|_| hurried());
    proxy.set(Fault::None);
    assert_eq!(runtime.block_on(paying).unwrap(), Source::Store);
    assert_eq!(runtime.block_on(limiter.check(&request)).source(), Source::Store);
    let left = || runtime.block_on(direct.check(&request.clone().costing(0))).remaining();
    spillgate_testkit::eventually(|| left() == Some(1_594));
}

/// More work than the store does within the timeout of a decision: each call is decided by the store or
/// denied as overloaded, and none by a local share.
#[test]
fn calls_the_store_cannot_finish_in_time_are_denied_as_overloaded_and_not_decided_locally() {
    let server = RedisServer::start();
    let runtime = storm::threads();
    let builder = Limiter::builder().policy(Policy::from_toml(&policy()).unwrap());
    let builder = builder.redis(server.url()).timeout(TIMEOUT).overload_wait(TIMEOUT);
    let limiter = runtime.block_on(builder.build()).unwrap();
    for (route, passes) in [("/heavy", false), ("/heavy-deny", false), ("/heavy-allow", true)] {
        let mut callers = JoinSet::new();
        for caller in 0..3_000 {
            let limiter = limiter.clone();
            let check = async move {
                let user = caller.to_string();
                limiter.check(&Request::new().with("route", route).with("user", &user)).await
            };
            callers.spawn_on(check, runtime.handle());
        }
        let decisions = runtime.block_on(callers.join_all());
        let by_store = decisions.iter().filter(|one| one.source() == Source::Store).count();
        let late: Vec<_> =
            decisions.iter().filter(|one| one.source() == Source::OutagePolicy).collect();
        println!("{route}: {by_store} by the store, {} overloaded", late.len());
        assert_eq!(by_store + late.len(), decisions.len(), "no local share answered");
        assert!(by_store > 0 && !late.is_empty());
        for decision in late {
            let reason = (!passes).then_some(Reason::Overloaded);
            assert_eq!((decision.allowed(), decision.reason()), (passes, reason));
        }
    }
    assert!(limiter.shards()[0].asked, "the breaker opened");
    let text = limiter.metrics_text();
    let counted = text.lines().find(|line| line.starts_with(OVERLOADED_OF_HEAVY));
    assert!(counted.is_some(), "{text}");
}

/// A call occupies the server while all other callers wait.
#[test]
fn no_call_of_a_large_batch_occupies_the_store_for_long() {
    let server = RedisServer::start();
    let runtime = storm::threads();
    server.command(&["CONFIG", "SET", "slowlog-log-slower-than", "100"]);
    server.command(&["CONFIG", "SET", "slowlog-max-len", "10000"]);
    println!(
        "{:<16} {:>6} {:>10} {:>10} {:>14}",
        "algorithm", "calls", "median us", "longest", "us per counter"
    );
    for algorithm in ["token-bucket", "fixed-window", "sliding-window", "sliding-log", "permits"] {
        let limits: Vec<String> = (0..8)
            .map(|limit| match algorithm {
                "permits" => format!(
                    "{{ quota = \"{}\", algorithm = \"concurrency\", max_hold = \"60s\" }}",
                    100 + limit
                ),
                _ => format!("{{ quota = \"{}/hour\", algorithm = \"{algorithm}\" }}", 100 + limit),
            })
            .collect();
        let rule = format!(
            "[[rule]]\nname = \"wide\"\nkey = [\"user\"]\nlimits = [{}]\n",
            limits.join(", ")
        );
        let builder = Limiter::builder().policy(Policy::from_toml(&rule).unwrap());
        // Long enough that a busy machine only slows the calls.
        let patience = Duration::from_secs(30);
        let builder = builder.redis(server.url()).timeout(patience).overload_wait(patience);
        let limiter = runtime.block_on(builder.build()).unwrap();
        let users: Vec<String> = (0..1_000).map(|user| format!("{algorithm} {user}")).collect();
        let requests: Vec<_> = users.iter().map(|user| Request::new().with("user", user)).collect();
        let mut one = vec![Request::new().with("user", "one"); 1_000];
        server.command(&["SLOWLOG", "RESET"]);
        for _ in 0..3 {
            let decisions = runtime.block_on(limiter.check_batch(&requests));
            assert!(decisions.iter().all(|one| one.source() == Source::Store));
        }
        let mut taken = slow_calls(&server);
        let each = taken.iter().sum::<u64>() / (3 * 8_000);
        runtime.block_on(limiter.check_batch(&one));
        one.truncate(1);
        taken = slow_calls(&server);
        let at = |thousandths: usize| taken.get((taken.len() - 1) * thousandths / 1_000).copied();
        let (median, longest) = (at(500).unwrap_or(0), at(1_000).unwrap_or(0));
        println!("{algorithm:<16} {:>6} {median:>10} {longest:>10} {each:>14}", taken.len());
        // By the median: a shared machine may stop a server in the middle of a call.
        assert!(median <= 7_500, "{median} us");
    }
}

/// Because of the timeouts of callers and the circuit breaker, all waiting callers are released together.
#[test]
fn a_stopped_store_releases_all_of_its_callers_within_a_tenth_of_a_second() {
    let server = RedisServer::start();
    let runtime = storm::threads();
    let (mut longest, mut latest) = (Vec::new(), Vec::new());
    for round in 0..5 {
        let limiter = runtime.block_on(limiter(&server));
        server.pause();
        // On a thread of its own, so that callers who keep their runtime busy do not excuse themselves.
        let late = std::thread::spawn(|| {
            let lateness_us = (0..20).map(|_| {
                let began_us = monotonic_us();
                std::thread::sleep(SLICE);
                (monotonic_us() - began_us).saturating_sub(SLICE.as_micros() as u64)
            });
            lateness_us.max().unwrap_or(0) / 1_000
        });
        let mut callers = JoinSet::new();
        for caller in 0..1_000 {
            let limiter = limiter.clone();
            let check = async move {
                let user = format!("{round} {caller}");
                let request = Request::new().with("route", "/victim").with("user", &user);
                let began_us = monotonic_us();
                let check = limiter.check(&request);
                let decision = tokio::time::timeout(CEILING, check).await.expect("a decision");
                assert_eq!(decision.source(), Source::Fallback);
                monotonic_us() - began_us
            };
            callers.spawn_on(check, runtime.handle());
        }
        let taken = runtime.block_on(callers.join_all());
        longest.push(taken.into_iter().max().unwrap() / 1_000);
        latest.push(late.join().unwrap());
        server.resume();
    }
    println!(
        "ms until the last of 1,000 callers was released: {longest:?}; a thread was late by {latest:?}"
    );
    longest.sort_unstable();
    latest.sort_unstable();
    // By the median: a shared machine stops at times. A process that runs late waits for up to eight times as long.
    let bound = if latest[2] < 4 { 100 } else { 8 * 100 };
    assert!(longest[2] <= bound, "{longest:?} ms, a thread late by {latest:?} ms");
}

/// A fifth of it, after which a waiting caller looks whether the process runs late.
const SLICE: Duration = Duration::from_millis(5);
/// The time that these limiters, with their defaults, allow the store. A machine with a build running stops for
/// longer.
const PATIENCE: Duration = Duration::from_millis(25);

/// Three processes on one store. Each has callers of one subject with a thousand calls a day.
struct Fleet {
    server: RedisServer,
    limiters: Vec<Limiter>,
    runtimes: Vec<Runtime>,
}

/// Counts of decisions by result.
#[derive(Default)]
struct Seen {
    decisions: AtomicU64,
    by_store: AtomicU64,
    overloaded: AtomicU64,
    local: AtomicU64,
    admitted: AtomicU64,
}

/// The sum of several [`Seen`].
#[derive(Debug)]
struct Count {
    decisions: u64,
    overloaded: u64,
    local: u64,
    admitted: u64,
}

struct Row {
    load: Count,
    victims: Count,
    /// The longest wait for the answer to a PING beside the load.
    silence: Duration,
}

type Load = JoinHandle<Arc<Seen>>;

impl Fleet {
    fn new() -> Fleet {
        let server = RedisServer::start();
        let runtimes: Vec<Runtime> = (0..PROCESSES).map(|_| storm::threads()).collect();
        let limiters = runtimes.iter().map(|runtime| runtime.block_on(limiter(&server))).collect();
        Fleet { server, limiters, runtimes }
    }

    fn limiter(&self, process: usize) -> Limiter {
        self.limiters[process].clone()
    }

    fn spawn(
        &self,
        process: usize,
        load: impl Future<Output = Arc<Seen>> + Send + 'static,
    ) -> Load {
        self.runtimes[process].spawn(load)
    }

    /// Runs a load beside the callers of the subject and asserts the guarantees for both.
    fn under(&self, name: &str, load: impl FnOnce(&Fleet, u64) -> Vec<Load>) -> Row {
        let lasts = if evidence() { Duration::from_secs(10) } else { Duration::from_secs(2) };
        let until_us = monotonic_us() + lasts.as_micros() as u64;
        let victims: Vec<Load> = (0..PROCESSES)
            .flat_map(|at| (0..4).map(move |_| at))
            .map(|at| self.spawn(at, victims(self.limiter(at), until_us, lasts)))
            .collect();
        let load = load(self, until_us);
        let pings: Vec<JoinHandle<Duration>> = (0..PROCESSES)
            .map(|at| self.runtimes[at].spawn(longest_ping(self.server.port(), until_us)))
            .collect();
        let mut opened = 0;
        while monotonic_us() < until_us {
            let open = self.limiters.iter().filter(|limiter| !limiter.shards()[0].asked).count();
            opened += open;
            std::thread::sleep(Duration::from_millis(2));
        }
        let ended = |all: Vec<Load>| {
            let seen = all.into_iter().map(|one| self.runtimes[0].block_on(one).unwrap());
            Count::of(seen.collect())
        };
        let (load, victims) = (ended(load), ended(victims));
        let pings = pings.into_iter().map(|ping| self.runtimes[0].block_on(ping).unwrap());
        let row = Row { load, victims, silence: pings.max().unwrap() };
        let Row { load, victims, silence } = &row;
        let admitted = victims.admitted;
        println!(
            "overload: {name:<32} {:>8} decisions, {:>6} overloaded, {:>6} local; breaker open {opened} times; \
             the subject: {admitted} of {VICTIMS_LIMIT} admitted, {} over, {} of {} overloaded, {} local",
            load.decisions,
            load.overloaded,
            load.local,
            admitted.saturating_sub(VICTIMS_LIMIT),
            victims.overloaded,
            victims.decisions,
            victims.local,
        );
        if evidence() {
            assert_eq!(opened, 0, "the breaker opened");
            assert_eq!(victims.local, 0, "a local share answered for a store that works");
            assert!(admitted <= VICTIMS_LIMIT, "{admitted} admitted");
        }
        // Beside other tests the server or a client may get no processor time for as long as the timeout.
        // The limiter sees silence, and local shares answer meanwhile.
        let (local, all) = (load.local + victims.local, load.decisions + victims.decisions);
        assert!(
            row.is_starved() || name.contains("1 ns") || local * 20 <= all,
            "{local} of {all} by local shares, though each PING was answered within {silence:?}"
        );
        assert!(admitted <= VICTIMS_LIMIT + victims.local, "{admitted} admitted");
        let expected = if row.is_starved() { 1 } else { VICTIMS_LIMIT / 10 };
        assert!(admitted >= expected, "only {admitted} admitted, which tests nothing");
        row
    }
}

impl Row {
    /// Returns whether the machine kept a client or the server from running for longer than a check may take.
    /// Evidence is gathered on an idle machine, so it has no such excuse.
    fn is_starved(&self) -> bool {
        !evidence() && self.silence >= PATIENCE
    }

    fn assert_overloaded_at_most_one_in_a_hundred(&self) {
        assert!(
            !evidence() || self.load.local == 0,
            "a local share answered for a store that works"
        );
        for Count { decisions, overloaded, .. } in [&self.load, &self.victims] {
            assert!(
                self.is_starved() || overloaded * 100 <= *decisions,
                "{overloaded} of {decisions} overloaded"
            );
        }
    }
}

impl Seen {
    fn note(&self, decision: &Decision) {
        let count = |counter: &AtomicU64| {
            counter.fetch_add(1, Ordering::Relaxed);
        };
        count(&self.decisions);
        match (decision.source(), decision.reason()) {
            (_, Some(Reason::Overloaded)) => count(&self.overloaded),
            (Source::Fallback | Source::OutagePolicy, _) => count(&self.local),
            _ => count(&self.by_store),
        }
        if decision.allowed() {
            count(&self.admitted);
        }
    }
}

impl Count {
    fn of(all: Vec<Arc<Seen>>) -> Count {
        let sum = |of: fn(&Seen) -> &AtomicU64| {
            all.iter().map(|seen| of(seen).load(Ordering::Relaxed)).sum()
        };
        Count {
            decisions: sum(|seen| &seen.decisions),
            overloaded: sum(|seen| &seen.overloaded),
            local: sum(|seen| &seen.local),
            admitted: sum(|seen| &seen.admitted),
        }
    }
}

/// Sends one PING after another to the server, and returns the longest wait for an answer.
async fn longest_ping(port: u16, until_us: u64) -> Duration {
    let mut server = TcpStream::connect(("127.0.0.1", port)).await.unwrap();
    let (mut longest_us, mut reply) = (0, [0; 7]);
    while monotonic_us() < until_us {
        let sent_us = monotonic_us();
        server.write_all(b"PING\r\n").await.unwrap();
        server.read_exact(&mut reply).await.unwrap();
        assert_eq!(&reply, b"+PONG\r\n");
        longest_us = longest_us.max(monotonic_us() - sent_us);
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    Duration::from_micros(longest_us)
}

async fn limiter(server: &RedisServer) -> Limiter {
    let builder = Limiter::builder().policy(Policy::from_toml(&policy()).unwrap());
    let builder = builder.redis(server.url()).expected_instances(PROCESSES as u32);
    builder.build().await.unwrap()
}

/// The callers of the subject, with twice as many calls as its limit.
async fn victims(limiter: Limiter, until_us: u64, lasts: Duration) -> Arc<Seen> {
    let seen = Arc::new(Seen::default());
    let pace = lasts * 12 / (2 * VICTIMS_LIMIT as u32);
    while monotonic_us() < until_us {
        let request = Request::new().with("route", "/victim").with("user", "victim");
        seen.note(&limiter.check(&request).await);
        tokio::time::sleep(pace).await;
    }
    seen
}

async fn batches(limiter: Limiter, rule: &str, until_us: u64) -> Arc<Seen> {
    let (seen, route) = (Arc::new(Seen::default()), format!("/{rule}"));
    let users: Vec<String> = (0..1_000).map(|user| user.to_string()).collect();
    let of = |user| Request::new().with("route", &route).with("user", user);
    let requests: Vec<Request<'_>> = users.iter().map(of).collect();
    while monotonic_us() < until_us {
        limiter.check_batch(&requests).await.iter().for_each(|decision| seen.note(decision));
    }
    seen
}

async fn checks(limiter: Limiter, caller: usize, until_us: u64) -> Arc<Seen> {
    let (seen, user) = (Arc::new(Seen::default()), caller.to_string());
    while monotonic_us() < until_us {
        let request = Request::new().with("route", "/eight").with("user", &user);
        seen.note(&limiter.check(&request).await);
    }
    seen
}

/// Holds a permit, and waits for another of the same kind.
async fn waiting(limiter: Limiter, caller: usize, until_us: u64) -> Arc<Seen> {
    let (seen, user) = (Arc::new(Seen::default()), caller.to_string());
    let request = Request::new().with("route", "/permit").with("user", &user);
    let _ = limiter.check(&request).await;
    let left = Duration::from_micros(until_us.saturating_sub(monotonic_us()));
    seen.note(&limiter.acquire(&request, left).await);
    seen
}

async fn hurried(limiter: Limiter, until_us: u64) -> Arc<Seen> {
    let seen = Arc::new(Seen::default());
    let mut ticks = tokio::time::interval(Duration::from_millis(1));
    while monotonic_us() < until_us {
        ticks.tick().await;
        for _ in 0..8 {
            let request = Request::new().with("route", "/hurried").with("user", "victim");
            let decision = limiter.check_atomic_within(&[request], Duration::from_nanos(1)).await;
            assert_ne!(decision.whole().reason(), Some(Reason::CostExceedsLimit));
            seen.note(decision.whole());
        }
    }
    seen
}

fn policy() -> String {
    let limits = |count: u64| {
        let each: Vec<String> =
            (0..count).map(|limit| format!("\"{}/hour\"", 1_000_000 + limit)).collect();
        each.join(", ")
    };
    let rule = |name: &str, limits: &str, more: &str| {
        format!(
            "[[rule]]\nname = \"{name}\"\nmatch = {{ route = \"/{name}\" }}\nkey = [\"user\"]\n\
             limits = [{limits}]\n{more}\n"
        )
    };
    let (eight, many) = (limits(8), limits(64));
    let a_day = format!("\"{VICTIMS_LIMIT}/day\"");
    [
        rule("eight", &eight, ""),
        rule("sixty-four", &many, ""),
        rule("victim", &a_day, ""),
        rule("hurried", &a_day, ""),
        rule("permit", "{ quota = \"1\", algorithm = \"concurrency\", max_hold = \"60s\" }", ""),
        rule("heavy", &many, "on_outage = \"local\""),
        rule("heavy-deny", &many, "on_outage = \"deny\""),
        rule("heavy-allow", &many, "on_outage = \"allow\""),
    ]
    .concat()
}

/// Returns the time of each call that the server logged as slow.
fn slow_calls(server: &RedisServer) -> Vec<u64> {
    let Reply::Array(entries) = server.command(&["SLOWLOG", "GET", "-1"]) else { panic!("no log") };
    let of_script = |entry: &Reply| {
        let Reply::Array(fields) = entry else { return None };
        let Reply::Array(command) = &fields[3] else { return None };
        let is_script =
            matches!(&command[0], Reply::Bulk(name) if name.eq_ignore_ascii_case(b"evalsha"));
        is_script.then(|| fields[2].integer() as u64)
    };
    let mut taken: Vec<u64> = entries.iter().filter_map(of_script).collect();
    taken.sort_unstable();
    taken
}

const PROCESSES: usize = 3;
const VICTIMS_LIMIT: u64 = 1_000;
const OVERLOADED_OF_HEAVY: &str =
    "spillgate_overloaded_decisions_total{domain=\"default\",rule=\"heavy\"}";
