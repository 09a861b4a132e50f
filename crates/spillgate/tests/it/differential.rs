//! One arithmetic: random histories run through the oracle, the pure algorithm, the memory engine, Lua in a
//! real Redis, and the Redis engine. Every answer must be equal.

use std::time::Duration;

use spillgate::{Algorithm, Limit, LimitSpec};
use spillgate_core::limit::NamedLimit;
use spillgate_testkit::RedisServer;

use crate::failure::evidence;
use crate::oracle::oracle;
use crate::support::random::Random;
use crate::support::target::{Act, InLua, OnEngine, Pure, Target, params, subject};
use crate::support::world::TODAY_US;

/// The limits that a counter is checked with, one after another.
fn limits(algorithm: &str, quotas: &[(&str, Option<u64>)]) -> Vec<NamedLimit> {
    let limit = |(quota, burst): &(&str, Option<u64>)| {
        let mut spec = LimitSpec::new(*quota).algorithm(algorithm);
        spec.burst = *burst;
        NamedLimit::new(spec.build().unwrap(), 0)
    };
    quotas.iter().map(limit).collect()
}

fn buckets() -> Vec<NamedLimit> {
    limits(
        "token-bucket",
        &[
            ("100/second", Some(200)),
            ("5/minute", None),
            ("7/minute", Some(3)),
            ("1000/hour", None),
            ("104250/day", None),
            ("777777/day", None),
            ("1234567/day", Some(1_000_000_000)),
            ("3000017/hour", None),
            ("1000003/day", None),
            ("1000000000/month", None),
            ("1000000000/1ms", None),
            ("1/366d", None),
            ("3/1ms", Some(7)),
            ("1/1s", None),
            // Of whole microseconds, but too large for a short record, or with a period that has no name
            // there.
            ("100000/hour", None),
            ("500000/second", Some(1_000_000_000)),
            ("5/7s", Some(100_000)),
            // Several tokens drain in a microsecond, and a full bucket drains more parts than a double holds.
            ("999999937/minute", Some(900_000_000)),
        ],
    )
}

/// A random act that is denied sometimes and allowed sometimes.
fn random_act(random: &mut Random, algorithm: Algorithm, capacity: u64) -> Act {
    let cost = match random.below(4) {
        0 => random.below(capacity + 1),
        1 => capacity,
        _ => random.spread(capacity),
    };
    match random.below(16) {
        0..=5 => Act::Check(cost),
        6 => Act::Check(0),
        7..=9 => Act::Reserve(cost.max(1)),
        10 => Act::Peek(cost),
        11 => Act::Force(if random.one_in(2) { cost } else { random.spread(3 * capacity) }),
        12..=14 => Act::Refund { receipt: random.next() >> 1, unused: random.spread(capacity) },
        // The order in which permits that end at one instant are released is unspecified.
        _ if algorithm == Algorithm::Concurrency => Act::Lower(1 << 40),
        _ => Act::Lower(random.spread(capacity)),
    }
}

/// Returns the clock's step before the next act: mostly forward, sometimes back.
fn random_step(random: &mut Random, wait_us: u64) -> i64 {
    let most = match random.below(8) {
        0 => 2 * wait_us,
        1 | 2 => wait_us / 4,
        _ => wait_us / 64,
    };
    let step = i64::try_from(random.spread(most)).unwrap();
    match random.below(40) {
        0 => -step,
        1 => -(random.below(3_000_000) as i64),
        2 => -3_600_000_000,
        3 => random.below(3_600_000_000) as i64,
        4..=12 => 0,
        _ => step,
    }
}

/// Runs one history through every target and compares each answer with the first target's.
fn same_answers(targets: &mut [&mut dyn Target], limits: &[NamedLimit], seed: u64, acts: u64) {
    let mut random = Random::new(seed);
    let mut limit = random.pick(limits);
    let mut now_us = TODAY_US;
    for number in 0..acts {
        if random.one_in(50) {
            limit = random.pick(limits);
        }
        let params = params(limit);
        let step = random_step(&mut random, params.counting().longest_wait_us());
        now_us = now_us.saturating_add_signed(step).clamp(TODAY_US / 2, END_US);
        if random.one_in(200) {
            now_us = TODAY_US;
        }
        let act = random_act(&mut random, limit.algorithm(), params.capacity());
        let (first, others) = targets.split_first_mut().unwrap();
        let expected = first.act(act, limit, now_us);
        for other in others {
            let answer = other.act(act, limit, now_us);
            assert_eq!(
                answer,
                expected,
                "{} against {}: seed {seed}, act {number}: {act:?} on {} at {now_us}",
                other.name(),
                first.name(),
                limit.limit(),
            );
        }
    }
}

