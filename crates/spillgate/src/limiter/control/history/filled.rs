//! Fills the record of a fleet with two busy days, on which `./evidence fleet` times the pages of operators.

use std::time::Duration;

use crate::testing::ManualClock;
use crate::time::Clock;
use crate::{Limiter, Policy, Request};

/// 64 rules decide in each minute of 48 hours, and 10,000 subjects are denied in each hour.
#[test]
#[ignore = "needs evidence"]
fn two_days_of_a_busy_fleet() {
    let store = std::env::var("SPILLGATE_FILLED").expect("the URL of a store");
    let policy =
        std::env::var("SPILLGATE_POLICY").expect("a policy with the rules r0 to r63, by tenant");
    let policy = Policy::from_toml(&std::fs::read_to_string(policy).unwrap()).unwrap();
    let now = Duration::from_micros(Clock::System.now_us());
    let clock = ManualClock::new();
    clock.set(now - Duration::from_secs(HOURS * 3_600));
    tokio::runtime::Runtime::new().unwrap().block_on(async {
        let builder = Limiter::builder().policy(policy).redis(store).manual_clock(&clock);
        let limiter = builder.denials(true).build().await.unwrap();
        let request = |rule: u64, tenant: String| {
            Request::new().with("path", format!("/{rule}")).with("tenant", tenant)
        };
        for minute in 0..HOURS * 60 {
            let mut requests: Vec<_> = (0..64).map(|rule| request(rule, "acme".into())).collect();
            // Each is denied: it costs more than its limit ever has.
            let denied = (0..if minute % 60 < 10 { 1_000 } else { 0 }).map(|subject| {
                request(subject % 64, format!("tenant-{minute}-{subject}")).costing(u64::MAX >> 20)
            });
            requests.extend(denied);
            for part in requests.chunks(200) {
                let _ = limiter.check_batch(part).await;
            }
            clock.advance(Duration::from_secs(60));
            limiter.inner.denials.settle();
            limiter.inner.settle_history();
            for _ in 0..12 {
                limiter.inner.add_denials().await;
                limiter.inner.add_history().await;
            }
        }
        let left = limiter.inner.denials.dropped();
        assert_eq!(left, 0, "minutes of denials were dropped");
    });
}

const HOURS: u64 = 48;
