//! Checks in memory against the pure algorithms. Every decision and number equals the algorithm's at that
//! instant, on each fast path of the memory store. Each decision is counted once.

use std::collections::HashMap;
use std::time::Duration;

use spillgate::{Cost, Decision, Limit, Limiter, Policy, Reason, Request, Source};
use spillgate_core::algorithm::{Intent, State};
use spillgate_core::limit::NamedLimit;
use tokio::runtime::{Builder, Runtime};

use crate::support::clock::Clock;
use crate::support::random::Random;
use crate::support::step::{StepCounter, step};
use crate::support::target::params;
use crate::support::world::TODAY_US;

fn runtime() -> Runtime {
    Builder::new_current_thread().build().unwrap()
}

fn limiter(runtime: &Runtime, policy: &str, clock: &Clock) -> Limiter {
    let builder = Limiter::builder().policy(Policy::from_toml(policy).unwrap());
    runtime.block_on(builder.manual_clock(clock.manual()).build()).unwrap()
}

/// The counters of one subject after another, by the pure algorithms, and the number of decisions of each
/// kind.
struct Model {
    limits: Vec<NamedLimit>,
    states: HashMap<&'static str, Vec<Option<State>>>,
    allowed: u64,
    /// By reason and by the position of the limit that denied.
    denied: HashMap<(Reason, usize), u64>,
    near_limit: u64,
}

impl Model {
    fn new(limits: impl IntoIterator<Item = Limit>) -> Model {
        let limits = limits.into_iter().enumerate();
        let limits = limits.map(|(position, limit)| NamedLimit::new(limit, position)).collect();
        Model { limits, states: HashMap::new(), allowed: 0, denied: HashMap::new(), near_limit: 0 }
    }

    /// Returns everything that a decision at this instant shows: for each counter, for the deciding limit,
    /// and in total.
    fn check(&mut self, subject: &'static str, cost: &Cost<'_>, now_us: u64) -> String {
        let count = self.limits.len();
        let states = self.states.entry(subject).or_insert_with(|| vec![None; count]);
        // A cost above a capacity never fits: all counters are only read.
        let is_never = |limit: &NamedLimit| {
            cost.amount(limit.limit().unit()) > limit.limit().capacity().unwrap()
        };
        let never: Vec<bool> = self.limits.iter().map(is_never).collect();
        let costs = self.limits.iter().zip(&never);
        let costs =
            costs.map(|(limit, never)| if *never { 0 } else { cost.amount(limit.limit().unit()) });
        let counters = self.limits.iter().zip(costs).zip(states.iter_mut());
        let mut counters: Vec<_> = counters
            .map(|((limit, cost), state)| StepCounter::new(params(limit), cost, state.take()))
            .collect();
        let hopeless = never.contains(&true);
        let intent = if hopeless { Intent::Peek } else { Intent::Charge };
        let allowed = step(&mut counters, intent, now_us) && !hopeless;
        let capacity = |counter: &StepCounter<'_>| counter.params.capacity();
        let is_near = |(counter, never): (&StepCounter<'_>, &bool)| {
            counter.fits && !never && counter.reading.remaining <= capacity(counter) / 5
        };
        self.near_limit += u64::from(allowed && counters.iter().zip(&never).any(is_near));
        let us = Duration::from_micros;
        let shown = counters.iter().enumerate().map(|(position, counter)| {
            let wait = counter.reading.retry_after_us.map(us).filter(|_| !never[position]);
            let reset = Some(us(counter.reading.reset_after_us));
            let params = (Some(capacity(counter)), Some(counter.reading.remaining), wait, reset);
            let verdict = match (never[position], counter.fits) {
                (true, _) => Some(Reason::CostExceedsLimit),
                (false, true) => None,
                (false, false) => Some(Reason::LimitExceeded),
            };
            (verdict, Source::Store, false, false, params, (0, position))
        });
        let shown: Vec<_> = shown.collect();
        let deciding = deciding(&counters, allowed);
        let (verdict, wait) = match (allowed, hopeless) {
            (true, _) => (None, Some(Duration::ZERO)),
            (false, false) => (Some(Reason::LimitExceeded), shown[deciding].4.2),
            (false, true) => (Some(Reason::CostExceedsLimit), None),
        };
        *match verdict {
            None => &mut self.allowed,
            Some(reason) => self.denied.entry((reason, deciding)).or_default(),
        } += 1;
        let (capacity, remaining, _, reset) = shown[deciding].4;
        let params = (capacity, remaining, reset);
        let top = Some((0, deciding));
        let shown_text = format!("{:?}", (verdict, Source::Store, wait, params, top, &shown));
        for (state, counter) in states.iter_mut().zip(counters) {
            *state = counter.state;
        }
        shown_text
    }

