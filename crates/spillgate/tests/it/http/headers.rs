//! Header fields and bodies of decisions, word for word, at chosen instants.

use std::time::Duration;

use http::{HeaderMap, StatusCode};
use proptest::prelude::*;
use spillgate::http::{DenialResponse, HeaderStyle};
use spillgate::{Cost, Decision, Limiter, Policy, Reason, Request};
use spillgate_testkit::free_port;

use super::fields::{LimitItem, PolicyItem, read};
use crate::support::clock::Clock;
use crate::support::world::{TODAY_US, runtime};

/// A limiter in memory with a clock that moves only by [`Bench::after`].
struct Bench {
    limiter: Limiter,
    clock: Clock,
    runtime: tokio::runtime::Runtime,
}

impl Bench {
    fn new(policy: &str) -> Bench {
        let (clock, runtime) = (Clock::given(TODAY_US), runtime());
        let builder = Limiter::builder().policy(Policy::from_toml(policy).unwrap());
        let limiter = runtime.block_on(builder.manual_clock(clock.manual()).build()).unwrap();
        Bench { limiter, clock, runtime }
    }

    fn check<'a>(&self, cost: impl Into<Cost<'a>>) -> Decision {
        let request = Request::new().with("user", "u").costing(cost.into());
        self.runtime.block_on(self.limiter.check(&request))
    }

    fn after(&self, time: Duration) -> &Bench {
        self.clock.set(self.clock.now_us() + time.as_micros() as u64);
        self
    }
}

fn headers(decision: &Decision, style: HeaderStyle) -> HeaderMap {
    let mut headers = HeaderMap::new();
    style.write(decision, &mut headers);
    headers
}

/// `name: value`, in the order of the names.
fn lines(headers: &HeaderMap) -> Vec<String> {
    let mut lines: Vec<String> = headers
        .iter()
        .map(|(name, value)| format!("{name}: {}", value.to_str().unwrap()))
        .collect();
    lines.sort();
    lines
}

#[track_caller]
fn check_lines(decision: &Decision, style: HeaderStyle, expected: &[&str]) {
    assert_eq!(lines(&headers(decision, style)), expected, "{style:?}");
}

/// One rule with several limits, one with a single limit, and one in shadow mode.
const STACK: &str = r#"
    [[rule]]
    name = "api"
    key = ["user"]
    limits = [
        { quota = "10/second", burst = 50, name = "burst" },
        { quota = "1000/day", name = "daily", algorithm = "fixed-window" },
        { quota = "20", name = "permits", algorithm = "concurrency", max_hold = "30s" },
        { quota = "60000/minute", name = "llm", unit = "tokens" },
    ]

    [[rule]]
    name = "watched"
    mode = "shadow"
    key = ["user"]
    limits = ["1/hour"]

    [[rule]]
    name = "all"
    key = []
    limits = ["100/minute"]
"#;

const ONE: &str = "[[rule]]\nname = \"login\"\nkey = [\"user\"]\nlimits = [\"5/minute\"]";

#[test]
fn an_allowed_decision_shows_remaining_in_each_style() {
    let decision = Bench::new(ONE).check(1);
    check_lines(
        &decision,
        HeaderStyle::Ietf,
        &["ratelimit-policy: \"login\";q=5;w=60", "ratelimit: \"login\";r=4;t=12"],
    );
    check_lines(
        &decision,
        HeaderStyle::Draft7,
        &["ratelimit-policy: 5;w=60", "ratelimit: limit=5, remaining=4, reset=12"],
    );
    check_lines(
        &decision,
        HeaderStyle::Draft6,
        &[
            "ratelimit-limit: 5",
            "ratelimit-policy: 5;w=60",
            "ratelimit-remaining: 4",
            "ratelimit-reset: 12",
        ],
    );
    check_lines(
        &decision,
        HeaderStyle::Legacy,
        &["x-ratelimit-limit: 5", "x-ratelimit-remaining: 4", "x-ratelimit-reset: 12"],
    );
    check_lines(&decision, HeaderStyle::None, &[]);
}

