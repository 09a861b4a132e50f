//! Two hundred callers in a fleet of four while the store is unavailable: how long they wait and how many are
//! admitted, compared with no fault.

use std::time::Duration;

use spillgate::{Limit, Limiter, Request, Source};
use spillgate_core::time::monotonic_us;
use spillgate_testkit::{Fault, FaultProxy, RedisServer, poll};
use tokio::runtime::Runtime;

use super::{CEILING, HEALING, YEAR, evidence};
use crate::support::storm;

/// The fault of the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outage {
    BlackHoled,
    Killed,
    Paused,
    RestartedEmpty,
}

#[test]
fn two_hundred_callers_of_a_black_holed_store_wait_within_the_timeout_and_stay_within_the_bound() {
    run_outage(Outage::BlackHoled);
}

#[test]
fn two_hundred_callers_of_a_killed_store_wait_within_the_timeout_and_stay_within_the_bound() {
    run_outage(Outage::Killed);
}

#[test]
fn two_hundred_callers_of_a_paused_store_wait_within_the_timeout_and_stay_within_the_bound() {
    run_outage(Outage::Paused);
}

#[test]
fn two_hundred_callers_of_a_store_restarted_empty_wait_within_the_timeout_and_stay_within_the_bound()
 {
    run_outage(Outage::RestartedEmpty);
}

fn run_outage(outage: Outage) {
    let mut server = RedisServer::start();
    let proxy = FaultProxy::before(server.port());
    let fleet = Fleet::on(&proxy);
    fleet.heals();
    fleet.exhaust("exhausted", limit());

    let control = fleet.offer();
    match outage {
        Outage::BlackHoled => proxy.set(Fault::BlackHole),
        Outage::Killed => server.kill(),
        Outage::Paused => server.pause(),
        Outage::RestartedEmpty => server.restart(),
    }
    let under = fleet.offer();
    match outage {
        Outage::BlackHoled => proxy.set(Fault::None),
        Outage::Killed => server.restart(),
        Outage::Paused => server.resume(),
        Outage::RestartedEmpty => {}
    }
    let after = fleet.offer();
    fleet.heals();
    let rest = fleet.exhaust("fresh", 0);

    // Each process may admit its local share once, and a store that lost its data admits one more quota.
    let (limit, shares) = (limit(), limit());
    let forgot = matches!(outage, Outage::Killed | Outage::RestartedEmpty);
    let overshoot_bound = shares + if forgot { limit } else { 0 };
    let admitted = control.fresh + under.fresh + after.fresh + rest;
    println!(
        "{:<14} {:>7} {:>9} {:>9} {:>9} {:>9}",
        format!("{outage:?}"),
        "checks",
        "p50 us",
        "p99 us",
        "p99.9 us",
        "longest"
    );
    for (name, seen) in [("no fault", &control), ("under it", &under), ("after it", &after)] {
        println!(
            "{name:<14} {:>7} {:>9} {:>9} {:>9} {:>9}",
            seen.taken_us.len(),
            seen.at(500),
            seen.at(990),
            seen.at(999),
            seen.at(1_000)
        );
    }
    println!(
        "admitted {admitted}, allowed {limit} + {overshoot_bound}; of the exhausted {} under it, {} after it",
        under.exhausted, after.exhausted
    );
    // Charges in doubt count as charged. Denying everything would not be correct.
    assert!(admitted >= limit / 2, "{admitted} of {limit}");
    assert!(admitted <= limit + overshoot_bound, "{admitted} of {limit} + {overshoot_bound}");
    let once_more = if forgot { limit + shares } else { 0 };
    if outage == Outage::RestartedEmpty {
        assert!(under.exhausted + after.exhausted <= once_more);
    } else {
        assert_eq!(under.exhausted, 0, "an exhausted subject stays exhausted");
        assert!(after.exhausted <= once_more, "{} of the exhausted", after.exhausted);
    }
    if evidence() {
        let bound_us = (TIMEOUT + LATENESS).as_micros() as u64 + control.at(999);
        assert!(
            under.at(999) <= bound_us,
            "p99.9 is {} us, at most {bound_us} allowed",
            under.at(999)
        );
    }
}

struct Fleet {
    limiters: Vec<Limiter>,
    runtime: Runtime,
}

/// What the callers saw in one phase.
#[derive(Default)]
struct Seen {
    taken_us: Vec<u64>,
    fresh: u64,
    exhausted: u64,
}

