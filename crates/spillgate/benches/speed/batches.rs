//! Several decisions in one call of the library, which makes one call of the script.

use spillgate::{Limiter, Request};
use spillgate_testkit::RedisServer;
use tokio::runtime::Runtime;

use crate::Outcome;
use crate::baseline::limit;
use crate::load::{drive, key, limiter_on, runtime};
use crate::rounds::{Effort, Rounds, Run};
use crate::table::{Floor, Table};

pub fn of_sizes(effort: Effort) -> Outcome {
    let server = RedisServer::start();
    let runtime = runtime();
    let limiter = runtime.block_on(limiter_on(&server))?;
    let mut contenders: Vec<Box<dyn FnMut() -> Run>> = Vec::new();
    for size in SIZES {
        let (server, runtime, limiter) = (&server, &runtime, &limiter);
        contenders.push(Box::new(move || batches(effort, server, runtime, limiter, size)));
    }
    let rounds = Rounds::of(effort, &mut contenders);
    let rows = SIZES.iter().enumerate().flat_map(|(contender, size)| {
        [
            rounds.rate_row(format!("decisions, {size} per call"), contender, 0, Floor::Nothing),
            rounds.cpu_row(
                format!("Redis CPU each, {size} per call"),
                contender,
                0,
                Floor::Nothing,
            ),
        ]
    });
    let title =
        format!("Redis, one counter, {IN_FLIGHT} decisions in flight; baseline: one per call");
    Ok(vec![Table { title, rows: rows.collect() }])
}

fn batches(
    effort: Effort,
    server: &RedisServer,
    runtime: &Runtime,
    limiter: &Limiter,
    size: usize,
) -> Run {
    let limiter = limiter.clone();
    drive(runtime, server, (IN_FLIGHT / size).max(CALLERS_MIN), effort.span, move |caller, call| {
        let limiter = limiter.clone();
        async move {
            let keys: Vec<String> =
                (call * size..(call + 1) * size).map(|n| key(caller, n)).collect();
            let limit = limit();
            let request = |key| Request::keyed(key, limit.clone());
            let requests: Vec<Request<'_>> = keys.iter().map(request).collect();
            limiter.check_batch(&requests).await.len()
        }
    })
}

const SIZES: [usize; 4] = [1, 8, 32, 100];
const IN_FLIGHT: usize = 200;
/// Keeps another call waiting at the server at all times.
const CALLERS_MIN: usize = 6;
