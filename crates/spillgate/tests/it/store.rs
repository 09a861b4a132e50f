//! State in Redis: a denial changes no byte, and every key lives as long as its state matters and little
//! longer.

use std::collections::{BTreeMap, BTreeSet};

use spillgate::Algorithm;
use spillgate_core::algorithm::{Intent, State};
use spillgate_core::limit::NamedLimit;
use spillgate_core::plan::Transaction;
use spillgate_testkit::RedisServer;

use crate::support::random::Random;
use crate::support::step::{StepCounter, step};
use crate::support::target::params;
use crate::support::world::{
    ME, PERIOD, PERIOD_US, World, each_algorithm, keys, limit, transaction,
};

/// ACCIDENTS 17, 8, 9. Counters leaked when one of them denied, and denials were written.
#[test]
fn a_denial_changes_no_byte_of_any_counter_except_a_re_base() {
    let mut tally = Tally::default();
    for seed in 0..3 {
        let mut store = Mirrored::new(seed);
        for _ in 0..300 {
            let costs = store.random_costs();
            let before = store.world.stored();
            let (allowed, rebased) = store.decide(&costs);
            let after = store.world.stored();
            match (allowed, rebased) {
                (true, _) => tally.allowed += 1,
                (false, true) => tally.rebased += 1,
                (false, false) => {
                    tally.denied += 1;
                    assert_eq!(after, before, "seed {seed}: {costs:?}");
                }
            }
        }
    }
    println!("{tally:?}");
    // Otherwise this test covers too little.
    assert!(tally.allowed > 100 && tally.denied > 100 && tally.rebased > 10, "{tally:?}");
}

/// The same for single buckets with periods that the script has built in: these take the fast path.
#[test]
fn a_denial_of_single_buckets_changes_no_byte() {
    let world = World::on_redis(RedisServer::start());
    let limits = [
        (5, "1s"),
        (7, "60s"),
        (60, "60s"),
        (1_000, "3600s"),
        (3, "86400s"),
        (5, "7s"),
        (100_000, "3600s"),
    ];
    let limits = limits.map(|(count, period)| limit(Algorithm::TokenBucket, count, period));
    for (subject, limit) in (1..).zip(&limits) {
        let capacity = limit.params().unwrap().capacity();
        assert!(world.check(subject, limit, capacity).fits);
    }
    let before = world.after(1_000).stored();
    let transactions: Vec<Transaction> = (1..)
        .zip(&limits)
        .flat_map(|(subject, limit)| {
            [1, 2].map(|cost| transaction(Intent::Charge, &[(subject, limit, cost)]))
        })
        .collect();
    for reply in world.decide_all(&transactions) {
        assert!(!reply.allowed, "{reply:?}");
    }
    for (transaction, subject) in transactions.iter().zip(1..) {
        assert!(!world.decide_all(std::slice::from_ref(transaction))[0].allowed, "{subject}");
    }
    assert_eq!(world.stored(), before);
}

/// ACCIDENTS 22. The TTL was shorter than the state's life, and limits were forgotten; or far longer, and the
/// store filled with obsolete keys.
#[test]
fn a_key_lives_until_its_state_is_irrelevant_and_at_most_a_tenth_longer() {
    for seed in 10..13 {
        let mut store = Mirrored::new(seed);
        let mut seen = BTreeSet::new();
        for _ in 0..300 {
            let costs = store.random_costs();
            store.decide(&costs);
            for (key, until_us) in store.written_keys() {
                let ttl_ms = store.ttl_ms(&key);
                let until_ms = until_us.div_ceil(1_000) as i64;
                let most_ms = until_ms + (until_ms / 10).max(1_000);
                // A log of one instant has no ring, and a ring that is not used any more expires by itself. If one
                // expired too early, decisions would differ.
                let least_ms = if key.contains(":l") { GONE_MS } else { until_ms };
                assert!(
                    (least_ms..=most_ms).contains(&ttl_ms),
                    "seed {seed}: {key} lives {ttl_ms} ms and matters for {until_ms} ms: {costs:?}"
                );
                seen.insert(key);
            }
        }
        // Each subject's value, and the keys of its logs and permits.
        assert!(seen.len() >= 3 * SUBJECTS, "{seen:?}");
    }
}

