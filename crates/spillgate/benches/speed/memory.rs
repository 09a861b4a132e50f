//! The memory engine against governor's keyed check: a tight loop over the same keys in the same order, on
//! one thread and on four.

use std::error::Error;
use std::hint::black_box;
use std::num::NonZeroU32;
use std::time::Instant;

use governor::{DefaultKeyedRateLimiter, Quota, RateLimiter};
use spillgate::{Limit, Limiter, Policy, Request};

use crate::Outcome;
use crate::load::{runtime, shuffled};
use crate::rounds::{Effort, Rounds, Run};
use crate::table::{Floor, Row, Table};

pub fn against_governor(effort: Effort) -> Outcome {
    let mut rows = Vec::new();
    let reported = [Floor::Nothing; 3];
    let promised = [0.85, 0.5, 0.25].map(Floor::AtLeast);
    for (keys, floors) in [(100_000, reported), (1_000, promised)] {
        rows.extend(checks(effort, keys, 1, floors)?);
    }
    let title = "Memory engine, one thread; baseline: governor's keyed check, one counter".into();
    let one = Table { title, rows };
    let rows = checks(effort, 100_000, THREADS, reported)?.into();
    let title =
        format!("Memory engine, {THREADS} threads; baseline: governor's keyed check, one counter");
    Ok(vec![one, Table { title, rows }])
}

fn checks(
    effort: Effort,
    keys: u32,
    threads: usize,
    floors: [Floor; 3],
) -> Result<[Row; 3], Box<dyn Error>> {
    let names: Vec<String> = (0..keys).map(|number| format!("user:{number}")).collect();
    let order = shuffled(keys);
    let runtime = runtime();

    let limit = Limit::per_second(RATE).burst(BURST);
    let inline = runtime.block_on(Limiter::builder().build())?;
    let check_inline = async |place: u32| {
        let request = Request::keyed(&names[place as usize], &limit);
        black_box(inline.check(&request).await).allowed()
    };

    let one_counter = runtime.block_on(by_policy(&[RATE]))?;
    let three_counters = runtime.block_on(by_policy(&[RATE, RATE + 1, RATE + 2]))?;
    let check = |limiter: &Limiter| {
        on_threads(effort, &order, threads, &async |place: u32| {
            let request = Request::new().with("user", &names[place as usize]);
            black_box(limiter.check(&request).await).allowed()
        })
    };

    let quota = Quota::per_second(fits(RATE)).allow_burst(fits(BURST));
    let theirs: DefaultKeyedRateLimiter<String> = RateLimiter::dashmap(quota);
    let governor = async |place: u32| black_box(theirs.check_key(&names[place as usize])).is_ok();

    let rounds = Rounds::of(
        effort,
        &mut [
            Box::new(|| on_threads(effort, &order, threads, &governor)),
            Box::new(|| on_threads(effort, &order, threads, &check_inline)),
            Box::new(|| check(&one_counter)),
            Box::new(|| check(&three_counters)),
        ],
    );
    let row = |name: &str, contender, floor| {
        rounds.rate_row(format!("{name}, {keys} keys"), contender, 0, floor)
    };
    Ok([
        row("inline limit", 1, floors[0]),
        row("check by a policy", 2, floors[1]),
        row("check of three counters", 3, floors[2]),
    ])
}

/// A limiter with one rule, which has one limit for each rate.
async fn by_policy(rates: &[u64]) -> Result<Limiter, Box<dyn Error>> {
    let limits: Vec<String> = rates
        .iter()
        .map(|rate| format!("{{ quota = \"{rate}/second\", burst = {BURST} }}"))
        .collect();
    let limits = limits.join(", ");
    let policy = format!("[[rule]]\nname = \"api\"\nkey = [\"user\"]\nlimits = [{limits}]");
    Ok(Limiter::builder().policy(Policy::from_toml(&policy)?).build().await?)
}

/// Runs a pass on each of several threads and adds their figures.
fn on_threads(
    effort: Effort,
    order: &[u32],
    threads: usize,
    call: &(impl AsyncFn(u32) -> bool + Sync),
) -> Run {
    let run = |number| runtime().block_on(pass(effort, from(order, number, threads), call));
    std::thread::scope(|scope| {
        let run = &run;
        let others: Vec<_> = (1..threads).map(|number| scope.spawn(move || run(number))).collect();
        let mut all = run(0);
        for other in others {
            all.figure += other.join().expect("a pass only checks").figure;
        }
        all
    })
}

/// Returns all of `order`. Each thread begins elsewhere, and all visit every key.
fn from(order: &[u32], number: usize, threads: usize) -> impl Iterator<Item = u32> + Clone {
    let (before, after) = order.split_at(order.len() / threads * number);
    after.iter().chain(before).copied()
}

/// Returns the calls a second, over all places again and again.
async fn pass(
    effort: Effort,
    places: impl Iterator<Item = u32> + Clone,
    call: &impl AsyncFn(u32) -> bool,
) -> Run {
    let (start, mut calls, mut allowed) = (Instant::now(), 0_u64, 0_u64);
    while start.elapsed() < effort.span {
        for place in places.clone() {
            allowed += u64::from(call(place).await);
            calls += 1;
        }
    }
    let seconds = start.elapsed().as_secs_f64();
    assert_eq!(allowed, calls, "the burst is made to last");
    Run { figure: calls as f64 / seconds, store_us: 0.0 }
}

fn fits(number: u64) -> NonZeroU32 {
    u32::try_from(number).ok().and_then(NonZeroU32::new).expect("a constant of this file")
}

/// Slow enough that each bucket is still in use at the next visit; the burst lasts for the whole run.
const RATE: u64 = 10;
const BURST: u64 = 10_000_000;
const THREADS: usize = 4;
