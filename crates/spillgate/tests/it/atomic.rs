//! Several requests as one decision, post-paid rules and refunds, on every engine.

use std::time::Duration;

use spillgate::{AtomicDecision, Cost, Decision, Limit, Limiter, Reason, Request};

use crate::stores::on_each;

const WITHIN: Duration = Duration::from_secs(10);

async fn check_atomic(limiter: &Limiter, requests: &[Request<'_>]) -> AtomicDecision {
    limiter.check_atomic_within(requests, WITHIN).await
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
fn requests_are_charged_together_or_not_at_all() {
    on_each(TWO, |limiter| async move {
        let both = [by("ip", "::1"), by("user", "ada").costing(2)];
        let first = check_atomic(&limiter, &both).await;
        assert!(first.allowed());
        assert_eq!(remaining(first.whole()), [Some(9), Some(0), Some(0)]);
        let second = check_atomic(&limiter, &both).await;
        assert_eq!(second.denial().unwrap().reason, Reason::LimitExceeded);
        let each: Vec<Option<Reason>> = second.by_request().iter().map(Decision::reason).collect();
        assert_eq!(each, [None, Some(Reason::LimitExceeded)]);
        assert_eq!(remaining(&limiter.peek(&by("ip", "::1")).await), [Some(9), Some(0)]);
    });
}

#[test]
fn a_counter_charged_twice_adds_its_costs() {
    on_each(TWO, |limiter| async move {
        let of = |cost: u64| by("ip", "::1").costing(cost);
        let twice = check_atomic(&limiter, &[of(4), of(5)]).await;
        assert_eq!((twice.whole().allowed(), twice.whole().remaining()), (true, Some(1)));
        assert_eq!(remaining(twice.whole()).len(), 2, "the rule and its shadow, each once");
        assert!(twice.by_request().iter().all(|one| one.remaining() == Some(1)));
        let too_much = check_atomic(&limiter, &[of(6), of(5)]).await;
        assert_eq!(too_much.whole().reason(), Some(Reason::CostExceedsLimit));
        let peeks = check_atomic(&limiter, &[of(0), of(0)]).await;
        assert_eq!((peeks.whole().allowed(), peeks.whole().remaining()), (true, Some(1)));
    });
}

#[test]
fn a_request_without_a_matching_rule_is_allowed_and_has_no_numbers() {
    on_each(TWO, |limiter| async move {
        let decision = check_atomic(&limiter, &[by("unknown", "x"), by("user", "bob")]).await;
        assert!(decision.allowed());
        let unmatched = &decision.by_request()[0];
        assert!(unmatched.is_unmatched());
        assert_eq!(unmatched.remaining(), None);
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
        let batch = [call.clone()];
        assert_eq!(remaining(&limiter.check_batch(&batch).await[0]), [Some(10), Some(0)]);
        let one = by("user", "bob").costing(Cost::of_unit("bytes", 5));
        let together = check_atomic(&limiter, &[one]).await;
        assert_eq!(remaining(together.whole())[0], Some(5));
    });
}

/// A post-paid limit without room hid the decisions of shadow rules, as if the request had been denied. It
/// counted a denial of its own rule as well.
#[test]
fn a_shadow_rule_is_counted_although_a_postpaid_limit_has_no_room() {
    let policy = POSTPAID.replace("name = \"calls\"", "name = \"calls\"\n    mode = \"shadow\"");
    on_each(&policy, |limiter| async move {
        let cost = Cost::requests(1).and("bytes", 1_000);
        let beyond = limiter.check(&by("user", "ada").costing(cost)).await;
        let reasons: Vec<_> = beyond.limits().map(|counter| counter.reason()).collect();
        assert_eq!(
            (beyond.allowed(), &reasons[..]),
            (true, &[Some(Reason::LimitExceeded), None][..])
        );
        let text = limiter.metrics_text();
        let counted = "rule=\"calls\",mode=\"shadow\",decision=\"allowed\",reason=\"\",limit=\"\",source=\"store\"} 1\n";
        assert!(text.contains(counted), "{text}");
        let is_denial =
            |line: &&str| line.contains("rule=\"bytes\",mode=\"enforce\",decision=\"denied\"");
        assert_eq!(text.lines().find(is_denial), None, "an advisory counter denies nothing");
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
        let back = |cost| [of(cost).refunding()];
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
        let nothing = check_atomic(&limiter, &[of(0).refunding()]).await;
        assert!(nothing.whole().allowed());
        let whole = nothing.whole();
        assert_eq!(whole.limits().next().unwrap().reason(), Some(Reason::LimitExceeded));
    });
}

/// A refund used to clear the denial of a charge on the same counter: the call was allowed, and not charged.
#[test]
fn a_refund_beside_a_denied_charge_does_not_allow_it() {
    on_each(RETURNS, |limiter| async move {
        let of = |cost: u64| by("user", "eve").costing(cost);
        assert!(limiter.check(&of(8)).await.allowed());
        let denied = check_atomic(&limiter, &[of(5), of(3).refunding()]).await;
        assert_eq!(denied.whole().reason(), Some(Reason::LimitExceeded));
        assert_eq!(remaining(denied.whole())[0], Some(2), "as the decision found it");
        let hopeless = check_atomic(&limiter, &[of(11), of(1).refunding()]).await;
        assert_eq!(hopeless.whole().reason(), Some(Reason::CostExceedsLimit));
        let allowed = check_atomic(&limiter, &[of(6), of(1).refunding()]).await;
        assert_eq!((allowed.whole().allowed(), remaining(allowed.whole())[0]), (true, Some(1)));
    });
}

#[test]
fn a_refund_beside_a_charge_hides_no_denial_of_a_shadow_rule() {
    const SHADOW: &str = r#"
        [[rule]]
        name = "trial"
        key = ["user"]
        limits = ["10/day"]
        negative_hits = true
        mode = "shadow"
    "#;
    on_each(SHADOW, |limiter| async move {
        let of = |cost: u64| by("user", "eve").costing(cost);
        assert!(limiter.check(&of(8)).await.allowed());
        let both = check_atomic(&limiter, &[of(5), of(3).refunding()]).await;
        assert!(both.whole().allowed());
        let reason = both.whole().limits().next().unwrap().reason();
        assert_eq!(reason, Some(Reason::LimitExceeded));
    });
}

const REQUEST_LIMITED: &str = r#"
    [[rule]]
    name = "open"
    key = ["user"]
    limits = ["10/day"]
    request_limit = "lower"
    [[rule]]
    name = "closed"
    key = ["user"]
    limits = ["20/day"]
"#;

#[test]
fn a_request_limit_applies_only_if_allowed_and_lower() {
    on_each(REQUEST_LIMITED, |limiter| async move {
        let with = |limit: Limit| [by("user", "ada").limited_to(limit)];
        let low = check_atomic(&limiter, &with(Limit::per_day(3))).await;
        let params: Vec<_> = low
            .whole()
            .limits()
            .map(|counter| (counter.definition().to_string(), counter.remaining()))
            .collect();
        let expected = [("10/day", Some(9)), ("3/day", Some(2)), ("20/day", Some(19))];
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
        let of = |count| by("user", "bob").limited_to(Limit::per_day(count));
        let both = check_atomic(&limiter, &[of(3), of(5)]).await;
        assert_eq!(remaining(both.whole())[..2], [Some(8), Some(1)]);
        let both = check_atomic(&limiter, &[of(5), of(3)]).await;
        assert_eq!(both.whole().reason(), Some(Reason::LimitExceeded));
    });
}

#[test]
fn a_single_request_refunds_and_narrows_as_in_an_atomic_check() {
    on_each(RETURNS, |limiter| async move {
        let of = |cost: u64| by("user", "cyd").costing(cost);
        assert!(limiter.check(&of(10)).await.allowed());
        let refunded = limiter.check(&of(4).refunding()).await;
        assert!(refunded.allowed());
        assert_eq!(remaining(&refunded), [Some(4), Some(10)]);
        let batch = limiter.check_batch(&[of(1), of(2).refunding()]).await;
        assert_eq!(remaining(&batch[1]), [Some(5), Some(9)]);
        let acquired = limiter.acquire(&of(1).refunding(), Duration::ZERO).await;
        assert_eq!(remaining(&acquired), [Some(6), Some(9)]);
        // A peek ignores cost and refund.
        assert_eq!(remaining(&limiter.peek(&of(3).refunding()).await), [Some(6), Some(9)]);
        assert_eq!(remaining(limiter.explain(&of(3).refunding()).await.decision())[0], Some(6));
        assert_eq!(remaining(&limiter.peek(&of(1)).await), [Some(6), Some(9)]);
    });
    on_each(REQUEST_LIMITED, |limiter| async move {
        let request = by("user", "cyd").limited_to(Limit::per_day(2));
        assert_eq!(remaining(&limiter.peek(&request).await), [Some(10), Some(2), Some(20)]);
        assert_eq!(remaining(&limiter.check(&request).await), [Some(9), Some(1), Some(19)]);
        let explained = limiter.explain(&request).await;
        let names: Vec<&str> = explained.limits().map(|limit| limit.decision().limit()).collect();
        assert_eq!(names, ["0", "0.request", "0"]);
        assert!(limiter.acquire(&request, Duration::ZERO).await.allowed());
        let batch = limiter.check_batch(&[request.clone(), by("user", "cyd")]).await;
        assert_eq!(batch[0].limit(), Some("0.request"));
        assert!(!batch[0].allowed() && batch[1].allowed());
    });
}

#[test]
fn inline_limits_are_charged_with_rules_all_or_none() {
    on_each(TWO, |limiter| async move {
        let inline = |cost: u64| Request::keyed("job", Limit::per_day(5)).costing(cost);
        let ada = || by("user", "ada");
        let first = check_atomic(&limiter, &[ada(), inline(1), inline(2)]).await;
        assert!(first.allowed());
        let named: Vec<_> = first
            .whole()
            .limits()
            .map(|counter| (counter.rule(), counter.definition().to_string(), counter.remaining()))
            .collect();
        let expected = [(Some("user"), "2/day", Some(1)), (None, "5/day", Some(2))];
        assert_eq!(named, expected.map(|(rule, limit, left)| (rule, limit.to_owned(), left)));
        assert_eq!(first.by_request()[1].remaining(), Some(2));

        let second = check_atomic(&limiter, &[ada(), inline(3)]).await;
        assert_eq!(second.denial().unwrap().reason, Reason::LimitExceeded);
        assert_eq!(second.whole().rule(), None, "the inline limit denies");
        assert_eq!(limiter.peek(&ada()).await.remaining(), Some(1), "nothing was charged");
        assert_eq!(limiter.peek(&inline(1)).await.remaining(), Some(2), "it is the same counter");
        let refunded = limiter.check(&inline(1).refunding()).await;
        assert_eq!((refunded.allowed(), refunded.remaining()), (true, Some(3)));
    });
}

#[test]
fn inline_limits_of_two_periods_under_one_key_are_charged_all_or_none() {
    on_each(TWO, |limiter| async move {
        let an_hour = Request::keyed("job", Limit::per_hour(5));
        let a_day = Request::keyed("job", Limit::per_day(1));
        let both = [an_hour.clone(), a_day.clone()];
        assert!(check_atomic(&limiter, &both).await.allowed());
        assert!(!check_atomic(&limiter, &both).await.allowed());
        assert_eq!(limiter.peek(&an_hour).await.remaining(), Some(4), "only the first was charged");
        assert_eq!(limiter.peek(&a_day).await.remaining(), Some(0));
    });
}

#[test]
fn an_inline_limit_is_explained_without_rules() {
    on_each(TWO, |limiter| async move {
        let request = Request::keyed("job", Limit::per_day(1)).with("user", "ada");
        let explained = limiter.explain(&request).await;
        assert!(explained.rules().is_empty());
        let sentence = "Allowed: every limit has room; the inline limit has the least left.";
        assert_eq!(explained.sentence(), sentence);
        assert!(limiter.check(&request).await.allowed());
        let explained = limiter.explain(&request).await;
        assert_eq!(explained.answer().reason(), Some(Reason::LimitExceeded));
        let sentence = explained.limits().next().unwrap().sentence();
        assert!(sentence.starts_with("the inline limit (1/day) denies: "), "{sentence}");
        assert_eq!(limiter.peek(&by("user", "ada")).await.remaining(), Some(2), "no rule applied");
    });
}
