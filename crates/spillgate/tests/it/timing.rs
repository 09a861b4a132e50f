//! `decision_seconds`: on a store every decision is timed once, for every kind of call.

use std::time::Duration;

use spillgate::reservation::Reserve;
use spillgate::{Limit, Limiter, Policy, Request};
use spillgate_testkit::RedisServer;

const POLICY: &str = r#"
    [[rule]]
    name = "api"
    key = ["user"]
    limits = ["1000/day"]
    [[rule]]
    name = "jobs"
    key = ["job"]
    limits = [{ quota = "100", algorithm = "concurrency", max_hold = "10m" }]
    [[rule]]
    name = "paced"
    key = ["upstream"]
    limits = [{ quota = "2/second", burst = 1 }]
    [[rule]]
    name = "free"
    key = ["free"]
    limits = ["unlimited"]
"#;

#[test]
fn every_decision_on_a_store_is_timed_once() {
    on_redis(|limiter| async move {
        let ann = Request::new().with("user", "ann");
        let job = Request::new().with("job", "a");
        let patient = Duration::from_secs(10);
        let mut expected = 0;
        for round in 0..N {
            let _ = limiter.check(&ann).await;
            let _ = limiter.check_atomic_within(&[ann.clone(), job.clone()], patient).await;
            assert!(limiter.acquire(&ann, patient).await.allowed());
            let _ = limiter.reserve(&ann, &Reserve::lasting(patient)).await.unwrap();
            let _ =
                limiter.reserve(&job, &Reserve::default().under(format!("{round}"))).await.unwrap();
            assert!(limiter.check(&job).await.receipt().is_some());
            let free = Request::new().with("free", "a");
            let _ = limiter.reserve(&free, &Reserve::default()).await.unwrap();
            let one = Request::keyed("ann", Limit::per_day(1_000));
            limiter.check_batch(&[one.clone(), one]).await;
            expected += 8;
            assert_eq!(timed(&limiter).0, expected, "round {round}");
        }
        println!("{expected} decisions, {} timed", timed(&limiter).0);
    });
}

/// The waiting time is not part of the decision's time. Each wait takes half a second.
#[test]
fn a_decision_that_waited_is_timed_once_without_the_wait() {
    on_redis(|limiter| async move {
        let request = Request::new().with("upstream", "a");
        for _ in 0..=WAITS {
            assert!(limiter.acquire(&request, Duration::from_secs(60)).await.allowed());
        }
        let (count, seconds) = timed(&limiter);
        println!("{count} timed, {seconds} s for {WAITS} waits of half a second");
        assert_eq!(count, WAITS + 1);
        // Half of the time for which the limit made them wait.
        assert!(seconds < 0.25 * WAITS as f64, "{seconds} s");
        // A wait that cannot succeed is one decision too.
        assert!(!limiter.acquire(&request, Duration::from_millis(1)).await.allowed());
        assert_eq!(timed(&limiter).0, WAITS + 2);
    });
}

fn on_redis<F: Future<Output = ()>>(body: impl Fn(Limiter) -> F) {
    let server = RedisServer::start();
    tokio::runtime::Runtime::new().unwrap().block_on(async {
        let builder = Limiter::builder().redis(server.url()).timeout(Duration::from_secs(10));
        let builder = builder.policy(Policy::from_toml(POLICY).unwrap());
        body(builder.build().await.unwrap()).await;
    });
}

/// Returns how many decisions were timed, and their total time.
fn timed(limiter: &Limiter) -> (u64, f64) {
    let metrics = limiter.metrics_text();
    let value = |name: &str| {
        let line = metrics.lines().find_map(|line| line.strip_prefix(name));
        line.unwrap_or_else(|| panic!("no {name} in {metrics}")).trim().to_owned()
    };
    let count = value("spillgate_decision_seconds_count").parse().unwrap();
    (count, value("spillgate_decision_seconds_sum").parse().unwrap())
}

const N: u64 = 20;
const WAITS: u64 = 4;