#[test]
fn fields_of_many_limits_show_the_tightest_within_4_kib() {
    let rule = |name: &str| {
        let limit = |n: u64| {
            let label = format!("{n:-<64}");
            format!("{{ quota = \"{n}/{n}h\", name = \"{label}\" }}")
        };
        let limits = (1..=64).map(limit).collect::<Vec<_>>().join(",");
        format!("[[rule]]\nname = \"{name:-<64}\"\nkey = [\"user\"]\nlimits = [{limits}]\n")
    };
    let bench = Bench::new(&(rule("a") + &rule("b")));
    let _ = bench.check(1);
    let denied = bench.check(1);
    for style in HeaderStyle::ALL {
        let fields = headers(&denied, style);
        assert!(fields.values().all(|value| value.len() <= 4096), "{style:?}: {fields:?}");
    }
    let (policies, limits) = read(&headers(&denied, HeaderStyle::Ietf));
    assert!(policies.len() >= 16 && policies.len() == limits.len(), "{}", policies.len());
    assert_eq!((limits[0].remaining, limits[1].remaining), (0, 0), "those that deny come first");
}

#[test]
fn a_denial_shows_retry_after_in_each_style() {
    let bench = Bench::new(ONE);
    assert!(bench.check(5).allowed());
    let decision = bench.after(Duration::from_millis(1_500)).check(2);
    check_lines(
        &decision,
        HeaderStyle::Ietf,
        &[
            "ratelimit-policy: \"login\";q=5;w=60",
            "ratelimit: \"login\";r=0;t=23",
            "retry-after: 23",
        ],
    );
    check_lines(
        &decision,
        HeaderStyle::Draft7,
        &[
            "ratelimit-policy: 5;w=60",
            "ratelimit: limit=5, remaining=0, reset=23",
            "retry-after: 23",
        ],
    );
    check_lines(
        &decision,
        HeaderStyle::Draft6,
        &[
            "ratelimit-limit: 5",
            "ratelimit-policy: 5;w=60",
            "ratelimit-remaining: 0",
            "ratelimit-reset: 23",
            "retry-after: 23",
        ],
    );
    check_lines(
        &decision,
        HeaderStyle::Legacy,
        &[
            "retry-after: 23",
            "x-ratelimit-limit: 5",
            "x-ratelimit-remaining: 0",
            "x-ratelimit-reset: 23",
        ],
    );
    check_lines(&decision, HeaderStyle::None, &["retry-after: 23"]);
}

#[test]
fn every_enforced_limit_is_shown_tightest_first_and_no_shadow_rule() {
    let decision = Bench::new(STACK).check(Cost::requests(10).and("tokens", 600));
    check_lines(
        &decision,
        HeaderStyle::Ietf,
        &[
            "ratelimit-policy: \"api/permits\";q=20;qu=\"concurrent-requests\", \
             \"api/burst\";q=50;w=5, \"all\";q=100;w=60, \"api/daily\";q=1000;w=86400, \
             \"api/llm\";q=60000;w=60;qu=\"tokens\"",
            "ratelimit: \"api/permits\";r=10, \"api/burst\";r=40;t=1, \"all\";r=90;t=1, \
             \"api/daily\";r=990;t=46400, \"api/llm\";r=59400;t=1",
        ],
    );
    // The older styles cannot express permits, so the next limit is shown.
    check_lines(
        &decision,
        HeaderStyle::Draft7,
        &[
            "ratelimit-policy: 50;w=5, 100;w=60, 1000;w=86400, 60000;w=60",
            "ratelimit: limit=50, remaining=40, reset=1",
        ],
    );
    check_lines(
        &decision,
        HeaderStyle::Legacy,
        &["x-ratelimit-limit: 50", "x-ratelimit-remaining: 40", "x-ratelimit-reset: 1"],
    );
}

