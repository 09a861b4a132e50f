//! Mistakes in well-read articles on rate limiting.

use spillgate::{Algorithm, Limit, Limiter, Policy, Request, Source};
use spillgate_core::algorithm::Intent;
use spillgate_redis::Redis;
use spillgate_testkit::RedisServer;

use crate::support::engine::Engine;
use crate::support::storm;
use crate::support::world::{
    AGES, ME, PATIENCE, PERIOD, PERIOD_US, TODAY_US, World, each_algorithm, keys, limit, named,
    runtime, transaction,
};

/// ACCIDENTS A1. The refill was rounded down while the timestamp moved: a bucket that was checked often
/// enough never refilled.
#[test]
fn a_bucket_checked_every_microsecond_still_refills() {
    for world in World::each() {
        // Once drained, it refills one token per millisecond and stays alive in Redis for a long time.
        let limit = named(Limit::per_second(1_000).burst(1_000_000));
        assert!(world.check(ME, &limit, 1_000_000).fits);
        let reply = world.check_at(&limit, (1..=3_500).map(|us| (TODAY_US + us, ME, 1)));
        let admitted: Vec<usize> =
            (1..).zip(reply).filter(|(_, reply)| reply.fits).map(|(us, _)| us).collect();
        assert_eq!(admitted, [1_000, 2_000, 3_000], "{}", world.name());
    }
}

/// ACCIDENTS A2. Every bucket was kept for 60 s: a slow bucket was full again by then, and expired buckets of
/// fast limits piled up.
#[test]
fn a_slow_bucket_outlives_a_minute_and_a_fast_one_does_not() {
    let (slow, fast) = (named(Limit::per_hour(1)), named(Limit::per_second(100)));
    for world in World::each() {
        assert!(world.check(ME, &slow, 1).fits);
        if let Some(server) = &world.server {
            let ttl_ms = server.command(&["PTTL", &keys(server)[0]]).integer();
            assert!((3_600_000..=3_960_000).contains(&ttl_ms), "{ttl_ms}");
        }
        for minutes in [1, 2, 59] {
            world.at(TODAY_US + minutes * 60_000_000);
            assert!(!world.check(ME, &slow, 1).fits, "{} after {minutes} min", world.name());
        }
        assert!(world.at(TODAY_US + 3_600_000_000).check(ME, &slow, 1).fits);

        world.reset(ME, &[slow.clone(), fast.clone()]);
        world.check(ME, &fast, 100);
        if let Some(server) = &world.server {
            let ttl_ms = server.command(&["PTTL", &keys(server)[0]]).integer();
            assert!((1_000..=2_000).contains(&ttl_ms), "{ttl_ms}");
        }
    }
}

/// ACCIDENTS A3. Each caller sent its own clock as `now`, which was said to cure skew. A clock ahead purged
/// or refilled for all. Here each call reads the store's clock once.
#[test]
fn the_store_reads_its_own_clock_once_per_call() {
    let server = RedisServer::start();
    let limits = each_algorithm(5, AGES);
    let admitted = runtime().block_on(async {
        let callers = [
            Engine::Redis(Redis::connect(&server.url(), PATIENCE).await.unwrap()),
            Engine::Redis(Redis::connect(&server.url(), PATIENCE).await.unwrap()),
        ];
        // Each connection was tried out before.
        server.command(&["CONFIG", "RESETSTAT"]);
        let mut admitted = 0;
        for call in 0..20 {
            let costs: Vec<_> = limits.iter().map(|limit| (ME, limit, 1)).collect();
            let reply =
                callers[call % 2].decide_one(&transaction(Intent::Charge, &costs)).await.unwrap();
            admitted += u64::from(reply.allowed);
        }
        admitted
    });
    assert_eq!(admitted, 5);
    assert_eq!(server.calls_of("time"), 20);
}

/// ACCIDENTS A4. Log members were named by a microsecond timestamp alone: two calls in one microsecond
/// counted as one.
#[test]
fn two_calls_in_one_microsecond_count_as_two() {
    for world in World::each() {
        for limit in each_algorithm(10, PERIOD) {
            let reply = world.check_at(&limit, (0..25).map(|_| (TODAY_US, ME, 1)));
            let admitted = reply.iter().filter(|reply| reply.fits).count();
            assert_eq!(admitted, 10, "{} {}", limit.algorithm(), world.name());
        }
    }
}

/// ACCIDENTS A5. A pipeline added, counted, and removed again if over. Denied calls counted meanwhile, so
/// that a small call beside them was denied as well.
#[test]
fn a_denied_call_takes_no_room_from_others() {
    let server = RedisServer::start();
    for url in [None, Some(server.url())] {
        let threads = storm::threads();
        for limit in each_algorithm(10, AGES) {
            let engine = storm::engine(&threads, url.as_deref());
            for round in 0..20 {
                let nine = transaction(Intent::Charge, &[(round, &limit, 9)]);
                assert!(threads.block_on(engine.decide_one(&nine)).unwrap().allowed);
                // 30 calls that cannot fit, and one among them that does.
                let costs = (0..31).map(|call| if call == 15 { 1 } else { 2 });
                let fitted = storm::admitted(&threads, &engine, &[(round, &limit)], costs);
                assert_eq!(fitted, 1, "{} with {url:?}", limit.algorithm());
            }
        }
    }
}