/// The same for a bucket that is charged by itself, which has a path of its own through the script.
#[test]
fn the_key_of_a_single_bucket_lives_as_long() {
    let world = World::on_redis(RedisServer::start());
    let server = world.server.as_ref().unwrap();
    let mut known: BTreeSet<String> = keys(server).into_iter().collect();
    for (subject, (count, period, cost)) in (0..).zip([
        (100, "1s", 1),
        (100, "1s", 100),
        (5, "1m", 2),
        (1_000, "1d", 900),
        (5, "7s", 4),
        (100_000, "1h", 70_000),
    ]) {
        let limit = limit(Algorithm::TokenBucket, count, period);
        let reply = world.check(subject, &limit, cost);
        assert!(reply.fits, "{count} each {period}");
        let until_ms = reply.reading.reset_after_us.div_ceil(1_000) as i64;
        let key = keys(server).into_iter().find(|key| known.insert(key.clone())).unwrap();
        let ttl_ms = server.command(&["PTTL", &key]).integer();
        let most_ms = until_ms + (until_ms / 10).max(1_000);
        assert!((until_ms..=most_ms).contains(&ttl_ms), "{count} each {period}: {ttl_ms} ms");
    }
}

/// ACCIDENTS 17, a variant. All small states of a subject stand in one value, and a charge to one of them
/// wrote the value without the others.
#[test]
fn a_charge_to_one_limit_keeps_the_state_of_its_neighbours() {
    let world = World::on_redis(RedisServer::start());
    let limits: Vec<NamedLimit> = (0..3).flat_map(neighbours).collect();
    let mut remaining = vec![100; limits.len()];
    for _ in 0..2 {
        for (charged, limit) in limits.iter().enumerate() {
            assert!(world.check(ME, limit, 1).fits);
            remaining[charged] -= 1;
            let left: Vec<u64> = limits.iter().map(|limit| world.remaining(ME, limit)).collect();
            assert_eq!(left, remaining, "after a charge to {} {}", limit.algorithm(), limit.name());
        }
    }
}

/// Returns a limit of each algorithm. They have the same name at the first position, the same at the second,
/// or names of their own.
fn neighbours(kind: usize) -> Vec<NamedLimit> {
    let named = |limit: NamedLimit| match kind {
        2 => NamedLimit::new(limit.limit().clone().named("own"), 0),
        position => NamedLimit::new(limit.limit().clone(), position),
    };
    each_algorithm(100, PERIOD).into_iter().map(named).collect()
}

/// A Redis engine beside the pure algorithms, counter by counter.
struct Mirrored {
    world: World,
    random: Random,
    counters: Vec<MirroredCounter>,
    written: Vec<usize>,
}

struct MirroredCounter {
    subject: u128,
    limit: NamedLimit,
    state: Option<State>,
    /// The keys that hold its state: the shared value, its own key, or both.
    keys: Vec<String>,
}

#[derive(Clone, Copy, Debug)]
struct CounterCost {
    counter: usize,
    cost: u64,
}

#[derive(Debug, Default)]
struct Tally {
    allowed: u32,
    denied: u32,
    rebased: u32,
}

impl Mirrored {
    fn new(seed: u64) -> Mirrored {
        let world = World::on_redis(RedisServer::start());
        let mut counters = Vec::new();
        for subject in 0..SUBJECTS as u128 {
            for (place, (count, period)) in
                [(4, "1000s"), (30, "3600s"), (200, "100s")].into_iter().enumerate()
            {
                counters.extend(Algorithm::ALL.map(|algorithm| {
                    let limit =
                        NamedLimit::new(limit(algorithm, count, period).limit().clone(), place);
                    // Alone on the server it shows its keys. A log has a ring from its second instant on.
                    world.check(subject, &limit, 1);
                    world.after(1).check(subject, &limit, 1);
                    let keys = keys(world.server.as_ref().unwrap());
                    world.reset(subject, std::slice::from_ref(&limit));
                    MirroredCounter { subject, limit, state: None, keys }
                }));
            }
        }
        Mirrored { world, random: Random::new(seed), counters, written: Vec::new() }
    }

