//! The library's interface, on both engines.

use std::time::{Duration, Instant};

use spillgate::{Cost, Limit, Limiter, LimiterBuilder, Mode, Policy, Reason, Request, Source};
use spillgate_testkit::{RedisServer, free_port};

use crate::stores::on_each;

fn with(builder: LimiterBuilder, policy: &str) -> LimiterBuilder {
    builder.policy(Policy::from_toml(policy).unwrap())
}

fn of(user: &str) -> Request<'_> {
    Request::new().with("user", user)
}

const MIXED: &str = r#"
    [[rule]]
    name = "mixed"
    key = ["user"]
    limits = [
        { quota = "9/day", name = "bucket" },
        { quota = "8/366d", name = "window", algorithm = "fixed-window" },
        { quota = "7/day", name = "log", algorithm = "sliding-log" },
        { quota = "6/366d", name = "sliding", algorithm = "sliding-window" },
        { quota = "5", name = "permits", algorithm = "concurrency", max_hold = "1h" },
    ]
"#;

#[test]
fn charges_every_counter_or_none() {
    on_each(MIXED, |limiter| async move {
        let remaining = |decision: &spillgate::Decision| {
            decision.limits().map(|counter| counter.remaining().unwrap()).collect::<Vec<_>>()
        };
        let allowed = limiter.check(&of("a").costing(4)).await;
        assert!(allowed.allowed());
        assert_eq!(remaining(&allowed), [5, 4, 3, 2, 1]);

        let denied = limiter.check(&of("a").costing(2)).await;
        assert_eq!(
            (denied.reason(), denied.limit()),
            (Some(Reason::LimitExceeded), Some("permits"))
        );
        assert_eq!(remaining(&denied), [5, 4, 3, 2, 1]);
        let verdicts: Vec<_> = denied.limits().map(|counter| counter.reason()).collect();
        let fits = None;
        assert_eq!(verdicts, [fits, fits, fits, fits, Some(Reason::LimitExceeded)]);

        assert_eq!(remaining(&limiter.peek(&of("a")).await), [5, 4, 3, 2, 1]);
        assert_eq!(remaining(&limiter.peek(&of("b")).await), [9, 8, 7, 6, 5]);
    });
}

#[test]
fn a_cost_above_a_capacity_has_no_retry_time_and_writes_nothing() {
    on_each(MIXED, |limiter| async move {
        for cost in [6, 10, 1 << 40, u64::MAX] {
            let never = limiter.check(&of("a").costing(cost)).await;
            assert_eq!(
                (never.reason(), never.retry_after()),
                (Some(Reason::CostExceedsLimit), None),
                "{cost}"
            );
        }
        let full = limiter.peek(&of("a")).await;
        assert!(full.limits().all(|counter| counter.remaining() == counter.capacity()));
        assert_eq!(limiter.stats().denied, 4);
    });
}

#[test]
fn the_longest_wait_decides_a_denial_and_the_least_remaining_an_admission() {
    let policy = r#"
        [[rule]]
        name = "both"
        key = ["user"]
        limits = [{ quota = "10/day", name = "slow" }, { quota = "100/hour", name = "fast" }]
    "#;
    on_each(policy, |limiter| async move {
        let allowed = limiter.check(&of("a").costing(9)).await;
        assert_eq!((allowed.limit(), allowed.remaining()), (Some("slow"), Some(1)));
        assert_eq!(allowed.retry_after(), Some(Duration::ZERO));
        let denied = limiter.check(&of("a").costing(2)).await;
        assert_eq!((denied.limit(), denied.capacity()), (Some("slow"), Some(10)));
        let wait = denied.retry_after().unwrap();
        assert!(
            wait > Duration::from_secs(8_000) && wait <= Duration::from_secs(8_640),
            "{wait:?}"
        );
    });
}

#[test]
fn a_limit_whose_unit_is_not_named_is_only_read() {
    let policy = r#"
        [[rule]]
        name = "llm"
        key = ["user"]
        limits = ["100/day", { quota = "1000/day", name = "tokens", unit = "tokens" }]
    "#;
    on_each(policy, |limiter| async move {
        let both = of("a").costing(Cost::requests(1).and("tokens", 1000));
        assert!(limiter.check(&both).await.allowed());
        // No token is left, so a request that names none is denied too. Nothing is charged.
        let denied = limiter.check(&of("a")).await;
        assert_eq!(
            (denied.reason(), denied.limit()),
            (Some(Reason::LimitExceeded), Some("tokens"))
        );
        let requests = limiter.peek(&of("a")).await.limits().next().unwrap().remaining();
        assert_eq!(requests, Some(99));
    });
}