#[test]
fn the_denying_limit_with_the_longest_wait_comes_first() {
    let bench = Bench::new(STACK);
    assert!(bench.check(Cost::requests(20).and("tokens", 1)).allowed());
    // 31 exceed the burst for a tenth of a second, and never fit the permits.
    let never = bench.check(Cost::requests(31).and("tokens", 1));
    assert_eq!(never.reason(), Some(Reason::CostExceedsLimit));
    let limits = read(&headers(&never, HeaderStyle::Ietf)).1;
    assert_eq!(
        limits[..2],
        [
            LimitItem { name: "api/permits".into(), remaining: 0, more_after: None },
            LimitItem { name: "api/burst".into(), remaining: 30, more_after: Some(1) },
        ]
    );
    // The permits deny and so does the minute; permits have no retry time.
    let denied = bench.check(Cost::requests(20).and("tokens", 60_000));
    assert_eq!(denied.reason(), Some(Reason::LimitExceeded));
    let (_, limits) = read(&headers(&denied, HeaderStyle::Ietf));
    assert_eq!(limits[0], LimitItem { name: "api/permits".into(), remaining: 0, more_after: None });
    assert_eq!(limits[1].name, "api/llm");
    assert_eq!(headers(&denied, HeaderStyle::Ietf)["retry-after"], "1");
}

#[test]
fn held_permits_have_no_retry_time() {
    let policy = r#"
        [[rule]]
        name = "exports"
        key = ["user"]
        limits = [{ quota = "2", algorithm = "concurrency", max_hold = "30s" }]
    "#;
    let bench = Bench::new(policy);
    check_lines(
        &bench.check(2),
        HeaderStyle::Ietf,
        &[
            "ratelimit-policy: \"exports\";q=2;qu=\"concurrent-requests\"",
            "ratelimit: \"exports\";r=0",
        ],
    );
    let denied = bench.check(1);
    assert_eq!(
        DenialResponse::from_decision(&denied).unwrap().status(),
        StatusCode::TOO_MANY_REQUESTS
    );
    assert!(!headers(&denied, HeaderStyle::Ietf).contains_key("retry-after"));
    check_lines(&denied, HeaderStyle::Draft6, &[]);
}

#[test]
fn a_denial_that_no_wait_ends_has_no_retry_after() {
    let policy = "[[rule]]\nname = \"blocked\"\nkey = [\"user\"]\nlimits = [\"block\"]";
    let blocked = Bench::new(policy).check(1);
    check_lines(
        &blocked,
        HeaderStyle::Ietf,
        &["ratelimit-policy: \"blocked\";q=0", "ratelimit: \"blocked\";r=0"],
    );
    for style in [HeaderStyle::Draft7, HeaderStyle::Draft6, HeaderStyle::Legacy] {
        check_lines(&blocked, style, &[]);
    }
    let never = Bench::new(ONE).check(6);
    check_lines(
        &never,
        HeaderStyle::Ietf,
        &["ratelimit-policy: \"login\";q=5;w=60", "ratelimit: \"login\";r=5"],
    );
    for (decision, reason, status) in
        [(&blocked, Reason::Blocked, 403), (&never, Reason::CostExceedsLimit, 429)]
    {
        let refusal = DenialResponse::from_decision(decision).unwrap();
        assert_eq!((refusal.reason(), refusal.status().as_u16()), (reason, status));
        assert_eq!(refusal.retry_after_seconds(), None);
    }
    assert_eq!(
        DenialResponse::from_decision(&never).unwrap().body(),
        r#"{"type":"https://iana.org/assignments/http-problem-types#quota-exceeded","title":"Quota exceeded","status":429,"detail":"The cost is larger than the limit can ever hold.","violated-policies":["login"]}"#
    );
}

