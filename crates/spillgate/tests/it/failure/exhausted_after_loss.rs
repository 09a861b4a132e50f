//! `on_state_loss = "exhausted"`: after a loss, a subject without state has exhausted every limit at that
//! moment.

use std::time::Duration;

use spillgate::store::OnStateLoss;
use spillgate::{Algorithm, Limit, Limiter, LimiterBuilder};
use spillgate_core::limit::NamedLimit;
use spillgate_redis::store::{Store, StoreOptions};
use spillgate_testkit::{RedisServer, eventually};

use super::{ALL, Patient, SHARE, TIMEOUT, limit};
use crate::support::random::Random;
use crate::support::target::{Act, OnEngine, Target, params};
use crate::support::world::{self, PATIENCE, PERIOD, PERIOD_US};

/// F28, F3. An operator flushes all keys at half use: no subject is admitted again.
#[test]
fn a_flush_gives_no_second_quota_when_limits_begin_exhausted() {
    let server = RedisServer::start();
    let patient = beginning_exhausted(|it| it.redis(server.url()));
    let before = patient.admitted(ALL as usize / 2, "me", &limit());
    assert_eq!(before, ALL / 2);
    server.command(&["FLUSHALL"]);
    assert_eq!(patient.admitted(ALL as usize, "me", &limit()), 0);
    assert_eq!(patient.admitted(ALL as usize, "another", &limit()), 0);
    eventually(|| patient.limiter.stats().state_losses == 1);
}

/// F3, F4. Nor does a restart, except for this process's local share.
#[test]
fn an_empty_restart_gives_no_second_quota_when_limits_begin_exhausted() {
    let mut server = RedisServer::start();
    let patient = beginning_exhausted(|it| it.redis(server.url()));
    let before = patient.admitted(ALL as usize / 2, "me", &limit());
    server.restart();
    let mut after = patient.admitted(2 * SHARE as usize, "me", &limit());
    eventually(|| patient.limiter.stats().state_losses == 1);
    after += patient.admitted(ALL as usize, "me", &limit());
    println!("{before} before, {after} after");
    assert!(after <= SHARE, "{before} before, {after} after");
}

/// The exhausted time ends: as long after the loss as the limit's longest wait.
#[test]
fn a_limit_that_began_exhausted_works_again_after_its_longest_wait() {
    let server = RedisServer::start();
    let patient = beginning_exhausted(|it| it.redis(server.url()));
    let wide = Duration::from_secs(2);
    for algorithm in [Limit::per(5, wide), Limit::concurrent(5, wide)] {
        server.command(&["FLUSHALL"]);
        let key = format!("{algorithm}");
        eventually(|| patient.admitted(1, &key, &algorithm) == 1);
        assert!(patient.admitted(20, &key, &algorithm) < 20);
    }
}

/// On a ring each node has a loss of its own.
#[test]
fn a_ring_begins_exhausted_only_at_the_flushed_node() {
    let servers: Vec<_> = (0..3).map(|_| RedisServer::start()).collect();
    let patient = beginning_exhausted(|it| it.ring(world::ring_of(&servers)));
    let once = Limit::per(1, Duration::from_secs(86_400));
    // A check of a subject at each node makes the node's guard known.
    (0..30).for_each(|user| drop(patient.check(&format!("early {user}"), &once)));
    servers[0].command(&["FLUSHALL"]);
    let admitted: usize =
        (0..60).map(|user| patient.admitted(3, &format!("user {user}"), &once) as usize).sum();
    assert!((24..=52).contains(&admitted), "{admitted} of 60 live on two of three nodes");
}

/// A process that starts anew knows of no loss; the processes that knew the old state date it.
#[test]
fn a_loss_first_seen_by_a_new_process_is_dated_by_processes_that_knew_the_old_state() {
    let server = RedisServer::start();
    let patient = beginning_exhausted(|it| it.redis(server.url()));
    server.command(&["DEL", GUARD]);
    server.command(&["SET", GUARD, "abc.0"]);
    let guard = || server.command(&["GET", GUARD]).text().to_owned();
    eventually(|| guard() != "abc.0");
    assert!(guard().starts_with("abc.1"), "{}", guard());
    let dated = guard();
    assert_eq!(patient.admitted(10, "me", &limit()), 0);
    let newcomer = beginning_exhausted(|it| it.redis(server.url()));
    assert_eq!(newcomer.admitted(10, "me", &limit()), 0);
    assert_eq!(guard(), dated, "the loss is dated once");
}

#[test]
fn a_cluster_rejects_beginning_exhausted() {
    let builder = Limiter::builder().cluster(["redis://127.0.0.1:1"]);
    let runtime = world::runtime();
    let rejected = runtime.block_on(builder.on_state_loss(OnStateLoss::Exhausted).build());
    let why = rejected.unwrap_err().to_string();
    assert!(why.starts_with("on_state_loss: \"exhausted\" cannot hold on a Cluster"), "{why}");
}

/// For the script, a lost counter equals a counter in the memory engine that was exhausted at the moment of
/// the loss. Every answer is equal, from the loss until long after.
#[test]
fn a_lost_counter_answers_as_one_exhausted_at_that_moment() {
    let server = RedisServer::start();
    let store = Store::Url(server.url());
    for algorithm in Algorithm::ALL {
        for (seed, count) in (0..8).flat_map(|seed| [(seed, 1), (seed, 7), (seed, 10_000)]) {
            let limit = world::limit(algorithm, count, PERIOD);
            server.command(&["FLUSHALL"]);
            server.command(&["SET", GUARD, &format!("abc.{LOST_US}")]);
            let options = StoreOptions {
                on_state_loss: OnStateLoss::Exhausted,
                ..StoreOptions::new(PATIENCE)
            };
            let mut redis = OnEngine::opened(&store, &options, world::subject(1));
            let mut memory = OnEngine::memory(world::subject(1));
            memory.act(Act::Check(count), &limit, LOST_US);
            same_answers(&mut memory, &mut redis, &limit, seed);
        }
    }
}

fn same_answers(memory: &mut OnEngine, redis: &mut OnEngine, limit: &NamedLimit, seed: u64) {
    let mut random = Random::new(seed);
    let capacity = params(limit).capacity();
    let mut now_us = LOST_US;
    for number in 0..40 {
        now_us += random.below(PERIOD_US / 8);
        let cost = random.spread(capacity);
        let act = match random.below(8) {
            0 => Act::Peek(cost),
            1 => Act::Force(cost),
            2 => Act::Lower(1 << 40),
            3 => Act::Reserve(cost.max(1)),
            4 => Act::Refund { receipt: random.next() >> 1, unused: cost },
            _ => Act::Check(cost),
        };
        let (expected, answer) = (memory.act(act, limit, now_us), redis.act(act, limit, now_us));
        // A refund without a receipt does not outlive the loss: see `OnStateLoss::Exhausted`.
        if matches!(act, Act::Lower(_)) {
            return assert_eq!(answer.returned, expected.returned);
        }
        assert_eq!(
            answer,
            expected,
            "seed {seed}, act {number}: {act:?} on {} at {now_us}",
            limit.limit()
        );
    }
}

fn beginning_exhausted(on: impl FnOnce(LimiterBuilder) -> LimiterBuilder) -> Patient {
    let builder = on(Limiter::builder()).timeout(10 * TIMEOUT);
    let patient = Patient::built(builder.on_state_loss(OnStateLoss::Exhausted));
    patient.heals();
    patient
}

const GUARD: &str = "sg1:{control}:epoch";
/// In the past of any clock, in the middle of a window of `PERIOD`.
const LOST_US: u64 = 1_700_000_123_456_789;
