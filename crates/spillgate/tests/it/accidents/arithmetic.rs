//! Intervals cut to milliseconds, floats, fourteen digits, and numbers beyond 2^53.

use spillgate::{Algorithm, Limit, LimitSpec, Limiter, Reason, Request};
use spillgate_core::algorithm::Intent;
use spillgate_core::limit::NamedLimit;
use spillgate_core::memory::Memory;
use spillgate_core::time::Clock;
use spillgate_redis::script_text;
use spillgate_testkit::{RedisServer, Reply};

use crate::failure::evidence;
use crate::support::random::Random;
use crate::support::script::Script;
use crate::support::world::{
    ME, PATIENCE, PERIOD, PERIOD_US, TODAY_US, World, each_algorithm, keys, limit, named, runtime,
    transaction,
};

/// ACCIDENTS 1. The interval of a token was cut to milliseconds or nanoseconds: 600/s became 1000/s, and
/// above 1000/s there was no limit at all.
#[test]
fn every_rate_admits_exactly_its_quota() {
    for world in World::each() {
        let steps = if world.is_in_memory() { 20_000 } else { 200 };
        for rate in [1, 3, 7, 600, 999, 1_000, 1_001, 3_000, 1_000_000, 7_919, 104_729] {
            // Two seconds' worth of burst, so that no step fills the bucket and wastes refill.
            let limit = named(Limit::per_second(rate).burst(2 * rate));
            let (mut random, subject) = (Random::new(rate), u128::from(rate));
            let (mut elapsed_us, mut admitted) = (0, 2 * rate);
            assert!(world.at(TODAY_US).check(subject, &limit, 2 * rate).fits);
            for _ in 0..steps {
                elapsed_us += 1 + random.below(900_000);
                world.at(TODAY_US + elapsed_us);
                let room = world.peek(subject, &limit, 1).reading.remaining;
                assert!(room == 0 || world.check(subject, &limit, room).fits);
                admitted += room;
            }
            let expected = 2 * rate + rate * elapsed_us / 1_000_000;
            assert_eq!(admitted, expected, "{rate}/s for {elapsed_us} us {}", world.name());
        }
    }
}

/// ACCIDENTS 2. Arrival times in floats were off by one: one call too many, or one too few.
#[test]
fn arrivals_match_exact_fractions() {
    let steps = if evidence() { 10_000_000 } else { 250_000 };
    let limits: Vec<NamedLimit> =
        [("3/1s", 7), ("777777/day", 1_000), ("1000003/day", 5), ("7/1ms", 900), ("1/3s", 2)]
            .map(|(quota, burst)| named(LimitSpec::new(quota).burst(burst).build().unwrap()))
            .into();
    let clock = Clock::given(TODAY_US);
    let memory = Memory::new(1_000, clock.clone());
    for (subject, limit) in (0..).zip(&limits) {
        let mut history = Arrivals::new(limit, steps / limits.len() as u64);
        for (now_us, cost, fits) in &mut history {
            clock.set(now_us);
            let reply = memory.decide(&transaction(Intent::Charge, &[(subject, limit, cost)]));
            assert_eq!(reply.allowed, fits, "{} at {now_us}, cost {cost}", limit.limit());
        }
    }
    let redis = World::on_redis(RedisServer::start());
    for (subject, limit) in (0..).zip(&limits) {
        // Redis forgets by its real clock, so the history must be one burst that ends in time on a slow
        // machine.
        let history: Vec<_> = Arrivals::new(limit, 500).collect();
        let reply = redis
            .check_at(limit, history.iter().map(|(now_us, cost, _)| (*now_us, subject, *cost)));
        for ((now_us, cost, fits), reply) in history.iter().zip(reply) {
            assert_eq!(reply.fits, *fits, "{} at {now_us}, cost {cost} on Redis", limit.limit());
        }
    }
}

