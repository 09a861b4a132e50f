//! Compares four ways to enforce one limit over four processes: a quarter of it in each process, a shared
//! counter in Redis by window, a shared token bucket, and a shared log.
//!
//! Measures the rate admitted in the long run, around a window's end, with all traffic at one process, and
//! while the store is down.

use std::error::Error;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Client, RedisError, cmd};
use spillgate::{Limit, LimitSpec, Limiter, Request};
use spillgate_testkit::RedisServer;
use tokio::runtime::Runtime;
use tokio::time::{MissedTickBehavior, interval_at, timeout};

use crate::Outcome;
use crate::grid::{Grid, micros, percent, rounded};
use crate::rounds::Effort;

pub fn three_ways(effort: Effort) -> Outcome {
    let runtime = Runtime::new()?;
    let span = effort.span * 8;
    let mut rows = Vec::new();
    for way in Way::ALL {
        let mut server = RedisServer::start();
        let fleet = Arc::new(runtime.block_on(Fleet::new(way, &server))?);
        let even = runtime.block_on(traffic(&fleet, Spread::Even, 2 * LIMIT, span));
        let skewed = runtime.block_on(traffic(&fleet, Spread::One, 2 * LIMIT, span));
        let spike = runtime.block_on(spike(&fleet));
        let away = outage(&runtime, &fleet, &mut server);
        let a_second = |passed: u64| passed as f64 / span.as_secs_f64();
        let of_limit =
            |passed: f64| format!("{} ({})", rounded(passed), percent(passed, LIMIT as f64));
        rows.push(vec![
            way.name().to_owned(),
            of_limit(a_second(even.admitted)),
            of_limit(a_second(skewed.admitted)),
            of_limit(spike as f64),
            micros(even.quantile(0.5)),
            micros(even.quantile(0.99)),
            of_limit(away.admitted as f64),
            percent(away.failed as f64, away.attempts() as f64),
        ]);
    }
    Ok(vec![Grid {
        title: format!(
            "A limit of {LIMIT} a second over {INSTANCES} processes, offered twice that"
        ),
        heads: vec![
            "way",
            "admitted a second, traffic even",
            "all at one process",
            "in one second around a window's end",
            "p50",
            "p99",
            "admitted in one second without the store",
            "undecided in that second",
        ],
        rows,
    }])
}

#[derive(Clone, Copy)]
enum Way {
    PerInstance,
    Counter,
    Bucket,
    Log,
}

impl Way {
    const ALL: [Way; 4] = [Way::PerInstance, Way::Counter, Way::Bucket, Way::Log];

    fn name(self) -> &'static str {
        match self {
            Way::PerInstance => "a quarter in each process",
            Way::Counter => "INCR by window",
            Way::Bucket => "Spillgate, token-bucket, burst a tenth",
            Way::Log => "Spillgate, sliding-log",
        }
    }
}

struct Fleet {
    instances: Vec<Instance>,
}

enum Instance {
    Spillgate(Limiter, Limit),
    Counter(Box<Counter>),
}

impl Fleet {
    async fn new(way: Way, server: &RedisServer) -> Result<Fleet, Box<dyn Error>> {
        let mut instances = Vec::new();
        for _ in 0..INSTANCES {
            let shared =
                Limiter::builder().redis(server.url()).expected_instances(INSTANCES as u32);
            instances.push(match way {
                Way::PerInstance => {
                    let part = LIMIT / INSTANCES;
                    let limit = Limit::per_second(part).burst(part / 10);
                    Instance::Spillgate(Limiter::builder().build().await?, limit)
                }
                Way::Counter => Instance::Counter(Box::new(Counter::new(server)?)),
                Way::Bucket => {
                    let limit = Limit::per_second(LIMIT).burst(LIMIT / 10);
                    Instance::Spillgate(shared.build().await?, limit)
                }
                Way::Log => {
                    let quota = format!("{LIMIT}/second");
                    let limit = LimitSpec::new(&quota).algorithm("sliding-log").build()?;
                    Instance::Spillgate(shared.build().await?, limit)
                }
            });
        }
        Ok(Fleet { instances })
    }

    /// Returns whether the call is admitted, or `None` if the store could not be asked.
    async fn check(&self, instance: usize) -> Option<bool> {
        match &self.instances[instance] {
            Instance::Spillgate(limiter, limit) => {
                Some(limiter.check(&Request::keyed("all", limit)).await.allowed())
            }
            Instance::Counter(counter) => counter.check().await.ok(),
        }
    }
}

/// The limiter of most articles: one count per second in Redis, which expires by itself.
struct Counter {
    client: Client,
    connection: Mutex<Option<MultiplexedConnection>>,
}

impl Counter {
    fn new(server: &RedisServer) -> Result<Counter, RedisError> {
        Ok(Counter { client: Client::open(server.url())?, connection: Mutex::default() })
    }

    async fn check(&self) -> Result<bool, RedisError> {
        let known = self.connection.lock().expect("no holder of this lock panics").clone();
        let mut connection = match known {
            Some(connection) => connection,
            None => {
                let config = AsyncConnectionConfig::new()
                    .set_connection_timeout(Some(PATIENCE))
                    .set_response_timeout(Some(PATIENCE));
                let opened =
                    self.client.get_multiplexed_async_connection_with_config(&config).await?;
                *self.connection.lock().expect("no holder of this lock panics") =
                    Some(opened.clone());
                opened
            }
        };
        let key = format!("count:{}", now().as_secs());
        let counted = async {
            let count: u64 = cmd("INCR").arg(&key).query_async(&mut connection).await?;
            if count == 1 {
                cmd("PEXPIRE").arg(&key).arg(2_000).exec_async(&mut connection).await?;
            }
            Ok(count <= LIMIT)
        };
        let counted: Result<bool, RedisError> = counted.await;
        if counted.is_err() {
            *self.connection.lock().expect("no holder of this lock panics") = None;
        }
        counted
    }
}