impl Fleet {
    fn on(proxy: &FaultProxy) -> Fleet {
        let runtime = storm::threads();
        let limiters = (0..PROCESSES).map(|_| {
            let builder = Limiter::builder().redis(proxy.url()).timeout(TIMEOUT);
            runtime.block_on(builder.expected_instances(PROCESSES as u32).build()).unwrap()
        });
        Fleet { limiters: limiters.collect(), runtime }
    }

    /// Waits until the store answers every process.
    fn heals(&self) {
        let wide = Limit::per_second(1_000_000);
        for limiter in &self.limiters {
            let healed = poll(HEALING, || {
                let request = Request::keyed("bystander", &wide);
                let check = limiter.check(&request);
                (self.runtime.block_on(check).source() == Source::Store).then_some(())
            });
            assert!(healed.is_some(), "{:?}", limiter.shards());
        }
    }

    /// Charges all that is left, which must be at least `at_least`, and then waits until the store denies
    /// every process. Returns the amount.
    fn exhaust(&self, key: &str, at_least: u64) -> u64 {
        let limit = of(limit());
        // A busy machine may delay one call of the store.
        let check = |limiter: &Limiter, cost| {
            let decision = poll(HEALING, || {
                let decision = self
                    .runtime
                    .block_on(limiter.check(&Request::keyed(key, &limit).costing(cost)));
                (decision.source() == Source::Store).then_some(decision)
            });
            decision.expect("the store answers")
        };
        let left = || check(&self.limiters[0], 0).remaining().unwrap();
        let first = left();
        assert!(first >= at_least);
        while left() > 0 {
            let _ = check(&self.limiters[0], left().max(1));
        }
        assert!(self.limiters.iter().all(|limiter| !check(limiter, 1).allowed()));
        first
    }

    /// Runs all callers for a phase, each with a check every `PACE_MS`.
    fn offer(&self) -> Seen {
        let until_us = monotonic_us() + 1_000 * phase_ms();
        let callers: Vec<_> = (0..CALLERS)
            .map(|caller| {
                self.runtime.spawn(call(
                    self.limiters[caller % PROCESSES].clone(),
                    caller,
                    until_us,
                ))
            })
            .collect();
        let mut all = Seen::default();
        for caller in callers {
            let seen = self.runtime.block_on(caller).unwrap();
            all.taken_us.extend(seen.taken_us);
            all.fresh += seen.fresh;
            all.exhausted += seen.exhausted;
        }
        all.taken_us.sort_unstable();
        all
    }
}

async fn call(limiter: Limiter, caller: usize, until_us: u64) -> Seen {
    let (mut seen, limit) = (Seen::default(), of(limit()));
    let own = format!("caller {caller}");
    while monotonic_us() < until_us {
        for key in ["fresh", "exhausted", &own] {
            let start_us = monotonic_us();
            let request = Request::keyed(key, &limit);
            let check = limiter.check(&request);
            let decision = tokio::time::timeout(CEILING, check).await.expect("a decision");
            seen.taken_us.push(monotonic_us() - start_us);
            let admitted = u64::from(decision.allowed());
            match key {
                "fresh" => seen.fresh += admitted,
                "exhausted" => seen.exhausted += admitted,
                _ => {}
            }
            // Keeps the machine from being the bottleneck.
            tokio::time::sleep(Duration::from_millis(PACE_MS)).await;
        }
    }
    seen
}

impl Seen {
    fn at(&self, thousandths: usize) -> u64 {
        self.taken_us[(self.taken_us.len() * thousandths / 1_000).min(self.taken_us.len() - 1)]
    }
}

/// Twice what is offered in a phase, so that quota is left under the fault.
fn limit() -> u64 {
    2 * CALLERS as u64 * phase_ms() / (3 * PACE_MS)
}

/// Nothing refills meanwhile.
fn of(count: u64) -> Limit {
    Limit::per(count, YEAR)
}

fn phase_ms() -> u64 {
    if evidence() { 10_000 } else { 600 }
}

/// The default.
const TIMEOUT: Duration = Duration::from_millis(25);
/// The last look, and two slices of the wait that this machine ends late. Nearly all calls that wait do so in one moment,
/// the first of the fault, so one stall is in all of their times.
const LATENESS: Duration = Duration::from_millis(15);
const PROCESSES: usize = 4;
const CALLERS: usize = 200;
/// Between two checks of a caller.
const PACE_MS: u64 = 25;
