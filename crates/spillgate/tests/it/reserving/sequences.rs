//! Random sequences of reservations against a model, which is the pure algorithms plus a plain record of
//! reservations.
//!
//! Every answer and number is compared, in memory, on one server and on a ring. At the end the usage in every
//! window is added up.

use std::collections::HashMap;
use std::time::Duration;

use spillgate::reservation::{EndResult, Ended, Receipt, ReservationError, Reserve, Usage};
use spillgate::{Algorithm, Limiter, Policy, Request};
use spillgate_core::algorithm::{Charge, Intent, Refund, State};
use spillgate_core::limit::NamedLimit;
use spillgate_testkit::{Cluster, RedisServer, Sentinels};

use crate::failure::evidence;
use crate::support::clock::Clock;
use crate::support::limits;
use crate::support::random::Random;
use crate::support::step::{StepCounter, step};
use crate::support::target::params;
use crate::support::world::{TODAY_US, ring_of};

const SECOND_US: u64 = 1_000_000;
/// Nothing expires in Redis while a test runs, at any setting of the test's own clock.
const PERIOD_US: u64 = 1_000 * SECOND_US;
const COUNT: u64 = 40;
const PERIOD: &str = "1000s";
const HOLD: &str = "500s";
const DOMAINS: u64 = 6;

/// One rule for each algorithm, and one with all of them.
fn policy() -> Policy {
    let each = Algorithm::ALL.map(|algorithm| limits::written(algorithm, COUNT, period(algorithm)));
    let rule = |domain: usize, limits: &str| {
        format!(
            "[[rule]]\nname = \"r{domain}\"\ndomain = \"d{domain}\"\nkey = [\"user\"]\nlimits = [{limits}]\n"
        )
    };
    let mut text: String =
        each.iter().enumerate().map(|(domain, quota)| rule(domain, quota)).collect();
    text += &rule(each.len(), &each.join(", "));
    Policy::from_toml(&text).unwrap()
}

fn period(algorithm: Algorithm) -> &'static str {
    if algorithm == Algorithm::Concurrency { HOLD } else { PERIOD }
}

fn limits_of(domain: u64) -> Vec<NamedLimit> {
    let limit = |algorithm| limits::spec(algorithm, COUNT, period(algorithm)).build().unwrap();
    let all = Algorithm::ALL.map(limit);
    let mine = all.iter().enumerate().filter(|(place, _)| domain == 5 || *place as u64 == domain);
    mine.map(|(_, limit)| limit.clone())
        .enumerate()
        .map(|(place, limit)| NamedLimit::new(limit, place))
        .collect()
}

/// The expected results.
struct Model {
    limits: Vec<NamedLimit>,
    states: Vec<Option<State>>,
    records: HashMap<String, ModelRecord>,
    nonce: u64,
    /// Actual usage, and when it was reserved.
    used: Vec<(u64, u64)>,
}

struct ModelRecord {
    body: (u64, u64),
    ends_us: u64,
    ended: Option<Act>,
    charges: Vec<Charge>,
    used: usize,
}

/// A call about one reservation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Act {
    Settle(u64),
    Cancel,
    Release,
    Renew(u64),
}

impl Model {
    fn new(domain: u64) -> Model {
        let limits = limits_of(domain);
        let states = limits.iter().map(|_| None).collect();
        Model { limits, states, records: HashMap::new(), nonce: 0, used: Vec::new() }
    }

    fn step(&mut self, cost: u64, intent: Intent, now_us: u64) -> (bool, Vec<Option<Charge>>) {
        let states = std::mem::take(&mut self.states);
        let limits = self.limits.iter().zip(states);
        let mut counters: Vec<StepCounter<'_>> =
            limits.map(|(limit, state)| StepCounter::new(params(limit), cost, state)).collect();
        let allowed = step(&mut counters, intent, now_us);
        let charges = counters.iter().map(|counter| counter.charge).collect();
        self.states = counters.into_iter().map(|counter| counter.state).collect();
        (allowed, charges)
    }

    fn remaining(&mut self, now_us: u64) -> Vec<u64> {
        let look = |(limit, state): (&NamedLimit, &Option<State>)| {
            let mut counter = StepCounter::new(params(limit), 0, state.clone());
            step(std::slice::from_mut(&mut counter), Intent::Peek, now_us);
            counter.reading.remaining
        };
        self.limits.iter().zip(&self.states).map(look).collect()
    }