/// ACCIDENTS 3. Lua formats numbers with 14 digits, and an instant in microseconds has 16: instants from the
/// store were seconds off.
#[test]
fn an_instant_of_sixteen_digits_survives_the_store() {
    for limit in each_algorithm(7, PERIOD) {
        let (memory, redis) = (World::in_memory(1_000), World::on_redis(RedisServer::start()));
        // The last is the largest that state can hold, in the year 2112.
        for (subject, start_us) in (0..).zip([
            TODAY_US + 1,
            TODAY_US + 9_999_999,
            1_799_999_999_999_999,
            LAST_US - 2 * PERIOD_US,
        ]) {
            for cost in [3, 4] {
                let reply = [&memory, &redis]
                    .map(|world| world.at(start_us + cost).check(subject, &limit, cost));
                assert!(reply[0].fits && reply[1].fits, "{} at {start_us}", limit.algorithm());
            }
            for later_us in
                [5, 6, 1_000_003, PERIOD_US / 7 + 5, PERIOD_US - 1, PERIOD_US + 3, PERIOD_US + 4]
            {
                let reply = [&memory, &redis]
                    .map(|world| world.at(start_us + later_us).peek(subject, &limit, 1));
                assert_eq!(reply[0], reply[1], "{} at {start_us} + {later_us}", limit.algorithm());
            }
        }
    }
}

/// ACCIDENTS 4. Lua truncated floats in replies: a wait below a second became 0, and callers retried at once.
#[test]
fn a_denial_at_ten_per_second_waits_a_fraction_of_a_second() {
    let limit = named(Limit::per_second(10).burst(1_000));
    for world in World::each() {
        assert!(world.at(TODAY_US).check(ME, &limit, 1_000).fits);
        for into_us in [0, 1, 50_000, 99_998, 99_999] {
            let reply = world.at(TODAY_US + into_us).check(ME, &limit, 1);
            assert_eq!(reply.reading.retry_after_us, Some(100_000 - into_us), "{}", world.name());
        }
    }
}

/// ACCIDENTS 5. The two parts of TIME were concatenated as text without padding the microseconds: 5 µs past a
/// second sorted before the second.
#[test]
fn seconds_and_microseconds_of_the_stores_time_add_up() {
    let server = RedisServer::start();
    let mut script = Script::new(&server, "time");
    let limit = limit(Algorithm::TokenBucket, 1_000, PERIOD);
    for us in [0, 5, 42, 999, 5_123, 99_999, 100_000, 999_999] {
        for second in [1_795_000_000, 1_795_000_001] {
            let store_us = second * 1_000_000 + us;
            assert_eq!(script.check(&limit, 1, store_us, store_us).now_us, store_us);
        }
    }
}

/// ACCIDENTS 6. Zero rates, bursts and periods caused divisions by zero or endless loops; numbers beyond 2^53
/// lost their last digits. A limit that cannot be exact does not load.
#[test]
fn a_limit_at_a_boundary_is_exact_or_rejected_with_its_field() {
    for (quota, algorithm, burst, wrong) in [
        ("0/second", "token-bucket", None, Some("quota")),
        ("1/0s", "token-bucket", None, Some("quota")),
        ("1000000001/second", "token-bucket", None, Some("quota")),
        ("4294967296/second", "fixed-window", None, Some("quota")),
        ("4294967295/1ms", "fixed-window", None, None),
        ("4294967295/month", "fixed-window", None, None),
        ("4294967295/1ms", "sliding-window", None, None),
        ("4294967295/366d", "sliding-window", None, None),
        ("18446744073709551616/second", "token-bucket", None, Some("quota")),
        ("1/367d", "sliding-window", None, Some("quota")),
        ("10001/day", "sliding-log", None, Some("quota")),
        ("0", "concurrency", None, Some("quota")),
        ("1/second", "token-bucket", Some(0), Some("burst")),
        ("1/second", "token-bucket", Some(1_000_000_001), Some("burst")),
        // 2^53 µs are 285 years: 284 tokens of a year each fit, 286 do not.
        ("1/366d", "token-bucket", Some(284), None),
        ("1/366d", "token-bucket", Some(286), Some("burst")),
        ("1000000000/1ms", "token-bucket", Some(1), None),
        ("1000000000/1ms", "token-bucket", Some(1_000_000_000), None),
        ("1000000000/366d", "sliding-window", None, None),
        ("1000000000/366d", "token-bucket", None, None),
        ("10000/366d", "sliding-log", None, None),
    ] {
        let mut spec = LimitSpec::new(quota).algorithm(algorithm);
        spec.burst = burst;
        if algorithm == "concurrency" {
            spec = spec.max_hold("1s");
        }
        let built = spec.build();
        assert_eq!(
            built.as_ref().err().map(|error| error.field()),
            wrong,
            "{quota} {algorithm} {burst:?}"
        );
        let Ok(limit) = built.map(named) else { continue };
        let (memory, redis) = (World::in_memory(1_000), World::on_redis(RedisServer::start()));
        let capacity = limit.limit().capacity().unwrap();
        for cost in [capacity, 1, 0, capacity.div_ceil(2)] {
            for after_us in [0, 1, PERIOD_US] {
                let reply =
                    [&memory, &redis].map(|world| world.after(after_us).check(ME, &limit, cost));
                assert_eq!(reply[0], reply[1], "{} {algorithm}, cost {cost}", limit.limit());
            }
        }
    }
}