    /// Advances to the next instant and chooses a decision for it.
    fn random_costs(&mut self) -> Vec<CounterCost> {
        if self.random.one_in(20) {
            // Beyond the tolerance of any counter, and all of them are charged.
            self.charge_expired_state();
            let back_us = 1_000_001 + self.random.below(PERIOD_US);
            self.step(-(back_us as i64));
            return (0..self.counters.len())
                .map(|counter| CounterCost { counter, cost: 1 })
                .collect();
        }
        if self.random.one_in(2) {
            let step_us = self.random.spread(PERIOD_US / 20);
            self.step(step_us as i64);
        }
        let mut places = BTreeSet::new();
        for _ in 0..=self.random.below(6) {
            places.insert(self.random.below(self.counters.len() as u64) as usize);
        }
        let mut costs: Vec<CounterCost> = Vec::new();
        for counter in places {
            let capacity = self.counters[counter].limit.limit().capacity().unwrap();
            costs.push(CounterCost { counter, cost: 1 + self.random.spread(capacity / 3) });
        }
        costs
    }

    /// Otherwise a step back would bring back state that the store has not deleted yet.
    fn charge_expired_state(&mut self) {
        let now_us = self.world.now_us();
        for counter in &mut self.counters {
            if counter.state.as_ref().is_some_and(|state| state.gone_us() <= now_us) {
                self.world.force(counter.subject, &counter.limit, 1);
                let mut here = StepCounter::new(params(&counter.limit), 1, counter.state.take());
                here.force(now_us);
                counter.state = here.state;
            }
        }
    }

    /// Moves the clock that decides, and Redis's own clock, by which keys expire.
    fn step(&mut self, by_us: i64) {
        self.world.at(self.world.now_us().saturating_add_signed(by_us));
        let by_ms = (by_us / 1_000).to_string();
        self.world.server.as_ref().unwrap().command(&["EVAL", STEP, "0", &by_ms]);
    }

    /// Decides in both. Returns whether the decision was allowed, and whether a denial wrote a re-base.
    fn decide(&mut self, costs: &[CounterCost]) -> (bool, bool) {
        let costs_by_subject: Vec<_> = costs
            .iter()
            .map(|cost| {
                (self.counters[cost.counter].subject, &self.counters[cost.counter].limit, cost.cost)
            })
            .collect();
        let reply = self.world.decide(&costs_by_subject);
        let mut stepped: Vec<StepCounter<'_>> = costs
            .iter()
            .zip(&costs_by_subject)
            .map(|(cost, (_, limit, _))| {
                let state = self.counters[cost.counter].state.clone();
                StepCounter::new(params(limit), cost.cost, state)
            })
            .collect();
        let allowed = step(&mut stepped, Intent::Charge, self.world.now_us());
        assert_eq!(reply.allowed, allowed, "{costs:?}");
        for (reply, stepped) in reply.replies.iter().zip(&stepped) {
            assert_eq!(reply.reading, stepped.reading, "{}: {:?}", stepped.params, stepped.state);
        }
        let after: Vec<_> =
            stepped.into_iter().map(|counter| (counter.state, counter.changed)).collect();
        self.written.clear();
        for (cost, (state, changed)) in costs.iter().zip(after) {
            self.counters[cost.counter].state = state;
            if changed {
                self.written.push(cost.counter);
            }
        }
        (allowed, !allowed && !self.written.is_empty())
    }

    /// Returns the keys that the last decision wrote, and how long their state matters.
    fn written_keys(&self) -> BTreeMap<String, u64> {
        let now_us = self.world.now_us();
        let keys: BTreeSet<&String> =
            self.written.iter().flat_map(|counter| &self.counters[*counter].keys).collect();
        let until = |key: &String| {
            let stored = self.counters.iter().filter(|counter| counter.keys.contains(key));
            let gone = stored.filter_map(|counter| Some(counter.state.as_ref()?.gone_us()));
            gone.max().unwrap_or(0).saturating_sub(now_us)
        };
        keys.into_iter().map(|key| (key.clone(), until(key))).collect()
    }

    fn ttl_ms(&self, key: &str) -> i64 {
        self.world.server.as_ref().unwrap().command(&["PTTL", key]).integer()
    }
}

const SUBJECTS: usize = 3;
/// The TTL of a key that does not exist.
const GONE_MS: i64 = -2;
const STEP: &str = "
for _, key in ipairs(redis.call('KEYS', '*')) do
    redis.call('PEXPIRE', key, redis.call('PTTL', key) - ARGV[1])
end";
