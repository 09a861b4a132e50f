//! A limit stays useful although estimates are far too high. Without these tests a limiter that denies
//! everything would pass the others.

use std::collections::VecDeque;
use std::time::Duration;

use spillgate::reservation::{EndResult, Receipt, Reserve, Usage};
use spillgate::{Cost, Limiter, LimiterBuilder, Policy, Request};
use spillgate_testkit::RedisServer;

use crate::support::clock::Clock;
use crate::support::world::TODAY_US;

const LIMIT: u64 = 10_000;
const ESTIMATE: u64 = 400;
const ACTUAL: u64 = 50;
const STREAM_S: u64 = 30;
/// At first everything in flight counts at its estimate; from here on the load is steady.
const STEADY_S: u64 = 1_200;
const ALL_S: u64 = 2_400;

/// Returns the tokens used by streams that began in the steady phase, in hundredths of the limit.
async fn share_used(builder: LimiterBuilder, limit: &str) -> u64 {
    let clock = Clock::given(TODAY_US);
    let policy = format!(
        "[[rule]]\nname = \"model\"\nkey = []\nlimits = [{{ quota = \"{LIMIT}/minute\", \
         {limit}, unit = \"tokens\" }}]"
    );
    let builder = builder.timeout(Duration::from_secs(10)).denial_cache(false);
    let builder = builder.policy(Policy::from_toml(&policy).unwrap()).manual_clock(clock.manual());
    let limiter = builder.build().await.unwrap();
    let request = Request::new().costing(Cost::of_unit("tokens", ESTIMATE));
    let lasting = Reserve::lasting(Duration::from_secs(60));
    let mut streams: VecDeque<(u64, Receipt)> = VecDeque::new();
    let mut used = 0;
    for second in 0..ALL_S {
        clock.set(TODAY_US + second * 1_000_000);
        while streams.front().is_some_and(|(began, _)| began + STREAM_S <= second) {
            let (began, receipt) = streams.pop_front().unwrap();
            let usage = Usage::of_unit("tokens", ACTUAL);
            assert_eq!(limiter.settle(&receipt, &usage).await, Ok(EndResult::Done));
            used += if began >= STEADY_S { ACTUAL } else { 0 };
        }
        while let Some(receipt) = limiter.reserve(&request, &lasting).await.unwrap().receipt() {
            streams.push_back((second, receipt.clone()));
        }
    }
    used * 100 * 60 / (LIMIT * (ALL_S - STEADY_S - STREAM_S))
}

/// A hundred concurrent streams use the limit up, so their estimates must fit: usage in flight is at most the
/// burst plus the drain meanwhile, 5,000.
#[test]
fn nearly_all_of_a_token_rate_is_used_with_estimates_eight_times_too_high() {
    let server = RedisServer::start();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        for builder in [Limiter::builder(), Limiter::builder().redis(server.url())] {
            let share = share_used(builder, "burst = 40_000").await;
            println!("token-bucket with a burst: {share} % of the limit used");
            assert!((95..=101).contains(&share), "{share} %");
        }
    });
}

/// Usage in flight counts at its estimate, since it may still be used. A limit smaller than a hundred
/// estimates is used less.
#[test]
fn a_limit_holds_its_estimates_until_they_are_settled() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        for algorithm in ["token-bucket", "fixed-window", "sliding-log", "sliding-window"] {
            let limit = format!("algorithm = \"{algorithm}\"");
            let share = share_used(Limiter::builder(), &limit).await;
            println!("{algorithm}: {share} % of the limit used");
            // More than without settling.
            assert!((20..=101).contains(&share), "{algorithm}: {share} %");
        }
    });
}