/// A window stores its counts in 32 bits, so what is forced ends there too.
#[test]
fn force_ends_at_what_a_windows_counts_hold() {
    for algorithm in ["fixed-window", "sliding-window"] {
        let spec = LimitSpec::new("3000000000/day").algorithm(algorithm);
        let limit = named(spec.build().unwrap());
        let (memory, redis) = (World::in_memory(1_000), World::on_redis(RedisServer::start()));
        for cost in [2_000_000_000, 4_000_000_000, 1] {
            let reply = [&memory, &redis].map(|world| world.force(ME, &limit, cost));
            assert_eq!(reply[0], reply[1], "{algorithm}, cost {cost}");
        }
        for world in [&memory, &redis] {
            let reply = world.peek(ME, &limit, 1);
            assert!(!reply.fits && reply.reading.remaining == 0, "{algorithm} on {}", world.name());
        }
    }
}

/// ACCIDENTS 6. A cost of 2^64 − 1 overflowed into room, and `limit − used` below zero became more room than
/// any limit has.
#[test]
fn costs_of_any_size_are_decided_and_remaining_never_wraps() {
    let server = RedisServer::start();
    let runtime = runtime();
    for url in [None, Some(server.url())] {
        let builder = Limiter::builder().timeout(PATIENCE);
        let builder = if let Some(url) = url { builder.redis(url) } else { builder };
        let limiter = runtime.block_on(builder.build()).unwrap();
        for named in each_algorithm(5, PERIOD) {
            for cost in [6, 7, 1 << 31, 1 << 32, 1 << 53, u64::MAX - 1, u64::MAX] {
                let decision = runtime
                    .block_on(limiter.check(&Request::keyed("me", named.limit()).costing(cost)));
                assert_eq!(
                    decision.reason(),
                    Some(Reason::CostExceedsLimit),
                    "{} {cost}",
                    named.algorithm()
                );
                assert_eq!(decision.retry_after(), None);
            }
        }
    }
    assert_eq!(keys(&server), Vec::<String>::new(), "a cost above the capacity wrote state");
    for world in World::each() {
        for (large, small) in each_algorithm(1_000, PERIOD).iter().zip(each_algorithm(10, PERIOD)) {
            assert!(world.check(ME, large, 900).fits);
            let reply = world.peek(ME, &small, 1);
            assert_eq!(
                (reply.fits, reply.reading.remaining),
                (false, 0),
                "{} {}",
                small.algorithm(),
                world.name()
            );
        }
    }
}