/// ACCIDENTS A6. A sorted set with claimed "O(1) memory per key" took 118 bytes for every admitted call.
#[test]
fn a_log_takes_at_most_eight_bytes_per_call() {
    let world = World::on_redis(RedisServer::start());
    let server = world.server.as_ref().unwrap();
    for (subject, count) in [(0, 1_000), (1, 10_000)] {
        let limit = limit(Algorithm::SlidingLog, count, PERIOD);
        let before = server.command(&["DBSIZE"]).integer();
        let gap_us = PERIOD_US / count;
        let reply =
            world.check_at(&limit, (0..count).map(|call| (TODAY_US + call * gap_us, subject, 1)));
        assert!(reply.iter().all(|reply| reply.fits));
        assert!(server.command(&["DBSIZE"]).integer() > before);
        let bytes: i64 = keys(server)
            .iter()
            .map(|key| server.command(&["MEMORY", "USAGE", key, "SAMPLES", "0"]).integer())
            .sum();
        println!("a full log of {count}: {bytes} bytes");
        assert!(bytes <= 8 * count as i64, "{bytes} bytes for {count} calls");
        world.reset(subject, &[limit]);
    }
}

/// ACCIDENTS A7. The sliding counter counted seconds and rounded the last window's weight down, so up to a
/// second's worth was denied or admitted wrongly.
#[test]
fn the_last_window_weighs_less_with_every_microsecond() {
    let limit = limit(Algorithm::SlidingWindow, 1_000, PERIOD);
    for world in World::each() {
        assert!(world.at(TODAY_US).check(ME, &limit, 1_000).fits);
        for into_us in
            [0, 1, 999_999, 1_000_000, 1_000_001, 1_999_999, 2_000_000, 500_000_000, PERIOD_US - 1]
        {
            world.at(TODAY_US + PERIOD_US + into_us);
            let weight = (1_000 * (PERIOD_US - into_us)).div_ceil(PERIOD_US);
            let reply = world.peek(ME, &limit, 1_000 - weight + 1);
            assert_eq!(reply.reading.remaining, 1_000 - weight, "{into_us} {}", world.name());
            let retry_us = reply.reading.retry_after_us.unwrap();
            let freed_us = (1_000 - weight + 1) * PERIOD_US / 1_000;
            assert_eq!(into_us + retry_us, freed_us, "{into_us} {}", world.name());
        }
    }
}

/// ACCIDENTS A9. Three counters were checked in three calls: the counters that passed were charged although
/// another denied.
#[test]
fn a_denial_by_one_counter_charges_no_other() {
    for world in World::each() {
        let (wide, narrow) = (each_algorithm(10, PERIOD), each_algorithm(1, PERIOD));
        for (denying, limit) in narrow.iter().enumerate() {
            let subject = denying as u128;
            assert!(world.check(100 + subject, limit, 1).fits);
            let mut costs: Vec<_> = wide.iter().map(|limit| (subject, limit, 3)).collect();
            costs.insert(denying, (100 + subject, limit, 1));
            let reply = world.decide(&costs);
            assert!(!reply.allowed);
            let denied: Vec<usize> =
                (0..costs.len()).filter(|counter| !reply.replies[*counter].fits).collect();
            assert_eq!(denied, [denying], "{}", world.name());
            for limit in &wide {
                assert_eq!(
                    world.remaining(subject, limit),
                    10,
                    "{} {}",
                    limit.algorithm(),
                    world.name()
                );
            }
        }
    }
}

/// ACCIDENTS A9, through the library: three rules, three subjects, one request.
#[test]
fn a_request_denied_by_one_rule_is_charged_to_none() {
    let policy = r#"
        [[rule]]
        name = "all"
        key = []
        limits = ["10/day"]
        [[rule]]
        name = "tenant"
        key = ["tenant"]
        limits = [{ quota = "10/day", algorithm = "sliding-log" }]
        [[rule]]
        name = "user"
        key = ["user"]
        limits = ["2/day"]
    "#;
    let server = RedisServer::start();
    let runtime = runtime();
    for builder in [Limiter::builder(), Limiter::builder().redis(server.url()).timeout(PATIENCE)] {
        let builder = builder.policy(Policy::from_toml(policy).unwrap());
        let limiter = runtime.block_on(builder.build()).unwrap();
        let request = Request::new().with("tenant", "t").with("user", "u");
        let mut left = Vec::new();
        for _ in 0..5 {
            let _ = runtime.block_on(limiter.check(&request));
            let peeked = runtime.block_on(limiter.peek(&request));
            left.push(
                peeked.limits().map(|counter| counter.remaining().unwrap()).collect::<Vec<_>>(),
            );
        }
        assert_eq!(left, [[9, 9, 1], [8, 8, 0], [8, 8, 0], [8, 8, 0], [8, 8, 0]]);
    }
}

/// ACCIDENTS A14. The NOSCRIPT error of EVALSHA went to the caller: an outage after every failover.
#[test]
fn survives_script_flush() {
    let server = RedisServer::start();
    let runtime = runtime();
    // With the denial cache the last five would be answered without the store.
    let builder = Limiter::builder().redis(server.url()).denial_cache(false).timeout(PATIENCE);
    let limiter = runtime.block_on(builder.build()).unwrap();
    for call in 0..10 {
        assert_eq!(server.command(&["SCRIPT", "FLUSH"]).text(), "OK");
        let decision = runtime.block_on(limiter.check(&Request::keyed("me", Limit::per_day(5))));
        assert_eq!((decision.allowed(), decision.source()), (call < 5, Source::Store));
    }
    assert_eq!(limiter.stats().store_errors, 0);
}
