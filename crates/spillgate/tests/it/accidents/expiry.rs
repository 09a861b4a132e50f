//! Keys that never expire, state that expires too soon, and unbounded memory.

use std::io::Write;
use std::net::TcpStream;
use std::time::Duration;

use spillgate::reservation::EndResult;
use spillgate::{Algorithm, Limit, Limiter, Policy, Reason, Request, Source};
use spillgate_core::algorithm::Intent;
use spillgate_core::limit::NamedLimit;
use spillgate_redis::Redis;
use spillgate_testkit::{RedisServer, Reply, eventually};

use crate::failure::evidence;
use crate::support::engine::Engine;
use crate::support::random::Random;
use crate::support::script::Script;
use crate::support::storm;
use crate::support::world::{
    ME, PATIENCE, PERIOD, PERIOD_US, TODAY_US, World, assert_every_key_ends, each_algorithm, keys,
    limit, named, runtime, transaction,
};

/// ACCIDENTS 20. INCR came first and EXPIRE second: a client that crashed in between locked its subject out
/// for ever.
#[test]
fn a_client_cut_off_at_any_byte_leaves_no_key_without_ttl() {
    let server = RedisServer::start();
    for (number, limit) in each_algorithm(10, PERIOD).iter().enumerate() {
        let mut script = Script::new(&server, &format!("dies {number}"));
        let command = encoded(&script.command(limit, 1, TODAY_US, TODAY_US));
        let cuts = [1, command.len() / 2, command.len() - 40, command.len() - 1, command.len()];
        for cut in cuts {
            let mut client = TcpStream::connect(("127.0.0.1", server.port())).unwrap();
            client.write_all(&command[..cut]).unwrap();
            drop(client);
            assert_every_key_ends(&server);
        }
    }
}

/// ACCIDENTS 21. The TTL was set only if the value equalled the increment: after a cost of two, or a refund,
/// there was none.
#[test]
fn every_key_has_a_ttl_after_every_operation() {
    let world = World::on_redis(RedisServer::start());
    let server = world.server.as_ref().unwrap();
    let limits = each_algorithm(50, PERIOD);
    let mut random = Random::new(21);
    let mut receipts = Vec::new();
    for _ in 0..300 {
        let limit = random.pick(&limits);
        let cost = 1 + random.spread(49);
        match random.below(5) {
            0 => drop(world.check(ME, limit, cost)),
            1 => drop(world.force(ME, limit, cost)),
            2 => receipts.extend(world.reserve(ME, limit, cost).map(|receipt| (limit, receipt))),
            3 if !receipts.is_empty() => {
                let (limit, receipt) =
                    receipts.swap_remove(random.below(receipts.len() as u64) as usize);
                world.refund(ME, limit, receipt, random.below(receipt.amount + 1));
            }
            _ => drop(world.after(random.below(PERIOD_US / 5))),
        }
        assert_every_key_ends(server);
    }
    assert!(!keys(server).is_empty());
}

/// ACCIDENTS 23. Expiry was computed from the caller's clock. A clock two windows off wrote keys that had
/// expired already and never limited.
#[test]
fn a_caller_whose_clock_is_two_windows_off_still_limits_and_writes_the_same_ttl() {
    let server = RedisServer::start();
    let mut limits = each_algorithm(3, PERIOD);
    limits.push(limit(Algorithm::FixedWindow, 3, "day"));
    for (number, limit) in limits.iter().enumerate() {
        let period_us = limit.limit().refill().unwrap().as_micros() as i64;
        let mut ttls = Vec::new();
        for windows in [0, -2, 2] {
            let mut script = Script::new(&server, &format!("expiry {number} {windows}"));
            let estimate_us = TODAY_US.saturating_add_signed(windows * period_us);
            let fits = [(); 5].map(|()| script.check(limit, 1, TODAY_US, estimate_us).fits);
            assert_eq!(fits, [true, true, true, false, false], "{}", limit.limit());
            let longest =
                keys(&server).iter().map(|key| server.command(&["PTTL", key]).integer()).max();
            server.command(&["FLUSHALL"]);
            ttls.push(longest.unwrap());
        }
        assert!(
            ttls.iter().all(|ttl| (ttl - ttls[0]).abs() < 1_000),
            "{}: {ttls:?} ms",
            limit.limit()
        );
    }
}

