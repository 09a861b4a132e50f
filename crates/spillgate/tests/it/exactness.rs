//! Replies to many concurrent callers of several processes, checked against the store.
//!
//! A tap in front of the server records every call of the script and its reply. The instants in the replies
//! give the order of calls. The pure algorithms take the same steps in that order and must compute the same
//! replies.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use redis::{Parser, Value};
use spillgate::{Decision, LimitSpec, Limiter, Request, Source};
use spillgate_core::algorithm::{Intent, LimitParams, State};
use spillgate_core::limit::NamedLimit;
use spillgate_core::time::Clock;
use spillgate_testkit::RedisServer;
use tokio::task::JoinSet;

use crate::support::random::Random;
use crate::support::step::{StepCounter, step as step_all};
use crate::support::storm;
use crate::support::target::params;
use crate::support::world::PATIENCE;

/// ACCIDENTS A10, 8, 9, 13, 14. Two processes, each with enough callers to coalesce; half of the runs with
/// the denial cache.
///
/// Decisions of the store are equal number by number. The store would have denied each denial from memory at
/// that moment. Only the store admits.
#[test]
fn every_reply_matches_the_stores_order_of_calls() {
    for (seed, remembers) in [(1, false), (2, true), (3, true)] {
        let server = RedisServer::start();
        let tap = Tap::before(&server);
        let runtime = storm::threads();
        let limiters = [(); 2].map(|()| {
            let builder = Limiter::builder().redis(tap.url()).timeout(PATIENCE);
            runtime.block_on(builder.denial_cache(remembers).build()).unwrap()
        });
        let limits = Arc::new(limits());
        let outcomes = runtime.block_on(storm_of(&limiters, &limits, seed));
        drop(limiters);
        drop(runtime);
        compare(&tap.calls(), &outcomes, &limits, &format!("seed {seed}"));
    }
}

/// One reply to a caller, and the instants between which it came.
struct Observed {
    subject: String,
    limit: usize,
    cost: u64,
    from_us: u64,
    until_us: u64,
    decision: Decision,
}

/// Checks every subject by itself first, so that its key is known. Then checks all at once, mostly a few
/// subjects at the same cost.
async fn storm_of(limiters: &[Limiter], limits: &Arc<Vec<NamedLimit>>, seed: u64) -> Vec<Observed> {
    let mut outcomes = Vec::new();
    for (limit, _) in limits.iter().enumerate() {
        for subject in 0..SUBJECTS {
            outcomes.push(check(&limiters[0], limits, name(limit, subject), limit, 1).await);
        }
    }
    let mut callers = JoinSet::new();
    for caller in 0..CALLERS {
        let (limiter, limits) = (limiters[caller as usize % 2].clone(), Arc::clone(limits));
        callers.spawn(async move {
            let mut random = Random::new(seed << 32 | caller);
            let mut outcomes = Vec::new();
            for _ in 0..CALLS {
                let limit = random.below(limits.len() as u64) as usize;
                let subject = random.spread(SUBJECTS - 1);
                let cost = if random.one_in(8) { 1 + random.below(3) } else { 1 };
                outcomes.push(check(&limiter, &limits, name(limit, subject), limit, cost).await);
                if random.one_in(20) {
                    tokio::time::sleep(Duration::from_millis(random.below(15))).await;
                }
                tokio::task::yield_now().await;
            }
            outcomes
        });
    }
    outcomes.extend(callers.join_all().await.into_iter().flatten());
    outcomes
}

async fn check(
    limiter: &Limiter,
    limits: &[NamedLimit],
    subject: String,
    limit: usize,
    cost: u64,
) -> Observed {
    let from_us = Clock::System.now_us();
    let decision =
        limiter.check(&Request::keyed(&subject, limits[limit].limit()).costing(cost)).await;
    let until_us = Clock::System.now_us();
    Observed { subject, limit, cost, from_us, until_us, decision }
}

fn name(limit: usize, subject: u64) -> String {
    format!("{limit}:{subject}")
}

/// One of each algorithm that coalesces, exhausted and refilled many times in a run.
fn limits() -> Vec<NamedLimit> {
    let limits = [
        ("token-bucket", "40/100ms"),
        ("token-bucket", "700/second"),
        ("fixed-window", "60/200ms"),
        ("sliding-log", "50/150ms"),
        ("sliding-window", "60/150ms"),
    ];
    let limit = |(algorithm, quota): (&str, &str)| {
        NamedLimit::new(LimitSpec::new(quota).algorithm(algorithm).build().unwrap(), 0)
    };
    limits.map(limit).into()
}

/// Of one counter at one cost: allowed, remaining, and retry_after and reset_after in µs.
type Numbered = (bool, u64, u64, u64);

