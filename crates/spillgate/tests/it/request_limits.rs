//! A limit that a request asks for in place of a rule's, on every engine. `atomic.rs` has those that only lower.

use spillgate::{Cost, Decision, Limit, Limiter, Reason, Request};

use crate::stores::on_each;

const POLICY: &str = r#"
    [[rule]]
    name = "tenant"
    key = ["tenant"]
    limits = ["5/day"]
    request_limit = "replace"

    [[rule]]
    name = "cap"
    key = ["tenant"]
    limits = ["1000/day"]

    [[override]]
    rule = "tenant"
    subject = { tenant = "known" }
    limits = ["3/day"]

    [[override]]
    rule = "tenant"
    subject = { tenant = "banned" }
    limits = ["block"]

    [[rule]]
    name = "calendar"
    key = ["calendar"]
    limits = [{ name = "month", quota = "5/month", algorithm = "fixed-window", unit = "tokens" }]
    request_limit = "replace"
"#;

fn of(tenant: &'static str) -> Request<'static> {
    Request::new().with("tenant", tenant)
}

/// Returns the limit of the first rule in force, and what is left of it.
fn first(decision: &Decision) -> (String, Option<u64>) {
    let limit = decision.limits().next().unwrap();
    (limit.definition().to_string(), limit.remaining())
}

async fn admitted(limiter: &Limiter, request: &Request<'_>, calls: usize) -> usize {
    let mut admitted = 0;
    for _ in 0..calls {
        admitted += usize::from(limiter.check(request).await.allowed());
    }
    admitted
}

#[test]
fn a_request_raises_and_lowers_the_limit_of_its_tenant() {
    on_each(POLICY, |limiter| async move {
        let own = of("a");
        let raised = of("a").limited_to(Limit::per_day(8));
        let lowered = of("a").limited_to(Limit::per_day(2));
        assert_eq!(admitted(&limiter, &own, 7).await, 5);
        let decision = limiter.check(&raised).await;
        assert!(decision.allowed());
        assert_eq!(first(&decision), ("8/day".to_owned(), Some(2)), "what was used stays used");
        let limit = decision.limits().next().unwrap();
        assert_eq!((limit.limit(), limit.is_request_limit()), ("0", true));
        assert!(!decision.limits().nth(1).unwrap().is_request_limit(), "the cap allows none");
        assert_eq!(admitted(&limiter, &raised, 5).await, 2);
        for denied in [&own, &lowered, &raised] {
            assert_eq!(limiter.check(denied).await.reason(), Some(Reason::LimitExceeded));
        }
        assert_eq!(admitted(&limiter, &of("b").limited_to(Limit::per_day(2)), 5).await, 2);
        assert_eq!(admitted(&limiter, &of("b"), 5).await, 3);
    });
}

#[test]
fn another_period_has_a_counter_of_its_own() {
    on_each(POLICY, |limiter| async move {
        assert_eq!(admitted(&limiter, &of("a"), 6).await, 5);
        let hourly = of("a").limited_to(Limit::per_hour(2));
        assert_eq!(admitted(&limiter, &hourly, 3).await, 2);
        assert_eq!(first(&limiter.peek(&of("a")).await), ("5/day".to_owned(), Some(0)));
    });
}

#[test]
fn a_month_of_a_request_is_the_month_of_the_rule() {
    on_each(POLICY, |limiter| async move {
        let month = Limit::parse("9/month").unwrap();
        let tokens = |count: u64| {
            Request::new().with("calendar", "x").costing(Cost::of_unit("tokens", count))
        };
        assert!(limiter.check(&tokens(5)).await.allowed());
        let decision = limiter.check(&tokens(3).limited_to(month)).await;
        assert_eq!(first(&decision), ("9/month UTC".to_owned(), Some(1)));
        let limit = decision.limits().next().unwrap();
        assert_eq!((limit.limit(), limit.unit()), ("month", "tokens"));
    });
}

#[test]
fn unlimited_and_block_replace_too() {
    on_each(POLICY, |limiter| async move {
        let unlimited = of("a").limited_to(Limit::unlimited());
        assert_eq!(admitted(&limiter, &unlimited, 20).await, 20);
        assert_eq!(first(&limiter.peek(&of("a")).await), ("5/day".to_owned(), Some(5)));
        let blocked = limiter.check(&of("a").limited_to(Limit::block())).await;
        assert_eq!((blocked.reason(), blocked.rule()), (Some(Reason::Blocked), Some("tenant")));
        let capped = of("a").limited_to(Limit::per_day(2_000)).costing(1_001);
        assert_eq!(limiter.check(&capped).await.rule(), Some("cap"), "another rule still holds");
    });
}

#[test]
fn a_request_cannot_raise_what_an_operator_set_for_its_subject() {
    on_each(POLICY, |limiter| async move {
        let raised = |tenant| of(tenant).limited_to(Limit::per_day(100));
        assert_eq!(admitted(&limiter, &raised("known"), 5).await, 3);
        let lowered = limiter.check(&of("known").limited_to(Limit::block())).await;
        assert_eq!(lowered.reason(), Some(Reason::Blocked));
        assert_eq!(limiter.check(&raised("banned")).await.reason(), Some(Reason::Blocked));
        assert!(limiter.set_override("tenant", &of("a"), ["1/day"], None).await.is_ok());
        assert_eq!(admitted(&limiter, &raised("a"), 3).await, 1);
    });
}

#[test]
fn the_lower_of_two_limits_on_one_subject_applies() {
    on_each(POLICY, |limiter| async move {
        let of = |count| of("a").limited_to(Limit::per_day(count));
        for both in [[of(20), of(9)], [of(9), of(20)]] {
            let decision = limiter.check_atomic(&both).await;
            assert_eq!(first(decision.whole()).0, "9/day");
        }
        assert_eq!(first(&limiter.peek(&of(9)).await).1, Some(5));
    });
}

#[test]
fn explain_shows_the_limit_that_the_request_asked_for() {
    on_each(POLICY, |limiter| async move {
        assert_eq!(admitted(&limiter, &of("a"), 5).await, 5);
        let raised = of("a").limited_to(Limit::per_day(8));
        let explained = limiter.explain(&raised).await;
        assert!(explained.answer().allowed());
        let sentence = explained.limits().next().unwrap().sentence();
        assert!(
            sentence.starts_with("tenant/0 (8/day) has room: 3 of 8 requests are left"),
            "{sentence}"
        );
        assert!(sentence.ends_with("The request asked for this limit."), "{sentence}");
        assert!(limiter.check(&raised).await.allowed());
        assert!(!limiter.explain(&of("a")).await.answer().allowed());
    });
}
