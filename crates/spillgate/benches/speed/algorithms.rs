//! The cost of each algorithm at the store, from the store's own timing.

use spillgate::{Algorithm, Limit, LimitSpec, Limiter, Request};
use spillgate_testkit::RedisServer;
use tokio::runtime::Runtime;

use crate::Outcome;
use crate::load::{drive, key, limiter_on, runtime};
use crate::rounds::{Effort, Rounds, Run};
use crate::table::{Floor, Table};

pub fn by_store_time(effort: Effort) -> Outcome {
    let server = RedisServer::start();
    let runtime = runtime();
    let limiter = runtime.block_on(limiter_on(&server))?;
    let mut contenders: Vec<Box<dyn FnMut() -> Run>> = Vec::new();
    for algorithm in Algorithm::ALL {
        let limit = limit(algorithm)?;
        let (server, runtime, limiter) = (&server, &runtime, &limiter);
        contenders.push(Box::new(move || calls(effort, server, runtime, limiter, &limit)));
    }
    let rounds = Rounds::of(effort, &mut contenders);
    let rows = Algorithm::ALL.iter().enumerate().map(|(contender, algorithm)| {
        rounds.cpu_row(algorithm.name(), contender, 0, Floor::Nothing)
    });
    let title =
        "Redis, the script's own time per call of one counter; baseline: token bucket".into();
    Ok(vec![Table { title, rows: rows.collect() }])
}

fn calls(
    effort: Effort,
    server: &RedisServer,
    runtime: &Runtime,
    limiter: &Limiter,
    limit: &Limit,
) -> Run {
    server.command(&["FLUSHALL"]);
    server.command(&["CONFIG", "RESETSTAT"]);
    let (limiter, limit) = (limiter.clone(), limit.clone());
    let run = drive(runtime, server, CALLERS, effort.span, move |caller, call| {
        let (limiter, limit) = (limiter.clone(), limit.clone());
        async move {
            let _ = limiter.check(&Request::keyed(key(caller, call), &limit)).await;
            1
        }
    });
    Run { store_us: script_us(server), ..run }
}

/// Returns the mean time of all calls since the last CONFIG RESETSTAT.
fn script_us(server: &RedisServer) -> f64 {
    let reply = server.command(&["INFO", "commandstats"]);
    let line = reply.text().lines().find_map(|line| line.strip_prefix("cmdstat_evalsha:"));
    let field = line
        .and_then(|line| line.split(',').find_map(|field| field.strip_prefix("usec_per_call=")));
    field.and_then(|us| us.parse().ok()).unwrap_or(f64::NAN)
}

/// Has room for all calls, so that each is charged.
fn limit(algorithm: Algorithm) -> Result<Limit, spillgate::LimitError> {
    let permits = algorithm == Algorithm::Concurrency;
    LimitSpec {
        algorithm: Some(algorithm.name().into()),
        max_hold: permits.then(|| "30s".into()),
        ..LimitSpec::new(if permits { "1000" } else { "1000/minute" })
    }
    .build()
}

/// Few enough that no two decisions share a call.
const CALLERS: usize = 2;
