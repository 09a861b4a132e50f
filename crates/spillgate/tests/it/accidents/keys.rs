//! Keys that collide, stores that forget, and scripts under load.

use std::collections::BTreeSet;
use std::thread;
use std::time::Duration;

use spillgate::{Algorithm, Limit, Limiter, Policy, Request};
use spillgate_core::algorithm::Intent;
use spillgate_redis::script_text;
use spillgate_testkit::{RedisServer, Reply};

use crate::support::storm;
use crate::support::world::{
    AGES, ME, PATIENCE, PERIOD, World, each_algorithm, keys, limit, named, runtime, transaction,
};

/// ACCIDENTS 31. Parts of a key were concatenated without a separator: two subjects shared a key.
#[test]
fn different_subjects_have_different_keys() {
    let server = RedisServer::start();
    let runtime = runtime();
    let (position, name) = (Limit::per_day(1), &Limit::per_day(1).named("other"));
    for builder in [Limiter::builder(), Limiter::builder().redis(server.url()).timeout(PATIENCE)] {
        let limiter = runtime.block_on(builder.build()).unwrap();
        let subjects = [
            ("a", "bc"),
            ("ab", "c"),
            ("abc", ""),
            ("", "abc"),
            ("a:b", "c"),
            ("a", "b:c"),
            ("a}", "{b"),
            ("{a}", "b"),
            ("a\0b", ""),
            ("a", "\0b"),
            ("A", "bc"),
            ("a", "bc "),
            ("ä", "b"),
            ("a\u{308}", "b"),
        ];
        let request =
            |(domain, key), limit: &Limit| Request::keyed(key, limit.clone()).in_domain(domain);
        for limit in [&position, name] {
            let requests = subjects.map(|subject| request(subject, limit));
            let first = runtime.block_on(limiter.check_batch(&requests));
            assert!(first.iter().all(|decision| decision.allowed()), "two subjects share a key");
            let again = runtime.block_on(limiter.check_batch(&requests));
            assert!(again.iter().all(|decision| !decision.allowed()), "one subject has two keys");
        }
    }
}

/// ACCIDENTS 31, with the attributes of a rule's key.
#[test]
fn requests_share_a_counter_only_if_all_their_attributes_are_equal() {
    let policy = r#"
        [[rule]]
        name = "pair"
        key = ["first", "second"]
        limits = ["1/day"]
    "#;
    let server = RedisServer::start();
    let runtime = runtime();
    for builder in [Limiter::builder(), Limiter::builder().redis(server.url()).timeout(PATIENCE)] {
        let builder = builder.policy(Policy::from_toml(policy).unwrap());
        let limiter = runtime.block_on(builder.build()).unwrap();
        let check = |first: &[u8], second: &[u8]| {
            let request = Request::new().with("second", second).with("first", first);
            runtime.block_on(limiter.check(&request)).allowed()
        };
        let pairs: [(&[u8], &[u8]); 8] = [
            (b"a", b"bc"),
            (b"ab", b"c"),
            (b"bc", b"a"),
            (b"", b"abc"),
            (b"abc", b""),
            (b"a\0", b"bc"),
            (b"a", b"\0bc"),
            (b"\xff\xfe", b"\x80"),
        ];
        assert!(pairs.iter().all(|(first, second)| check(first, second)), "two share a counter");
        assert!(!pairs.iter().any(|(first, second)| check(first, second)), "one has two counters");
    }
}

/// ACCIDENTS 33. FLUSHDB was the way to clear.
#[test]
fn a_reset_deletes_one_subjects_keys_and_no_others() {
    let world = World::on_redis(RedisServer::start());
    let server = world.server.as_ref().unwrap();
    let foreign = ["session:1", "sg", "sg3", "sg3:", "sg3:{me}:x", "{sg3}"];
    foreign.iter().for_each(|key| assert_eq!(server.command(&["SET", key, "theirs"]).text(), "OK"));
    let limits = each_algorithm(3, PERIOD);
    for limit in &limits {
        [ME, 1].iter().for_each(|subject| assert!(world.check(*subject, limit, 3).fits));
    }
    world.reset(ME, &limits);
    for limit in &limits {
        assert_eq!(world.remaining(ME, limit), 3, "{}", limit.algorithm());
        assert_eq!(world.remaining(1, limit), 0, "{} of another subject", limit.algorithm());
    }
    world.reset(1, &limits);
    assert_eq!(keys(server).len(), foreign.len(), "{:?}", keys(server));
    foreign.iter().for_each(|key| assert_eq!(server.command(&["GET", key]).text(), "theirs"));
}