/// ACCIDENTS 6. Products beyond 2^53 were computed in doubles anyway.
#[test]
fn products_too_large_for_a_double_are_exact_in_lua() {
    let text = script_text();
    let start = text.find("local function mul_div").unwrap();
    let end = start + text[start + 1..].find("\nlocal function").unwrap();
    let script = format!(
        "local floor = math.floor\n{}\nreturn {{ mul_div(tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])) }}",
        &text[start..=end]
    );
    let server = RedisServer::start();
    let mut connection = server.connect();
    let mut random = Random::new(6);
    for _ in 0..2_000 {
        let c = 1 + random.spread((1 << 51) - 2);
        let b = random.spread(c);
        let a = random
            .spread((1 << 53) - 1)
            .min((u128::from(c) * (1 << 52) / u128::from(b.max(1))).min(1 << 52) as u64);
        let command = ["EVAL", &script, "0", &a.to_string(), &b.to_string(), &c.to_string()];
        let Reply::Array(parts) = connection.command(&command).unwrap() else {
            panic!("{a} × {b} ÷ {c}")
        };
        let product = u128::from(a) * u128::from(b);
        let expected = [product / u128::from(c), product % u128::from(c)];
        assert_eq!(
            parts.iter().map(|part| part.integer() as u128).collect::<Vec<_>>(),
            expected,
            "{a} × {b} ÷ {c}"
        );
    }
}

/// ACCIDENTS 7. Conversion from floats to integers depended on the processor. Here every server's replies
/// match the Rust code to the microsecond.
#[test]
fn every_server_computes_as_this_process_does() {
    for version in RedisServer::versions() {
        let redis = World::on_redis(RedisServer::start_with(&version.path, &[]));
        let memory = World::in_memory(1_000);
        for limit in each_algorithm(1_000_003 % 999_983, PERIOD) {
            let mut random = Random::new(7);
            let mut now_us = TODAY_US;
            let calls: Vec<_> = (0..500)
                .map(|_| {
                    now_us += 1 + random.spread(PERIOD_US / 50);
                    (now_us, ME, random.below(4))
                })
                .collect();
            let [expected, reply] =
                [&memory, &redis].map(|world| world.check_at(&limit, calls.clone()));
            assert!(
                expected.iter().any(|reply| reply.fits) && expected.iter().any(|reply| !reply.fits)
            );
            for ((expected, reply), call) in expected.iter().zip(&reply).zip(&calls) {
                let name = format!("{} on {}: {call:?}", limit.algorithm(), version.name);
                assert_eq!(
                    (reply.fits, reply.reading),
                    (expected.fits, expected.reading),
                    "{name}"
                );
            }
        }
    }
}

/// Calls on a bucket with the expected result of each, computed in fractions: a token is `period` parts, and
/// `count` parts drain per microsecond.
struct Arrivals {
    random: Random,
    left: u64,
    now_us: u64,
    used: u128,
    count: u128,
    period: u128,
    burst: u128,
}

impl Arrivals {
    fn new(limit: &NamedLimit, calls: u64) -> Arrivals {
        let Some(spillgate_core::algorithm::LimitParams::TokenBucket(params)) = limit.params()
        else {
            panic!("no bucket")
        };
        Arrivals {
            random: Random::new(2),
            left: calls,
            now_us: TODAY_US,
            used: 0,
            count: u128::from(params.count),
            period: u128::from(params.period_us),
            burst: u128::from(params.burst),
        }
    }
}

impl Iterator for Arrivals {
    type Item = (u64, u64, bool);

    fn next(&mut self) -> Option<(u64, u64, bool)> {
        self.left = self.left.checked_sub(1)?;
        // Half of the calls arrive in the very microsecond in which the last one was denied or just fits.
        let token_us = (self.period / self.count).max(1) as u64;
        let step_us = if self.random.one_in(2) {
            token_us + self.random.below(3) - 1
        } else {
            self.random.below(2 * token_us + 2)
        };
        self.now_us += step_us;
        self.used = self.used.saturating_sub(u128::from(step_us) * self.count);
        let cost = 1 + self.random.below(2);
        let fits = self.used + u128::from(cost) * self.period <= self.burst * self.period;
        if fits {
            self.used += u128::from(cost) * self.period;
        }
        Some((self.now_us, cost, fits))
    }
}

/// State holds instants of 52 bits.
const LAST_US: u64 = (1 << 52) - 1;
