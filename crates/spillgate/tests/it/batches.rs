//! Several decisions in one call, each over several counters: memory and Redis return the same replies.
//!
//! Most decisions are over token buckets in their usual state, which the script decides by its fast path. The
//! others lie between them and continue from the same state.

use std::time::Duration;

use futures_util::future::join_all;
use spillgate::reservation::{EndResult, Reserve, Usage};
use spillgate::{Algorithm, Limit, LimitSpec, Limiter, Request};
use spillgate_core::algorithm::Intent;
use spillgate_core::counter::PlannedCharge;
use spillgate_core::limit::NamedLimit;
use spillgate_core::plan::{RecordAction, Transaction, TransactionReply};
use spillgate_testkit::{RedisServer, Reply};

use crate::support::random::Random;
use crate::support::world::{self, World, limit, subject};

#[test]
fn memory_and_redis_return_equal_replies_for_batches() {
    let rules = rules();
    for version in RedisServer::versions() {
        let server = RedisServer::start_with(&version.path, &[]);
        let (memory, redis) = (World::in_memory(100_000), World::on_redis(server));
        for seed in 0..CALLS {
            let mut random = Random::new(seed);
            let step_us = random.spread(60_000_000);
            let transactions = transactions(&rules, &mut random);
            let reply = [&memory, &redis].map(|world| {
                let mut reply = world.after(step_us).decide_all(&transactions);
                reply.iter_mut().for_each(forget_receipts);
                reply
            });
            assert_eq!(reply[0], reply[1], "{}, call {seed}: {transactions:#?}", version.name);
        }
    }
}

/// Of the installed servers Valkey 9.1 has the command.
#[tokio::test]
async fn a_batch_writes_values_of_one_life_together_where_the_server_and_its_user_can() {
    for version in RedisServer::versions() {
        let server = RedisServer::start_with(&version.path, &[]);
        let has = matches!(
            server.command(&["COMMAND", "INFO", "msetex"]),
            Reply::Array(found) if found.iter().any(|one| *one != Reply::Nil)
        );
        let rules = spillgate::store::acl_rules();
        let rules: Vec<&str> = rules.split(' ').collect();
        let printed_user = server.url_of_user("spillgate", "secret", &rules);
        for (url, may) in [(server.url(), true), (printed_user, false)] {
            let builder = Limiter::builder().redis(url).timeout(PATIENCE);
            let limiter = builder.build().await.unwrap();
            let limits = [Limit::per_hour(5), Limit::per_day(5)];
            let keys: Vec<String> = (0..100).map(|key| format!("{may}:{key}")).collect();
            let keyed = |(key, limit)| Request::keyed(key, limit);
            let requests: Vec<_> = keys.iter().zip(limits.iter().cycle()).map(keyed).collect();
            for remaining in [4, 3] {
                server.command(&["CONFIG", "RESETSTAT"]);
                let decisions = limiter.check_batch(&requests).await;
                assert!(decisions.iter().all(|one| one.remaining() == Some(remaining)));
                let [together, alone] = ["msetex", "set"].map(|command| server.calls_of(command));
                let expected = if has && may { (2, false) } else { (0, true) };
                // A heartbeat sets a key too.
                assert_eq!((together, alone >= 100), expected, "{}, {may}", version.name);
            }
        }
        let lives = world::keys(&server).into_iter().filter_map(|key| {
            match server.command(&["PTTL", &key]) {
                Reply::Integer(ms @ 1..) if key.contains('{') => Some(ms),
                _ => None,
            }
        });
        let lives: Vec<i64> = lives.collect();
        let hours = lives.iter().filter(|ms| (600_000..=3_600_000).contains(*ms)).count();
        let days = lives.iter().filter(|ms| (14_400_000..=86_400_000).contains(*ms)).count();
        assert_eq!((hours, days), (100, 100), "{}: {lives:?}", version.name);
    }
}

