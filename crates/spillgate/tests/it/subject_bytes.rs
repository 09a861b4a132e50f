//! The bytes of a subject by algorithm, as documented in docs/explain/algorithms.md.

use std::time::Duration;

use spillgate::{Algorithm, Decision, Limiter, Policy, Request};
use spillgate_testkit::RedisServer;

use crate::support::limits;

/// Bytes of one subject after one admitted call, in memory and on Redis, as documented. On Redis a tenth is
/// added, for tables that have just grown.
const DOCUMENTED: [(Algorithm, u64, u64); 5] = [
    (Algorithm::TokenBucket, 100, 200),
    (Algorithm::FixedWindow, 100, 220),
    (Algorithm::SlidingLog, 620, 500),
    (Algorithm::SlidingWindow, 100, 220),
    (Algorithm::Concurrency, 1_400, 800),
];
const SUBJECTS: u64 = 10_000;

fn policy(algorithm: Algorithm) -> Policy {
    let limit = limits::written(algorithm, 20, "hour");
    Policy::from_toml(&format!("[[rule]]\nname = \"r\"\nkey = [\"user\"]\nlimits = [{limit}]"))
        .unwrap()
}

async fn admit_all(limiter: &Limiter) {
    let users: Vec<String> = (0..SUBJECTS).map(|number| number.to_string()).collect();
    for users in users.chunks(1_000) {
        let requests: Vec<_> = users.iter().map(|user| Request::new().with("user", user)).collect();
        assert!(limiter.check_batch(&requests).await.iter().all(Decision::allowed));
    }
}

#[test]
fn a_subject_takes_no_more_bytes_than_documented() {
    let server = RedisServer::start();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        let mut over = Vec::new();
        for (algorithm, in_memory, on_redis) in DOCUMENTED {
            let limiter = Limiter::builder().policy(policy(algorithm)).build().await.unwrap();
            admit_all(&limiter).await;
            let memory = limiter.memory_stats().expect("state is in memory");
            let records = memory.reservation_bytes;
            let counted = (memory.counter_bytes as u64 + records) / SUBJECTS;
            server.command(&["FLUSHALL"]);
            let used = || server.info("memory", "used_memory").parse::<u64>().unwrap();
            let builder = Limiter::builder().policy(policy(algorithm)).redis(server.url());
            let patient = builder.timeout(Duration::from_secs(10)).build().await.unwrap();
            // The first call loads the script.
            assert!(patient.check(&Request::new().with("user", "first")).await.allowed());
            let empty = used();
            admit_all(&patient).await;
            let stored = || used().saturating_sub(empty) / SUBJECTS;
            // Redis takes a moment to free the table that has become too small.
            for _ in 0..100 {
                if stored() <= on_redis {
                    break;
                }
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
            let stored = stored();
            println!(
                "{algorithm}: {counted} counted in memory ({} of records), {stored} on Redis",
                records / SUBJECTS
            );
            if counted > in_memory || stored > on_redis {
                over.push((algorithm, counted, stored));
            }
        }
        assert!(over.is_empty(), "{over:?}");
    });
}