    fn reserve(
        &mut self,
        name: &str,
        body: (u64, u64),
        now_us: u64,
    ) -> Result<bool, ReservationError> {
        if let Some(record) = self.records.get(name) {
            return match self.ended(record, now_us) {
                _ if record.body != body => Err(ReservationError::Conflict),
                Some(how) => Err(ReservationError::Ended(how)),
                None => Ok(true),
            };
        }
        self.nonce += 1;
        let nonce = self.nonce.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 16;
        let (cost, lasting_s) = body;
        let (allowed, charges) = self.step(cost, Intent::Reserve { nonce }, now_us);
        if allowed {
            let charges = charges.into_iter().map(Option::unwrap).collect();
            let ends_us = now_us + lasting_s * SECOND_US;
            self.used.push((now_us, cost));
            let used = self.used.len() - 1;
            let record = ModelRecord { body, ends_us, ended: None, charges, used };
            self.records.insert(name.to_owned(), record);
        }
        Ok(allowed)
    }

    fn ended(&self, record: &ModelRecord, now_us: u64) -> Option<Ended> {
        let holds = |((limit, state), charge): ((&NamedLimit, &Option<State>), &Charge)| {
            StepCounter::new(params(limit), 0, state.clone()).holds(charge, now_us)
        };
        match record.ended {
            Some(Act::Settle(_)) => Some(Ended::Settled),
            Some(Act::Cancel) => Some(Ended::Cancelled),
            Some(Act::Release) => Some(Ended::Released),
            Some(Act::Renew(_)) => unreachable!("a renewal ends nothing"),
            None if now_us >= record.ends_us => Some(Ended::Expired),
            None => {
                let mut counters = self.limits.iter().zip(&self.states).zip(&record.charges);
                (!counters.all(holds)).then_some(Ended::PermitEnded)
            }
        }
    }

    fn act(&mut self, name: &str, act: Act, now_us: u64) -> Result<EndResult, ReservationError> {
        let Some(record) = self.records.get_mut(name) else { return Ok(EndResult::Unknown) };
        match record.ended {
            Some(_) if matches!(act, Act::Renew(_)) => return Ok(EndResult::Expired),
            Some(ended) if ended == act => return Ok(EndResult::Repeated),
            Some(_) => return Err(ReservationError::EndedOtherwise),
            None if now_us >= record.ends_us => return Ok(EndResult::Expired),
            None => {}
        }
        let counters = self.limits.iter().zip(&mut self.states).zip(&record.charges);
        if let Act::Renew(for_s) = act {
            let for_us = for_s * SECOND_US;
            let mut counters: Vec<_> = counters
                .map(|((limit, state), charge)| {
                    (StepCounter::new(params(limit), 0, state.clone()), state, charge)
                })
                .collect();
            if !counters.iter().all(|(counter, _, charge)| counter.holds(charge, now_us)) {
                return Ok(EndResult::Expired);
            }
            for (counter, state, charge) in &mut counters {
                counter.renew(charge, for_us, now_us);
                **state = counter.state.take();
            }
            record.ends_us = record.ends_us.max(now_us + for_us);
            return Ok(EndResult::Done);
        }
        for ((limit, state), charge) in counters {
            let is_permit = limit.algorithm() == Algorithm::Concurrency;
            let actual = match act {
                Act::Settle(_) | Act::Release if is_permit => 0,
                Act::Settle(actual) => actual,
                Act::Cancel => 0,
                Act::Release | Act::Renew(_) => charge.amount,
            };
            let mut counter = StepCounter::new(params(limit), 0, state.take());
            if actual < charge.amount {
                let refund = Refund::Unused { charge: *charge, unused: charge.amount - actual };
                counter.refund(refund, now_us);
            } else if actual > charge.amount {
                counter.cost = actual - charge.amount;
                counter.force(now_us);
            }
            *state = counter.state;
        }
        record.ended = Some(act);
        let used = &mut self.used[record.used].1;
        *used = match act {
            Act::Settle(actual) => actual.min(*used),
            Act::Cancel => 0,
            Act::Release | Act::Renew(_) => *used,
        };
        Ok(EndResult::Done)
    }

