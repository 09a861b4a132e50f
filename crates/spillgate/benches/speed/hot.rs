//! Many callers at the same hot keys. Most calls are over the limit, and one caller's denial answers the
//! others.

use std::sync::Arc;

use spillgate::{Limiter, Request};
use spillgate_testkit::RedisServer;
use tokio::runtime::Runtime;

use crate::Outcome;
use crate::baseline::{Baseline, limit};
use crate::load::{drive, limiter_on, runtime, shuffled};
use crate::rounds::{Effort, Rounds, Run};
use crate::table::{Floor, Table};

pub fn against_bare_scripts(effort: Effort) -> Outcome {
    let server = RedisServer::start();
    let runtime = runtime();
    let limiter = runtime.block_on(limiter_on(&server))?;
    let bare = runtime.block_on(Baseline::connect(&server))?;
    let mut rows = Vec::new();
    for (name, keys, at_least, cpu) in [
        ("Zipf(1.1) over 100000 keys", zipf(), 3.0, Floor::AtMost(0.3)),
        ("ten hot keys", evenly(10), 10.0, Floor::Nothing),
    ] {
        let keys = Arc::new(keys);
        let scene = Scene { effort, server: &server, runtime: &runtime, keys: &keys };
        let rounds = Rounds::of(
            effort,
            &mut [Box::new(|| scene.ours(&limiter)), Box::new(|| scene.bare(&bare))],
        );
        rows.extend([
            rounds.rate_row(format!("decisions, {name}"), 0, 1, Floor::AtLeast(at_least)),
            rounds.cpu_row(format!("Redis CPU each, {name}"), 0, 1, cpu),
        ]);
    }
    let title =
        format!("Redis, one counter, {CALLERS} callers at hot keys; baseline: bare EVALSHA");
    Ok(vec![Table { title, rows }])
}

#[derive(Clone, Copy)]
struct Scene<'s> {
    effort: Effort,
    server: &'s RedisServer,
    runtime: &'s Runtime,
    /// The key of each call.
    keys: &'s Arc<Vec<u32>>,
}

impl Scene<'_> {
    fn ours(self, limiter: &Limiter) -> Run {
        let (limiter, keys) = (limiter.clone(), Arc::clone(self.keys));
        drive(self.runtime, self.server, CALLERS, self.effort.span, move |caller, call| {
            let (limiter, key) = (limiter.clone(), key(&keys, caller, call));
            async move {
                let limit = limit();
                let decision = limiter.check(&Request::keyed(&key, &limit)).await;
                // A denial may come without an await point.
                if !decision.allowed() {
                    tokio::task::yield_now().await;
                }
                1
            }
        })
    }

    fn bare(self, bare: &Baseline) -> Run {
        let (bare, keys) = (bare.clone(), Arc::clone(self.keys));
        drive(self.runtime, self.server, CALLERS, self.effort.span, move |caller, call| {
            let (bare, key) = (bare.clone(), key(&keys, caller, call));
            async move {
                bare.check(&format!("bare:{key}")).await;
                1
            }
        })
    }
}

fn key(keys: &[u32], caller: usize, call: usize) -> String {
    format!("hot:{}", keys[(caller * STRIDE + call) % keys.len()])
}

/// Returns the keys of 2^18 calls by Zipf's law, in shuffled order.
fn zipf() -> Vec<u32> {
    let weights: Vec<f64> = (1..=KEYS).map(|rank| f64::from(rank).powf(-EXPONENT)).collect();
    let total: f64 = weights.iter().sum();
    let mut sums = weights.iter().scan(0.0, |sum, weight| {
        *sum += weight / total;
        Some(*sum)
    });
    let (mut rank, mut below) = (0, sums.next().unwrap_or(1.0));
    let by_rank: Vec<u32> = (0..DRAWN)
        .map(|drawn| {
            let at = (f64::from(drawn) + 0.5) / f64::from(DRAWN);
            while at > below && rank + 1 < KEYS {
                rank += 1;
                below = sums.next().unwrap_or(1.0);
            }
            rank
        })
        .collect();
    shuffled(DRAWN).into_iter().map(|place| by_rank[place as usize]).collect()
}

fn evenly(keys: u32) -> Vec<u32> {
    shuffled(DRAWN).into_iter().map(|place| place % keys).collect()
}

const CALLERS: usize = 1_000;
const KEYS: u32 = 100_000;
const EXPONENT: f64 = 1.1;
const DRAWN: u32 = 1 << 18;
/// Callers start far apart in the list.
const STRIDE: usize = 7_919;