#[test]
fn unlimited_and_unmatched_requests_get_no_fields() {
    let unlimited = "[[rule]]\nname = \"free\"\nkey = [\"user\"]\nlimits = [\"unlimited\"]";
    let unmatched = "[[rule]]\nname = \"other\"\nkey = [\"tenant\"]\nlimits = [\"1/day\"]";
    for policy in [unlimited, unmatched] {
        for style in HeaderStyle::ALL {
            check_lines(&Bench::new(policy).check(1), style, &[]);
        }
    }
}

#[test]
fn a_body_names_each_limit_that_denies() {
    let bench = Bench::new(STACK);
    assert!(bench.check(Cost::requests(20).and("tokens", 60_000)).allowed());
    let denied = bench.check(Cost::requests(1).and("tokens", 10));
    let refusal = DenialResponse::from_decision(&denied).unwrap();
    assert_eq!(refusal.violated_policies().collect::<Vec<_>>(), ["api/permits", "api/llm"]);
    let response = refusal.response(HeaderStyle::Ietf);
    assert_eq!(response.status(), StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(response.headers()["content-type"], "application/problem+json");
    let body: serde_json::Value = serde_json::from_slice(response.body()).unwrap();
    assert_eq!(
        body,
        serde_json::json!({
            "type": "https://iana.org/assignments/http-problem-types#quota-exceeded",
            "title": "Quota exceeded",
            "status": 429,
            "detail": "Try again in 1 s.",
            "violated-policies": ["api/permits", "api/llm"],
        })
    );
}

#[test]
fn an_outage_is_503_without_numbers() {
    let policy = r#"
        [[rule]]
        name = "login"
        key = ["user"]
        limits = ["5/minute"]
        on_outage = "deny"
    "#;
    let (runtime, unreachable) = (runtime(), format!("redis://127.0.0.1:{}", free_port()));
    let builder = Limiter::builder().redis(unreachable).policy(Policy::from_toml(policy).unwrap());
    let limiter = runtime.block_on(builder.build()).unwrap();
    let decision = runtime.block_on(limiter.check(&Request::new().with("user", "u")));
    let refusal = DenialResponse::from_decision(&decision).unwrap();
    assert_eq!((refusal.reason(), refusal.status().as_u16()), (Reason::StoreUnavailable, 503));
    for style in HeaderStyle::ALL {
        check_lines(&decision, style, &["retry-after: 1"]);
    }
    assert_eq!(
        refusal.body(),
        r#"{"type":"https://iana.org/assignments/http-problem-types#temporary-reduced-capacity","title":"Temporarily reduced capacity","status":503,"detail":"The rate limiter cannot reach its store.","violated-policies":["login"]}"#
    );
}

#[test]
fn an_inline_limit_has_a_name_too() {
    let runtime = runtime();
    let limiter = runtime.block_on(Limiter::builder().build()).unwrap();
    let name = |limit: spillgate::Limit| {
        let decision = runtime.block_on(limiter.check(&Request::keyed("u", &limit)));
        read(&headers(&decision, HeaderStyle::Ietf)).0.remove(0)
    };
    let item = |name: &str, quota, window, unit: Option<&str>| PolicyItem {
        name: name.into(),
        quota,
        window: Some(window),
        unit: unit.map(str::to_owned),
    };
    let limit = spillgate::Limit::per_minute(5);
    assert_eq!(name(limit.clone()), item("default", 5, 60, None));
    assert_eq!(name(limit.named("mail").unit_named("tokens")), item("mail", 5, 60, Some("tokens")));
}

#[test]
fn existing_fields_are_kept() {
    let bench = Bench::new(ONE);
    let _ = bench.check(5);
    let denied = bench.check(1);
    let mut headers = HeaderMap::new();
    headers.insert("ratelimit", "\"upstream\";r=1;t=7".parse().unwrap());
    headers.insert("retry-after", "120".parse().unwrap());
    HeaderStyle::Ietf.write(&denied, &mut headers);
    assert_eq!(lines(&headers), ["ratelimit: \"upstream\";r=1;t=7", "retry-after: 120"]);
}

/// Random policies over all algorithms.
fn any_policy() -> impl Strategy<Value = String> {
    let algorithm =
        prop::sample::select(vec!["token-bucket", "fixed-window", "sliding-log", "sliding-window"]);
    let limit = (1..200u64, 1..100_000u64, algorithm);
    prop::collection::vec(limit, 1..4).prop_map(|limits| {
        let limits: Vec<String> = limits
            .iter()
            .map(|(count, ms, algorithm)| {
                format!("{{ quota = \"{count}/{ms}ms\", algorithm = \"{algorithm}\" }}")
            })
            .collect();
        format!("[[rule]]\nname = \"r\"\nkey = [\"user\"]\nlimits = [{}]", limits.join(", "))
    })
}

proptest! {
    #[test]
    fn a_caller_that_waits_for_retry_after_is_admitted(
        policy in any_policy(),
        calls in prop::collection::vec((1..60u64, 0..3_000u64), 1..40),
    ) {
        let bench = Bench::new(&policy);
        for (cost, pause_ms) in calls {
            bench.after(Duration::from_millis(pause_ms));
            let decision = bench.check(cost);
            let fields = headers(&decision, HeaderStyle::Ietf);
            let (policies, limits) = read(&fields);
            prop_assert_eq!(policies.len(), limits.len());
            let Some(refusal) = DenialResponse::from_decision(&decision) else {
                prop_assert!(!fields.contains_key("retry-after"));
                continue;
            };
            let seconds = refusal.retry_after_seconds();
            prop_assert_eq!(seconds.is_none(), decision.reason() == Some(Reason::CostExceedsLimit));
            let Some(seconds) = seconds else { continue };
            let written: u64 = fields["retry-after"].to_str().unwrap().parse().unwrap();
            prop_assert_eq!(written, seconds);
            let denied = decision.limits().filter(|counter| counter.reason() == Some(Reason::LimitExceeded)).count();
            let longest = limits[..denied].iter().map(|limit| limit.more_after.unwrap()).max();
            prop_assert_eq!(longest, Some(seconds as i64), "Retry-After is the longest t");
            // Tight: it is denied one second earlier, unless the wait is the minimum of one second.
            if seconds > 1 {
                let early = bench.clock.now_us() + (seconds - 1) * 1_000_000;
                let exact = decision.retry_after().unwrap().as_micros() as u64;
                prop_assert!(bench.clock.now_us() + exact > early);
            }
            prop_assert!(bench.after(Duration::from_secs(seconds)).check(cost).allowed());
        }
    }

    #[test]
    fn one_more_unit_is_available_after_t(
        count in 1..50u64,
        period_ms in 1..60_000u64,
        window in any::<bool>(),
        costs in prop::collection::vec((1..20u64, 0..2_000u64), 1..12),
    ) {
        let algorithm = if window { "fixed-window" } else { "token-bucket" };
        let bench = Bench::new(&format!(
            "[[rule]]\nname = \"r\"\nkey = [\"user\"]\nlimits = [{{ quota = \"{count}/{period_ms}ms\", algorithm = \"{algorithm}\" }}]"
        ));
        for (cost, pause_ms) in costs {
            let decision = bench.after(Duration::from_millis(pause_ms)).check(cost);
            if !decision.allowed() {
                continue;
            }
            let limit = read(&headers(&decision, HeaderStyle::Ietf)).1.remove(0);
            let seconds = limit.more_after.unwrap() as u64;
            let now_us = bench.clock.now_us();
            let left_after = |us: u64| {
                bench.clock.set(now_us + us);
                let left = bench.check(0).remaining().unwrap();
                bench.clock.set(now_us);
                left as i64
            };
            prop_assert!(left_after(seconds * 1_000_000) > limit.remaining);
            if seconds > 1 {
                // The wait is the difference of two times, both rounded up to microseconds.
                let earlier_us = (seconds - 1) * 1_000_000 - 2;
                prop_assert_eq!(left_after(earlier_us), limit.remaining);
            }
        }
    }
}