/// ACCIDENTS 33. Any value under one of our keys was taken for ours.
#[test]
fn a_foreign_value_under_our_key_is_an_error_and_stays_unchanged() {
    for limit in each_algorithm(3, PERIOD) {
        let world = World::on_redis(RedisServer::start());
        let server = world.server.as_ref().unwrap();
        world.check(ME, &limit, 1);
        let ours = keys(server);
        for key in &ours {
            server.command(&["SET", key, "\u{7f}theirs"]);
            let reply = world.try_check(ME, &limit, 1);
            assert!(reply.is_err(), "{} read {key}: {reply:?}", limit.algorithm());
            assert!(world.unusable_replies() > 0, "an operator sees it in the metrics");
            assert_eq!(server.command(&["GET", key]).text(), "\u{7f}theirs");
            world.reset(ME, std::slice::from_ref(&limit));
            assert!(world.check(ME, &limit, 1).fits);
        }
    }
}

/// ACCIDENTS 34. NOSCRIPT after SCRIPT FLUSH reached callers, above all inside a pipeline. (Failover and new
/// nodes are tested with the topologies.)
#[test]
fn script_flush_under_load_reaches_no_caller() {
    let server = RedisServer::start();
    let threads = storm::threads();
    let engine = storm::engine(&threads, Some(&server.url()));
    let limits = each_algorithm(500, AGES);
    thread::scope(|scope| {
        let flush = scope.spawn(|| {
            for _ in 0..100 {
                server.command(&["SCRIPT", "FLUSH"]);
                thread::sleep(Duration::from_millis(1));
            }
        });
        for limit in &limits {
            // A failed decision would panic in there.
            assert_eq!(
                storm::admitted(&threads, &engine, &[(ME, limit)], [1; 800]),
                500,
                "{}",
                limit.algorithm()
            );
        }
        flush.join().unwrap();
    });
}

/// ACCIDENTS 35. Read, then write: concurrent callers all read the same value, and all were admitted.
#[test]
fn a_thousand_concurrent_callers_are_admitted_exactly_to_the_limit() {
    let server = RedisServer::start();
    for url in [None, Some(server.url())] {
        let threads = storm::threads();
        let engine = storm::engine(&threads, url.as_deref());
        for limit in each_algorithm(300, AGES) {
            let admitted = storm::admitted(&threads, &engine, &[(ME, &limit)], [1; 1_000]);
            assert_eq!(admitted, 300, "{} with {url:?}", limit.algorithm());
            // The same over three subjects, locked in any order.
            let counters = [(1, &limit), (2, &limit), (3, &limit)];
            let admitted = storm::admitted(&threads, &engine, &counters, [1; 1_000]);
            assert_eq!(admitted, 300, "{} three counters with {url:?}", limit.algorithm());
        }
    }
}

/// ACCIDENTS 36. Compare-and-swap gave up on hot keys after some retries: calls were denied with room left.
#[test]
fn a_hot_key_denies_no_call_while_there_is_room() {
    let server = RedisServer::start();
    for url in [None, Some(server.url())] {
        let threads = storm::threads();
        let engine = storm::engine(&threads, url.as_deref());
        for limit in each_algorithm(1_000, AGES) {
            let admitted = storm::admitted(&threads, &engine, &[(ME, &limit)], [1; 1_000]);
            assert_eq!(admitted, 1_000, "{} with {url:?}", limit.algorithm());
        }
    }
}

/// ACCIDENTS 37. Members of a sorted set collided: calls in one instant counted as one.
#[test]
fn ten_thousand_calls_in_one_instant_are_all_counted() {
    for world in World::each() {
        for limit in each_algorithm(10_000, PERIOD) {
            for batch in 0..10 {
                assert_eq!(world.check_times(1_000, (ME, &limit, 1)), 1_000, "batch {batch}");
            }
            assert_eq!(
                world.check_times(100, (ME, &limit, 1)),
                0,
                "{} {}",
                limit.algorithm(),
                world.name()
            );
            assert_eq!(world.remaining(ME, &limit), 0);
        }
    }
}

