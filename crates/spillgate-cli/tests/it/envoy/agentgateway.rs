//! The calls of agentgateway, with the rules of its page. Its messages have a cost in each descriptor and none in the
//! request; its answers count only if they are read as it reads them.

use tonic::Request;

use super::client::{
    Caller, Code, DescriptorStatus, RateLimitDescriptor, RateLimitResponse, RateLimitUnit,
    descriptor, in_domain,
};
use crate::documents::page::Page;
use crate::server::{TempFile, on_both_engines};

/// Runs a story with the rules of the page, with both stores.
fn on_both(story: impl Fn(&Caller)) {
    let patient = "[store]\ntimeout = \"60s\"\n[server.grpc]\ntimeout = \"60s\"\n".to_owned();
    let page = Page::of("how-to/agentgateway");
    let rules: Vec<&str> = page.blocks("toml").collect();
    assert_eq!(rules.len(), 3);
    let file = TempFile::new("agentgateway.toml", &(patient + &rules.join("\n")));
    on_both_engines(&["--config", file.path()], |server| story(&Caller::of(server)));
}

fn ask(caller: &Caller, descriptor: RateLimitDescriptor) -> RateLimitResponse {
    caller.try_ask(Request::new(in_domain("agents", &[descriptor]))).unwrap()
}

/// Returns limit, remaining and seconds of the header fields that agentgateway makes: those of the status with a limit
/// that has the least left.
fn x_ratelimit(answer: &RateLimitResponse) -> Option<(u32, u32, i64)> {
    let with_limit = answer.statuses.iter().filter(|status| status.current_limit.is_some());
    let tightest: &DescriptorStatus = with_limit.min_by_key(|status| status.limit_remaining)?;
    let reset = tightest.duration_until_reset.as_ref().map_or(0, |reset| reset.seconds.max(0));
    Some((tightest.current_limit.as_ref()?.requests_per_unit, tightest.limit_remaining, reset))
}

#[test]
fn requests_are_limited_and_answers_have_the_fields_that_it_reads() {
    on_both(|caller| {
        let user = || descriptor(&[("user", "ada")]);
        let first = ask(caller, user());
        assert_eq!(first.overall_code(), Code::Ok);
        let (limit, remaining, reset) = x_ratelimit(&first).unwrap();
        assert_eq!((limit, remaining), (2, 1));
        assert!((1_700..=1_800).contains(&reset), "{reset}");
        assert_eq!(ask(caller, user()).overall_code(), Code::Ok);

        let denied = ask(caller, user());
        assert_eq!(denied.overall_code(), Code::OverLimit);
        assert_eq!(x_ratelimit(&denied).unwrap().1, 0);
        assert_eq!(denied.header("content-type"), Some("application/problem+json"));
        assert!(denied.header("retry-after").is_some());
        assert!(!denied.raw_body.is_empty());
        assert!(denied.request_headers_to_add.is_empty(), "it would change the request");
        assert_eq!(ask(caller, descriptor(&[("user", "bob")])).overall_code(), Code::Ok);
    });
}

#[test]
fn tokens_are_charged_after_the_call_and_deny_the_next() {
    on_both(|caller| {
        let team = |hits| descriptor(&[("team", "red")]).costing(hits);
        assert_eq!(ask(caller, team(0)).overall_code(), Code::Ok);
        ask(caller, team(700_000));
        let next = ask(caller, team(0));
        assert_eq!((next.overall_code(), x_ratelimit(&next).unwrap().1), (Code::Ok, 300_000));
        // The call that this question allows uses more than is left; all of it is charged.
        ask(caller, team(900_000));
        let denied = ask(caller, team(0));
        assert_eq!(denied.overall_code(), Code::OverLimit);
        // 600,000 tokens too many come back at 1,000,000 a day.
        let wait = x_ratelimit(&denied).unwrap().2;
        assert!((51_000..=51_841).contains(&wait), "{wait}");
        assert_eq!(
            ask(caller, descriptor(&[("team", "blue")]).costing(0)).overall_code(),
            Code::Ok
        );
    });
}

#[test]
fn a_limit_override_replaces_the_limit_of_the_rule() {
    on_both(|caller| {
        let of = |team| descriptor(&[("plan-of", team)]);
        let planned = || of("red").limited_to(3, RateLimitUnit::Hour);
        for remaining in [2, 1, 0] {
            let (limit, left, _) = x_ratelimit(&ask(caller, planned())).unwrap();
            assert_eq!((limit, left), (3, remaining));
        }
        assert_eq!(ask(caller, planned()).overall_code(), Code::OverLimit);
        let codes = [0; 2].map(|_| ask(caller, of("blue")).overall_code());
        assert_eq!(codes, [Code::Ok, Code::OverLimit]);
    });
}