/// ACCIDENTS 24. Cleaning up took a live client or an index of all keys.
#[test]
fn an_idle_store_becomes_empty() {
    let server = RedisServer::start();
    runtime().block_on(async {
        let engine = Engine::Redis(Redis::connect(&server.url(), PATIENCE).await.unwrap());
        for limit in each_algorithm(10, "50ms") {
            for subject in 0..20 {
                let charge = transaction(Intent::Charge, &[(subject, &limit, 3)]);
                // A log has a ring from its second instant on.
                for _ in 0..2 {
                    engine.decide_one(&charge).await.unwrap();
                }
            }
        }
    });
    // This needs the real clock. A key's TTL ends at most 1 s after its state does.
    for _ in 0..100 {
        if server.command(&["DBSIZE"]).integer() == 0 {
            let ended: u64 = server.info("stats", "expired_keys").parse().unwrap();
            assert!(ended > 2 * 20, "each subject has a value, a ring and permits: {ended}");
            return;
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    panic!("left behind: {:?}", keys(&server));
}

/// ACCIDENTS 24. In memory, only a task swept dead entries, and that task could die. Here every new subject
/// sweeps a few.
#[test]
fn dead_subjects_in_memory_make_way_for_new_ones() {
    for limit in each_algorithm(10, "1s") {
        let world = World::in_memory(1_000_000);
        let Engine::Memory(memory) = &*world.engine else { panic!("in memory") };
        for subject in 0..50_000 {
            // 500 are alive at a time.
            world.at(TODAY_US + subject / 500 * 2_000_000);
            assert!(world.check(u128::from(subject), &limit, 1).fits);
        }
        let held = memory.len();
        assert!(held < 4_000, "{held} of 50,000 {}s are left", limit.algorithm());
        assert_eq!(memory.evictions().live, 0);
    }
}

/// ACCIDENTS 25. Local maps grew with every key they saw, or evicted the very subjects that were being
/// denied.
#[test]
fn memory_stays_flat_over_many_subjects_and_keeps_exhausted_and_reserved_ones() {
    let subjects: u128 = if evidence() { 10_000_000 } else { 300_000 };
    let world = World::in_memory(20_000);
    let Engine::Memory(memory) = &*world.engine else { panic!("in memory") };
    let bucket = named(Limit::per_day(10));
    let limits = each_algorithm(10, "366d");
    let first = 1_000_000_000_u128;
    // For each algorithm: exhausted subjects, and subjects with an open reservation.
    for limit in &limits {
        for subject in first..first + 50 {
            assert!(world.check(subject, limit, 10).fits);
            assert!(world.reserve(subject + 50, limit, 4).is_some());
        }
    }
    let mut peak = 0;
    for subject in 0..subjects {
        memory.decide(&transaction(Intent::Charge, &[(subject, &bucket, 1)]));
        if subject == subjects / 2 {
            peak = memory.bytes();
        }
    }
    println!(
        "{subjects} subjects, {} held in {} bytes: {:?}",
        memory.len(),
        memory.bytes(),
        memory.evictions()
    );
    assert!(memory.bytes() <= peak + peak / 10, "{} bytes after {peak}", memory.bytes());
    // Rounded up for each of 64 shards, plus a shared counter for subjects without room.
    assert!(memory.len() <= 20_000 + 2 * 64, "{} counters", memory.len());
    assert!(memory.evictions().live > 0, "they were counted");
    for limit in &limits {
        for subject in first..first + 50 {
            assert!(
                !world.peek(subject, limit, 1).fits,
                "an exhausted {} was forgotten",
                limit.algorithm()
            );
            assert_eq!(
                world.remaining(subject + 50, limit),
                6,
                "a reserved {} was forgotten",
                limit.algorithm()
            );
        }
    }
}

/// Of 100 subjects that had used 60 of 100, a flood of random ones reset most.
#[test]
fn a_flood_of_new_subjects_resets_no_limit_in_use() {
    let world = World::in_memory(20_000);
    let Engine::Memory(memory) = &*world.engine else { panic!("in memory") };
    let limit = named(Limit::per_day(100));
    let used = 1_000_000_000..1_000_000_100_u128;
    for subject in used.clone() {
        assert!((0..20).all(|_| world.check(subject, &limit, 3).fits));
    }
    // Each counter is swept many times, so that none counts as used recently.
    for subject in 0..300_000 {
        memory.decide(&transaction(Intent::Charge, &[(subject, &limit, 1)]));
    }
    assert!(memory.evictions().live > 250_000, "{:?}", memory.evictions());
    let kept = used.filter(|subject| world.remaining(*subject, &limit) == 40).count();
    assert_eq!(kept, 100);
}

/// A login that had used 3 of 5 was reset again and again by counters that had used 5 of 1,000 each.
#[test]
fn counters_of_a_large_limit_reset_no_small_one_in_use() {
    let world = World::in_memory(6_400);
    let Engine::Memory(memory) = &*world.engine else { panic!("in memory") };
    let (large, small) = (named(Limit::per_day(1_000)), named(Limit::per_day(5)));
    let logins = 1_000_000_000..1_000_000_050_u128;
    for subject in logins.clone() {
        assert!(world.check(subject, &small, 3).fits);
    }
    for subject in 0..100_000 {
        memory.decide(&transaction(Intent::Charge, &[(subject, &large, 5)]));
    }
    assert!(memory.evictions().live > 80_000, "{:?}", memory.evictions());
    let kept = logins.filter(|subject| world.remaining(*subject, &small) == 2).count();
    assert_eq!(kept, 50);
}

/// ACCIDENTS 25. A map full of exhausted subjects either grew or admitted all of them again.
#[test]
fn new_subjects_share_a_limit_when_memory_is_full_of_exhausted_ones() {
    for limit in each_algorithm(1, PERIOD) {
        let world = World::in_memory(64);
        let Engine::Memory(memory) = &*world.engine else { panic!("in memory") };
        let admitted: Vec<u128> =
            (0..5_000).filter(|subject| world.check(*subject, &limit, 1).fits).collect();
        // Each of 64 shards holds one subject of its own, and one counter that all others share.
        assert!(admitted.len() <= 128, "{} admitted {}", limit.algorithm(), admitted.len());
        assert!(admitted.iter().all(|subject| !world.check(*subject, &limit, 1).fits));
        assert!(memory.len() <= 128 && memory.evictions().overflowed > 4_000);
        assert_eq!(memory.evictions().live, 0, "{}", limit.algorithm());
    }
}

/// ACCIDENTS 25. A full memory evicted no log, so that all new subjects shared one limit.
#[test]
fn a_full_memory_evicts_logs_except_exhausted_and_reserved_ones() {
    let world = World::in_memory(512);
    let Engine::Memory(memory) = &*world.engine else { panic!("in memory") };
    let log = limit(Algorithm::SlidingLog, 10, "366d");
    let (exhausted, reserved) = (1_000_000, 1_000_001);
    assert!(world.check(exhausted, &log, 10).fits);
    assert!(world.reserve(reserved, &log, 4).is_some());
    for subject in 0..5_000 {
        assert!(world.check(subject, &log, 1).fits, "{subject}: {:?}", memory.evictions());
    }
    let evictions = memory.evictions();
    assert!(evictions.live > 4_000 && evictions.overflowed == 0, "{evictions:?}");
    assert!(memory.len() <= 512, "{} counters", memory.len());
    assert!(!world.peek(exhausted, &log, 1).fits, "an exhausted log was forgotten");
    assert_eq!(world.remaining(reserved, &log), 6, "a reserved log was forgotten");
}

/// A log was counted as one counter, however long it was.
#[test]
fn long_logs_count_by_their_bytes_against_the_bound_of_the_memory() {
    let most = 64 * 200;
    let world = World::in_memory(most);
    let Engine::Memory(memory) = &*world.engine else { panic!("in memory") };
    let log = limit(Algorithm::SlidingLog, 10_000, "366d");
    // Each log grows after it was added, to 80 KB. A dozen are above the bound of one of the 64 shards.
    for cost in [1, 9_000] {
        for subject in 0..3_000 {
            assert!(world.check(subject, &log, cost).fits, "{subject}");
        }
    }
    let (bytes, evictions) = (memory.bytes(), memory.evictions());
    assert!(bytes < 64 * (1_048_576 + 2 * 80_000) + 96 * most, "{bytes} bytes");
    assert!(evictions.live > 1_500 && evictions.overflowed < 10, "{evictions:?}");
}

/// ACCIDENTS 25. A permit was charged to the shared counter, where its release did not find it.
#[test]
fn a_permit_without_room_for_a_counter_is_denied_and_every_other_can_be_released() {
    let policy = r#"
        [[rule]]
        name = "streams"
        key = ["user"]
        limits = [{ quota = "1", algorithm = "concurrency", max_hold = "1h" }]
    "#;
    runtime().block_on(async {
        // One counter for each of 64 shards.
        let builder = Limiter::builder().policy(Policy::from_toml(policy).unwrap()).max_keys(64);
        let limiter = builder.build().await.unwrap();
        let users: Vec<String> = (0..1_000).map(|user| user.to_string()).collect();
        let of = |user| Request::new().with("user", user);
        let mut held = Vec::new();
        for user in &users {
            let decision = limiter.check(&of(user.as_str())).await;
            match decision.receipt() {
                Some(receipt) => held.push((user.as_str(), receipt.clone())),
                None => assert_eq!(decision.reason(), Some(Reason::Overloaded), "{user}"),
            }
        }
        assert!((1..=64).contains(&held.len()), "{} permits", held.len());
        for (user, receipt) in held {
            assert_eq!(limiter.release(&receipt).await, Ok(EndResult::Done));
            let again = limiter.check(&of(user)).await;
            assert!(again.allowed(), "the release freed nothing: {again:?}");
        }
    });
}

/// ACCIDENTS 26. A store out of memory returned OOM errors, which went to the caller or admitted every
/// request. Here this is an outage: the rule decides, nothing is charged, and it ends with the cause.
#[test]
fn a_store_out_of_memory_is_an_outage_that_ends_by_itself() {
    for version in RedisServer::versions() {
        let server = RedisServer::start_with(&version.path, &["--maxmemory-policy", "noeviction"]);
        // On threads of its own the limiter looks for the store between two checks, too.
        let runtime = storm::threads();
        let limiter = runtime
            .block_on(Limiter::builder().redis(server.url()).timeout(PATIENCE).build())
            .unwrap();
        let sources = |key: &str| -> Vec<Source> {
            let limits = each_algorithm(160, "366d");
            let one = |limit: &NamedLimit| {
                runtime.block_on(limiter.check(&Request::keyed(key, limit.limit()))).source()
            };
            limits.iter().map(one).collect()
        };
        assert_eq!(sources("me"), [Source::Store; 5], "{}", version.name);
        let kept = dumps(&server);
        assert_eq!(server.command(&["CONFIG", "SET", "maxmemory", "1"]).text(), "OK");
        let full = server.command(&["SET", "junk", "junk"]);
        assert!(matches!(&full, Reply::Error(text) if text.starts_with("OOM")), "{full:?}");
        let out_of_memory = [sources("me"), sources("you")].concat();
        // Before 7.0 a script whose first write takes no memory may complete all its writes.
        if version.name.contains("6.2") {
            assert!(out_of_memory.contains(&Source::Fallback));
        } else {
            assert_eq!(out_of_memory, [Source::Fallback; 10], "{}", version.name);
            assert_eq!((limiter.stats().degraded, limiter.stats().store_errors), (10, 10));
            assert_eq!(dumps(&server), kept, "nothing was charged on {}", version.name);
        }
        server.command(&["CONFIG", "SET", "maxmemory", "0"]);
        eventually(|| sources("me") == [Source::Store; 5]);
    }
}

/// ACCIDENTS 26. Eviction resets limits: with allkeys-lru a subject may get one fresh quota, and never an
/// error. Another test holds the warning about that setting at the start.
#[test]
fn a_store_that_evicts_keys_still_decides() {
    let server = RedisServer::start_with(
        &RedisServer::versions()[0].path,
        &["--maxmemory-policy", "allkeys-lru"],
    );
    let runtime = runtime();
    // Every check must reach the store.
    let builder = Limiter::builder().redis(server.url()).denial_cache(false).timeout(PATIENCE);
    let limiter = runtime.block_on(builder.build()).unwrap();
    let info = server.command(&["INFO", "memory"]);
    let used: u64 = info
        .text()
        .lines()
        .find_map(|line| line.strip_prefix("used_memory:"))
        .unwrap()
        .parse()
        .unwrap();
    server.command(&["CONFIG", "SET", "maxmemory", &(used + 600_000).to_string()]);
    for limit in each_algorithm(3, "366d") {
        let check = |key: &str| {
            let decision = runtime.block_on(limiter.check(&Request::keyed(key, limit.limit())));
            assert_eq!(decision.source(), Source::Store, "{}", limit.algorithm());
            decision.allowed()
        };
        let mut hot = 0;
        for subject in 0..1_500 {
            hot += u32::from(check("hot"));
            assert!(check(&subject.to_string()), "a new subject was denied");
        }
        println!("{}: the hot subject was admitted {hot} times by a limit of 3", limit.algorithm());
        assert!((3..1_500).contains(&hot));
    }
    let evicted = server.command(&["INFO", "stats"]);
    assert!(!evicted.text().contains("evicted_keys:0\r"), "the test needs more subjects");
}

fn dumps(server: &RedisServer) -> Vec<Reply> {
    keys(server).iter().map(|key| server.command(&["DUMP", key])).collect()
}

fn encoded(command: &[Vec<u8>]) -> Vec<u8> {
    let mut bytes = format!("*{}\r\n", command.len()).into_bytes();
    for word in command {
        bytes.extend(format!("${}\r\n", word.len()).into_bytes());
        bytes.extend(word);
        bytes.extend(b"\r\n");
    }
    bytes
}
