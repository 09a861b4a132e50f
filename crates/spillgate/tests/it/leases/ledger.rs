//! The ledger in a real Redis gives the same answers as the pure ledger, for all sequences of calls to it and
//! to its counter.

use spillgate::Algorithm;
use spillgate_core::algorithm::{self, Intent, State};
use spillgate_core::limit::NamedLimit;
use spillgate_redis::lease::{ALL, Close, Exchange, Granted};
use spillgate_testkit::RedisServer;

use super::pure_ledger::Ledger;
use crate::support::engine::Engine;
use crate::support::random::Random;
use crate::support::step::{StepCounter, step};
use crate::support::target::params;
use crate::support::world::{ME, PERIOD_US, TODAY_US, World, keys, limit, transaction};

#[test]
fn random_exchanges_equal_the_pure_ledger() {
    let world = World::on_redis(RedisServer::start());
    let mut granted = 0;
    for algorithm in LEASED {
        for seed in 0..SEEDS {
            let scene = Scene::new(&world, algorithm, u128::from(seed), 100);
            granted += scene.play(seed);
        }
    }
    assert!(granted > 500, "only {granted} tokens were ever granted");
}

#[test]
fn a_repeated_call_is_granted_once() {
    for algorithm in LEASED {
        let world = World::on_redis(RedisServer::start());
        let scene = Scene::new(&world, algorithm, ME, 100);
        let first = scene.exchange(1, 1, &[], 10);
        assert_eq!((first.amount, first.reading.remaining), (5, 95), "half of the share");
        assert_eq!(scene.exchange(1, 1, &[], 10), first);
        let closed = scene.exchange(1, 2, &[Close { seq: 1, unused: 3 }], 0);
        assert_eq!((closed.amount, closed.reading.remaining), (0, 98));
        let again = scene.exchange(1, 2, &[Close { seq: 1, unused: 3 }], 0);
        assert_eq!(again.reading.remaining, 98, "returned once");
        assert_eq!(scene.exchange(1, 1, &[], 10).amount, 0, "the sequence number has been closed");
    }
}

#[test]
fn all_processes_together_hold_at_most_the_share() {
    let world = World::on_redis(RedisServer::start());
    let scene = Scene::new(&world, Algorithm::TokenBucket, ME, 1_000);
    let each = (1..=200).map(|node| scene.exchange(node, 1, &[], 1_000).amount);
    let each: Vec<u64> = each.collect();
    assert_eq!(each[..4], [50, 25, 13, 6]);
    assert_eq!(each.iter().sum::<u64>(), 100);
    // A dead process's lease is free for others once its row has ended; charges drain.
    world.after(2 * TTL_US);
    let later = scene.exchange(1_000, 1, &[], 1_000);
    assert_eq!((later.amount, later.reading.remaining), (50, 950));
}

#[test]
fn a_counter_near_exhaustion_is_not_leased() {
    let world = World::on_redis(RedisServer::start());
    let scene = Scene::new(&world, Algorithm::TokenBucket, ME, 100);
    assert!(world.check(ME, &scene.limit, 91).fits);
    assert_eq!(scene.exchange(1, 1, &[], 10).amount, 0);
    assert!(keys(world.server.as_ref().unwrap()).len() == 1, "nothing is written");
}

#[test]
fn a_lease_on_a_window_ends_with_it() {
    let world = World::on_redis(RedisServer::start());
    let scene = Scene::new(&world, Algorithm::FixedWindow, ME, 100);
    world.at(TODAY_US + PERIOD_US - 5_000_000);
    assert_eq!(scene.exchange(1, 1, &[], 10).lasts_us, 5_000_000);
    world.at(TODAY_US + PERIOD_US - 999);
    assert_eq!(scene.exchange(2, 1, &[], 10).amount, 0, "too short for a lease");
}

#[test]
fn a_counter_keeps_at_most_a_thousand_leases() {
    let world = World::on_redis(RedisServer::start());
    let limit = limit(Algorithm::TokenBucket, 1_000_000_000, "1000s");
    let scene =
        Scene { limit, share: 1_000_000_000, ..Scene::new(&world, Algorithm::TokenBucket, ME, 1) };
    let granted = (1..=1_030).filter(|node| scene.exchange(*node, 1, &[], 1).amount == 1).count();
    assert_eq!(granted, 1_024);
}

