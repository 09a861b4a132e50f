//! The fleet's record is refused, or its server hangs: no decision waits for it, and no circuit breaker opens.

use std::time::{Duration, UNIX_EPOCH};

use spillgate::control::ControlError;
use spillgate::{Limiter, Mode, Policy, Request, Source};
use spillgate_core::time::monotonic_us;
use spillgate_testkit::RedisServer;

use crate::support::world::ring_of;

mod no_memory;

const RULE: &str = "[[rule]]\nname = \"own\"\nkey = [\"user\"]\nlimits = [\"1000/day\"]";

fn user(number: u32) -> Request<'static> {
    Request::new().with("user", number.to_string())
}

fn run(body: impl Future<Output = ()>) {
    tokio::runtime::Runtime::new().unwrap().block_on(body);
}

/// An ACL of an earlier version may not name the keys of the record.
#[test]
fn a_user_without_rights_on_the_record_decides_on_the_store_all_the_same() {
    let server = RedisServer::start();
    let url = server.url_of_user("clerk", "secret", &["~sg3:*", "+@all"]);
    decides_without_the_record(&url, &["NOPERM", "permission"]);
}

#[test]
fn a_store_without_memory_for_the_record_alone_decides_all_the_same() {
    let server = RedisServer::start();
    let port = no_memory::before(server.port());
    decides_without_the_record(&format!("redis://127.0.0.1:{port}"), &["OOM"]);
}

/// Checks that the store decides and no breaker opens, while each call of the record fails for this reason.
#[track_caller]
fn decides_without_the_record(url: &str, reasons: &[&str]) {
    run(async {
        let policy = Policy::from_toml(RULE).unwrap();
        let builder = Limiter::builder().policy(policy).redis(url).key_secret(*b"0123456789abcdef");
        let limiter = builder.denials(true).build().await.unwrap();
        // Longer than a few heartbeats take, which a breaker would count.
        let end_us = monotonic_us() + 4_000_000;
        let mut number = 0;
        while monotonic_us() < end_us {
            number += 1;
            assert_eq!(limiter.check(&user(number)).await.source(), Source::Store, "{number}");
            assert!(limiter.shards()[0].asked, "{number}");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        // A change is in force here, and says why it is not saved.
        let report = limiter.set_mode("own", Mode::Off, None).await.unwrap();
        let why = report.why_unsaved().unwrap();
        assert!(reasons.iter().any(|reason| why.contains(reason)), "{why}");
        let listed = limiter.fleet().await;
        assert!(matches!(listed, Err(ControlError::Store(_))), "{listed:?}");
        let now = UNIX_EPOCH + Duration::from_secs(1 << 40);
        let history = limiter.fleet_history(UNIX_EPOCH, now, None).await;
        assert!(matches!(history, Err(ControlError::Store(_))), "{history:?}");
        assert!(limiter.shards()[0].asked);
    });
}

/// The record is on the node whose name comes first.
#[test]
fn a_record_that_hangs_delays_no_decision_on_other_nodes() {
    let servers: Vec<RedisServer> = (0..3).map(|_| RedisServer::start()).collect();
    run(async {
        let policy = Policy::from_toml(RULE).unwrap();
        let builder = Limiter::builder().policy(policy).ring(ring_of(&servers));
        let limiter = builder.timeout(Duration::from_millis(500)).build().await.unwrap();
        let mut elsewhere = Vec::new();
        for number in 0..120 {
            let before = servers[0].decisions();
            let decision = limiter.check(&user(number)).await;
            assert_eq!(decision.source(), Source::Store);
            if servers[0].decisions() == before {
                elsewhere.push(number);
            }
        }
        assert!(elsewhere.len() > 40, "{elsewhere:?}");
        servers[0].pause();
        let end_us = monotonic_us() + 3_000_000;
        let mut longest_us = 0;
        while monotonic_us() < end_us {
            for number in &elsewhere {
                let began_us = monotonic_us();
                assert_eq!(limiter.check(&user(*number)).await.source(), Source::Store);
                longest_us = longest_us.max(monotonic_us() - began_us);
            }
        }
        servers[0].resume();
        // A call that waited for the record would take at least as long as a server may be silent.
        assert!(longest_us < 400_000, "{longest_us} µs");
        let asked: Vec<bool> = limiter.shards().iter().map(|shard| shard.asked).collect();
        assert_eq!(asked[1..], [true, true]);
    });
}
