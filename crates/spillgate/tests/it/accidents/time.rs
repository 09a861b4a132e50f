//! Clocks that disagree.

use spillgate::{Algorithm, Limit, Limiter, Request, Source};
use spillgate_core::algorithm::Intent;
use spillgate_core::time::Clock;
use spillgate_redis::Redis;
use spillgate_testkit::RedisServer;

use crate::support::engine::Engine;
use crate::support::random::Random;
use crate::support::script::Script;
use crate::support::world::{
    AGES, ME, PATIENCE, PERIOD, PERIOD_US, TODAY_US, each_algorithm, limit, runtime, transaction,
};

/// ACCIDENTS 27. Callers' clocks decided: with some ahead and some behind, the limit was exceeded.
#[test]
fn callers_whose_clocks_are_hours_apart_share_one_limit() {
    let server = RedisServer::start();
    // The test runs through this many windows: midnight ends all of the calendar's windows but the week.
    let mut limits: Vec<_> =
        each_algorithm(5, PERIOD).into_iter().map(|limit| (limit, 1)).collect();
    for (unit, windows) in [("day", 2), ("week", 1), ("month", 2), ("year", 2)] {
        limits.push((limit(Algorithm::FixedWindow, 5, unit), windows));
    }
    for (number, (limit, windows)) in limits.iter().enumerate() {
        let mut script = Script::new(&server, &format!("skew {number}"));
        let mut admitted = 0;
        for (call, skew_us) in (0..40).zip(SKEWS_US.iter().cycle()) {
            // 20 s before and after the new year, where a window is easy to get wrong.
            let store_us = NEW_YEAR_US - 20_000_000 + call * 1_000_000;
            let reply = script.check(limit, 1, store_us, store_us.saturating_add_signed(*skew_us));
            assert_eq!(reply.now_us, store_us, "the store's clock decides");
            admitted += u64::from(reply.fits);
        }
        assert_eq!(admitted, 5 * windows, "{}", limit.limit());
    }
}

/// ACCIDENTS 27. Where a service bars TIME, callers' clocks must decide. They differ by a fraction of a
/// second, and the bound holds for a period longer by that much.
#[test]
fn callers_with_skewed_clocks_admit_no_more_than_the_clock_ahead() {
    for spread_us in [1_000, 1_000_000] {
        for limit in each_algorithm(20, PERIOD) {
            let server = RedisServer::start();
            let runtime = runtime();
            let clocks = [0, 1, 2].map(|_| Clock::given(TODAY_US));
            let callers = clocks.clone().map(|clock| {
                let redis = runtime.block_on(Redis::connect(&server.url(), PATIENCE)).unwrap();
                Engine::Redis(redis.with_clock(clock))
            });
            let mut random = Random::new(27);
            let mut admitted = 0;
            for call in 0..100 {
                // Ten calls at a time, up to 810 s. The caller ahead comes first at some times, another at
                // others.
                let caller = random.below(3) as usize;
                let time_us = TODAY_US + call / 10 * 90_000_000;
                clocks[caller].set(time_us + caller as u64 * spread_us / 2);
                let one = transaction(Intent::Charge, &[(ME, &limit, 1)]);
                let reply = runtime.block_on(callers[caller].decide_one(&one)).unwrap();
                admitted += u64::from(reply.allowed);
            }
            // One token per 50 s.
            let refilled = if limit.algorithm() == Algorithm::TokenBucket { 16 } else { 0 };
            assert_eq!(
                admitted,
                20 + refilled,
                "{} with clocks {spread_us} us apart",
                limit.algorithm()
            );
        }
    }
}

/// ACCIDENTS 28. A caller whose clock was ahead purged entries from the log that still counted.
#[test]
fn a_caller_with_a_fast_clock_purges_nothing_from_the_log() {
    let server = RedisServer::start();
    let mut script = Script::new(&server, "fast");
    let limit = limit(Algorithm::SlidingLog, 10, PERIOD);
    for call in 0..10 {
        assert!(script.check(&limit, 1, TODAY_US + call, TODAY_US + call).fits);
    }
    for ahead_us in [1_000, 1_000_000, 3_600_000_000, 40 * PERIOD_US] {
        let store_us = TODAY_US + PERIOD_US - 1;
        assert!(!script.check(&limit, 1, store_us, store_us + ahead_us).fits);
        assert!(
            !script.check(&limit, 1, store_us, store_us).fits,
            "purged by a caller {ahead_us} us ahead"
        );
    }
    // The first entry alone has expired at the store's time.
    let store_us = TODAY_US + PERIOD_US;
    assert!(script.check(&limit, 1, store_us, store_us + 3_600_000_000).fits);
    assert!(!script.check(&limit, 1, store_us, store_us + 3_600_000_000).fits);
}

/// ACCIDENTS 29. Some services bar TIME inside scripts: every call failed. The engine reports this and uses a
/// clock that it is given. (The probe at the start detects it.)
#[test]
fn a_store_that_bars_time_uses_the_callers_clock() {
    let server = RedisServer::start();
    assert_eq!(server.command(&["ACL", "SETUSER", "default", "-time"]).text(), "OK");
    let runtime = runtime();
    let limiter =
        runtime.block_on(Limiter::builder().redis(server.url()).timeout(PATIENCE).build()).unwrap();
    let decision = runtime.block_on(limiter.check(&Request::keyed("me", Limit::per_day(32))));
    assert_eq!(
        (decision.allowed(), decision.source()),
        (true, Source::Fallback),
        "degraded mode decides"
    );
    assert_eq!(server.command(&["DBSIZE"]).integer(), 0, "nothing was charged");

    let clock = Clock::given(TODAY_US);
    let redis = runtime.block_on(Redis::connect(&server.url(), PATIENCE)).unwrap();
    let engine = Engine::Redis(redis.with_clock(clock));
    for limit in each_algorithm(3, AGES) {
        for call in 0..5 {
            let reply = runtime
                .block_on(engine.decide_one(&transaction(Intent::Charge, &[(ME, &limit, 1)])))
                .unwrap();
            assert_eq!(reply.allowed, call < 3, "{}", limit.algorithm());
        }
    }
}

/// 1 ms, 1 s and 1 h behind and ahead, and a clock that was never set.
const SKEWS_US: [i64; 9] = [
    0,
    -1_000,
    1_000,
    -1_000_000,
    1_000_000,
    -3_600_000_000,
    3_600_000_000,
    -20_000 * DAY_US,
    400 * DAY_US,
];
const DAY_US: i64 = 86_400_000_000;
/// The first instant of 2027, a Friday.
const NEW_YEAR_US: u64 = 1_798_761_600_000_000;