#[test]
fn a_shadow_rule_is_counted_and_changes_no_answer() {
    let policy = r#"
        [[rule]]
        name = "watched"
        mode = "shadow"
        key = ["user"]
        limits = ["2/day"]

        [[rule]]
        name = "enforced"
        key = ["user"]
        limits = ["3/day"]
    "#;
    on_each(policy, |limiter| async move {
        for call in 1..=3 {
            let decision = limiter.check(&of("a")).await;
            assert!(decision.allowed());
            assert_eq!(decision.rule(), Some("enforced"));
            let watched = decision.limits().next().unwrap();
            assert!(watched.shadow());
            assert_eq!(watched.reason() == Some(Reason::LimitExceeded), call == 3);
        }
        let would_deny = || denials(&limiter, "watched");
        let once = [(Mode::Shadow, "0".to_owned(), Reason::LimitExceeded, 1)];
        assert_eq!(would_deny(), once);
        assert_eq!(denials(&limiter, "enforced"), []);
        // The enforced rule denies: the shadow rule is not charged and not counted.
        limiter.reset("watched", &of("a")).await.unwrap();
        let denied = limiter.check(&of("a")).await;
        assert_eq!(
            (denied.reason(), denied.rule()),
            (Some(Reason::LimitExceeded), Some("enforced"))
        );
        assert_eq!(denied.limits().next().unwrap().remaining(), Some(2));
        assert_eq!(would_deny(), once);
        assert_eq!(denials(&limiter, "enforced")[0].0, Mode::Enforce);
    });
}

/// Returns the denials of a rule by mode, limit and reason.
fn denials(limiter: &Limiter, rule: &str) -> Vec<(Mode, String, Reason, u64)> {
    let counts = limiter.counts();
    let counts = counts.rules.iter().find(|counts| counts.rule() == rule).unwrap();
    let denials = counts
        .decisions()
        .iter()
        .filter_map(|kind| Some((kind.mode, kind.limit.to_string(), kind.reason?, kind.count)));
    denials.collect()
}

#[test]
fn a_denial_counts_at_the_limit_that_denied() {
    let policy = r#"
        [[rule]]
        name = "api"
        key = ["user"]
        limits = [{ name = "burst", quota = "2/hour" }, { name = "daily", quota = "5/day" }]

        [[override]]
        rule = "api"
        subject = { user = "ann" }
        limits = [{ name = "burst", quota = "100/minute" }]

        [[override]]
        rule = "api"
        subject = { user = "eve" }
        limits = ["unlimited", "block"]
    "#;
    on_each(policy, |limiter| async move {
        for (user, calls) in [("ann", 6), ("bob", 3), ("eve", 2)] {
            for _ in 0..calls {
                let _ = limiter.check(&of(user)).await;
            }
        }
        // It exceeds both limits, and the answer has the first.
        let dear = limiter.check(&of("kim").costing(9)).await;
        assert_eq!(dear.limit(), Some("burst"));
        let denial = |limit: &str, reason, count| (Mode::Enforce, limit.to_owned(), reason, count);
        assert_eq!(
            denials(&limiter, "api"),
            [
                denial("burst", Reason::CostExceedsLimit, 1),
                denial("burst", Reason::LimitExceeded, 1),
                denial("daily", Reason::Blocked, 2),
                denial("daily", Reason::LimitExceeded, 1),
            ]
        );
        let counts = limiter.counts();
        let allowed = counts.rules[0].decisions().iter().filter(|kind| kind.reason.is_none());
        let allowed: Vec<_> = allowed.map(|kind| (&*kind.limit, kind.count)).collect();
        assert_eq!(allowed, [("", 7)], "an allowed decision has no limit");
    });
}

#[test]
fn debug_output_shows_a_decision_and_not_its_representation() {
    let policy = r#"
        [[rule]]
        name = "watched"
        mode = "shadow"
        key = ["user"]
        limits = ["7/day"]

        [[rule]]
        name = "permits"
        key = ["user"]
        limits = [{ name = "streams", algorithm = "concurrency", quota = "2", max_hold = "1h" }]
    "#;
    on_each(policy, |limiter| async move {
        let printed = format!("{:?}", limiter.check(&of("a")).await);
        let reply = "Decision { allowed: true, source: Store, receipt: Receipt(..), limits: [\
            LimitDecision { rule: Some(\"watched\"), limit: \"0\", definition: 7/day, \
            reason: None, source: Store, capacity: Some(7), remaining: Some(6), \
            retry_after: Some(0ns), reset_after: Some(12342.857143s), shadow: true }, \
            LimitDecision { rule: Some(\"permits\"), limit: \"streams\", definition: 2 max_hold 1h, \
            reason: None, source: Store, capacity: Some(2), remaining: Some(1), \
            retry_after: Some(0ns), reset_after: Some(3600s) }] }";
        assert_eq!(printed, reply);
    });
}

