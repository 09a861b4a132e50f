//! The denial cache never admits, never denies longer than the store would, and never applies to room that
//! may come back earlier.

use std::time::Duration;

use spillgate::{Decision, Limit, Limiter, Policy, Reason, Request, Source};
use spillgate_core::algorithm::Intent;
use spillgate_core::limit::NamedLimit;
use spillgate_core::subject::{SHARED_SECRET, Secret};
use spillgate_redis::Redis;
use spillgate_testkit::{RedisServer, eventually};
use tokio::runtime::Runtime;

use crate::failure::YEAR;
use crate::support::random::Random;
use crate::support::world::{PATIENCE, runtime};

/// ACCIDENTS A10, from the right side: an answer from memory is a denial, and the store is spared.
#[test]
fn a_caller_denied_twice_reaches_the_store_once() {
    let scene = Scene::new(true);
    assert!(scene.check("me", &slow(), 2).allowed());
    let denied = scene.check("me", &slow(), 1);
    assert_eq!((denied.reason(), denied.source()), (Some(Reason::LimitExceeded), Source::Store));
    let before = scene.calls();
    let again: Vec<Decision> = (0..100).map(|_| scene.check("me", &slow(), 1)).collect();
    let cached = again.iter().filter(|again| again.source() == Source::DenialCache).count() as u64;
    assert!(cached > 0 && cached + (scene.calls() - before) >= 100, "{cached} of 100");
    for again in again {
        assert_eq!((again.reason(), again.remaining()), (Some(Reason::LimitExceeded), Some(0)));
        assert!(again.retry_after() <= denied.retry_after(), "{again:?}");
        assert!(again.reset_after() <= denied.reset_after(), "{again:?}");
    }
    // Another subject is not affected.
    assert!(scene.check("another", &slow(), 2).allowed());
}

#[test]
fn a_caller_that_waits_for_retry_after_is_admitted() {
    let scene = Scene::new(true);
    let limit = Limit::per(1, Duration::from_millis(400));
    assert!(scene.check("me", &limit, 1).allowed());
    for _ in 0..3 {
        let _ = scene.check("me", &limit, 1);
    }
    let denied = scene.check("me", &limit, 1);
    let wait = denied.retry_after().unwrap();
    scene.runtime.block_on(async { tokio::time::sleep(wait).await });
    assert!(scene.check("me", &limit, 1).allowed(), "after {wait:?}");
}

#[test]
fn only_costs_as_large_as_the_denied_one_are_denied_from_the_cache() {
    let scene = Scene::new(true);
    let limit = Limit::per(10, YEAR);
    assert!(scene.check("me", &limit, 6).allowed());
    assert_eq!(scene.check("me", &limit, 5).source(), Source::Store);
    let larger = scene.check("me", &limit, 6);
    assert_eq!(
        (larger.reason(), larger.source()),
        (Some(Reason::LimitExceeded), Source::DenialCache)
    );
    // The store has reported neither its wait nor what remains.
    assert_eq!((larger.retry_after(), larger.remaining()), (None, None));
    let smaller = scene.check("me", &limit, 4);
    assert_eq!((smaller.allowed(), smaller.source()), (true, Source::Store));
}

/// The cache knows no wait for a larger cost. Once, such a caller was denied at once.
#[test]
fn a_caller_may_wait_for_a_larger_cost_than_was_denied() {
    let scene = Scene::new(true);
    let limit = Limit::per_second(20);
    assert!(scene.check("me", &limit, 20).allowed());
    assert!(!scene.check("me", &limit, 2).allowed());
    let request = Request::keyed("me", &limit).costing(5);
    let acquired = scene.limiter.acquire(&request, Duration::from_secs(5));
    assert!(scene.runtime.block_on(acquired).allowed());
}

#[test]
fn a_released_permit_ends_no_remembered_denial() {
    let scene = Scene::new(true);
    let permit = scene.check("job", &Limit::concurrent(1, Duration::from_secs(60)), 1);
    assert!(scene.check("me", &slow(), 2).allowed());
    assert!(!scene.check("me", &slow(), 1).allowed());
    let receipt = permit.receipt().unwrap();
    assert!(scene.runtime.block_on(scene.limiter.release(receipt)).is_ok());
    assert_eq!(scene.check("me", &slow(), 1).source(), Source::DenialCache);
}

