//! Bytes per subject of a token bucket, in this process and in Redis.

use spillgate::{Limit, Limiter, Request};
use spillgate_testkit::{RedisServer, Reply};

use crate::Outcome;
use crate::baseline::Baseline;
use crate::load::{info, limiter_on, runtime};
use crate::machine::own_bytes;
use crate::rounds::{Effort, Spread};
use crate::table::{Floor, Row, Table};

pub fn in_memory(_: Effort) -> Outcome {
    let runtime = runtime();
    let mut rows = Vec::new();
    // Kept until the end: memory freed by one limiter would hide the growth of the next.
    let mut limiters = Vec::new();
    // A first batch allocates its temporary buffers before the measurement starts.
    let warm = runtime.block_on(Limiter::builder().build())?;
    runtime.block_on(charge_each(&warm, &Limit::per_hour(1), BATCH));
    limiters.push(warm);
    // Small tables have just grown, so the allocator keeps more beside them.
    for (subjects, most) in [(100_000, 66.0), (1_000_000, 85.0)] {
        let before = own_bytes();
        let limiter = runtime.block_on(Limiter::builder().build())?;
        // At one token per hour nothing is swept before the measurement ends.
        runtime.block_on(charge_each(&limiter, &Limit::per_hour(1), subjects));
        let grown = before.and_then(|before| own_bytes()?.checked_sub(before));
        let tables = limiter.memory_stats().map(|memory| memory.counter_bytes as u64);
        for (kind, bytes) in [("tables", tables), ("process", grown)] {
            let Some(bytes) = bytes else { continue };
            let each = bytes as f64 / subjects as f64;
            rows.push(Row {
                measure: format!("{kind}, {subjects} subjects"),
                ours: format!("{each:.1} bytes"),
                baseline: format!("{BASELINE} bytes"),
                ratio: Some(Spread::of(std::iter::once(each / BASELINE))),
                floor: Floor::AtMost(most / BASELINE),
            });
        }
        limiters.push(limiter);
    }
    let title = format!("Memory engine, bytes per subject; baseline: {BASELINE} bytes");
    Ok(vec![Table { title, rows }])
}

pub fn in_redis(_: Effort) -> Outcome {
    let server = RedisServer::start();
    let runtime = runtime();
    let limiter = runtime.block_on(limiter_on(&server))?;
    let bare = runtime.block_on(Baseline::connect(&server))?;
    // Scripts and connections allocate their memory before the measurement starts.
    runtime.block_on(charge_each(&limiter, &Limit::per_hour(1), 1_000));
    runtime.block_on(bare.set(std::iter::once("warm".to_owned()), TTL_MS));
    let mut rows = Vec::new();
    for (name, limit) in [
        ("100/second burst 200", Limit::per_second(100).burst(200)),
        ("5/minute", Limit::per_minute(5)),
        ("1000/hour", Limit::per_hour(1_000)),
        ("7/minute", Limit::per_minute(7)),
    ] {
        let ours = grown(&server, || runtime.block_on(charge_each(&limiter, &limit, SUBJECTS)));
        let keys = keys(&server);
        let plain = grown(&server, || {
            keys.chunks(1_000)
                .for_each(|some| runtime.block_on(bare.set(some.iter().cloned(), TTL_MS)));
        });
        let each = |bytes: f64| format!("{:.1} bytes", bytes / keys.len() as f64);
        rows.push(Row {
            measure: format!("{name}, {} subjects", keys.len()),
            ours: each(ours),
            baseline: each(plain),
            ratio: Some(Spread::of(std::iter::once(ours / plain))),
            floor: Floor::AtMost(1.25),
        });
    }
    let title = "Redis, bytes per subject; baseline: SET key 1 PX of the same keys".into();
    Ok(vec![Table { title, rows }])
}

/// Returns by how many bytes the memory of an empty server grows when `write` runs.
fn grown(server: &RedisServer, write: impl Fn()) -> f64 {
    server.command(&["FLUSHALL"]);
    let empty = info(server, "memory", "used_memory");
    write();
    info(server, "memory", "used_memory") - empty
}

/// Full buckets expire last: after two seconds at the fastest rate here, which is long enough to count them.
async fn charge_each(limiter: &Limiter, limit: &Limit, subjects: usize) {
    let full = limit.capacity().unwrap_or(1);
    for first in (0..subjects).step_by(BATCH) {
        let keys: Vec<String> = (first..first + BATCH).map(|n| format!("user:{n}")).collect();
        let request = |key| Request::keyed(key, limit.clone()).costing(full);
        limiter.check_batch(&keys.iter().map(request).collect::<Vec<_>>()).await;
    }
}

fn keys(server: &RedisServer) -> Vec<String> {
    match server.command(&["KEYS", "*"]) {
        Reply::Array(keys) => keys.iter().map(|key| key.text().to_owned()).collect(),
        other => panic!("KEYS answered {other:?}"),
    }
}

const BASELINE: f64 = 96.0;
const SUBJECTS: usize = 100_000;
const BATCH: usize = 100;
const TTL_MS: u64 = 600_000;