const END_US: u64 = (1 << 52) - 1;

fn fixed_windows() -> Vec<NamedLimit> {
    limits(
        "fixed-window",
        &[
            ("100/minute", None),
            ("7/90s", None),
            ("1000000000/hour", None),
            ("1/1ms", None),
            ("20/day", None),
            ("5/week", None),
            ("300/month", None),
            ("1000/year", None),
            ("10/366d", None),
        ],
    )
}

fn sliding_windows() -> Vec<NamedLimit> {
    limits(
        "sliding-window",
        &[
            ("104250/day", None),
            ("1000000000/month", None),
            ("1000000000/366d", None),
            ("100/minute", None),
            ("7/90s", None),
            ("10/3ms", None),
            ("1/hour", None),
        ],
    )
}

fn logs() -> Vec<NamedLimit> {
    limits(
        "sliding-log",
        &[
            ("100/minute", None),
            ("7/90s", None),
            ("10000/day", None),
            ("10/3ms", None),
            ("1/hour", None),
            ("300/366d", None),
            ("1000/month", None),
        ],
    )
}

fn permits() -> Vec<NamedLimit> {
    [(20, 30_000), (1, 1_000), (1_000, 3_600_000), (7, 90), (1_000_000, 60_000)]
        .map(|(count, hold_ms)| {
            NamedLimit::new(Limit::concurrent(count, Duration::from_millis(hold_ms)), 0)
        })
        .into()
}

/// One suite: an algorithm's oracle against every implementation.
macro_rules! suite {
    ($name:ident, $limits:expr, $algorithm:expr) => {
        mod $name {
            use super::*;

            #[test]
            fn memory_answers_equal_the_oracles() {
                let acts = acts(10_000);
                for seed in 0..acts / ACTS {
                    let mut oracle = oracle($algorithm);
                    let (mut pure, mut memory) = (Pure::default(), OnEngine::memory(subject(1)));
                    let targets: &mut [&mut dyn Target] =
                        &mut [&mut *oracle, &mut pure, &mut memory];
                    same_answers(targets, &$limits, seed, ACTS);
                }
                report(stringify!($name), acts, "oracle = pure = memory engine");
            }

            #[test]
            fn redis_answers_equal_the_oracles() {
                let server = RedisServer::start();
                let acts = acts(1_000);
                for seed in 0..acts / ACTS {
                    let mut oracle = oracle($algorithm);
                    let mut lua = InLua::new(&server, u128::from(seed));
                    let mut redis = OnEngine::redis(&server, subject(u128::from(seed)));
                    let targets: &mut [&mut dyn Target] = &mut [&mut *oracle, &mut lua, &mut redis];
                    same_answers(targets, &$limits, seed, ACTS);
                }
                report(stringify!($name), acts, "oracle = lua in redis = redis engine");
            }
        }
    };
}

suite!(token_bucket, buckets(), Algorithm::TokenBucket);
suite!(fixed_window, fixed_windows(), Algorithm::FixedWindow);
suite!(sliding_log, logs(), Algorithm::SlidingLog);
suite!(sliding_window, sliding_windows(), Algorithm::SlidingWindow);
suite!(concurrency, permits(), Algorithm::Concurrency);

/// This many acts in the gate, and a hundred times as many if SPILLGATE_EVIDENCE is set.
fn acts(gate: u64) -> u64 {
    if evidence() { 100 * gate } else { gate }
}

fn report(algorithm: &str, acts: u64, equal: &str) {
    println!("| {algorithm:<14} | {acts:>9} acts | {equal:<36} | every answer equal |");
}

/// The acts of one history. Short histories make empty state more frequent.
const ACTS: u64 = 500;
