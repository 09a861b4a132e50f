//! A rolling restart: most of the traffic goes to one of four processes, and a deployment restarts them one
//! by one. Local buckets admit far too much in this setting.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use spillgate::{Limit, Limiter, LimiterBuilder, Request};
use spillgate_testkit::{RedisServer, eventually};

use super::YEAR;
use crate::support::random::Random;
use crate::support::storm;
use crate::support::world::PATIENCE;

/// ACCIDENTS A13. Every restart began with a full bucket, and every process had a bucket.
#[test]
fn a_rolling_restart_of_four_processes_with_uneven_traffic_admits_exactly_the_limit() {
    let server = RedisServer::start();
    let fleet = admitted(|| Limiter::builder().redis(server.url()).timeout(PATIENCE));
    let control = admitted(Limiter::builder);
    println!(
        "limit {LIMIT}, offered {REQUESTS}: the fleet admitted {fleet}, four local buckets {control}"
    );
    assert_eq!(fleet, LIMIT);
    assert!(control >= 2 * LIMIT, "local buckets should admit too much: {control}");
}

/// Returns how many of all requests four processes admit while each of them is restarted.
fn admitted(process: impl Fn() -> LimiterBuilder) -> u64 {
    let runtime = storm::threads();
    let start = || runtime.block_on(process().build()).unwrap();
    let processes: Arc<Vec<Mutex<Limiter>>> =
        Arc::new((0..TRAFFIC.len()).map(|_| Mutex::new(start())).collect());
    let (answered, admitted) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicU64::new(0)));
    let callers: Vec<_> = (0..CALLERS)
        .map(|caller| {
            let (answered, admitted) = (Arc::clone(&answered), Arc::clone(&admitted));
            let processes = Arc::clone(&processes);
            runtime.spawn(async move {
                let mut random = Random::new(caller as u64 + 1);
                let limit = Limit::per(LIMIT, YEAR);
                for _ in 0..REQUESTS / CALLERS {
                    let at = process_of(random.below(100));
                    let limiter = processes[at].lock().unwrap().clone();
                    let decision = limiter.check(&Request::keyed("all", &limit)).await;
                    admitted.fetch_add(u64::from(decision.allowed()), Ordering::Relaxed);
                    answered.fetch_add(1, Ordering::Relaxed);
                    tokio::task::yield_now().await;
                }
            })
        })
        .collect();
    for (number, process) in processes.iter().enumerate() {
        // Restarts one after another, each with its part of the traffic under way.
        eventually(|| answered.load(Ordering::Relaxed) >= (number + 1) * REQUESTS / 8);
        let restarted = start();
        *process.lock().unwrap() = restarted;
    }
    runtime.block_on(async {
        for caller in callers {
            caller.await.unwrap();
        }
    });
    admitted.load(Ordering::Relaxed)
}

fn process_of(hundredth: u64) -> usize {
    let mut sum = 0;
    let ends = TRAFFIC.map(|part| {
        sum += part;
        sum
    });
    ends.iter().position(|end| hundredth < *end).unwrap_or(0)
}

/// How many of a hundred requests each process gets.
const TRAFFIC: [u64; 4] = [90, 6, 3, 1];
const LIMIT: u64 = 300;
const REQUESTS: usize = 6_400;
const CALLERS: usize = 16;