/// The end of a record writes it again, with the life that it had.
#[tokio::test]
async fn the_reservations_of_a_batch_are_written_together_and_live_for_an_hour_after_their_end() {
    for version in RedisServer::versions() {
        let server = RedisServer::start_with(&version.path, &[]);
        let known = server.command(&["COMMAND", "INFO", "msetex"]);
        let has =
            matches!(known, Reply::Array(found) if found.iter().any(|one| *one != Reply::Nil));
        let limiter =
            Limiter::builder().redis(server.url()).timeout(PATIENCE).build().await.unwrap();
        let lives = || {
            let keys = world::keys(&server).into_iter().filter(|key| key.contains("}:r:"));
            let lives = keys.map(|key| server.command(&["PTTL", &key]).integer());
            lives.filter(|ms| (3_600_000..=3_960_000).contains(ms)).count()
        };
        server.command(&["CONFIG", "RESETSTAT"]);
        let reserve = |key| {
            let request = Request::keyed(format!("{key}"), Limit::per_hour(5)).costing(2);
            let limiter = limiter.clone();
            async move { limiter.reserve(&request, &Reserve::default()).await.unwrap() }
        };
        let reserved = join_all((0..100).map(reserve)).await;
        let receipts = reserved.iter().map(|decision| decision.receipt().unwrap());
        assert_eq!(lives(), 100, "{}", version.name);
        let usage = Usage::from(1);
        for settled in join_all(receipts.map(|receipt| limiter.settle(receipt, &usage))).await {
            assert_eq!(settled, Ok(EndResult::Done), "{}", version.name);
        }
        assert_eq!(lives(), 100, "{}", version.name);
        // Each of the 200 calls writes two values. The first of them are sent alone.
        let alone = server.calls_of("set");
        assert_eq!(alone < 100, has, "{}: {alone}", version.name);
    }
}

/// A refund without a receipt lowers the holds of the set until the record counts few enough. If the two disagree, as after
/// a change by hand, it searched the set for ever.
#[test]
fn a_refund_ends_although_the_record_counts_more_than_the_set_holds() {
    let redis = World::on_redis(RedisServer::start());
    let (limit, server) = (limit(Algorithm::Concurrency, 9, "1m"), redis.server.as_ref().unwrap());
    redis.check(1, &limit, 3);
    let kind = |key: &&String| server.command(&["TYPE", key.as_str()]).text() == "zset";
    let stored = world::keys(server);
    let key = stored.iter().find(kind).unwrap();
    // The hold's weight has the lowest score. Another hold is not in the record.
    server.command(&["ZPOPMIN", key]);
    server.command(&["ZADD", key, "9e15", "another"]);
    assert_eq!(redis.lower(1, &limit, 2), 1);
    assert!(redis.check(1, &limit, 1).fits);
}

/// Each rule with the limits that its subjects meet together. Periods are long enough that the store, which
/// forgets by its own clock, forgets nothing during the test.
pub(crate) fn rules() -> Vec<Vec<NamedLimit>> {
    [
        &["10/minute"][..],
        &["10/minute", "30/hour", "7/30s"],
        &["100/hour", "5/30s"],
        &["20/minute", "sliding-window:9/minute"],
        &["fixed-window:8/minute"],
        &["10/3m"],
        &["300/hour", "70000/hour", "7/30s"],
    ]
    .iter()
    .map(|limits| limits.iter().zip(0..).map(|(limit, place)| named(limit, place)).collect())
    .collect()
}

fn named(text: &str, place: usize) -> NamedLimit {
    let spec = match text.split_once(':') {
        Some((algorithm, quota)) => LimitSpec::new(quota).algorithm(algorithm),
        None => LimitSpec::new(text),
    };
    NamedLimit::new(spec.build().unwrap(), place)
}

pub(crate) fn transactions(rules: &[Vec<NamedLimit>], random: &mut Random) -> Vec<Transaction> {
    (0..=random.below(6)).map(|_| transaction(rules, random)).collect()
}

/// One to three rules, each with one of a few subjects. One in eight decisions peeks, reserves or has a
/// shadow.
fn transaction(rules: &[Vec<NamedLimit>], random: &mut Random) -> Transaction {
    let intent = match random.below(24) {
        0 => Intent::Peek,
        1 => Intent::Reserve { nonce: 1 + random.below(1 << 40) },
        _ => Intent::Charge,
    };
    let usual = if random.one_in(4) { rules.len() } else { USUAL };
    let cost = random.below(4);
    let shadow = random.one_in(12);
    let mut matched: Vec<usize> =
        (0..=random.below(3)).map(|_| random.below(usual as u64) as usize).collect();
    matched.sort_unstable();
    matched.dedup();
    let mut transaction =
        Transaction { intent, record: RecordAction::None, charges: Default::default() };
    for (place, rule) in matched.iter().enumerate() {
        let key = subject((*rule as u128) << 8 | u128::from(random.below(3)));
        let group = if shadow { place as u16 } else { 0 };
        for limit in &rules[*rule] {
            // A limit in another unit is charged nothing.
            let cost = if random.one_in(16) { 0 } else { cost };
            let counter = PlannedCharge::new(key, limit.clone());
            transaction.charges.push(PlannedCharge { cost, group, attributes: 1, ..counter });
        }
    }
    transaction
}

/// Receipts are named by the store that gave them.
pub(crate) fn forget_receipts(reply: &mut TransactionReply) {
    reply.replies.iter_mut().for_each(|counter| counter.charge = None);
}

const CALLS: u64 = 3_000;
const PATIENCE: Duration = Duration::from_secs(10);
/// This many of the rules have buckets alone.
const USUAL: usize = 3;