    /// Checks that the limiter's statistics and its Prometheus text match the decisions so far.
    fn is_counted_by(&self, limiter: &Limiter, labels: &str) {
        let stats = limiter.stats();
        assert_eq!((stats.allowed, stats.denied), (self.allowed, self.denied.values().sum()));
        let text = limiter.metrics_text();
        let decisions = |decision: &str, reason: &str, limit: &str| {
            let result = format!("decision=\"{decision}\",reason=\"{reason}\",limit=\"{limit}\"");
            format!("decisions_total{{{labels},mode=\"enforce\",{result},source=\"store\"}}")
        };
        // An inline limit has no name in metrics.
        let name = |limit: usize| match labels.contains("rule=\"\"") {
            true => String::new(),
            false => limit.to_string(),
        };
        let denied = self.denied.iter().map(|((reason, limit), count)| {
            (decisions("denied", reason.as_str(), &name(*limit)), *count)
        });
        let mut counted = [
            (decisions("allowed", "", ""), self.allowed),
            (format!("near_limit_total{{{labels}}}"), self.near_limit),
        ]
        .into_iter()
        .chain(denied)
        .filter(|(_, count)| *count > 0);
        let line = |(name, count)| format!("\nspillgate_{name} {count}\n");
        let missing = counted.find(|one| !text.contains(&line(one.clone())));
        assert_eq!(missing, None, "in {text}");
    }
}

