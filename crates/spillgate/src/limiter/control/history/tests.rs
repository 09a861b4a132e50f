use std::time::{Duration, UNIX_EPOCH};

use spillgate_testkit::RedisServer;

use crate::Limiter;
use crate::history::OwnMinute;
use crate::metrics::Durations;
use crate::testing::ManualClock;

/// The reply to the first call may be lost, and calls of one instance come in order.
#[test]
fn a_minute_that_is_sent_again_is_added_once() {
    let server = RedisServer::start();
    tokio::runtime::Runtime::new().unwrap().block_on(async {
        let clock = ManualClock::new();
        let builder = Limiter::builder().redis(server.url()).manual_clock(&clock);
        let limiter = builder.build().await.unwrap();
        let first = clock.now().as_secs() / 60;
        let store = limiter.inner.engine.store().unwrap();
        for minute in [first, first, first + 1, first] {
            let (requests, sources) = ([3, 2, 1], [5, 0, 0, 0, 0, 0]);
            let times = Durations::default();
            let own = OwnMinute { minute, requests, sources, times, rules: Vec::new() };
            store.add_history(&own.stored()).await.unwrap();
        }
        clock.advance(Duration::from_secs(240));
        let later = UNIX_EPOCH + Duration::from_secs(1 << 40);
        let found = limiter.fleet_history(UNIX_EPOCH, later, None).await.unwrap().unwrap();
        let counts = found.minutes.iter().map(|it| (it.instances, it.allowed, it.sources[0]));
        assert_eq!(counts.take(2).collect::<Vec<_>>(), [(1, 3, 5), (1, 3, 5)]);
    });
}
