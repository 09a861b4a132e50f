//! Two fleets on one store: with different namespaces they share nothing, though their rules have equal names.

use std::time::{Duration, UNIX_EPOCH};

use spillgate::{Limiter, Mode, Policy};
use spillgate_testkit::RedisServer;

use super::{API, acme, ann, capacity, until};
use crate::support::world::PATIENCE;

#[test]
fn two_namespaces_share_no_counter_change_count_or_warning() {
    let server = RedisServer::start();
    tokio::runtime::Runtime::new().unwrap().block_on(async {
        let start = async |namespace: &str, policy: &str| {
            let policy = Policy::from_toml(policy).unwrap();
            let builder = Limiter::builder().policy(policy).redis(server.url()).timeout(PATIENCE);
            builder.namespace(namespace).build().await.unwrap()
        };
        let more = API.replace("10/day", "11/day");
        let (one, other) = (start("one", API).await, start("other", &more).await);
        assert!(one.check(&ann().costing(10)).await.allowed());
        assert!(!one.check(&ann()).await.allowed());
        assert_eq!(other.check(&ann()).await.remaining(), Some(10), "it has counters of its own");

        one.set_override("api", &acme(), ["block"], None).await.unwrap();
        one.set_mode("watched", Mode::Off, None).await.unwrap();
        let also_one = start("one", API).await;
        until("the first fleet knows", async || also_one.overrides().len() == 1).await;
        assert_eq!(also_one.modes()[1].in_force(), Mode::Off);
        assert!(other.overrides().is_empty() && other.audit().is_empty());
        assert!(other.audit_log(None, 10).await.records.is_empty());
        assert_eq!(capacity(&other, &ann()).await, Some(11));

        until("two are counted", async || one.stats().live_instances == 2).await;
        assert_eq!(other.stats().live_instances, 1);
        assert!(one.instance_mismatch().is_none() && other.instance_mismatch().is_none());
        assert_eq!((one.fleet().await.unwrap().len(), other.fleet().await.unwrap().len()), (2, 1));

        one.note_event("reload", "policy file reloaded");
        one.close().await;
        let forever = UNIX_EPOCH..UNIX_EPOCH + Duration::from_secs(1 << 40);
        let history = other.fleet_history(forever.start, forever.end, None).await.unwrap().unwrap();
        assert!(history.minutes.is_empty() && history.events.is_empty(), "{history:?}");
        let history = also_one.fleet_history(forever.start, forever.end, None).await.unwrap();
        assert_eq!(history.unwrap().events.len(), 1);
    });
}

#[test]
fn a_namespace_that_keys_may_not_have_is_refused() {
    tokio::runtime::Runtime::new().unwrap().block_on(async {
        for namespace in ["", "A", "a b", "a}", &"a".repeat(33)] {
            let builder = Limiter::builder().redis("redis://127.0.0.1:1").namespace(namespace);
            let error = builder.build().await.unwrap_err().to_string();
            assert!(error.starts_with("a namespace has 1 to 32 of the characters"), "{error}");
        }
    });
}
