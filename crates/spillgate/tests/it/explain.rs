//! `explain` predicts the next check.

use std::time::Duration;

use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use spillgate::explain::OverriddenBy;
use spillgate::policy::NotMatched;
use spillgate::{Cost, Limiter, Mode, Policy, Reason, Request};
use spillgate_testkit::RedisServer;

use crate::stores::on_each;

const POLICY: &str = r#"
    [[rule]]
    name = "mixed"
    key = ["user"]
    limits = [
        { quota = "9/day", name = "bucket" },
        { quota = "8/366d", name = "window", algorithm = "fixed-window" },
        { quota = "7/day", name = "log", algorithm = "sliding-log" },
        { quota = "6/366d", name = "sliding", algorithm = "sliding-window" },
    ]
    [[rule]]
    name = "tokens"
    key = ["tenant"]
    limits = [{ quota = "20/day", unit = "tokens" }]
    [[rule]]
    name = "watched"
    key = ["user"]
    mode = "shadow"
    limits = ["3/day"]
    [[rule]]
    name = "route"
    match = { route = ["/login", "/api/*"] }
    key = []
    limits = ["12/day"]
    [[rule]]
    name = "off"
    key = ["user"]
    mode = "off"
    limits = ["1/day"]
"#;

/// One request of a few users, tenants, routes and costs.
#[derive(Clone, Debug)]
struct Case {
    user: Option<u8>,
    tenant: Option<u8>,
    route: Option<&'static str>,
    requests: u64,
    tokens: u64,
}

impl Case {
    fn request(&self) -> Request<'static> {
        let mut request = Request::new();
        for (name, value) in [("user", self.user), ("tenant", self.tenant)] {
            if let Some(value) = value {
                request = request.with(name, value.to_string());
            }
        }
        if let Some(route) = self.route {
            request = request.with("route", route);
        }
        request.costing(Cost::requests(self.requests).and("tokens", self.tokens))
    }
}

fn case() -> impl Strategy<Value = Case> {
    let route = prop::option::of(prop::sample::select(vec!["/login", "/api/x", "/other"]));
    let some = || prop::option::of(0..2_u8);
    (some(), some(), route, 0..5_u64, 0..9_u64).prop_map(
        |(user, tenant, route, requests, tokens)| Case { user, tenant, route, requests, tokens },
    )
}

/// Explains, then checks: both decisions and the results, waits and numbers of all counters must agree.
async fn agrees(limiter: &Limiter, case: &Case) {
    let request = case.request();
    let explained = limiter.explain(&request).await;
    let checked = limiter.check(&request).await;
    let context = format!("{case:?}: {} {explained:?}\n{checked:?}", explained.sentence());
    assert_eq!(explained.answer().reason(), checked.reason(), "{context}");
    if !checked.allowed() {
        assert_eq!(explained.answer().rule(), checked.rule(), "{context}");
    }
    assert_eq!(explained.limits().len(), checked.limits().len(), "{context}");
    for (foreseen, reply) in explained.limits().zip(checked.limits()) {
        let before = foreseen.decision();
        assert_eq!((before.rule(), before.limit()), (reply.rule(), reply.limit()), "{context}");
        if reply.source() != before.source() || reply.remaining().is_none() {
            continue;
        }
        assert_eq!(before.reason(), reply.reason(), "{context}");
        assert_eq!(before.retry_after().is_some(), reply.retry_after().is_some(), "{context}");
        // With room it is charged, in a shadow rule too, unless nothing is charged.
        let charged = match checked.allowed() && reply.reason().is_none() {
            true => foreseen.cost(),
            false => 0,
        };
        assert_eq!(before.remaining(), reply.remaining().map(|left| left + charged), "{context}");
        assert!(!foreseen.sentence().is_empty());
    }
}

#[test]
fn an_explanation_equals_the_next_check() {
    let policy = Policy::from_toml(POLICY).unwrap();
    let server = RedisServer::start();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let patient = || Limiter::builder().policy(policy.clone()).timeout(Duration::from_secs(10));
    let (memory, redis) = runtime.block_on(async {
        let redis = patient().redis(server.url()).denial_cache(false);
        (patient().build().await.unwrap(), redis.build().await.unwrap())
    });
    let mut runner = TestRunner::new(Config { cases: 48, ..Config::default() });
    let story = prop::collection::vec(case(), 1..24);
    let reply = runner.run(&story, |story| {
        runtime.block_on(async {
            for limiter in [&memory, &redis] {
                for rule in ["mixed", "tokens", "watched", "route"] {
                    limiter.reset_rule(rule).await.unwrap();
                }
                for case in &story {
                    agrees(limiter, case).await;
                }
            }
        });
        Ok(())
    });
    reply.unwrap();
}

#[test]
fn an_explanation_reports_a_remembered_denial_as_the_next_check_does() {
    let server = RedisServer::start();
    tokio::runtime::Runtime::new().unwrap().block_on(async {
        let policy = "[[rule]]\nname = 'api'\nkey = ['user']\nlimits = ['1/day']";
        let policy = Policy::from_toml(policy).unwrap();
        let builder = Limiter::builder().policy(policy).timeout(Duration::from_secs(10));
        let limiter = builder.redis(server.url()).build().await.unwrap();
        let ann = Request::new().with("user", "ann");
        assert!(limiter.check(&ann).await.allowed());
        assert!(limiter.explain(&ann).await.remembered().is_none());
        // On a slow machine the cache may have forgotten by then: the store denies again.
        let remembered = async || {
            assert_eq!(limiter.check(&ann).await.reason(), Some(Reason::LimitExceeded));
            let explained = limiter.explain(&ann).await;
            assert_eq!(explained.decision().source(), spillgate::Source::Store);
            explained.remembered().map(spillgate::Decision::source)
        };
        while remembered().await != Some(spillgate::Source::DenialCache) {}
    });
}

