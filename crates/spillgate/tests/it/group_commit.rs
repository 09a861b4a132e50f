//! Decisions of many callers that leave in one call: each caller gets the reply that it would get by itself,
//! and waits no longer than for the store.

use spillgate::{Algorithm, Limit, Limiter, Request, Source};
use spillgate_core::algorithm::Intent;
use spillgate_core::limit::NamedLimit;
use spillgate_core::plan::{Transaction, TransactionReply};
use spillgate_testkit::RedisServer;
use tokio::task::JoinSet;

use crate::batches::{forget_receipts, rules, transactions};
use crate::failure::{ALL, CEILING, Patient, SHARE, YEAR, counted_by};
use crate::support::random::Random;
use crate::support::storm;
use crate::support::world::{AGES, World, keys, limit, runtime, transaction};

/// ACCIDENTS 9, 13, 14. Over one connection calls are executed as they are sent, so callers are decided in
/// the order of their arrival.
#[test]
fn concurrent_callers_get_the_replies_of_sequential_ones() {
    let rules: &'static [Vec<NamedLimit>] = Vec::leak(rules());
    let (memory, redis) = (World::in_memory(100_000), World::queue());
    for seed in 0..STORMS {
        let mut random = Random::new(seed);
        let step_us = random.spread(20_000_000);
        let coalesced = 1 + random.spread(400);
        let transactions: Vec<Transaction> =
            (0..coalesced).flat_map(|_| transactions(rules, &mut random)).take(400).collect();
        let expected = memory.after(step_us).decide_all(&transactions);
        let reply = redis.after(step_us).decide_at_once(&transactions);
        for (place, (reply, mut expected)) in reply.into_iter().zip(expected).enumerate() {
            let mut reply = reply.unwrap();
            forget_receipts(&mut reply);
            forget_receipts(&mut expected);
            let count = transactions.len();
            assert_eq!(
                reply, expected,
                "storm {seed}, {place} of {count}: {:#?}",
                transactions[place]
            );
        }
    }
}

#[test]
fn concurrent_callers_share_calls() {
    let world = World::queue();
    let server = world.server.as_ref().unwrap();
    let before = server.decisions();
    let wide = wide();
    let transactions: Vec<_> =
        (0..400).map(|subject| transaction(Intent::Charge, &[(subject, wide, 1)])).collect();
    assert!(world.decide_at_once(&transactions).into_iter().all(|reply| reply.unwrap().allowed));
    let calls = server.decisions() - before;
    assert!(calls < 20, "{calls} calls for 400 decisions");
}

/// Callers that ask again as soon as they have an answer would otherwise all gather in one of the two calls. The
/// server would then wait for this process while it hands out the replies, and this process for the server.
#[test]
fn the_calls_under_way_share_the_callers() {
    let server = RedisServer::start();
    let runtime = runtime();
    let limiter = runtime.block_on(Limiter::builder().redis(server.url()).build()).unwrap();
    let before = server.decisions();
    runtime.block_on(async {
        let mut callers = JoinSet::new();
        for caller in 0..CALLERS {
            let limiter = limiter.clone();
            callers.spawn(async move {
                for call in 0..CALLS_EACH {
                    let key = format!("{caller}:{call}");
                    assert!(
                        limiter.check(&Request::keyed(&key, Limit::per_day(9))).await.allowed()
                    );
                }
            });
        }
        callers.join_all().await;
    });
    let calls = server.decisions() - before;
    // In halves, 64 callers need 400 calls for 200 decisions each. Together with lone calls it was 580.
    let in_halves = u64::from(2 * CALLS_EACH);
    assert!(calls < in_halves * 6 / 5, "{calls} calls, and {in_halves} suffice");
}