/// One counter, and the instances that lease from it.
struct Scene<'w> {
    world: &'w World,
    subject: u128,
    limit: NamedLimit,
    share: u64,
}

impl<'w> Scene<'w> {
    fn new(world: &'w World, algorithm: Algorithm, subject: u128, count: u64) -> Scene<'w> {
        let subject = subject + 1_000 * algorithm as u128;
        Scene { world, subject, limit: limit(algorithm, count, "1000s"), share: count / 10 }
    }

    fn exchange(&self, node: u64, seq: u32, closes: &[Close], wanted: u64) -> Granted {
        self.exchange_call(&self.call(node, seq, closes, wanted))
    }

    fn call(&self, node: u64, seq: u32, closes: &[Close], wanted: u64) -> Exchange {
        let transaction = transaction(Intent::Peek, &[(self.subject, &self.limit, 0)]);
        let (counter, share) = (transaction.charges[0].clone(), self.share);
        Exchange { counter, node, seq, closes: closes.into(), share, wanted, ttl_us: TTL_US }
    }

    fn exchange_call(&self, call: &Exchange) -> Granted {
        let Engine::Redis(redis) = &*self.world.engine else { panic!("leases are on Redis") };
        let granted = self.world.run(redis.lease(call)).unwrap();
        // The lease ends by the test's clock, not by the server's.
        let server = self.world.server.as_ref().unwrap();
        for ledger in keys(server).iter().filter(|key| key.contains(":e:")) {
            server.command(&["PERSIST", ledger]);
        }
        granted
    }

    /// Makes random calls of several instances, with checks in between. Returns how much was granted.
    fn play(&self, seed: u64) -> u64 {
        self.world.server.as_ref().unwrap().command(&["FLUSHALL"]);
        let mut random = Random::new(seed);
        self.world.at(TODAY_US + random.below(PERIOD_US));
        let (mut ledger, mut state, mut all) = (Ledger::default(), None, 0);
        let mut last = [0_u32; NODES];
        for step in 0..STEPS {
            let now_us = match random.below(12) {
                0 => self.world.after(random.spread(PERIOD_US / 2)).now_us(),
                1 => self.world.at(self.world.now_us() - random.spread(2 * TTL_US)).now_us(),
                _ => self.world.after(random.spread(TTL_US / 2)).now_us(),
            };
            let shown = || format!("{} seed {seed}, step {step}", self.limit.algorithm());
            if random.one_in(3) {
                let cost = 1 + random.spread(self.share);
                let reply = self.world.check(self.subject, &self.limit, cost);
                let reading = charged(&mut state, &self.limit, cost, now_us);
                assert_eq!((reply.fits, reply.reading), reading, "{}", shown());
                continue;
            }
            let node = random.below(NODES as u64) as usize;
            let seq = match random.below(8) {
                0 => last[node].max(1),
                1 => 1 + random.below(u64::from(last[node]) + 1) as u32,
                _ => last[node] + 1,
            };
            last[node] = last[node].max(seq);
            let closes: Vec<Close> = (0..random.below(4))
                .map(|back| Close {
                    seq: seq.saturating_sub(back as u32),
                    unused: if random.one_in(4) { ALL } else { random.spread(self.share) },
                })
                .filter(|close| close.seq != seq)
                .collect();
            let call = self.call(node as u64 + 1, seq, &closes, random.spread(self.share));
            let expected = ledger.exchange(&mut state, &call, now_us, 1 + step);
            assert_eq!(self.exchange_call(&call), expected, "{}: {call:?}", shown());
            assert!(ledger.outstanding() <= self.share, "{}", shown());
            all += expected.amount;
        }
        all
    }
}

fn charged(
    state: &mut Option<State>,
    limit: &NamedLimit,
    cost: u64,
    now_us: u64,
) -> (bool, algorithm::Reading) {
    let mut counter = StepCounter::new(params(limit), cost, state.take());
    let fits = step(std::slice::from_mut(&mut counter), Intent::Charge, now_us);
    *state = counter.state;
    (fits, counter.reading)
}

const LEASED: [Algorithm; 3] =
    [Algorithm::TokenBucket, Algorithm::FixedWindow, Algorithm::SlidingWindow];
/// Longer than a scene takes, because keys expire by the server's own clock.
const TTL_US: u64 = 60_000_000;
const SEEDS: u64 = 12;
const STEPS: u64 = 150;
const NODES: usize = 4;