/// Returns the index of the deciding counter: of the counters that deny, the one with the longest wait; else
/// the one with the smallest part of its capacity left.
fn deciding(counters: &[StepCounter<'_>], allowed: bool) -> usize {
    let mut best = 0;
    let is_better = |one: &StepCounter<'_>, best: &StepCounter<'_>| {
        if !allowed {
            let wait =
                |counter: &StepCounter<'_>| counter.reading.retry_after_us.unwrap_or(u64::MAX);
            return !one.fits && (best.fits || wait(one) > wait(best));
        }
        let left = |counter: &StepCounter<'_>, of: &StepCounter<'_>| {
            u128::from(counter.reading.remaining) * u128::from(of.params.capacity())
        };
        left(one, best) < left(best, one)
    };
    for place in 1..counters.len() {
        if is_better(&counters[place], &counters[best]) {
            best = place;
        }
    }
    best
}

/// Everything that a decision shows, except the names of rules and limits.
fn shown_text(decision: &Decision) -> String {
    let counters = decision.limits().map(|counter| {
        let params =
            (counter.capacity(), counter.remaining(), counter.retry_after(), counter.reset_after());
        (
            counter.reason(),
            counter.source(),
            counter.shadow(),
            counter.advisory(),
            params,
            (counter.rule_index(), counter.limit_index()),
        )
    });
    let counters: Vec<_> = counters.collect();
    let top = decision.top().map(|top| (top.rule_index(), top.limit_index()));
    let params = (decision.capacity(), decision.remaining(), decision.reset_after());
    format!(
        "{:?}",
        (decision.reason(), decision.source(), decision.retry_after(), params, top, &counters)
    )
}

const LIMITS: [&str; 5] = [
    "'10/second'",
    "{ quota = '7/minute', burst = 30 }",
    "{ quota = '1000/second', burst = 400, unit = 'tokens' }",
    "{ quota = '3/1ms', burst = 9 }",
    "{ quota = '20/second', algorithm = 'sliding-window' }",
];

#[test]
fn a_request_gets_the_algorithms_numbers_and_is_counted_once() {
    let runtime = runtime();
    let mut allowed = 0;
    for seed in 0..60 {
        let mut random = Random::new(seed);
        let limits: Vec<&str> = (0..1 + random.below(4)).map(|_| *random.pick(&LIMITS)).collect();
        let rule =
            format!("[[rule]]\nname = 'api'\nkey = ['user']\nlimits = [{}]\n", limits.join(", "));
        // With a condition in the policy, rules are found by the index.
        let other = "[[rule]]\nname = 'other'\nmatch = { route = '/' }\nkey = ['user']\nlimits = ['1/day']\n";
        let clock = Clock::given(TODAY_US);
        let alone = limiter(&runtime, &rule, &clock);
        let indexed = limiter(&runtime, &format!("{rule}{other}"), &clock);
        let policy = alone.policy();
        let mut model = Model::new(policy.rule("api").unwrap().limits().cloned());
        let mut now_us = TODAY_US;
        for number in 0..400 {
            let wait_us = if random.one_in(10) { 2_000_000 } else { 3_000 };
            now_us += random.below(wait_us);
            clock.set(now_us);
            let user = *random.pick(&["ann", "bob"]);
            let cost = Cost::requests(random.below(4)).and("tokens", random.below(40));
            let request = || Request::new().with("user", user).costing(cost.clone());
            let expected = model.check(user, &cost, now_us);
            for limiter in [&alone, &indexed] {
                let reply = runtime.block_on(limiter.check(&request()));
                assert_eq!(shown_text(&reply), expected, "seed {seed}, check {number}: {limits:?}");
                let deciding = reply.top().map(|top| top.limit_index().to_string());
                assert_eq!((reply.rule(), reply.limit()), (Some("api"), deciding.as_deref()));
                allowed += u32::from(reply.allowed());
            }
        }
        for limiter in [&alone, &indexed] {
            model.is_counted_by(limiter, "domain=\"default\",rule=\"api\"");
        }
    }
    assert!(allowed > 4_000, "only {allowed} were allowed");
}

#[test]
fn an_inline_limit_gets_the_algorithms_numbers_and_is_counted_once() {
    let runtime = runtime();
    let mut allowed = 0;
    for seed in 0..60 {
        let mut random = Random::new(seed);
        let limit = match random.below(3) {
            0 => Limit::per_second(10).burst(20),
            1 => Limit::per_minute(7).burst(30),
            _ => Limit::per_second(1_000).burst(400),
        };
        let worded = limit.clone().unit_named("requests");
        let clock = Clock::given(TODAY_US);
        let (plain, with_unit) = (limiter(&runtime, "", &clock), limiter(&runtime, "", &clock));
        let mut model = Model::new([limit.clone()]);
        let mut now_us = TODAY_US;
        for number in 0..400 {
            let wait_us = if random.one_in(10) { 2_000_000 } else { 3_000 };
            now_us += random.below(wait_us);
            clock.set(now_us);
            let key = *random.pick(&["ann", "bob"]);
            let cost = random.below(25);
            let expected = model.check(key, &Cost::requests(cost), now_us);
            for (limiter, limit) in [(&plain, &limit), (&with_unit, &worded)] {
                let reply =
                    runtime.block_on(limiter.check(&Request::keyed(key, limit).costing(cost)));
                assert_eq!(shown_text(&reply), expected, "seed {seed}, check {number}: {limit}");
                allowed += u32::from(reply.allowed());
            }
            if random.one_in(100) {
                // Earlier decisions are neither counted again nor lost.
                model.is_counted_by(&plain, "domain=\"other\",rule=\"\"");
            }
        }
        for limiter in [&plain, &with_unit] {
            model.is_counted_by(limiter, "domain=\"other\",rule=\"\"");
        }
    }
    assert!(allowed > 4_000, "only {allowed} were allowed");
}