/// ACCIDENTS 38. `unpack` fails beyond 8,000 elements: large costs and large batches were errors.
#[test]
fn a_cost_of_a_million_and_a_batch_of_a_thousand_work() {
    for world in World::each() {
        for algorithm in Algorithm::ALL {
            let most = if algorithm == Algorithm::SlidingLog { 10_000 } else { 1_000_000 };
            let limit = limit(algorithm, most, PERIOD);
            assert!(world.check(0, &limit, most - 1_000).fits, "{algorithm} {}", world.name());
            assert_eq!(world.check_times(1_200, (0, &limit, 1)), 1_000, "{}", world.name());
            let receipt = world.reserve(1, &limit, most).unwrap();
            let refunded = world.refund(1, &limit, receipt, most);
            assert_eq!(refunded, most, "{algorithm} {}", world.name());
        }
    }
}

/// ACCIDENTS 38, a variant: a batch over a thousand subjects, each with counters of all kinds.
#[test]
fn a_batch_over_a_thousand_subjects_decides_each() {
    for world in World::each() {
        let limits = each_algorithm(1, PERIOD);
        let costs: Vec<Vec<_>> = (0..1_000)
            .map(|subject| limits.iter().map(|limit| (subject, limit, 1)).collect())
            .collect();
        let transactions: Vec<_> =
            costs.iter().map(|costs| transaction(Intent::Charge, costs)).collect();
        for fits in [true, false] {
            let reply = world.decide_all(&transactions);
            assert_eq!(reply.len(), 1_000);
            assert!(reply.iter().all(|reply| reply.allowed == fits), "{}", world.name());
        }
    }
}

/// ACCIDENTS 39. Scripts used commands that newer servers deprecate, or relied on replication by script.
#[test]
fn every_installed_server_runs_the_script_and_deprecates_none_of_its_commands() {
    let text = script_text();
    let named = |call| text.split(call).skip(1).filter_map(|rest| rest.split('\'').next());
    let commands: BTreeSet<&str> = named("redis.call('").chain(named("redis.pcall('")).collect();
    assert!(commands.contains("TIME") && commands.contains("SET"), "{commands:?}");
    for version in RedisServer::versions() {
        let server = RedisServer::start_with(&version.path, &[]);
        for command in &commands {
            // COMMAND DOCS does not exist before 7.0.
            let Reply::Array(docs) = server.command(&["COMMAND", "DOCS", command]) else {
                continue;
            };
            let docs = format!("{docs:?}");
            assert!(!docs.contains("deprecated_since") && docs.len() > 100, "{command}: {docs}");
        }
        let world = World::on_redis(server);
        for limit in each_algorithm(10, PERIOD) {
            assert!(world.check(ME, &limit, 4).fits, "{}", version.name);
            let receipt = world.reserve(ME, &limit, 5).unwrap();
            assert_eq!(world.check(ME, &limit, 1).reading.remaining, 0);
            assert!(!world.check(ME, &limit, 1).fits, "{} {}", limit.algorithm(), version.name);
            assert_eq!(
                world.refund(ME, &limit, receipt, 2),
                2,
                "{} {}",
                limit.algorithm(),
                version.name
            );
            assert_eq!(world.force(ME, &limit, 7).reading.remaining, 0);
            world.reset(ME, &[limit]);
        }
        assert_eq!(keys(world.server.as_ref().unwrap()), Vec::<String>::new());
    }
}

/// ACCIDENTS 54. `per_second(n)` meant once every n seconds. (The documentation of every constructor holds an
/// example, too.)
#[test]
fn every_constructor_admits_its_quota_per_period() {
    for (limit, quota, again_us) in [
        (Limit::per_second(5), "5/second", 200_000),
        (Limit::per_minute(5), "5/minute", 12_000_000),
        (Limit::per_hour(5), "5/hour", 720_000_000),
        (Limit::per_day(5), "5/day", 17_280_000_000),
        (Limit::per(5, Duration::from_secs(10)), "5/10s", 2_000_000),
        (Limit::per(5, Duration::from_millis(1)), "5/1ms", 200),
    ] {
        assert_eq!(limit, Limit::parse(quota).unwrap());
        let (world, limit) = (World::in_memory(1_000), named(limit));
        assert!(world.check(ME, &limit, 5).fits, "{quota}: five at once");
        assert!(
            !world.after(again_us - 1).check(ME, &limit, 1).fits,
            "{quota}: no sixth before its time"
        );
        assert!(world.after(1).check(ME, &limit, 1).fits, "{quota}: one per {again_us} us");
    }
    let (world, permits) =
        (World::in_memory(1_000), named(Limit::concurrent(5, Duration::from_secs(10))));
    assert!(world.check(ME, &permits, 5).fits);
    assert!(!world.after(9_999_999).check(ME, &permits, 1).fits);
    assert!(world.after(1).check(ME, &permits, 5).fits, "all five are free after 10 s");
}