    /// Asserts that nothing was minted: usage within its estimate never exceeds a limit in any of its
    /// windows.
    fn check_bounds(&self, at: &str) {
        for limit in &self.limits {
            for (first, (from_us, _)) in self.used.iter().enumerate() {
                let mut sum = 0;
                for (at_us, amount) in &self.used[first..] {
                    sum += amount;
                    let bound = match limit.algorithm() {
                        Algorithm::TokenBucket => COUNT + (at_us - from_us) * COUNT / PERIOD_US,
                        Algorithm::SlidingLog if at_us - from_us < PERIOD_US => COUNT,
                        Algorithm::FixedWindow if at_us / PERIOD_US == from_us / PERIOD_US => COUNT,
                        _ => u64::MAX,
                    };
                    assert!(sum <= bound, "{at}: {sum} used since {from_us} by {limit:?}");
                }
            }
        }
    }
}

async fn act(
    limiter: &Limiter,
    receipt: &Receipt,
    act: Act,
) -> Result<EndResult, ReservationError> {
    match act {
        Act::Settle(actual) => limiter.settle(receipt, &Usage::from(actual)).await,
        Act::Cancel => limiter.cancel(receipt).await,
        Act::Release => limiter.release(receipt).await,
        Act::Renew(for_s) => limiter.renew(receipt, Duration::from_secs(for_s)).await,
    }
}

/// A random history of one subject, beside its model.
struct Walk {
    seed: u64,
    step: usize,
    domain: u64,
    domain_name: String,
    user: String,
    now_us: u64,
    random: Random,
    model: Model,
    receipts: Vec<(String, Receipt)>,
}

impl Walk {
    fn new(seed: u64) -> Walk {
        let mut random = Random::new(seed);
        let domain = random.below(DOMAINS);
        let (domain_name, user) = (format!("d{domain}"), format!("u{seed}"));
        let (model, receipts, now_us) = (Model::new(domain), Vec::new(), TODAY_US);
        Walk { seed, step: 0, domain, domain_name, user, now_us, random, model, receipts }
    }

    fn request(&self) -> Request<'_> {
        Request::new().in_domain(&*self.domain_name).with("user", &*self.user)
    }

    /// For messages.
    fn at(&self) -> String {
        format!("seed {}, domain {}, step {}", self.seed, self.domain, self.step)
    }

    fn pass_time(&mut self, steps_back: bool) {
        self.now_us += match self.random.below(8) {
            0..=3 => self.random.below(30 * SECOND_US),
            4 => self.random.below(700 * SECOND_US),
            5 if self.random.one_in(4) => self.random.below(4_000 * SECOND_US),
            _ => 0,
        };
        if steps_back && self.random.one_in(12) {
            self.now_us -= self.random.below(1_500 * SECOND_US);
        }
        // Receipts past the retention time may be known or forgotten, so they are not used again.
        let (records, now_us) = (&self.model.records, self.now_us);
        self.receipts.retain(|(name, _)| now_us < records[name].ends_us + 3_600 * SECOND_US);
    }

    async fn reserve(&mut self, limiter: &Limiter) {
        let name = if self.random.one_in(3) && !self.receipts.is_empty() {
            self.random.pick(&self.receipts).0.clone()
        } else {
            format!("{}-{}", self.seed, self.step)
        };
        let known = self.model.records.get(&name).map(|record| record.body);
        let fresh = (1 + self.random.below(COUNT / 3), 1 + self.random.below(900));
        let body = known.filter(|_| !self.random.one_in(4)).unwrap_or(fresh);
        let reserve = Reserve::lasting(Duration::from_secs(body.1)).under(&*name);
        let reply = limiter.reserve(&self.request().costing(body.0), &reserve).await;
        let expected = self.model.reserve(&name, body, self.now_us);
        match reply {
            Ok(decision) => {
                assert_eq!(Ok(decision.allowed()), expected, "{}", self.at());
                assert_eq!(decision.receipt().is_some(), decision.allowed(), "{}", self.at());
                if let (Some(receipt), None) = (decision.receipt(), known) {
                    self.receipts.push((name, receipt.clone()));
                }
            }
            Err(error) => assert_eq!(expected, Err(error), "{}", self.at()),
        }
    }

    async fn check(&mut self, limiter: &Limiter) {
        let cost = 1 + self.random.below(6);
        // A check of permits has a receipt too, which this caller has lost.
        let reply = limiter.check(&self.request().costing(cost)).await;
        let nonce = 1 + self.random.below(1 << 40);
        let permits = self.domain == 5 || self.domain == 4;
        let intent = if permits { Intent::Reserve { nonce } } else { Intent::Charge };
        let (allowed, _) = self.model.step(cost, intent, self.now_us);
        assert_eq!(reply.allowed(), allowed, "{}", self.at());
        if allowed {
            self.model.used.push((self.now_us, cost));
        }
    }

    /// Ends or renews a reservation.
    async fn end(&mut self, limiter: &Limiter) {
        let recent = self.receipts.len() as u64 - 1;
        let place = recent - self.random.spread(recent).min(recent);
        let (name, receipt) = &self.receipts[place as usize];
        let reserved = self.model.records[name].body.0;
        let call = match self.random.below(10) {
            0..=3 => Act::Settle(self.random.below(reserved + 1)),
            4 => Act::Settle(reserved),
            5 => Act::Settle(reserved + 1 + self.random.spread(2 * COUNT)),
            6 => Act::Cancel,
            7 => Act::Release,
            _ => Act::Renew(1 + self.random.below(900)),
        };
        // Half of the time an earlier call is repeated, as after a lost reply.
        let again = self.model.records[name].ended.filter(|_| self.random.one_in(2));
        let call = again.unwrap_or(call);
        let read: Receipt = receipt.as_str().parse().unwrap();
        let receipt = if self.random.one_in(2) { receipt } else { &read };
        let reply = act(limiter, receipt, call).await;
        let expected = self.model.act(name, call, self.now_us);
        assert_eq!(reply, expected, "{}: {call:?} of {name}", self.at());
    }
}

