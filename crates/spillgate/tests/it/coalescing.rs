//! Coalescing: equal decisions that leave together are sent as one. Every caller gets the reply that
//! one-by-one decisions would give, and the stored state is the same.

use std::time::Duration;

use spillgate::{Algorithm, Limit, LimitSpec};
use spillgate_core::algorithm::Intent;
use spillgate_core::counter::PlannedCharge;
use spillgate_core::limit::NamedLimit;
use spillgate_core::plan::{RecordAction, Transaction, TransactionReply};
use spillgate_testkit::RedisServer;
use tokio::task::JoinSet;

use crate::batches::forget_receipts;
use crate::support::random::Random;
use crate::support::world::{AGES, World, keys, limit, subject, transaction};

/// ACCIDENTS 8, 9, 14. Four engines on one clock: memory; one call per decision; the batches of one caller;
/// and one caller per decision, whose calls coalesce.
#[test]
fn coalesced_decisions_equal_decisions_one_by_one() {
    let rules: &'static [Vec<NamedLimit>] = Vec::leak(rules());
    let memory = World::in_memory(100_000);
    let [single, sliced] = [(); 2].map(|()| World::on_redis(RedisServer::start()));
    let queue = World::queue();
    let (mut allowed, mut denied, mut calls) = (0, 0, 0);
    for seed in 0..STORMS {
        let mut random = Random::new(seed);
        let step_us = random.spread(40_000_000);
        // Sometimes the clock has stepped back: then a denial writes as well.
        let now_us = match random.one_in(6) {
            true => memory.now_us() - 3_600_000_000,
            false => memory.now_us() + step_us,
        };
        let transactions = storm(rules, &mut random);
        let expected: Vec<TransactionReply> = memory.at(now_us).decide_all(&transactions);
        single.at(now_us);
        let one_by_one =
            transactions.iter().flat_map(|one| single.decide_all(std::slice::from_ref(one)));
        let one_by_one: Vec<TransactionReply> = one_by_one.collect();
        let in_slices = sliced.at(now_us).decide_all(&transactions);
        let before = script_calls(&queue);
        let at_once =
            queue.at(now_us).decide_at_once(&transactions).into_iter().map(Result::unwrap);
        let at_once: Vec<TransactionReply> = at_once.collect();
        calls += script_calls(&queue) - before;
        for (place, mut expected) in expected.into_iter().enumerate() {
            forget_receipts(&mut expected);
            for (how, reply) in
                [("one by one", &one_by_one), ("in slices", &in_slices), ("coalesced", &at_once)]
            {
                let mut reply = reply[place].clone();
                forget_receipts(&mut reply);
                assert_eq!(
                    reply, expected,
                    "storm {seed}, {place} {how}: {:#?}",
                    transactions[place]
                );
            }
            if expected.allowed { allowed += 1 } else { denied += 1 }
        }
        let left = single.stored();
        assert_eq!(sliced.stored(), left, "storm {seed}: state after the batches of one caller");
        assert_eq!(queue.stored(), left, "storm {seed}: state after coalesced batches");
    }
    println!("{allowed} allowed, {denied} denied, {calls} calls when coalesced");
    assert!(allowed > STORMS * 10 && denied > STORMS * 10);
}

/// Four thousand callers are thirty calls of 128 counters, unless equal decisions are coalesced. The server
/// is stopped until all callers are waiting.
#[test]
fn four_thousand_callers_at_ten_keys_take_at_most_eight_calls() {
    let world = World::queue();
    let server = world.server.as_ref().unwrap();
    let wide: &'static NamedLimit = Box::leak(Box::new(limit(Algorithm::TokenBucket, 390, AGES)));
    world.check(100, wide, 1);
    let before = script_calls(&world);
    server.pause();
    let reply = world.run(async {
        let mut callers = JoinSet::new();
        for subject in 0..4_000 {
            let engine = world.engine.clone();
            let one = async move {
                engine.decide_one(&transaction(Intent::Charge, &[(subject % 10, wide, 1)])).await
            };
            callers.spawn(one);
        }
        for _ in 0..1_000 {
            tokio::task::yield_now().await;
        }
        server.resume();
        callers.join_all().await
    });
    let calls = script_calls(&world) - before;
    let allowed = reply.into_iter().filter(|reply| reply.as_ref().unwrap().allowed).count();
    assert_eq!(allowed, 3_900);
    assert!(calls <= 8, "{calls} calls for 4,000 decisions over ten keys");
}