#[test]
fn explaining_charges_nothing_and_counts_nothing() {
    on_each(POLICY, |limiter| async move {
        let ann = Request::new().with("user", "ann");
        for _ in 0..20 {
            assert_eq!(limiter.explain(&ann).await.limits().next().unwrap().used(), Some(0));
        }
        assert_eq!((limiter.stats().allowed, limiter.stats().unmatched), (0, 0));
        assert!(limiter.counts().rules.iter().all(|rule| rule.decisions().is_empty()));
        assert!(limiter.top(None, 9).rules().is_empty());
    });
}

#[test]
fn every_rule_of_the_domain_reports_why_it_matched_or_not() {
    on_each(POLICY, |limiter| async move {
        let tenant = Request::new().with("user", "ann");
        limiter.set_override("mixed", &tenant, ["90/day"], None).await.unwrap();
        let request = Request::new().with("user", "ann").with("route", "/other");
        let explained = limiter.explain(&request).await;
        let reply: Vec<_> = explained
            .rules()
            .iter()
            .map(|rule| (rule.name(), rule.mode(), rule.not_matched().map(NotMatched::to_string)))
            .collect();
        let unmet = |why: &str| Some(why.to_owned());
        assert_eq!(
            reply,
            [
                ("mixed", Mode::Enforce, None),
                ("watched", Mode::Shadow, None),
                ("tokens", Mode::Enforce, unmet("the request has no attribute \"tenant\"")),
                ("route", Mode::Enforce, unmet("\"route\" is not \"/login\" or \"/api/*\"")),
                ("off", Mode::Off, unmet("the rule is off")),
            ]
        );
        assert_eq!(explained.rules()[0].overridden(), Some(OverriddenBy::Operator));
        assert_eq!((explained.rules()[1].overridden(), explained.left_out()), (None, 0));
    });
}

#[test]
fn a_suggested_raise_follows_from_the_current_state() {
    on_each(POLICY, |limiter| async move {
        let ann = Request::new().with("user", "ann").costing(6);
        assert!(limiter.check(&ann).await.allowed());
        let explained = limiter.explain(&ann).await;
        assert_eq!(explained.answer().reason(), Some(Reason::LimitExceeded));
        let raises: Vec<_> = explained
            .limits()
            .filter_map(|counter| counter.raise())
            .map(|raise| (raise.quota(), raise.remaining(), raise.fits()))
            .collect();
        assert_eq!(
            raises[..4],
            [
                ("18/day", 12, true),
                ("16/366d", 10, true),
                ("14/day", 8, true),
                ("12/366d", 6, true)
            ]
        );
        let counter = explained.limits().next().unwrap();
        let beginning =
            "mixed/bucket (9/day) denies: 3 of 9 requests are left, and this costs 6. There is";
        assert!(counter.sentence().starts_with(beginning), "{}", counter.sentence());
        let never = limiter.explain(&ann.clone().costing(7)).await;
        let sentence = never.sentence();
        assert_eq!(
            sentence,
            "Denied by mixed/sliding: the cost exceeds its capacity, and no wait helps."
        );
    });
}

#[test]
fn without_the_store_the_explanation_names_the_local_share() {
    tokio::runtime::Runtime::new().unwrap().block_on(async {
        let url = format!("redis://127.0.0.1:{}", spillgate_testkit::free_port());
        let policy = Policy::from_toml(POLICY).unwrap();
        let limiter = Limiter::builder().policy(policy).redis(url).build().await.unwrap();
        let explained = limiter.explain(&Request::new().with("user", "ann")).await;
        assert!(explained.answer().degraded());
        assert!(explained.sentence().ends_with("The store is unavailable or too slow."));
        let counter = explained.limits().next().unwrap();
        assert!(
            counter.sentence().contains("requests of this instance's local share are left"),
            "{}",
            counter.sentence()
        );
        assert_eq!(counter.raise(), None, "unknown without the store");
    });
}

#[tokio::test]
async fn an_unlimited_rule_says_that_it_exempts_from_no_other() {
    let policy = r#"
        [[rule]]
        name = "office"
        match = { ip = "10.0.0.0/8" }
        key = []
        limits = ["unlimited"]
        [[rule]]
        name = "all"
        key = []
        limits = ["20/minute"]
    "#;
    let policy = Policy::from_toml(policy).unwrap();
    let limiter = Limiter::builder().policy(policy).build().await.unwrap();
    let explained = limiter.explain(&Request::new().with("ip", "10.0.0.1")).await;
    assert_eq!(
        explained.limits().next().unwrap().sentence(),
        "office/0 (unlimited) allows every request. It does not exempt them from rule \"all\": \
         for that, write match = { ip = { not = [\"10.0.0.0/8\"] } } there."
    );
}
