//! Drives the contenders: a runtime, callers, and shuffled keys.

use std::future::Future;
use std::slice;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use spillgate::{BuildError, Limiter};
use spillgate_testkit::RedisServer;
use tokio::runtime::{Builder, Runtime};

use crate::rounds::Run;

pub fn runtime() -> Runtime {
    Builder::new_current_thread().enable_all().build().expect("the system gives a runtime")
}

/// Returns the numbers below `end` in shuffled order, the same each time (xorshift64*, Fisher-Yates).
pub fn shuffled(end: u32) -> Vec<u32> {
    let mut state: u64 = 0x9E37_79B9_7F4A_7C15;
    let mut below = |end: u64| {
        state ^= state >> 12;
        state ^= state << 25;
        state ^= state >> 27;
        ((u128::from(state.wrapping_mul(0x2545_F491_4F6C_DD1D)) * u128::from(end)) >> 64) as usize
    };
    let mut places: Vec<u32> = (0..end).collect();
    for place in (1..places.len()).rev() {
        places.swap(place, below(place as u64 + 1));
    }
    places
}

/// Runs `callers` tasks that call in sequence during `span`. Each call returns the number of decisions that
/// it made.
pub fn drive<C, F>(
    runtime: &Runtime,
    server: &RedisServer,
    callers: usize,
    span: Duration,
    call: C,
) -> Run
where
    C: Fn(usize, usize) -> F + Clone + Send + 'static,
    F: Future<Output = usize> + Send,
{
    drive_on(runtime, slice::from_ref(server), callers, span, call)
}

/// Like [`drive`], on several servers.
pub fn drive_on<C, F>(
    runtime: &Runtime,
    servers: &[RedisServer],
    callers: usize,
    span: Duration,
    call: C,
) -> Run
where
    C: Fn(usize, usize) -> F + Clone + Send + 'static,
    F: Future<Output = usize> + Send,
{
    let cpu_seconds = || servers.iter().map(cpu_seconds).sum::<f64>();
    let cpu_before = cpu_seconds();
    let start = Instant::now();
    let decisions = runtime.block_on(async {
        let stop = Arc::new(AtomicBool::new(false));
        let tasks: Vec<_> = (0..callers)
            .map(|caller| {
                let (call, stop) = (call.clone(), Arc::clone(&stop));
                tokio::spawn(async move {
                    let (mut calls, mut decisions) = (0, 0);
                    while !stop.load(Ordering::Relaxed) {
                        decisions += call(caller, calls).await;
                        calls += 1;
                    }
                    decisions
                })
            })
            .collect();
        tokio::time::sleep(span).await;
        stop.store(true, Ordering::Relaxed);
        let mut decisions = 0;
        for task in tasks {
            decisions += task.await.expect("a caller does not panic");
        }
        decisions
    });
    let elapsed = start.elapsed().as_secs_f64();
    let cpu = cpu_seconds() - cpu_before;
    Run { figure: decisions as f64 / elapsed, store_us: cpu * 1e6 / decisions as f64 }
}

/// A field of the server's INFO.
pub fn info(server: &RedisServer, section: &str, field: &str) -> f64 {
    let reply = server.command(&["INFO", section]);
    let line = reply.text().lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':'));
    line.and_then(|value| value.parse().ok())
        .unwrap_or_else(|| panic!("INFO {section} has no {field}"))
}

pub fn cpu_seconds(server: &RedisServer) -> f64 {
    info(server, "cpu", "used_cpu_user") + info(server, "cpu", "used_cpu_sys")
}

/// The key of a caller's `call`th call: each caller cycles through keys of its own.
pub fn key(caller: usize, call: usize) -> String {
    format!("user:{caller}:{}", call % KEYS_EACH)
}

pub async fn limiter_on(server: &RedisServer) -> Result<Limiter, BuildError> {
    // Long enough that a busy machine measures slow decisions and no outages.
    Limiter::builder().redis(server.url()).timeout(Duration::from_secs(5)).build().await
}

const KEYS_EACH: usize = 500;
