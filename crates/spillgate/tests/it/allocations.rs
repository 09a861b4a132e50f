//! Allocations of a check in memory once its counters exist: none for one counter, and for several the list
//! that the decision keeps.

use allocation_counter::measure;
use spillgate::testing::ManualClock;
use spillgate::{Limit, Limiter, Policy, Request};
use tokio::runtime::{Builder, Runtime};

fn runtime() -> Runtime {
    Builder::new_current_thread().build().unwrap()
}

fn limiter(runtime: &Runtime, limits: &str) -> Limiter {
    let policy = format!("[[rule]]\nname = 'api'\nkey = ['user']\nlimits = {limits}");
    let policy = Policy::from_toml(&policy).unwrap();
    runtime.block_on(Limiter::builder().policy(policy).build()).unwrap()
}

/// Counts the allocations of the second check; the first makes room.
fn allocations(runtime: &Runtime, check: impl AsyncFn()) -> u64 {
    runtime.block_on(check());
    measure(|| runtime.block_on(check())).count_total
}

#[test]
fn a_check_of_one_counter_allocates_nothing() {
    let runtime = runtime();
    let limiter = limiter(&runtime, "['5/minute']");
    let limit = Limit::per_minute(5);
    let by_limit = async || drop(limiter.check(&Request::keyed("user:1", &limit)).await);
    let by_policy = async || drop(limiter.check(&Request::new().with("user", "1")).await);
    assert_eq!(allocations(&runtime, by_limit), 0);
    assert_eq!(allocations(&runtime, by_policy), 0);
    // Denied by now.
    for _ in 0..5 {
        runtime.block_on(by_limit());
        runtime.block_on(by_policy());
    }
    assert_eq!(allocations(&runtime, by_limit), 0);
    assert_eq!(allocations(&runtime, by_policy), 0);
}

#[test]
fn a_recorded_denial_of_a_known_subject_allocates_nothing() {
    let runtime = runtime();
    let policy = "[[rule]]\nname = 'api'\nkey = ['user']\nlimits = ['1/day']";
    let builder = Limiter::builder().policy(Policy::from_toml(policy).unwrap());
    let builder = builder.denials(true).manual_clock(&ManualClock::new());
    let limiter = runtime.block_on(builder.build()).unwrap();
    let denied = async || {
        let request = Request::new().with("user", "1").costing(2);
        assert!(!limiter.check(&request).await.allowed());
    };
    assert_eq!(allocations(&runtime, denied), 0);
}

#[test]
fn a_check_of_four_counters_allocates_once() {
    let runtime = runtime();
    let limiter = limiter(&runtime, "['5/minute', '50/hour', '100/day', '200/week']");
    let check = async || drop(limiter.check(&Request::new().with("user", "1")).await);
    assert_eq!(allocations(&runtime, check), 1);
}