#[test]
fn unlimited_stores_nothing_and_block_denies() {
    let policy = r#"
        [[rule]]
        name = "free"
        match = { plan = "free" }
        key = ["user"]
        limits = ["unlimited"]

        [[rule]]
        name = "blocked"
        match = { plan = "blocked" }
        key = ["user"]
        limits = ["block"]
    "#;
    on_each(policy, |limiter| async move {
        let free = limiter.check(&of("a").with("plan", "free").costing(u64::MAX)).await;
        assert!(free.allowed());
        assert_eq!((free.capacity(), free.remaining()), (None, None));
        let blocked = limiter.check(&of("a").with("plan", "blocked")).await;
        assert_eq!((blocked.reason(), blocked.retry_after()), (Some(Reason::Blocked), None));
        let unmatched = limiter.check(&of("a")).await;
        assert!(unmatched.allowed() && unmatched.limits().len() == 0);
        assert_eq!(limiter.stats().unmatched, 1);
    });
}

#[test]
fn a_new_policy_applies_from_the_next_request_and_keeps_usage() {
    let policy =
        |quota: &str| format!("[[rule]]\nname = \"api\"\nkey = [\"user\"]\nlimits = [\"{quota}\"]");
    on_each(&policy("5/day"), |limiter| async move {
        assert!(limiter.check(&of("a").costing(5)).await.allowed());
        assert!(!limiter.check(&of("a")).await.allowed());
        limiter.set_policy(Policy::from_toml(&policy("8/day")).unwrap());
        assert!(limiter.check(&of("a").costing(3)).await.allowed());
        assert!(!limiter.check(&of("a")).await.allowed());
        limiter.set_policy(Policy::from_toml(&policy("2/day")).unwrap());
        assert!(!limiter.check(&of("a")).await.allowed());
    });
}

#[test]
fn an_override_replaces_the_limits_of_its_subjects() {
    let policy = r#"
        [[rule]]
        name = "api"
        key = ["tenant", "user"]
        limits = ["2/day"]

        [[override]]
        rule = "api"
        subject = { tenant = "acme" }
        limits = ["5/day"]
    "#;
    on_each(policy, |limiter| async move {
        let acme = of("a").with("tenant", "acme");
        assert_eq!(limiter.peek(&acme).await.capacity(), Some(5));
        assert_eq!(limiter.peek(&of("a").with("tenant", "other")).await.capacity(), Some(2));
    });
}

#[test]
fn a_batch_is_decided_in_order_each_by_itself() {
    on_each(MIXED, |limiter| async move {
        let limit = Limit::per_day(3);
        let inline = |key| Request::keyed(key, limit.clone()).costing(2);
        let requests = [inline("x"), inline("x"), of("a").costing(4), inline("y")];
        let decisions = limiter.check_batch(&requests).await;
        let verdicts: Vec<_> = decisions.iter().map(spillgate::Decision::reason).collect();
        let allowed = None;
        assert_eq!(verdicts, [allowed, Some(Reason::LimitExceeded), allowed, allowed]);
        assert!(!limiter.check(&Request::keyed("y", &limit).costing(2)).await.allowed());
    });
}

#[test]
fn a_thousand_decisions_fit_one_batch() {
    on_each(MIXED, |limiter| async move {
        let keys: Vec<String> = (0..1_000).map(|key| format!("k{}", key % 300)).collect();
        let request = |key| Request::keyed(key, Limit::per_day(2));
        let requests: Vec<_> = keys.iter().map(|key| request(key.as_str())).collect();
        let decisions = limiter.check_batch(&requests).await;
        assert_eq!(decisions.iter().filter(|decision| decision.allowed()).count(), 600);
    });
}

#[test]
fn the_same_key_with_other_numbers_is_a_changed_limit() {
    on_each("", |limiter| async move {
        assert!(limiter.check(&Request::keyed("k", Limit::per_day(5)).costing(5)).await.allowed());
        assert!(!limiter.check(&Request::keyed("k", Limit::per_day(4))).await.allowed());
        assert!(limiter.check(&Request::keyed("k", Limit::per_day(6))).await.allowed());
        // Within one batch too, where the script loads each counter once.
        let request = |quota| Request::keyed("batch", Limit::per_day(quota)).costing(3);
        let decisions = limiter.check_batch(&[request(3), request(5), request(6)]).await;
        let verdicts: Vec<_> = decisions.iter().map(spillgate::Decision::allowed).collect();
        assert_eq!(verdicts, [true, false, true]);
    });
}