fn compare(calls: &[Called], outcomes: &[Observed], limits: &[NamedLimit], at: &str) {
    let mut names: BTreeMap<&[u8], (&str, usize)> = BTreeMap::new();
    let mut introduced = outcomes[..limits.len() * SUBJECTS as usize].iter();
    let mut states: BTreeMap<&[u8], State> = BTreeMap::new();
    let mut expected: BTreeMap<(&str, u64), Vec<Numbered>> = BTreeMap::new();
    // The state that the store held for each subject, and since when.
    let mut held: BTreeMap<&str, Vec<(u64, Option<State>)>> = BTreeMap::new();
    let (mut coalesced, mut decisions) = (0, 0);
    for call in calls {
        for one in &call.charges {
            let (subject, limit) = *names.entry(&one.key).or_insert_with(|| {
                let one = introduced.next().expect("subjects are introduced one by one");
                (one.subject.as_str(), one.limit)
            });
            coalesced += u64::from(one.times > 1);
            for _ in 0..one.times {
                decisions += 1;
                let reply = step(
                    params(&limits[limit]),
                    one.cost,
                    Intent::Charge,
                    call.now_us,
                    &mut states,
                    &one.key,
                );
                expected.entry((subject, one.cost)).or_default().push(reply);
            }
            held.entry(subject).or_default().push((call.now_us, states.get(&one.key[..]).cloned()));
        }
    }
    let mut observed: BTreeMap<(&str, u64), Vec<Numbered>> = BTreeMap::new();
    let (mut remembered, mut allowed) = (0, 0);
    for Observed { subject, limit, cost, from_us, until_us, decision } in outcomes {
        allowed += u64::from(decision.allowed());
        match decision.source() {
            Source::Store => observed.entry((subject, *cost)).or_default().push(numbered(decision)),
            Source::DenialCache => {
                remembered += 1;
                assert!(!decision.allowed(), "{at}: admitted from memory");
                let held = &held[subject.as_str()];
                let is_denied = |now_us: u64| {
                    let last = held.partition_point(|(from_us, _)| *from_us <= now_us);
                    let state = last.checked_sub(1).and_then(|last| held[last].1.clone());
                    let mut counter = StepCounter::new(params(&limits[*limit]), *cost, state);
                    let intent = Intent::Peek;
                    !step_all(std::slice::from_mut(&mut counter), intent, now_us)
                };
                // The client's clock and the server's are the same up to a moment. Time alone only makes
                // room, so a call that is denied anywhere in between is denied at the beginning or right
                // after a charge.
                let between = from_us - CLOCKS_US..=*until_us;
                let charges = held.iter().map(|(charged_us, _)| *charged_us);
                let mut moments =
                    charges.filter(|us| between.contains(us)).chain([*between.start()]);
                assert!(moments.any(is_denied), "{at}: {subject} for {cost}: {decision:?}");
            }
            other => panic!("{at}: {subject} got a decision from {other:?}"),
        }
    }
    // Replies to equal checks are interchangeable.
    expected.values_mut().chain(observed.values_mut()).for_each(|all| all.sort_unstable());
    for (charges, expected) in &expected {
        assert_eq!(observed.get(charges), Some(expected), "{at}: {charges:?}");
    }
    assert_eq!(observed.len(), expected.len(), "{at}");
    println!(
        "{at}: {decisions} decisions in {} calls, {coalesced} coalesced batches, {allowed} allowed, {remembered} denied from memory",
        calls.len()
    );
    assert!(coalesced > 0 && allowed > 0, "{at}");
}

fn step<'k>(
    params: &LimitParams,
    cost: u64,
    intent: Intent,
    now_us: u64,
    states: &mut BTreeMap<&'k [u8], State>,
    key: &'k [u8],
) -> Numbered {
    let mut counter = StepCounter::new(params, cost, states.remove(key));
    let allowed = step_all(std::slice::from_mut(&mut counter), intent, now_us);
    if let Some(state) = counter.state {
        states.insert(key, state);
    }
    let retry_us = if allowed { 0 } else { counter.reading.retry_after_us.unwrap() };
    (allowed, counter.reading.remaining, retry_us, counter.reading.reset_after_us)
}

fn numbered(decision: &Decision) -> Numbered {
    let us = |wait: Option<Duration>| u64::try_from(wait.unwrap().as_micros()).unwrap();
    let (retry_us, reset_us) = (us(decision.retry_after()), us(decision.reset_after()));
    (decision.allowed(), decision.remaining().unwrap(), retry_us, reset_us)
}

/// One call of the script: its instant, and its charges.
struct Called {
    now_us: u64,
    charges: Vec<Charge>,
}

/// A decision, or a coalesced batch of equal decisions.
struct Charge {
    key: Vec<u8>,
    cost: u64,
    times: u64,
}

/// Forwards the bytes between clients and a server, and keeps them.
struct Tap {
    port: u16,
    /// Both directions of each connection.
    lines: Arc<Mutex<Vec<[Passed; 2]>>>,
}

/// The bytes of one direction so far.
type Passed = Arc<Mutex<Vec<u8>>>;

