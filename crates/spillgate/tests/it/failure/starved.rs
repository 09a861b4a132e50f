//! A process that gets little processor time, beside a store that works: the store makes every decision.

use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use spillgate::{Decision, Limit, Limiter, Request, Source};
use spillgate_core::time::monotonic_us;
use spillgate_testkit::RedisServer;
use tokio::runtime::Builder;
use tokio::task::JoinSet;

use super::evidence;

/// All decisions used to count their deadlines, and the connections the server's silence, while they could not run.
///
/// Busy threads leave the limiter's threads a hundredth of two cores. The server runs as it likes.
#[test]
fn a_starved_process_makes_no_decision_without_its_healthy_store() {
    let lasts = Duration::from_millis(if evidence() { 60_000 } else { 700 });
    let server = RedisServer::start();
    let mut runtime = Builder::new_multi_thread();
    let runtime = runtime.worker_threads(2).on_thread_start(yield_to_others).enable_all();
    let runtime = runtime.build().unwrap();
    let builder = Limiter::builder().redis(server.url()).timeout(TIMEOUT).denial_cache(false);
    let limiter = runtime.block_on(builder.build()).unwrap();
    let until_us = monotonic_us() + lasts.as_micros() as u64;
    let is_over = Arc::new(AtomicBool::new(false));
    let busy = (0..4).map(|_| {
        let is_over = Arc::clone(&is_over);
        std::thread::spawn(move || while !is_over.load(Ordering::Relaxed) {})
    });
    let busy: Vec<_> = busy.collect();
    let mut callers = JoinSet::new();
    for caller in 0..20 {
        callers.spawn_on(calls(limiter.clone(), caller, until_us), runtime.handle());
    }
    let seen = runtime.block_on(callers.join_all());
    is_over.store(true, Ordering::Relaxed);
    busy.into_iter().for_each(|thread| thread.join().unwrap());
    let decisions: u64 = seen.iter().map(|(count, _)| count).sum();
    let without: Vec<_> = seen.iter().flat_map(|(_, without)| without).collect();
    let early = without.iter().filter(|(taken, _)| *taken < LONGEST_WAIT).count();
    let late = without.len() - early;
    println!(
        "starved: {decisions} decisions, without the store {early}, and {late} at the end of their wait"
    );
    // A caller may find no turn at all until its wait has ended.
    assert!(early == 0 && late as u64 <= decisions / 20, "{without:?}");
}

/// Returns the number of decisions, and those that the store did not make with the time that they took.
async fn calls(limiter: Limiter, caller: usize, until_us: u64) -> (u64, Vec<(Duration, Decision)>) {
    let (mut count, mut without) = (0, Vec::new());
    let (key, limit) = (caller.to_string(), Limit::per_hour(1_000_000_000));
    while monotonic_us() < until_us {
        let began_us = monotonic_us();
        let decision = limiter.check(&Request::keyed(&key, &limit)).await;
        count += 1;
        if decision.source() != Source::Store {
            without.push((Duration::from_micros(monotonic_us() - began_us), decision));
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    (count, without)
}

/// Lowers the priority of this thread as far as it goes.
fn yield_to_others() {
    let thread = std::fs::read_link("/proc/thread-self").unwrap();
    let mut renice = Command::new("renice");
    renice.arg("-n").arg("19").arg("-p").arg(thread.file_name().unwrap());
    assert!(renice.output().unwrap().status.success());
}

/// The default.
const TIMEOUT: Duration = Duration::from_millis(25);
/// However little a process runs, it waits for its store no longer than this.
const LONGEST_WAIT: Duration = Duration::from_millis(100);
