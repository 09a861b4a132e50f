//! Several requests as one decision, post-paid rules and refunds, on every engine.

use std::time::Duration;

use spillgate::{AtomicDecision, Cost, Decision, Limit, Limiter, Part, Reason, Request};

use crate::limiter::on_each;

const WITHIN: Duration = Duration::from_secs(10);

async fn check_atomic(limiter: &Limiter, parts: &[Part<'_>]) -> AtomicDecision {
    limiter.check_atomic(parts, WITHIN).await
}

fn by(attribute: &'static str, value: &'static str) -> Request<'static> {
    Request::new().with(attribute, value)
}

fn remaining(decision: &Decision) -> Vec<Option<u64>> {
    decision.limits().map(|counter| counter.remaining()).collect()
}

const TWO: &str = r#"
    [[rule]]
    name = "ip"
    key = ["ip"]
    limits = ["10/day"]
    [[rule]]
    name = "user"
    key = ["user"]
    limits = ["2/day"]
    [[rule]]
    name = "watched"
    mode = "shadow"
    key = ["ip"]
    limits = ["1/day"]
"#;

#[test]
fn parts_are_charged_together_or_not_at_all() {
    on_each(TWO, |limiter| async move {
        let parts = [Part::new(by("ip", "::1")), Part::new(by("user", "ada").costing(2))];
        let first = check_atomic(&limiter, &parts).await;
        assert!(first.whole().allowed());
        assert_eq!(remaining(first.whole()), [Some(9), Some(0), Some(0)]);
        let second = check_atomic(&limiter, &parts).await;
        assert_eq!(second.whole().reason(), Some(Reason::LimitExceeded));
        let verdicts: Vec<Option<Reason>> = second.parts().iter().map(Decision::reason).collect();
        assert_eq!(verdicts, [None, Some(Reason::LimitExceeded)]);
        assert_eq!(remaining(&limiter.peek(&by("ip", "::1")).await), [Some(9), Some(0)]);
    });
}

#[test]
fn a_counter_charged_twice_adds_its_costs() {
    on_each(TWO, |limiter| async move {
        let part = |cost: u64| Part::new(by("ip", "::1").costing(cost));
        let twice = check_atomic(&limiter, &[part(4), part(5)]).await;
        assert_eq!((twice.whole().allowed(), twice.whole().remaining()), (true, Some(1)));
        assert_eq!(remaining(twice.whole()).len(), 2, "the rule and its shadow, each once");
        assert!(twice.parts().iter().all(|part| part.remaining() == Some(1)));
        let too_much = check_atomic(&limiter, &[part(6), part(5)]).await;
        assert_eq!(too_much.whole().reason(), Some(Reason::CostExceedsLimit));
        let peeks = check_atomic(&limiter, &[part(0), part(0)]).await;
        assert_eq!((peeks.whole().allowed(), peeks.whole().remaining()), (true, Some(1)));
    });
}

#[test]
fn a_part_without_a_matching_rule_is_allowed_and_has_no_numbers() {
    on_each(TWO, |limiter| async move {
        let parts = [Part::new(by("unknown", "x")), Part::new(by("user", "bob"))];
        let combined = check_atomic(&limiter, &parts).await;
        assert!(combined.whole().allowed());
        assert_eq!(
            (combined.parts()[0].limits().len(), combined.parts()[0].remaining()),
            (0, None)
        );
        assert!(check_atomic(&limiter, &[]).await.whole().allowed());
    });
}

const POSTPAID: &str = r#"
    [[rule]]
    name = "bytes"
    key = ["user"]
    limits = [{ quota = "100/day", unit = "bytes" }]
    postpaid = true
    [[rule]]
    name = "calls"
    key = ["user"]
    limits = ["2/day"]
"#;

#[test]
fn a_postpaid_rule_is_charged_beyond_its_room_and_denies_the_next_request() {
    on_each(POSTPAID, |limiter| async move {
        let ada = || by("user", "ada");
        let bytes = |amount| ada().costing(Cost::of_unit("bytes", amount));
        assert!(limiter.check(&ada()).await.allowed());
        let within = limiter.check(&bytes(60)).await;
        assert_eq!((within.allowed(), remaining(&within)[0]), (true, Some(40)));
        let beyond = limiter.check(&bytes(1_000)).await;
        assert!(beyond.allowed());
        let counter = beyond.limits().next().unwrap();
        assert_eq!((counter.reason(), counter.advisory()), (Some(Reason::LimitExceeded), true));
        let next = limiter.check(&ada()).await;
        assert_eq!((next.reason(), next.rule()), (Some(Reason::LimitExceeded), Some("bytes")));
        let calls_left = limiter.peek(&ada()).await;
        assert_eq!(remaining(&calls_left), [Some(0), Some(1)], "the denied call was not charged");
    });
}

