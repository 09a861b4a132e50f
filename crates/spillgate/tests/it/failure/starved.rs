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
#[test]
fn a_starved_process_makes_no_decision_without_its_healthy_store() {
    let server = RedisServer::start();
    let url = server.url();
    let starving = std::thread::spawn(move || match evidence() {
        true => {
            let cores = std::thread::available_parallelism().unwrap().get();
            let decisions = starve(&url, cores * BUSY_OF_CORE / 3, Duration::from_secs(60));
            assert!(decisions > 5_000, "too few to show anything: {decisions}");
        }
        false => {
            // Leaves the others to the tests beside this one.
            stay_on_one_core();
            let _ = starve(&url, BUSY_OF_CORE, Duration::from_millis(700));
        }
    });
    starving.join().unwrap();
}

/// Busy threads of a higher priority leave the limiter's threads about a hundredth of the time, or less, in turns tens of
/// milliseconds apart, and at times hundreds. The server has the highest priority. Returns the number of decisions.
fn starve(url: &str, busy: usize, lasts: Duration) -> u64 {
    let mut runtime = Builder::new_multi_thread();
    let runtime = runtime.worker_threads(2).on_thread_start(|| lower_priority(19)).enable_all();
    let runtime = runtime.build().unwrap();
    let builder =
        Limiter::builder().redis(url).timeout(TIMEOUT).overload_wait(PATIENCE).denial_cache(false);
    let limiter = runtime.block_on(builder.build()).unwrap();
    let until_us = monotonic_us() + lasts.as_micros() as u64;
    let is_over = Arc::new(AtomicBool::new(false));
    let busy = (0..busy).map(|_| {
        let is_over = Arc::clone(&is_over);
        std::thread::spawn(move || {
            lower_priority(9);
            while !is_over.load(Ordering::Relaxed) {}
        })
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
    println!("starved: {decisions} decisions, without the store {}", without.len());
    assert!(without.is_empty(), "{without:?}");
    decisions
}

/// Returns the number of decisions, and those that the store did not make.
async fn calls(limiter: Limiter, caller: usize, until_us: u64) -> (u64, Vec<Decision>) {
    let (mut count, mut without) = (0, Vec::new());
    let (key, limit) = (caller.to_string(), Limit::per_hour(1_000_000_000));
    // Once at least: beside other tests, the first turn may come late.
    loop {
        let decision = limiter.check(&Request::keyed(&key, &limit)).await;
        count += 1;
        if decision.source() != Source::Store {
            without.push(decision);
        }
        if monotonic_us() >= until_us {
            return (count, without);
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

/// Lowers the priority of this thread. Ten steps down, it gets a tenth of the time of a busy one.
fn lower_priority(nice: u8) {
    of_this_thread("renice", &["-n", &nice.to_string(), "-p"]);
}

/// Keeps this thread, and the threads that it starts, on the core on which it runs.
fn stay_on_one_core() {
    let stat = std::fs::read_to_string("/proc/thread-self/stat").unwrap();
    // The 39th field, of which two come before the end of the name.
    let core = stat.rsplit_once(')').unwrap().1.split_whitespace().nth(36).unwrap();
    of_this_thread("taskset", &["--cpu-list", "--pid", core]);
}

/// Runs a tool whose last argument is a thread, on this one.
fn of_this_thread(tool: &str, arguments: &[&str]) {
    let thread = std::fs::read_link("/proc/thread-self").unwrap();
    let ran = Command::new(tool).args(arguments).arg(thread.file_name().unwrap()).output().unwrap();
    assert!(ran.status.success(), "{tool}: {}", String::from_utf8_lossy(&ran.stderr));
}

/// The default.
const TIMEOUT: Duration = Duration::from_millis(25);
/// The default.
const PATIENCE: Duration = Duration::from_millis(250);
/// A decision takes longer than callers wait by the clock, and less than eight times as long. In a minute a few turns come
/// too late for that, so its threads are a third as many.
const BUSY_OF_CORE: usize = 24;