/// The same counter with other numbers: an override was set in between.
#[test]
fn a_changed_limit_applies_from_the_next_caller_in_the_batch() {
    let limits: [&'static NamedLimit; 2] =
        [5, 8].map(|count| &*Box::leak(Box::new(limit(Algorithm::TokenBucket, count, AGES))));
    let world = World::queue();
    let turns = (0..12).map(|turn: usize| transaction(Intent::Charge, &[(0, limits[turn % 2], 1)]));
    let reply = world.decide_at_once(&turns.collect::<Vec<_>>());
    let allowed: Vec<bool> = reply.into_iter().map(|reply| reply.unwrap().allowed).collect();
    // Used quota stays used: from five on the smaller limit denies, from eight on both.
    let expected = [true, true, true, true, true, true, false, true, false, true, false, false];
    assert_eq!(allowed, expected);
}

#[test]
fn a_foreign_value_fails_only_its_own_decision() {
    let log: &'static NamedLimit = Box::leak(Box::new(limit(Algorithm::SlidingLog, 10_000, AGES)));
    let world = World::queue();
    let server = world.server.as_ref().unwrap();
    world.check(7, log, 1);
    for key in keys(server) {
        server.command(&["SET", &key, "not ours, and of another type"]);
    }
    let transactions: Vec<_> = (0..60)
        .map(|turn| {
            transaction(
                Intent::Charge,
                &[(turn % 10, if turn % 10 == 7 { log } else { wide() }, 1)],
            )
        })
        .collect();
    let reply = world.decide_at_once(&transactions);
    for (turn, reply) in reply.into_iter().enumerate() {
        match turn % 10 {
            7 => assert!(reply.is_err(), "{turn}: {reply:?}"),
            _ => assert!(reply.unwrap().allowed, "{turn}"),
        }
    }
}

/// A shadow rule's unreadable record took the enforced decision from the store, which had charged it.
#[test]
fn a_foreign_value_of_a_shadow_rule_fails_no_decision() {
    let log = limit(Algorithm::SlidingLog, 10_000, AGES);
    let world = World::queue();
    let server = world.server.as_ref().unwrap();
    world.check(7, &log, 1);
    for key in keys(server) {
        server.command(&["SET", &key, "not ours, and of another type"]);
    }
    let mut both = transaction(Intent::Charge, &[(8, wide(), 1), (7, &log, 1)]);
    both.charges[1].group = 1;
    let reply = world.run(async { world.engine.decide_one(&both).await });
    assert!(reply.unwrap().allowed);
}

/// The server is stopped, so the first calls stay in flight and all others wait for them.
#[test]
fn a_caller_dropped_before_the_batch_is_sent_is_not_charged() {
    let world = World::queue();
    let server = world.server.as_ref().unwrap();
    let wide = wide();
    world.check(0, wide, 1);
    server.pause();
    let reply: Vec<TransactionReply> =
        world.run(async {
            let check = |subject| {
                let engine = world.engine.clone();
                async move {
                    engine.decide_one(&transaction(Intent::Charge, &[(subject, wide, 1)])).await
                }
            };
            let mut first = JoinSet::new();
            (1..=20).for_each(|subject| drop(first.spawn(check(subject))));
            tokio::task::yield_now().await;
            let mut leaving = JoinSet::new();
            (101..=140).for_each(|subject| drop(leaving.spawn(check(subject))));
            tokio::task::yield_now().await;
            leaving.shutdown().await;
            server.resume();
            first.join_all().await.into_iter().map(Result::unwrap).collect()
        });
    assert_eq!(reply.len(), 20);
    let used = |subject| wide.limit().capacity().unwrap() - world.remaining(subject, wide);
    assert!((1..=20).all(|subject| used(subject) == 1));
    assert!((101..=140).all(|subject| used(subject) == 0));
}

/// ACCIDENTS 40, 42. A store stops while many callers wait for it: each gets a decision in time, and charges
/// that were not sent are deferred.
#[test]
fn a_store_that_stops_under_load_delays_no_caller_beyond_the_ceiling() {
    let server = RedisServer::start();
    let patient = Patient::on(&server.url());
    patient.heals();
    server.pause();
    let coalesced = 4_000;
    let limit = Limit::per(ALL, YEAR);
    let by: Vec<(Source, bool)> = patient.run(async {
        let mut callers = JoinSet::new();
        for _ in 0..coalesced {
            let (limiter, limit) = (patient.limiter.clone(), limit.clone());
            callers.spawn(async move {
                let request = Request::keyed("me", &limit);
                let check = limiter.check(&request);
                let decision = tokio::time::timeout(CEILING, check).await.expect("a decision");
                (decision.source(), decision.allowed())
            });
        }
        callers.join_all().await
    });
    let others: Vec<_> = by.iter().filter(|(source, _)| *source != Source::Fallback).collect();
    assert!(others.is_empty(), "the store is stopped: {others:?}");
    let admitted = by.iter().filter(|(_, allowed)| *allowed).count() as u64;
    assert_eq!(admitted, SHARE, "exactly the local share");
    server.resume();
    patient.heals();
    let _ = patient.check("me", &limit);
    assert!(counted_by(&server, "me", &limit) >= 1);
}

/// A runtime ends with calls in flight and others waiting: callers on another runtime are not blocked.
#[test]
fn a_runtime_that_ends_blocks_no_caller_of_another() {
    let server = RedisServer::start();
    let other = storm::threads();
    let engine = storm::engine(&other, Some(&server.url()));
    let wide = wide();
    server.pause();
    let short = runtime();
    for subject in 0..50 {
        let engine = engine.clone();
        short.spawn(async move {
            engine.decide_one(&transaction(Intent::Charge, &[(subject, wide, 1)])).await
        });
    }
    short.block_on(tokio::task::yield_now());
    drop(short);
    server.resume();
    let reply =
        other.block_on(engine.decide_one(&transaction(Intent::Charge, &[(1_000, wide, 1)])));
    assert!(reply.unwrap().allowed);
}

/// A runtime ended while its task tried to connect. The mark of that task stayed, and no other runtime tried again.
#[test]
fn a_runtime_that_ends_while_it_connects_leaves_others_connected_again() {
    let mut server = RedisServer::start();
    let other = storm::threads();
    let engine = storm::engine(&other, Some(&server.url()));
    let wide = wide();
    let check = |subject| {
        let engine = engine.clone();
        async move { engine.decide_one(&transaction(Intent::Charge, &[(subject, wide, 1)])).await }
    };
    assert!(other.block_on(check(0)).unwrap().allowed);
    server.kill();
    let short = runtime();
    // The breaker opens, and the task that connects again runs here.
    for subject in 0..10 {
        assert!(short.block_on(check(subject)).is_err());
    }
    drop(short);
    server.restart();
    spillgate_testkit::eventually(|| other.block_on(check(1)).is_ok());
}

fn wide() -> &'static NamedLimit {
    static WIDE: std::sync::OnceLock<NamedLimit> = std::sync::OnceLock::new();
    WIDE.get_or_init(|| limit(Algorithm::TokenBucket, 1_000_000, AGES))
}

const STORMS: u64 = 60;
const CALLERS: u32 = 64;
const CALLS_EACH: u32 = 200;