#[test]
fn changed_limits_peeks_and_permits_bypass_the_cache() {
    let scene = Scene::new(true);
    assert!(scene.check("me", &slow(), 2).allowed());
    assert!(!scene.check("me", &slow(), 1).allowed());
    let more = Limit::per(3, YEAR);
    assert!(scene.check("me", &more, 1).allowed(), "a larger limit helps at once");
    assert_eq!(scene.check("me", &slow(), 0).source(), Source::Store);
    let permit = Limit::concurrent(1, Duration::from_secs(60));
    for allowed in [true, false, false] {
        let decision = scene.check("me", &permit, 1);
        assert_eq!((decision.allowed(), decision.source()), (allowed, Source::Store));
    }
}

#[test]
fn a_reset_or_refund_by_this_process_ends_a_remembered_denial() {
    let scene = Scene::new(true);
    let me = Request::new().with("ip", "203.0.113.7");
    let limiter = &scene.limiter;
    scene.runtime.block_on(async {
        for _ in 0..3 {
            let _ = limiter.check(&me).await;
        }
        assert_eq!(limiter.check(&me).await.source(), Source::DenialCache);
        limiter.reset("login", &me).await.unwrap();
        assert!(limiter.check(&me).await.allowed());
        while limiter.check(&me).await.allowed() {}
        assert_eq!(limiter.check(&me).await.source(), Source::DenialCache);
        let _ = limiter.refund("login", &me, 1).await.unwrap();
        assert!(limiter.check(&me).await.allowed());
    });
}

#[test]
fn a_remembered_denial_ends_soon_after_state_loss() {
    let scene = Scene::new(true);
    assert!(scene.check("me", &slow(), 2).allowed());
    assert!(!scene.check("me", &slow(), 1).allowed());
    scene.server.command(&["FLUSHALL"]);
    eventually(|| scene.check("me", &slow(), 1).allowed());
}

#[test]
fn without_the_cache_the_store_makes_every_decision() {
    let scene = Scene::new(false);
    assert!(scene.check("me", &slow(), 2).allowed());
    assert!((0..20).all(|_| scene.check("me", &slow(), 1).source() == Source::Store));
}

/// Peeks at the store before each check. No call refunds, so room only grows between the two: a cost that
/// fitted at the peek must not be denied from memory.
#[test]
fn every_denial_from_the_cache_is_one_the_store_would_make() {
    let scene = Scene::new(true);
    let secret = Secret::new(&SHARED_SECRET);
    let limits =
        ["token-bucket", "fixed-window", "sliding-log", "sliding-window"].map(|algorithm| {
            let spec = spillgate::LimitSpec::new("20/250ms").algorithm(algorithm);
            NamedLimit::new(spec.build().unwrap(), 0)
        });
    let (mut random, mut cached, mut allowed) = (Random::new(7), 0, 0);
    for turn in 0..6_000 {
        let limit = random.pick(&limits);
        let key = ["a", "b", "c"][random.below(3) as usize];
        let cost = 1 + random.spread(6);
        let mut peek = crate::support::world::transaction(Intent::Peek, &[(0, limit, cost)]);
        peek.charges[0].key = limit.inline_key(secret.inline_key(key));
        let fitted = scene.runtime.block_on(scene.onlooker.read(&peek)).unwrap();
        let decision = scene.check(key, limit.limit(), cost);
        allowed += u64::from(decision.allowed());
        if decision.source() == Source::DenialCache {
            cached += 1;
            assert!(!fitted.allowed, "turn {turn}: {} for {cost}, {decision:?}", limit.limit());
        }
    }
    println!("{allowed} allowed, {cached} denied from memory");
    assert!(cached > 0 && allowed > 0);
}

struct Scene {
    limiter: Limiter,
    onlooker: Redis,
    runtime: Runtime,
    server: RedisServer,
}

impl Scene {
    fn new(remembers: bool) -> Scene {
        let (server, runtime) = (RedisServer::start(), runtime());
        let policy = || {
            Policy::from_toml("[[rule]]\nname = \"login\"\nkey = [\"ip\"]\nlimits = [\"2/366d\"]")
        };
        let builder = Limiter::builder().policy(policy().unwrap()).redis(server.url());
        let builder = builder.timeout(PATIENCE).denial_cache(remembers);
        let limiter = runtime.block_on(builder.build()).unwrap();
        let onlooker = runtime.block_on(Redis::connect(&server.url(), PATIENCE)).unwrap();
        Scene { limiter, onlooker, runtime, server }
    }

    fn check(&self, key: &str, limit: &Limit, cost: u64) -> Decision {
        self.runtime.block_on(self.limiter.check(&Request::keyed(key, limit).costing(cost)))
    }

    /// Returns how many calls of the script reached the store.
    fn calls(&self) -> u64 {
        self.server.decisions()
    }
}

/// A limit of two that refills nothing while a test runs.
fn slow() -> Limit {
    Limit::per(2, YEAR)
}
