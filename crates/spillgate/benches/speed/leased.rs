//! One hot key whose process leases tokens ahead: as fast as memory, with almost no calls to the store.

use std::error::Error;
use std::hint::black_box;
use std::time::{Duration, Instant};

use spillgate::{Limiter, Policy, Request, Source};
use spillgate_testkit::RedisServer;
use tokio::runtime::Runtime;

use crate::Outcome;
use crate::baseline::Baseline;
use crate::load::{cpu_seconds, drive, runtime};
use crate::rounds::{Effort, Rounds, Run};
use crate::table::{Floor, Table};

pub fn against_memory(effort: Effort) -> Outcome {
    let server = RedisServer::start();
    let runtime = runtime();
    let policy = || -> Result<Policy, Box<dyn Error>> { Ok(Policy::from_toml(POLICY)?) };
    let in_memory = runtime.block_on(Limiter::builder().policy(policy()?).build())?;
    let builder = Limiter::builder().policy(policy()?).redis(server.url());
    let leased = runtime.block_on(builder.timeout(Duration::from_secs(5)).build())?;
    let bare = runtime.block_on(Baseline::connect(&server))?;
    let rounds = Rounds::of(
        effort,
        &mut [
            Box::new(|| checks(effort, &runtime, &leased, Some(&server))),
            Box::new(|| checks(effort, &runtime, &in_memory, None)),
            Box::new(|| {
                let bare = bare.clone();
                drive(&runtime, &server, CALLERS, effort.span, move |_, _| {
                    let bare = bare.clone();
                    async move {
                        bare.check("bare:hot").await;
                        1
                    }
                })
            }),
        ],
    );
    let rows = vec![
        rounds.rate_row("decisions of one hot key; baseline: memory", 0, 1, Floor::AtLeast(1.0)),
        rounds.cpu_row("Redis CPU each; baseline: bare EVALSHA", 0, 2, Floor::AtMost(0.01)),
    ];
    Ok(vec![Table { title: "Redis, one leased counter, far from empty, one thread".into(), rows }])
}

/// One caller in a loop. It yields now and then, as a service does, so that the limiter's own tasks run.
fn checks(
    effort: Effort,
    runtime: &Runtime,
    limiter: &Limiter,
    store: Option<&RedisServer>,
) -> Run {
    if store.is_some() {
        runtime.block_on(warmed(limiter));
    }
    let cpu_before = store.map_or(0.0, cpu_seconds);
    let (start, mut calls, mut by_store) = (Instant::now(), 0_u64, 0_u64);
    runtime.block_on(async {
        while start.elapsed() < effort.span {
            for _ in 0..BETWEEN {
                let request = Request::new().with("user", "hot");
                let decision = black_box(limiter.check(&request).await);
                assert!(decision.allowed(), "the limit is made to last: {decision:?}");
                by_store += u64::from(decision.source() == Source::Store);
            }
            calls += BETWEEN;
            tokio::task::yield_now().await;
        }
    });
    let seconds = start.elapsed().as_secs_f64();
    let cpu = store.map_or(0.0, cpu_seconds) - cpu_before;
    if store.is_some() && by_store * 10 > calls {
        eprintln!("{by_store} of {calls} went to the store");
    }
    Run { figure: calls as f64 / seconds, store_us: cpu * 1e6 / calls as f64 }
}

/// The lease ended while other contenders ran. Checks until it is renewed and lasts.
async fn warmed(limiter: &Limiter) {
    let (start, mut in_a_row) = (Instant::now(), 0);
    while in_a_row < WARM && start.elapsed() < Duration::from_secs(2) {
        for _ in 0..BETWEEN {
            let decision = limiter.check(&Request::new().with("user", "hot")).await;
            in_a_row = if decision.source() == Source::Lease { in_a_row + 1 } else { 0 };
        }
        tokio::task::yield_now().await;
    }
}

/// Large enough that the quota never runs out.
const POLICY: &str = "[[rule]]\nname = \"api\"\nkey = [\"user\"]\n\
    limits = [{ quota = \"100000000/second\", burst = 1000000000 }]\n\
    lease = { share = 0.05, ttl = \"1s\" }";
const BETWEEN: u64 = 256;
const WARM: u64 = 500_000;
const CALLERS: usize = 200;