#[test]
fn a_postpaid_charge_stands_although_another_rule_denies() {
    on_each(POSTPAID, |limiter| async move {
        let cost = Cost::requests(2).and("bytes", 30);
        let call = by("user", "bob").costing(cost);
        assert!(limiter.check(&call).await.allowed());
        let denied = limiter.check(&call).await;
        assert_eq!((denied.reason(), denied.rule()), (Some(Reason::LimitExceeded), Some("calls")));
        assert_eq!(remaining(&denied), [Some(40), Some(0)]);
        let batch = [spillgate::Question::Request(call.clone())];
        assert_eq!(remaining(&limiter.check_batch(&batch).await[0]), [Some(10), Some(0)]);
        let part = Part::new(by("user", "bob").costing(Cost::of_unit("bytes", 5)));
        let together = check_atomic(&limiter, &[part]).await;
        assert_eq!(remaining(together.whole())[0], Some(5));
    });
}

const RETURNS: &str = r#"
    [[rule]]
    name = "open"
    key = ["user"]
    limits = ["10/day"]
    negative_hits = true
    [[rule]]
    name = "closed"
    key = ["user"]
    limits = ["20/day"]
"#;

#[test]
fn only_rules_that_allow_it_are_refunded_and_never_below_zero() {
    on_each(RETURNS, |limiter| async move {
        let of = |cost: u64| by("user", "ada").costing(cost);
        assert!(limiter.check(&of(10)).await.allowed());
        let back = |cost| [Part::new(of(cost)).giving_back()];
        let refunded = check_atomic(&limiter, &back(4)).await;
        assert!(refunded.whole().allowed());
        assert_eq!(remaining(refunded.whole()), [Some(4), Some(10)]);
        assert!(refunded.whole().limits().all(|counter| counter.advisory()));
        let more = check_atomic(&limiter, &back(1_000)).await;
        assert_eq!(remaining(more.whole()), [Some(10), Some(10)]);
    });
}

#[test]
fn a_refund_is_never_denied() {
    on_each(RETURNS, |limiter| async move {
        let of = |cost: u64| by("user", "bob").costing(cost);
        assert!(limiter.check(&of(10)).await.allowed());
        let nothing = check_atomic(&limiter, &[Part::new(of(0)).giving_back()]).await;
        assert!(nothing.whole().allowed());
        let whole = nothing.whole();
        assert_eq!(whole.limits().next().unwrap().reason(), Some(Reason::LimitExceeded));
    });
}

const REQUEST_LIMITED: &str = r#"
    [[rule]]
    name = "open"
    key = ["user"]
    limits = ["10/day"]
    request_limit = true
    [[rule]]
    name = "closed"
    key = ["user"]
    limits = ["20/day"]
"#;

#[test]
fn a_request_limit_applies_only_if_allowed_and_lower() {
    on_each(REQUEST_LIMITED, |limiter| async move {
        let with = |limit: Limit| [Part::new(by("user", "ada")).limited_to(limit)];
        let low = check_atomic(&limiter, &with(Limit::per_day(3))).await;
        let params: Vec<_> = low
            .whole()
            .limits()
            .map(|counter| (counter.definition().to_string(), counter.remaining()))
            .collect();
        let expected = [("10/1d", Some(9)), ("3/1d", Some(2)), ("20/1d", Some(19))];
        assert_eq!(params, expected.map(|(limit, left)| (limit.to_owned(), left)));
        let high = check_atomic(&limiter, &with(Limit::per_day(3_000))).await;
        assert_eq!(remaining(high.whole()), [Some(8), Some(18)], "only the configured limits");
        let blocked = check_atomic(&limiter, &with(Limit::block())).await;
        assert_eq!(blocked.whole().reason(), Some(Reason::Blocked));
    });
}

#[test]
fn the_lower_of_two_request_limits_on_one_counter_applies() {
    on_each(REQUEST_LIMITED, |limiter| async move {
        let part = |count| Part::new(by("user", "bob")).limited_to(Limit::per_day(count));
        let both = check_atomic(&limiter, &[part(3), part(5)]).await;
        assert_eq!(remaining(both.whole())[..2], [Some(8), Some(1)]);
        let both = check_atomic(&limiter, &[part(5), part(3)]).await;
        assert_eq!(both.whole().reason(), Some(Reason::LimitExceeded));
    });
}