/// Some hundred decisions, most of them equal: a few subjects, some of which are checked all the time.
fn storm(rules: &[Vec<NamedLimit>], random: &mut Random) -> Vec<Transaction> {
    let coalesced = 1 + random.spread(250);
    let variety = 1 + random.below(4);
    (0..coalesced).map(|_| one(rules, variety, random)).collect()
}

fn one(rules: &[Vec<NamedLimit>], variety: u64, random: &mut Random) -> Transaction {
    let intent = if random.one_in(40) { Intent::Peek } else { Intent::Charge };
    let rule =
        random.below(variety).max(random.below(rules.len() as u64) * u64::from(random.one_in(8)));
    let (user, cost) = (random.below(2), if random.one_in(10) { random.below(4) } else { 1 });
    let mut transaction =
        Transaction { intent, record: RecordAction::None, charges: Default::default() };
    // The rule's numbers change sometimes.
    let variant = usize::from(random.one_in(60));
    let matched = [(rule, 0), ((rule + 1) % rules.len() as u64, 1)];
    let shadowed = 1 + usize::from(rule % 3 == 2);
    for (rule, group) in matched.into_iter().take(shadowed) {
        let key = subject(u128::from(rule) << 8 | u128::from(user));
        let limits = &rules[rule as usize];
        let half = limits.len() / 2;
        for limit in &limits[variant * half..(variant + 1) * half] {
            // A limit in another unit.
            let cost = if limit.limit().unit() == "tokens" { cost.saturating_sub(1) } else { cost };
            let counter = PlannedCharge::new(key, limit.clone());
            transaction.charges.push(PlannedCharge { cost, group, attributes: 1, ..counter });
        }
    }
    transaction
}

/// Each rule's limits, and the same limits with other numbers.
fn rules() -> Vec<Vec<NamedLimit>> {
    let limits: [&[&str]; 10] = [
        &["40/minute", "60/minute"],
        &["7/30s", "9/minute"],
        &["20/minute", "90/hour", "7/30s", "25/minute", "80/hour", "8/30s"],
        &["sliding-log:30/minute", "sliding-log:25/minute"],
        &["sliding-window:25/minute", "sliding-window:30/90s"],
        &["fixed-window:35/minute", "fixed-window:30/90s"],
        &["tokens:30/minute", "sliding-log:20/90s", "tokens:40/minute", "sliding-log:22/90s"],
        &["fixed-window:50/day", "70000/hour", "fixed-window:45/day", "1000000/hour"],
        &["40/7m", "60/7m"],
        &["300/hour", "40/7m", "20/minute", "70001/hour", "45/7m", "25/minute"],
    ];
    limits
        .iter()
        .map(|limits| {
            let half = limits.len() / 2;
            limits.iter().enumerate().map(|(place, text)| named(text, place % half)).collect()
        })
        .collect()
}

fn named(text: &str, place: usize) -> NamedLimit {
    let spec = match text.split_once(':') {
        Some(("tokens", quota)) => {
            LimitSpec { unit: Some("tokens".into()), ..LimitSpec::new(quota) }
        }
        Some((algorithm, quota)) => LimitSpec::new(quota).algorithm(algorithm),
        None => LimitSpec::new(text),
    };
    NamedLimit::new(spec.build().unwrap(), place)
}

/// Returns how often the script ran.
fn script_calls(world: &World) -> u64 {
    world.server.as_ref().unwrap().decisions()
}

/// Permits have random names, so this test compares names instead of stored bytes.
#[test]
fn permits_are_never_coalesced() {
    let world = World::queue();
    let permits: &'static NamedLimit =
        Box::leak(Box::new(NamedLimit::new(Limit::concurrent(30, Duration::from_secs(600)), 0)));
    let reply = world.decide_at_once(&vec![transaction(Intent::Charge, &[(1, permits, 1)]); 50]);
    let mut names: Vec<_> =
        reply.into_iter().filter_map(|reply| reply.unwrap().replies[0].charge).collect();
    names.sort_unstable_by_key(|charge| (charge.incarnation, charge.mark));
    names.dedup();
    assert_eq!(names.len(), 30, "each permit has a name of its own");
    assert!(!keys(world.server.as_ref().unwrap()).is_empty());
}

const STORMS: u64 = 24;
