//! If [`Limit::never_refuses_beside`] returns true, the limit denies no call that the other admits. For pairs
//! where the method is exact, a false result means that the limit denies some call.

use spillgate::{Algorithm, Limit, LimitSpec};
use spillgate_core::algorithm::Intent;
use spillgate_core::counter::{ChargeReply, PlannedCharge};
use spillgate_core::limit::NamedLimit;
use spillgate_core::memory::Memory;
use spillgate_core::plan::{RecordAction, Transaction};
use spillgate_core::time::Clock;

use crate::failure::evidence;
use crate::support::random::Random;
use crate::support::target::{params, subject};
use crate::support::world::TODAY_US;

/// Both limits over one subject, as two limits of one rule.
struct Both {
    memory: Memory,
    clock: Clock,
    limits: [NamedLimit; 2],
    now_us: u64,
}

impl Both {
    fn new(this: &Limit, other: &Limit, now_us: u64) -> Both {
        let clock = Clock::given(now_us);
        let memory = Memory::new(1_000, clock.clone());
        let limits = [NamedLimit::new(this.clone(), 0), NamedLimit::new(other.clone(), 1)];
        Both { memory, clock, limits, now_us }
    }

    /// Makes one call that charges both or none. Returns the reply of this limit and of the other.
    fn check(&self, cost: u64, intent: Intent) -> [ChargeReply; 2] {
        self.clock.set(self.now_us);
        let counter =
            |limit| PlannedCharge { cost, attributes: 1, ..PlannedCharge::new(subject(7), limit) };
        let charges = self.limits.iter().map(counter).collect();
        let reply = self.memory.decide::<&NamedLimit>(&Transaction {
            intent,
            record: RecordAction::None,
            charges,
        });
        [reply.replies[0], reply.replies[1]]
    }

    /// Returns whether this limit denies, in a random run, a call that the other has room for.
    fn denies(&mut self, random: &mut Random, steps: u32) -> bool {
        let period_us =
            self.limits.each_ref().map(|limit| params(limit).counting().longest_wait_us());
        for _ in 0..steps {
            let [_, other] = self.check(1, Intent::Peek);
            let cost = match random.below(3) {
                0 => 1,
                1 => other.reading.remaining.max(1),
                _ => 1 + random.below(other.reading.remaining.max(1)),
            };
            // No cost above a capacity reaches an engine.
            let capacity = params(&self.limits[0]).capacity();
            if cost > capacity {
                return true;
            }
            let cost = cost.min(params(&self.limits[1]).capacity());
            let [this, other] = self.check(cost, Intent::Charge);
            if other.fits && !this.fits {
                return true;
            }
            let wait_us = other.reading.retry_after_us.unwrap_or(0);
            let edge_us = *random.pick(&period_us);
            self.now_us += match random.below(8) {
                0 => 0,
                1 => random.spread(2 * edge_us),
                2 => 1,
                // To the last instant of a window, or the first of the next.
                3 => edge_us - self.now_us % edge_us - random.below(2),
                4 => random.below(edge_us),
                _ => wait_us,
            };
        }
        false
    }
}

fn random_limit(random: &mut Random, algorithm: Algorithm) -> Limit {
    let (count, ms) = (1 + random.spread(12), 1 + random.below(12));
    let mut spec = LimitSpec::new(format!("{count}/{ms}ms")).algorithm(algorithm.name());
    if algorithm == Algorithm::TokenBucket && random.one_in(2) {
        spec.burst = Some(1 + random.spread(30));
    }
    if algorithm == Algorithm::FixedWindow && random.one_in(6) {
        spec.quota = format!("{count}/{}", random.pick(&["day", "week", "month"]));
        spec.time_zone = Some((*random.pick(&["UTC", "Europe/Berlin"])).to_owned());
    }
    if algorithm == Algorithm::Concurrency {
        spec.quota = count.to_string();
        spec.max_hold = Some(format!("{ms}ms"));
    }
    spec.build().unwrap()
}

/// Pairs that are often close to the border between the two answers.
fn random_pair(random: &mut Random) -> [Limit; 2] {
    let [this, other] = [0, 1].map(|_| *random.pick(&Algorithm::ALL));
    let other = random_limit(random, other);
    loop {
        let close = random_limit(random, this);
        if close.never_refuses_beside(&other) || random.one_in(40) {
            return [close, other];
        }
    }
}

#[test]
fn a_limit_that_never_denies_beside_another_denies_in_no_random_run() {
    let (mut never, pairs) = (0, if evidence() { 200_000 } else { 3_000 });
    for seed in 0..pairs {
        let mut random = Random::new(seed);
        let [this, other] = random_pair(&mut random);
        if !this.never_refuses_beside(&other) {
            continue;
        }
        never += 1;
        for _ in 0..3 {
            let now_us = TODAY_US + random.below(DAY_US);
            let mut both = Both::new(&this, &other, now_us);
            assert!(
                !both.denies(&mut random, 60),
                "seed {seed}: {this} {} denied beside {other} {} at {} µs",
                this.algorithm(),
                other.algorithm(),
                both.now_us
            );
        }
    }
    assert!(never > pairs / 3, "of {pairs} pairs only {never} are claims");
}

#[test]
fn exact_answers_of_false_have_a_run_that_denies() {
    const EXACT: [(Algorithm, Algorithm); 3] = [
        (Algorithm::TokenBucket, Algorithm::TokenBucket),
        (Algorithm::SlidingLog, Algorithm::TokenBucket),
        (Algorithm::SlidingLog, Algorithm::SlidingLog),
    ];
    let mut seen = 0;
    for seed in 0..400 {
        let mut random = Random::new(seed);
        let (this, other) = *random.pick(&EXACT);
        let [this, other] = [this, other].map(|algorithm| random_limit(&mut random, algorithm));
        if this.never_refuses_beside(&other) {
            continue;
        }
        seen += 1;
        let denies = (0..200).any(|run| {
            let greedy = Both::new(&this, &other, TODAY_US + run).denies_when_greedy(run);
            greedy || Both::new(&this, &other, TODAY_US).denies(&mut random, 200)
        });
        assert!(denies, "seed {seed}: {this} never denied beside {other}");
    }
    assert!(seen > 100, "only {seen} pairs are claims");
}

impl Both {
    /// Returns whether this limit denies a greedy subject. The subject takes the whole quota at once.
    /// Afterwards it takes either each unit as soon as the other limit has it, or the whole quota each time
    /// it is back.
    fn denies_when_greedy(&mut self, run: u64) -> bool {
        let capacity = params(&self.limits[1]).capacity();
        let mut cost = capacity;
        for _ in 0..2_000 {
            if cost > params(&self.limits[0]).capacity() {
                return true;
            }
            let [this, other] = self.check(cost, Intent::Charge);
            if other.fits && !this.fits {
                return true;
            }
            if !other.fits {
                self.now_us += other.reading.retry_after_us.unwrap_or(1);
            }
            cost = if run.is_multiple_of(2) { 1 } else { capacity };
        }
        false
    }
}

const DAY_US: u64 = 86_400_000_000;