impl Tap {
    fn before(server: &RedisServer) -> Tap {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let (port, server) = (listener.local_addr().unwrap().port(), server.port());
        let lines: Arc<Mutex<Vec<_>>> = Arc::default();
        let all = Arc::clone(&lines);
        std::thread::spawn(move || {
            // Runs until the test process ends; no later test connects to this port.
            for near in listener.incoming().map_while(Result::ok) {
                let Ok(far) = TcpStream::connect(("127.0.0.1", server)) else { return };
                let line: [Passed; 2] = Default::default();
                all.lock().unwrap().push(line.clone());
                [&near, &far].iter().for_each(|side| side.set_nodelay(true).unwrap());
                let [sent, answered] = line;
                for (from, to, kept) in [(&near, &far, sent), (&far, &near, answered)] {
                    let (from, to) = (from.try_clone().unwrap(), to.try_clone().unwrap());
                    std::thread::spawn(move || pass(from, to, &kept));
                }
            }
        });
        Tap { port, lines }
    }

    fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    /// Returns every call of the script that decided, in the order of the store.
    fn calls(&self) -> Vec<Called> {
        let mut calls = Vec::new();
        for [sent, answered] in self.lines.lock().unwrap().iter() {
            let [sent, answered] = [sent, answered].map(|side| values(&side.lock().unwrap()));
            calls.extend(
                sent.iter().zip(&answered).filter_map(|(call, answer)| called(call, answer)),
            );
        }
        calls.sort_by_key(|call| call.now_us);
        let apart = calls.is_sorted_by(|one, next| one.now_us < next.now_us);
        assert!(apart, "two calls at one instant have no known order");
        calls
    }
}

fn pass(mut from: TcpStream, mut to: TcpStream, kept: &Mutex<Vec<u8>>) {
    let mut bytes = vec![0; 1 << 16];
    while let Ok(read @ 1..) = from.read(&mut bytes) {
        kept.lock().unwrap().extend(&bytes[..read]);
        if to.write_all(&bytes[..read]).is_err() {
            break;
        }
    }
    let _ = to.shutdown(Shutdown::Both);
}

fn values(mut bytes: &[u8]) -> Vec<Value> {
    let mut parser = Parser::new();
    std::iter::from_fn(|| parser.parse_value(&mut bytes).ok()).collect()
}

/// Parses a command. Returns its charges if it is an executed call of the script over single counters.
fn called(call: &Value, answer: &Value) -> Option<Called> {
    let (Value::Array(words), Value::Array(answer)) = (call, answer) else { return None };
    let words: Vec<&[u8]> = words.iter().filter_map(text).collect();
    let (Value::Int(now_us), Value::Int(first)) = (answer.first()?, answer.get(1)?) else {
        return None;
    };
    if words.first() != Some(&&b"EVALSHA"[..]) || *first < -1 {
        return None;
    }
    let count: usize = std::str::from_utf8(words[2]).ok()?.parse().ok()?;
    let (keys, program) = (&words[3..3 + count], numbers_of(words.get(3 + count)?)?);
    let mut charges = Vec::new();
    let mut at = program[2] as usize - 1;
    while at < program.len() {
        let times = if program[at] == COALESCED { program[at + 1] } else { 1 };
        at += usize::from(program[at] == COALESCED);
        assert_eq!((program[at + 1], program[at + 6]), (1, 0), "decisions over one counter each");
        let key = keys[program[at + 2] as usize - 1].to_vec();
        // Connections are tried out with peeks.
        if times > 1 || program[at] == CHARGE {
            charges.push(Charge { key, cost: program[at + 5], times });
        }
        at += 7;
    }
    (!charges.is_empty()).then(|| Called { now_us: (*now_us).cast_unsigned(), charges })
}

fn text(value: &Value) -> Option<&[u8]> {
    match value {
        Value::BulkString(bytes) => Some(bytes),
        _ => None,
    }
}

/// Returns the numbers of a msgpack array, or `None` if it holds anything else. Of a charge in the form of
/// `sole.lua`: where decisions begin, and that one.
fn numbers_of(packed: &[u8]) -> Option<Vec<u64>> {
    if let Some(cost) = packed.strip_prefix(b"B").and_then(|sole| sole.last_chunk()) {
        return Some(vec![0, 0, 4, CHARGE, 1, 1, 0, 0, u32::from_be_bytes(*cost).into(), 0]);
    }
    let mut rest = packed.get(5..)?;
    let mut numbers = Vec::new();
    while let Some((head, after)) = rest.split_first() {
        let width = match head {
            0..=0x7f => 0,
            0xcc..=0xcf => 1 << (head - 0xcc),
            _ => return None,
        };
        let (bytes, after) = after.split_at_checked(width)?;
        let number = bytes.iter().fold(0, |number, byte| number << 8 | u64::from(*byte));
        numbers.push(if width == 0 { u64::from(*head) } else { number });
        rest = after;
    }
    (numbers.len() > 3).then_some(numbers)
}

const CHARGE: u64 = 0;
const COALESCED: u64 = 8;
const SUBJECTS: u64 = 4;
const CALLERS: u64 = 120;
const CALLS: u64 = 40;
const CLOCKS_US: u64 = 1_000;
