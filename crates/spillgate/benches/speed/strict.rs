//! One strict decision per call on Redis, against the bare script and a plain SET.

use std::time::Instant;

use spillgate::{Limiter, Request};
use spillgate_testkit::RedisServer;
use tokio::runtime::Runtime;

use crate::Outcome;
use crate::baseline::{Baseline, limit};
use crate::load::{drive, key, limiter_on, runtime};
use crate::rounds::{Effort, Rounds, Run, Spread};
use crate::table::{Floor, Row, Table, micros};

pub fn against_baselines(effort: Effort) -> Outcome {
    let server = RedisServer::start();
    let runtime = runtime();
    let limiter = runtime.block_on(limiter_on(&server))?;
    let bare = runtime.block_on(Baseline::connect(&server))?;
    let mut rows = throughput(effort, &server, &runtime, &limiter, &bare);
    rows.push(lone_latency(effort, &runtime, &limiter, &bare));
    let title =
        format!("Redis, one counter per call, distinct keys, {CALLERS} callers on one connection");
    Ok(vec![Table { title, rows }])
}

fn throughput(
    effort: Effort,
    server: &RedisServer,
    runtime: &Runtime,
    limiter: &Limiter,
    bare: &Baseline,
) -> Vec<Row> {
    let ours = || {
        let limiter = limiter.clone();
        drive(runtime, server, CALLERS, effort.span, move |caller, call| {
            let limiter = limiter.clone();
            async move {
                let key = key(caller, call);
                let _ = limiter.check(&Request::keyed(&key, limit())).await;
                1
            }
        })
    };
    let evalsha = || {
        let bare = bare.clone();
        drive(runtime, server, CALLERS, effort.span, move |caller, call| {
            let bare = bare.clone();
            async move {
                bare.check(&format!("bare:{}", key(caller, call))).await;
                1
            }
        })
    };
    let set = || {
        let bare = bare.clone();
        drive(runtime, server, SET_CALLERS, effort.span, move |caller, call| {
            let bare = bare.clone();
            async move {
                let numbers = call * PIPELINE..(call + 1) * PIPELINE;
                bare.set(numbers.map(|number| format!("set:{}", key(caller, number))), TTL_MS)
                    .await;
                PIPELINE
            }
        })
    };
    let rounds = Rounds::of(effort, &mut [Box::new(ours), Box::new(evalsha), Box::new(set)]);
    let set = format!("SET PX, {PIPELINE} per pipeline");
    [
        ("bare EVALSHA", 1, Floor::AtLeast(2.0), Floor::AtMost(0.5)),
        (set.as_str(), 2, Floor::Nothing, Floor::Nothing),
    ]
    .into_iter()
    .flat_map(|(name, to, decisions, cpu)| {
        [
            rounds.rate_row(format!("decisions, against {name}"), 0, to, decisions),
            rounds.cpu_row(format!("Redis CPU each, against {name}"), 0, to, cpu),
        ]
    })
    .collect()
}

fn lone_latency(effort: Effort, runtime: &Runtime, limiter: &Limiter, bare: &Baseline) -> Row {
    let ours = || {
        runtime.block_on(median_us(effort, |call| async move {
            let _ = limiter.check(&Request::keyed(key(CALLERS, call), limit())).await;
        }))
    };
    let evalsha = || {
        runtime.block_on(median_us(effort, |call| async move {
            bare.check(&format!("bare:{}", key(CALLERS, call))).await;
        }))
    };
    let rounds = Rounds::of(effort, &mut [Box::new(ours), Box::new(evalsha)]);
    Row {
        measure: "a lone check's median time, against bare EVALSHA".into(),
        ours: micros(rounds.figure(0)),
        baseline: micros(rounds.figure(1)),
        ratio: Some(rounds.figure_ratio(0, 1)),
        floor: Floor::AtMost(1.1),
    }
}

async fn median_us<F: Future<Output = ()>>(effort: Effort, call: impl Fn(usize) -> F) -> Run {
    let start = Instant::now();
    let mut times = Vec::new();
    while start.elapsed() < effort.span {
        let begun = Instant::now();
        call(times.len()).await;
        times.push(begun.elapsed().as_secs_f64() * 1e6);
    }
    Run { figure: Spread::of(times.into_iter()).median, store_us: 0.0 }
}

const CALLERS: usize = 200;
const SET_CALLERS: usize = 8;
const PIPELINE: usize = 64;
/// As long as a full bucket of ours takes to drain.
const TTL_MS: u64 = 2_000;