/// How traffic is spread over the processes.
#[derive(Clone, Copy)]
enum Spread {
    Even,
    One,
}

#[derive(Default)]
struct Seen {
    admitted: u64,
    denied: u64,
    failed: u64,
    times_us: Vec<f64>,
}

impl Seen {
    fn attempts(&self) -> u64 {
        self.admitted + self.denied + self.failed
    }

    fn quantile(&self, quantile: f64) -> f64 {
        let mut sorted = self.times_us.clone();
        sorted.sort_by(f64::total_cmp);
        sorted.get((sorted.len() as f64 * quantile) as usize).copied().unwrap_or(0.0)
    }
}

/// Sends `per_second` calls at scheduled times during `span`, from callers that each wait for their reply.
async fn traffic(fleet: &Arc<Fleet>, spread: Spread, per_second: u64, span: Duration) -> Seen {
    let every = Duration::from_secs_f64(CALLERS as f64 / per_second as f64);
    let begin = tokio::time::Instant::now() + Duration::from_millis(50);
    let callers = (0..CALLERS).map(|caller| {
        let (fleet, offset) = (Arc::clone(fleet), every.mul_f64(caller as f64 / CALLERS as f64));
        let instance = match spread {
            Spread::Even => caller % INSTANCES as usize,
            Spread::One => 0,
        };
        tokio::spawn(async move {
            let mut seen = Seen::default();
            let mut ticks = interval_at(begin + offset, every);
            ticks.set_missed_tick_behavior(MissedTickBehavior::Burst);
            while tokio::time::Instant::now() < begin + span {
                ticks.tick().await;
                let attempts = Instant::now();
                match fleet.check(instance).await {
                    Some(true) => seen.admitted += 1,
                    Some(false) => seen.denied += 1,
                    None => seen.failed += 1,
                }
                seen.times_us.push(attempts.elapsed().as_secs_f64() * 1e6);
            }
            seen
        })
    });
    let callers: Vec<_> = callers.collect();
    let mut all = Seen::default();
    for caller in callers {
        let seen = caller.await.expect("a caller does not panic");
        all.admitted += seen.admitted;
        all.denied += seen.denied;
        all.failed += seen.failed;
        all.times_us.extend(seen.times_us);
    }
    all
}

/// Counts the calls admitted within one second, when twice the limit arrives right before a window's end and
/// again right after it.
async fn spike(fleet: &Arc<Fleet>) -> u64 {
    // Waits until earlier calls have left every window.
    tokio::time::sleep(Duration::from_millis(2_200)).await;
    let to_end = Duration::from_secs(1) - Duration::from_nanos(now().subsec_nanos().into());
    tokio::time::sleep((to_end + Duration::from_secs(1)).saturating_sub(BEFORE_END)).await;
    let before = burst(fleet).await;
    let left = Duration::from_secs(1) - Duration::from_nanos(now().subsec_nanos().into());
    if left < Duration::from_millis(700) {
        tokio::time::sleep(left + Duration::from_millis(5)).await;
    }
    before + burst(fleet).await
}

async fn burst(fleet: &Arc<Fleet>) -> u64 {
    let (attempts, passed) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
    let callers: Vec<_> = (0..CALLERS)
        .map(|caller| {
            let (fleet, attempts, passed) =
                (Arc::clone(fleet), Arc::clone(&attempts), Arc::clone(&passed));
            tokio::spawn(async move {
                while attempts.fetch_add(1, Ordering::Relaxed) < 2 * LIMIT {
                    let passes = fleet.check(caller % INSTANCES as usize).await;
                    passed.fetch_add(u64::from(passes == Some(true)), Ordering::Relaxed);
                }
            })
        })
        .collect();
    for caller in callers {
        caller.await.expect("a caller does not panic");
    }
    passed.load(Ordering::Relaxed)
}

/// Sends traffic for one second after the store was killed under load.
fn outage(runtime: &Runtime, fleet: &Arc<Fleet>, server: &mut RedisServer) -> Seen {
    let goes_on = Arc::new(AtomicBool::new(true));
    let before = {
        let (fleet, goes_on) = (Arc::clone(fleet), Arc::clone(&goes_on));
        runtime.spawn(async move {
            while goes_on.load(Ordering::Relaxed) {
                traffic(&fleet, Spread::Even, LIMIT, Duration::from_millis(200)).await;
            }
        })
    };
    std::thread::sleep(Duration::from_secs(2));
    server.kill();
    goes_on.store(false, Ordering::Relaxed);
    let settled = runtime.block_on(async { timeout(Duration::from_secs(10), before).await });
    assert!(settled.is_ok(), "traffic ends by itself");
    runtime.block_on(traffic(fleet, Spread::Even, 2 * LIMIT, Duration::from_secs(1)))
}

fn now() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}

const LIMIT: u64 = 1_000;
const INSTANCES: u64 = 4;
const CALLERS: usize = 64;
/// The limiter's timeout for its store.
const PATIENCE: Duration = Duration::from_millis(25);
/// A burst takes less time than this.
const BEFORE_END: Duration = Duration::from_millis(400);