#[test]
fn without_a_store_each_rule_decides_by_its_on_outage() {
    let policy = r#"
        [[rule]]
        name = "closed"
        match = { route = "/login" }
        key = ["user"]
        limits = ["100/day"]
        on_outage = "deny"

        [[rule]]
        name = "open"
        match = { route = "/news" }
        key = ["user"]
        limits = ["100/day"]
        on_outage = "allow"

        [[rule]]
        name = "local"
        match = { route = "/api" }
        key = ["user"]
        limits = ["100/day"]
    "#;
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        let began = now();
        let unreachable = format!("redis://127.0.0.1:{}", free_port());
        let limiter = with(Limiter::builder(), policy).redis(unreachable).build().await.unwrap();
        let to = |route| of("a").with("route", route);

        let closed = limiter.check(&to("/login")).await;
        assert_eq!(
            (closed.reason(), closed.source()),
            (Some(Reason::StoreUnavailable), Source::OutagePolicy)
        );
        assert_eq!((closed.retry_after(), closed.remaining()), (None, None));
        let open = limiter.check(&to("/news")).await;
        assert_eq!((open.reason(), open.source()), (None, Source::OutagePolicy));
        assert_eq!(open.remaining(), None);
        // The local share of 100 for one of sixteen instances is six.
        for left in (0..6).rev() {
            let local = limiter.check(&to("/api")).await;
            assert_eq!((local.source(), local.remaining()), (Source::Fallback, Some(left)));
        }
        let local = limiter.check(&to("/api")).await;
        assert_eq!(local.reason(), Some(Reason::LimitExceeded));
        assert!(local.degraded());
        // Above the local share but not above the limit: it may fit once the store is back.
        let large = limiter.check(&to("/api").costing(50)).await;
        assert_eq!((large.reason(), large.retry_after()), (Some(Reason::LimitExceeded), None));
        assert_eq!(
            limiter.check(&to("/api").costing(101)).await.reason(),
            Some(Reason::CostExceedsLimit)
        );
        assert!(began.elapsed_below(Duration::from_secs(5)));
    });
}

#[test]
fn the_store_decides_again_after_an_outage() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let mut server = RedisServer::start();
    runtime.block_on(async {
        let limiter = Limiter::builder().redis(server.url()).build().await.unwrap();
        let limit = Limit::per_day(1_000);
        assert_eq!(limiter.check(&Request::keyed("k", &limit)).await.source(), Source::Store);
        server.kill();
        assert!(limiter.check(&Request::keyed("k", &limit)).await.degraded());
        server.restart();
        let began = now();
        while limiter.check(&Request::keyed("k", &limit)).await.degraded() {
            assert!(began.elapsed_below(Duration::from_secs(10)), "still degraded");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    });
}

#[test]
fn a_store_that_pauses_within_the_timeout_decides() {
    let server = RedisServer::start();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        let patient = Limiter::builder().redis(server.url()).timeout(Duration::from_secs(10));
        let patient = patient.build().await.unwrap();
        let hasty = Limiter::builder().redis(server.url()).build().await.unwrap();
        server.command(&["CLIENT", "PAUSE", "1200"]);
        let limit = Limit::per_day(10);
        let began = now();
        assert!(hasty.check(&Request::keyed("hasty", &limit)).await.degraded());
        assert!(began.elapsed_below(Duration::from_secs(1)), "the timeout is 25 ms");
        assert_eq!(patient.check(&Request::keyed("patient", &limit)).await.source(), Source::Store);
    });
}

/// Real time, because the test waits for a real server.
struct Began(Instant);

impl Began {
    #[expect(clippy::disallowed_methods, reason = "a bound on real waiting")]
    fn elapsed_below(&self, bound: Duration) -> bool {
        self.0.elapsed() < bound
    }
}

#[expect(clippy::disallowed_methods, reason = "a bound on real waiting")]
fn now() -> Began {
    Began(Instant::now())
}

#[test]
fn a_limiter_in_memory_takes_no_store() {
    let built = Limiter::builder().redis("redis://127.0.0.1:1").build_in_memory();
    let error = built.unwrap_err();
    assert!(matches!(error, spillgate::BuildError::NotInMemory), "{error}");
    assert!(error.to_string().contains("await `build`"), "{error}");
}
