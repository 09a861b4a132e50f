//! Post-paid rules on a store: a call of its own charges each counter without room by force.

use std::time::Duration;

use spillgate::{Limit, Limiter, Policy, Request, Rule, Source};
use spillgate_testkit::{Fault, FaultProxy, RedisServer};
use tokio::time::Instant;

use crate::failure::YEAR;
use crate::support::world::{PATIENCE, runtime};

/// The forced charges of a batch waited for one another: 1,000 checks over a full limit took 1,000 round
/// trips.
#[test]
fn forced_charges_of_a_batch_are_made_together() {
    let server = RedisServer::start();
    let proxy = FaultProxy::before(server.port());
    let rule = Rule::new("bytes").key(["user"]).limit(Limit::per(1_000, YEAR)).postpaid();
    let policy = Policy::builder().rule(rule).build().unwrap();
    let builder = Limiter::builder().policy(policy).redis(proxy.url()).timeout(PATIENCE);
    let ada = Request::new().with("user", "ada");
    runtime().block_on(async {
        let limiter = builder.build().await.unwrap();
        assert!(limiter.check(&ada.clone().costing(1_000)).await.allowed());
        proxy.set(Fault::Delay(DELAY));
        let batch = vec![ada.clone(); BATCH as usize];
        let began = Instant::now();
        let decisions = limiter.check_batch(&batch).await;
        let took = began.elapsed();
        assert!(took < DELAY * BATCH / 2, "{took:?}");
        for decision in &decisions {
            let counter = decision.limits().next().unwrap();
            let outcome = (decision.allowed(), counter.source(), counter.remaining());
            assert_eq!(outcome, (true, Source::Store, Some(0)), "{decision:?}");
        }
        proxy.set(Fault::None);
        // Each was charged, and once.
        let refunded = limiter.refund("bytes", &ada, u64::from(BATCH) + 1).await.unwrap();
        assert_eq!(refunded.remaining(), Some(1));
    });
}

const BATCH: u32 = 100;
const DELAY: Duration = Duration::from_millis(20);
