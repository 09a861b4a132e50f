//! In memory buckets in steady use are charged without a plan. Nobody may tell: here every check is made
//! twice, once by a limiter that must go the long way, and all that is said of it, and counted, is the same.

use spillgate::internals::time::Clock;
use spillgate::{Cost, Decision, Limit, Limiter, Policy, Request};
use tokio::runtime::{Builder, Runtime};

use crate::support::random::Random;

const NOW_US: u64 = 1_795_000_000_000_000;

fn runtime() -> Runtime {
    Builder::new_current_thread().build().unwrap()
}

fn limiter(runtime: &Runtime, policy: &str, clock: &Clock) -> Limiter {
    let builder = Limiter::builder().policy(Policy::from_toml(policy).unwrap());
    runtime.block_on(builder.clock(clock.clone()).build()).unwrap()
}

/// All that a decision says, but for the names of its rules and limits.
fn said(decision: &Decision) -> String {
    let tiers = decision.tiers().map(|tier| {
        let numbers = (tier.capacity(), tier.remaining(), tier.retry_after(), tier.reset_after());
        (tier.verdict(), tier.source(), tier.shadow(), tier.advisory(), numbers, tier.position())
    });
    let tiers: Vec<_> = tiers.collect();
    let top = decision.top().map(|top| top.position());
    let numbers = (decision.capacity(), decision.remaining(), decision.reset_after());
    format!(
        "{:?}",
        (decision.verdict(), decision.source(), decision.retry_after(), numbers, top, tiers)
    )
}

/// The counts of decisions in the text for Prometheus.
fn counted(limiter: &Limiter) -> Vec<String> {
    let text = limiter.metrics_text();
    let counts = |line: &&str| {
        line.starts_with("spillgate_decisions_total{") || line.starts_with("spillgate_near_limit")
    };
    text.lines().filter(counts).map(str::to_owned).collect()
}

const LIMITS: [&str; 5] = [
    "'10/second'",
    "{ quota = '7/minute', burst = 30 }",
    "{ quota = '1000/second', burst = 400, unit = 'tokens' }",
    "{ quota = '3/1ms', burst = 9 }",
    "{ quota = '20/second', algorithm = 'sliding-window' }",
];

#[test]
fn a_request_is_told_and_counted_as_on_the_long_way() {
    let runtime = runtime();
    let mut allowed = 0;
    for seed in 0..60 {
        let mut random = Random::new(seed);
        let limits: Vec<&str> = (0..1 + random.below(4)).map(|_| *random.pick(&LIMITS)).collect();
        let rule =
            format!("[[rule]]\nname = 'api'\nkey = ['user']\nlimits = [{}]\n", limits.join(", "));
        // A condition somewhere, and the rules that are met are gathered in a list.
        let other = "[[rule]]\nname = 'other'\nmatch = { route = '/' }\nkey = ['user']\nlimits = ['1/day']\n";
        let clock = Clock::given(NOW_US);
        let short = limiter(&runtime, &rule, &clock);
        let long = limiter(&runtime, &format!("{rule}{other}"), &clock);
        let mut now_us = NOW_US;
        for number in 0..400 {
            let wait_us = if random.one_in(10) { 2_000_000 } else { 3_000 };
            now_us += random.below(wait_us);
            clock.set(now_us);
            let user = *random.pick(&["ann", "bob"]);
            let cost = Cost::requests(random.below(4)).and("tokens", random.below(40));
            let request = || Request::new().with("user", user).costing(cost.clone());
            let told = runtime.block_on(short.check(&request()));
            let expected = runtime.block_on(long.check(&request()));
            assert_eq!(said(&told), said(&expected), "seed {seed}, check {number}: {limits:?}");
            assert_eq!((told.rule(), told.limit()), (expected.rule(), expected.limit()));
            allowed += u32::from(told.allowed());
        }
        assert_eq!(short.stats(), long.stats(), "seed {seed}");
        assert_eq!(counted(&short), counted(&long), "seed {seed}");
    }
    assert!(allowed > 2_000, "only {allowed} were allowed");
}

#[test]
fn a_key_with_a_limit_is_told_and_counted_as_on_the_long_way() {
    let runtime = runtime();
    let mut allowed = 0;
    for seed in 0..60 {
        let mut random = Random::new(seed);
        let limit = match random.below(3) {
            0 => Limit::per_second(10).burst(20),
            1 => Limit::per_minute(7).burst(30),
            _ => Limit::per_second(1_000).burst(400),
        };
        // A word to carry, though it says nothing new: the long way.
        let worded = limit.clone().unit_named("requests");
        let clock = Clock::given(NOW_US);
        let (short, long) = (limiter(&runtime, "", &clock), limiter(&runtime, "", &clock));
        let mut now_us = NOW_US;
        for number in 0..400 {
            let wait_us = if random.one_in(10) { 2_000_000 } else { 3_000 };
            now_us += random.below(wait_us);
            clock.set(now_us);
            let key = *random.pick(&["ann", "bob"]);
            let cost = random.below(25);
            let told = runtime.block_on(short.check_limit(key, &limit, cost));
            let expected = runtime.block_on(long.check_limit(key, &worded, cost));
            assert_eq!(said(&told), said(&expected), "seed {seed}, check {number}: {limit}");
            allowed += u32::from(told.allowed());
            if random.one_in(100) {
                // What was told before is not told again, nor lost.
                assert_eq!(counted(&short), counted(&long), "seed {seed}, check {number}");
            }
        }
        assert_eq!(short.stats(), long.stats(), "seed {seed}");
        assert_eq!(counted(&short), counted(&long), "seed {seed}");
    }
    assert!(allowed > 2_000, "only {allowed} were allowed");
}