/// Runs one history of one subject. The clock steps back only if no sums are checked.
async fn wander(limiters: &[Limiter], clock: &Clock, seed: u64, steps: usize) {
    let mut walk = Walk::new(seed);
    let steps_back = walk.random.one_in(3);
    for step in 0..steps {
        walk.step = step;
        walk.pass_time(steps_back);
        clock.set(walk.now_us);
        // Any process can be called, with the original receipt or the parsed one.
        let limiter = walk.random.pick(limiters);
        match walk.random.below(10) {
            0..=3 => walk.reserve(limiter).await,
            4 => walk.check(limiter).await,
            _ if !walk.receipts.is_empty() => walk.end(limiter).await,
            _ => {}
        }
        let look = limiter.peek(&walk.request()).await;
        let left: Vec<u64> = look.limits().map(|counter| counter.remaining().unwrap()).collect();
        assert_eq!(left, walk.model.remaining(walk.now_us), "{}", walk.at());
    }
    if !steps_back {
        walk.model.used.sort_unstable();
        walk.model.check_bounds(&format!("seed {seed}"));
    }
}

fn all_wander(builders: &[&dyn Fn() -> spillgate::LimiterBuilder], seeds: u64, steps: usize) {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        for (kind, builder) in builders.iter().enumerate() {
            let clock = Clock::given(TODAY_US);
            let built = || {
                builder()
                    .timeout(Duration::from_secs(10))
                    .denial_cache(false)
                    .policy(policy())
                    .manual_clock(clock.manual())
                    .build()
            };
            let one = built().await.unwrap();
            let limiters = match kind {
                0 => vec![one],
                _ => vec![one, built().await.unwrap()],
            };
            for seed in 1..=seeds {
                wander(&limiters, &clock, seed, steps).await;
            }
        }
    });
}

#[test]
fn any_sequence_of_calls_equals_the_model_and_mints_nothing() {
    let server = RedisServer::start();
    let nodes: Vec<_> = (0..3).map(|_| RedisServer::start()).collect();
    let (in_memory, on_redis) = (Limiter::builder, || Limiter::builder().redis(server.url()));
    let on_ring = || Limiter::builder().ring(ring_of(&nodes));
    all_wander(&[&in_memory, &on_redis, &on_ring], 24, 120);
}

#[test]
fn any_sequence_of_calls_equals_the_model_on_a_cluster_and_behind_sentinels() {
    let (cluster, watched) = (Cluster::start(3, 0), Sentinels::start(1, 3));
    let on_cluster = || Limiter::builder().cluster(cluster.urls());
    let watched = || Limiter::builder().sentinel(Sentinels::NAME, watched.urls());
    // The first is a single process in memory.
    all_wander(&[&Limiter::builder, &on_cluster, &watched], if evidence() { 24 } else { 6 }, 120);
}

#[test]
fn any_long_sequence_in_memory_equals_the_model() {
    all_wander(&[&Limiter::builder], 400, 200);
}
