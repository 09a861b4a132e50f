//! The behaviour that Envoy relies on, with both stores.

use std::time::Duration;

use serde_json::Value;
use tonic::{Code as Status, Request};

use super::client::{Caller, Code, RateLimitUnit, Unit, descriptor, in_domain, json};
use crate::server::{Server, TempFile, on_both_engines};

/// Times long enough for a slow machine.
const PATIENT: &str = "[store]\ntimeout = \"60s\"\n[server.grpc]\ntimeout = \"60s\"\n";

const POLICY: &str = r#"
    [[rule]]
    name = "ip"
    key = ["remote_address"]
    limits = ["10/day"]

    [[rule]]
    name = "path"
    key = ["path", "path.2"]
    limits = ["3/hour", { name = "slow", quota = "100/day", algorithm = "fixed-window" }]

    [[rule]]
    name = "user"
    key = ["user"]
    limits = ["2/minute"]
    request_limit = "lower"

    [[rule]]
    name = "free"
    key = ["free"]
    limits = ["unlimited"]

    [[rule]]
    name = "bytes"
    key = ["bytes"]
    limits = ["1000/day"]
    postpaid = true

    [[rule]]
    name = "open"
    key = ["open"]
    limits = ["10/day"]
    negative_hits = true

    [[rule]]
    name = "watched"
    mode = "shadow"
    key = ["watched"]
    limits = ["1/day"]

    [[rule]]
    name = "sold-out"
    key = ["sold_out"]
    limits = ["block"]
    denial = { status = 402, text = "No tickets left.", headers = { X-Reason = "sold-out" } }

    [[rule]]
    name = "explained"
    key = ["explained"]
    limits = ["block"]
    denial.problem = { title = "No tickets left", event = 7 }

    [[rule]]
    name = "web"
    domain = "web"
    key = ["remote_address"]
    limits = ["1/day"]
"#;

fn on_both(story: impl Fn(&Caller)) {
    let file = TempFile::new("envoy.toml", &format!("{PATIENT}{POLICY}"));
    on_both_engines(&["--config", file.path()], |server| story(&Caller::of(server)));
}

#[test]
fn a_call_is_charged_once_without_an_addend() {
    on_both(|caller| {
        let ip = || descriptor(&[("remote_address", "::1")]);
        assert_eq!(caller.ask(&[ip()]).remaining(), [9]);
        assert_eq!(caller.ask(&[ip().costing(3)]).remaining(), [6]);
        assert_eq!(caller.ask(&[ip().costing(0)]).remaining(), [6], "0 looks");
        let mut request = in_domain("default", &[ip(), ip().costing(1)]);
        request.hits_addend = 2;
        let answer = caller.try_ask(Request::new(request)).unwrap();
        assert_eq!(answer.remaining(), [3, 3], "a counter matched twice adds its costs");
        let huge = caller.ask(&[ip().costing(u64::MAX)]);
        assert_eq!((huge.overall_code(), huge.statuses[0].reset()), (Code::OverLimit, None));
    });
}

#[test]
fn descriptors_are_charged_all_or_none_each_with_its_status() {
    on_both(|caller| {
        let (ip, user) = (descriptor(&[("remote_address", "::1")]), descriptor(&[("user", "a")]));
        let unknown = descriptor(&[("unknown", "x")]);
        let both = [unknown.clone(), user.clone().costing(2), ip.clone()];
        let first = caller.ask(&both);
        assert_eq!(first.overall_code(), Code::Ok);
        assert_eq!(first.codes(), [Code::Ok; 3]);
        let second = caller.ask(&both);
        assert_eq!(second.overall_code(), Code::OverLimit);
        assert_eq!(second.codes(), [Code::Ok, Code::OverLimit, Code::Ok]);
        assert_eq!(caller.ask(&[ip.costing(0)]).remaining(), [9], "the other was not charged");
        assert!(second.statuses[0].current_limit.is_none(), "no rule matched");
    });
}

#[test]
fn a_status_has_the_limit_and_whole_seconds_rounded_up() {
    on_both(|caller| {
        let user = descriptor(&[("user", "b")]);
        let answer = caller.ask(std::slice::from_ref(&user));
        let limit = answer.statuses[0].current_limit.clone().unwrap();
        assert_eq!((limit.name.as_str(), limit.requests_per_unit), ("user", 2));
        assert_eq!(limit.unit(), Unit::Minute);
        let reset = answer.statuses[0].reset().unwrap();
        assert!((Duration::from_secs(20)..=Duration::from_secs(30)).contains(&reset), "{reset:?}");
        caller.ask(std::slice::from_ref(&user));
        let wait = caller.ask(std::slice::from_ref(&user)).statuses[0].reset().unwrap();
        assert!((Duration::from_secs(10)..=Duration::from_secs(30)).contains(&wait), "{wait:?}");

        let paths = descriptor(&[("path", "/a"), ("path", "/b")]);
        let several = caller.ask(&[paths]).statuses.remove(0);
        assert_eq!(
            (several.limit_remaining, several.current_limit.unwrap().name),
            (2, "path/0".into())
        );
        let free = caller.ask(&[descriptor(&[("free", "x")])]).statuses.remove(0);
        assert_eq!((free.limit_remaining, free.current_limit), (u32::MAX, None));
    });
}

#[test]
fn a_denial_has_the_body_and_the_fields_of_its_rule() {
    on_both(|caller| {
        let refused = caller.ask(&[descriptor(&[("sold_out", "yes")])]);
        assert_eq!(refused.overall_code(), Code::OverLimit);
        assert_eq!(refused.raw_body, b"No tickets left.");
        assert_eq!(refused.header("content-type"), Some("text/plain; charset=utf-8"));
        assert_eq!(refused.header("x-reason"), Some("sold-out"));
        assert_eq!(refused.header("ratelimit"), Some("\"sold-out\";r=0"));

        let explained = caller.ask(&[descriptor(&[("explained", "yes")])]);
        assert_eq!(explained.header("content-type"), Some("application/problem+json"));
        let problem: Value = serde_json::from_slice(&explained.raw_body).unwrap();
        // The status that Envoy sends, which the protocol cannot set.
        assert_eq!((&problem["status"], &problem["event"]), (&429.into(), &7.into()));
        assert_eq!(problem["title"], "No tickets left");
        assert_eq!(problem["violated-policies"], serde_json::json!(["explained"]));
    });
}

#[test]
fn a_denial_has_headers_and_a_problem_and_an_admission_no_content_type() {
    on_both(|caller| {
        let user = [descriptor(&[("user", "c")]).costing(2)];
        let admitted = caller.ask(&user);
        assert_eq!(admitted.header("ratelimit-policy"), Some("\"user\";q=2;w=60"));
        assert!(admitted.header("ratelimit").unwrap().starts_with("\"user\";r=0;t="));
        assert_eq!((admitted.header("content-type"), admitted.header("retry-after")), (None, None));
        assert!(admitted.raw_body.is_empty());

        let refused = caller.ask(&user);
        assert_eq!(refused.header("content-type"), Some("application/problem+json"));
        let wait: u64 = refused.header("retry-after").unwrap().parse().unwrap();
        assert!((1..=60).contains(&wait));
        let problem: Value = serde_json::from_slice(&refused.raw_body).unwrap();
        assert_eq!(
            (&problem["status"], &problem["violated-policies"][0]),
            (&429.into(), &"user".into())
        );
        assert_eq!(refused.header("x-spillgate-source"), None, "the store judged");
    });
}

#[test]
fn shadow_rules_are_in_no_status() {
    on_both(|caller| {
        let watched = [descriptor(&[("watched", "x")]).costing(1)];
        for _ in 0..3 {
            let answer = caller.ask(&watched);
            assert_eq!((answer.overall_code(), answer.codes()), (Code::Ok, vec![Code::Ok]));
            assert!(answer.statuses[0].current_limit.is_none());
            assert!(answer.response_headers_to_add.is_empty());
        }
    });
}

#[test]
fn bytes_are_charged_once_sent_and_deny_the_next_call() {
    on_both(|caller| {
        let bytes = || descriptor(&[("bytes", "x")]);
        assert_eq!(caller.ask(&[bytes().costing(0)]).overall_code(), Code::Ok);
        let sent = caller.ask(&[bytes().costing(5_000)]);
        assert_eq!((sent.overall_code(), sent.codes()), (Code::Ok, vec![Code::OverLimit]));
        assert_eq!(caller.ask(&[bytes().costing(0)]).overall_code(), Code::OverLimit);
    });
}

#[test]
fn negative_hits_are_refunded_only_if_a_rule_allows_it() {
    on_both(|caller| {
        let open = |hits| descriptor(&[("open", "x")]).costing(hits);
        let ip = |hits| descriptor(&[("remote_address", "::2")]).costing(hits);
        assert_eq!(caller.ask(&[open(8), ip(8)]).remaining(), [2, 2]);
        let back = caller.ask(&[open(5).giving_back(), ip(5).giving_back()]);
        assert_eq!((back.overall_code(), back.remaining()), (Code::Ok, vec![7, 2]));
        assert_eq!(caller.ask(&[open(u64::MAX).giving_back()]).remaining(), [10]);
    });
}

#[test]
fn an_inline_limit_counts_only_below_the_rules_and_where_it_is_allowed() {
    on_both(|caller| {
        let user = || descriptor(&[("user", "d")]);
        let limit = |answer: super::client::RateLimitResponse| {
            let limit = answer.statuses[0].current_limit.clone().unwrap();
            (limit.requests_per_unit, limit.unit())
        };
        let answer = caller.ask(&[user().limited_to(1, RateLimitUnit::Hour)]);
        assert_eq!(limit(answer), (1, Unit::Hour));
        let above = caller.ask(&[user().limited_to(u32::MAX, RateLimitUnit::Second)]);
        assert_eq!(limit(above), (2, Unit::Minute));
        let none = caller.ask(&[user().limited_to(0, RateLimitUnit::Day)]);
        assert_eq!(none.overall_code(), Code::OverLimit);
        let ip = descriptor(&[("remote_address", "::3")]).limited_to(1, RateLimitUnit::Day);
        assert_eq!(limit(caller.ask(&[ip])), (10, Unit::Day), "the rule does not allow it");
    });
}

#[test]
fn any_input_of_a_client_gets_a_decision() {
    on_both(|caller| {
        let long = "x".repeat(300_000);
        let wild: [&[u8]; 5] = [b"", b"\xff\xfe", b"\0", b"}{*\r\n", long.as_bytes()];
        for value in wild {
            let user = descriptor(&[]).with_bytes("user", value).costing(2);
            assert_eq!(caller.ask(std::slice::from_ref(&user)).overall_code(), Code::Ok);
            assert_eq!(caller.ask(&[user]).overall_code(), Code::OverLimit, "judged whole");
        }
        let other = format!("{long}y");
        let user = descriptor(&[("user", other.as_str())]).costing(2);
        assert_eq!(caller.ask(&[user]).overall_code(), Code::Ok, "the whole value counts");
    });
}

#[test]
fn a_call_without_descriptors_is_allowed() {
    on_both(|caller| {
        let nothing = caller.ask(&[]);
        assert_eq!((nothing.overall_code(), nothing.statuses.len()), (Code::Ok, 0));
        let empty = caller.ask(&[descriptor(&[])]);
        assert_eq!((empty.overall_code(), empty.codes()), (Code::Ok, vec![Code::Ok]));
        let elsewhere = in_domain("elsewhere", &[descriptor(&[("user", "x")]).costing(9)]);
        let answer = caller.try_ask(Request::new(elsewhere)).unwrap();
        assert_eq!(answer.overall_code(), Code::Ok);
        let unnamed = in_domain("", &[descriptor(&[("user", "x")]).costing(9)]);
        let answer = caller.try_ask(Request::new(unnamed)).unwrap();
        assert_eq!(answer.overall_code(), Code::OverLimit, "rules without a domain match");
    });
}

/// Envoy Gateway allows 256 rules in a policy and 128 header matches in a rule, and Envoy admits a request on an error.
#[test]
fn as_many_descriptors_and_entries_as_envoy_gateway_has_are_checked_and_more_are_an_error() {
    let server = Server::start(&[]);
    let caller = Caller::of(&server);
    let many = vec![descriptor(&[("a", "b")]); 257];
    let error = caller.try_ask(Request::new(in_domain("default", &many))).unwrap_err();
    assert_eq!(error.code(), Status::InvalidArgument, "{error:?}");
    let wide = [descriptor(&[("a", "b"); 257])];
    let error = caller.try_ask(Request::new(in_domain("default", &wide))).unwrap_err();
    assert_eq!(error.code(), Status::InvalidArgument, "{error:?}");
    let full = vec![descriptor(&[("a", "b"); 256]); 256];
    assert_eq!(caller.ask(&full).statuses.len(), 256);
}

#[test]
fn names_and_domains_of_a_thousand_bytes_have_rules() {
    let (domain, name) = ("d".repeat(1024), "n".repeat(1024));
    let file = TempFile::new(
        "envoy.toml",
        &format!(
            "[[rule]]\nname = 'r'\ndomain = '{domain}'\nmatch = {{ {name} = 'v' }}\nkey = ['{name}']\nlimits = ['1/day']\n"
        ),
    );
    let server = Server::start(&["--config", file.path()]);
    let caller = Caller::of(&server);
    let ask = || {
        let request = in_domain(&domain, &[descriptor(&[(&name, "v")])]);
        caller.try_ask(Request::new(request)).unwrap().overall_code()
    };
    assert_eq!((ask(), ask()), (Code::Ok, Code::OverLimit));
    let path = format!("/admin/v1/explain?domain={domain}&attr.{name}=v");
    let explained = server.operator().send("GET", &path, b"").unwrap();
    assert_eq!((explained.status, &explained.json()["allowed"]), (200, &false.into()));
}

#[test]
fn a_descriptors_limit_above_any_bucket_still_limits() {
    let file = TempFile::new(
        "envoy.toml",
        &format!(
            "{PATIENT}[[rule]]\nname = 'spend'\nkey = ['user']\nrequest_limit = 'replace'\n\
             limits = [{{ quota = '5/month', algorithm = 'fixed-window' }}]\n"
        ),
    );
    on_both_engines(&["--config", file.path()], |server| {
        let caller = Caller::of(server);
        // 3,000 dollars in millionths.
        let spend = |cost| {
            let user = descriptor(&[("user", "a")]);
            caller.ask(&[user.limited_to(3_000_000_000, RateLimitUnit::Month).costing(cost)])
        };
        let first = spend(2_999_999_999);
        assert_eq!((first.overall_code(), first.remaining()), (Code::Ok, vec![1]));
        let limit = first.statuses[0].current_limit.clone().unwrap();
        assert_eq!(limit.requests_per_unit, 3_000_000_000);
        assert_eq!(spend(2).overall_code(), Code::OverLimit);
    });
}

#[test]
fn unknown_domains_are_an_error_if_the_operator_chooses_it() {
    let settings = format!("[server]\ndomains = \"known\"\n{POLICY}");
    let file = TempFile::new("known.toml", &settings);
    let server = Server::start(&["--config", file.path()]);
    let caller = Caller::of(&server);
    let ask = |domain| {
        let request = in_domain(domain, &[descriptor(&[("remote_address", "::1")])]);
        caller.try_ask(Request::new(request))
    };
    assert!(ask("web").is_ok());
    let error = ask("wbe").unwrap_err();
    assert_eq!(error.code(), Status::NotFound);
    assert!(error.message().contains("\"wbe\""), "{error:?}");
}

#[test]
fn the_header_style_is_the_operators_choice() {
    let settings = format!("[server.grpc]\nheaders = \"none\"\n{POLICY}");
    let file = TempFile::new("headers.toml", &settings);
    let server = Server::start(&["--config", file.path()]);
    let caller = Caller::of(&server);
    let answer = caller.ask(&[descriptor(&[("user", "x")])]);
    assert!(answer.response_headers_to_add.is_empty());
}

#[test]
fn metadata_names_every_limit_that_denies_and_no_value_of_the_client() {
    let settings = format!("{PATIENT}dynamic_metadata = true\n{POLICY}");
    let file = TempFile::new("metadata.toml", &settings);
    on_both_engines(&["--config", file.path()], |server| {
        let caller = Caller::of(server);
        let asked = [
            descriptor(&[("user", "canary"), ("watched", "canary")]).costing(2),
            descriptor(&[("path", "/canary"), ("path", "/b")]).costing(2),
        ];
        let allowed = json(caller.ask(&asked).dynamic_metadata.unwrap());
        assert_eq!(allowed["allowed"], true);
        assert_eq!(allowed["domain"], "default");
        assert_eq!(
            (&allowed["rule"], &allowed["remaining"]),
            (&Value::from("user"), &Value::from(0.0))
        );
        assert_eq!(allowed["retry_after_ms"], 0.0);
        assert_eq!(allowed["shadow_denied_by"], serde_json::json!(["watched"]));
        for absent in ["reason", "denied_by"] {
            assert!(allowed.get(absent).is_none(), "{allowed}");
        }

        let denied = json(caller.ask(&asked).dynamic_metadata.unwrap());
        assert_eq!(
            (&denied["allowed"], &denied["reason"]),
            (&false.into(), &"limit-exceeded".into())
        );
        assert_eq!((&denied["rule"], &denied["limit"]), (&"path".into(), &"0".into()));
        assert_eq!(denied["denied_by"], serde_json::json!(["user", "path/0"]));
        assert_eq!(denied["shadow_denied_by"], serde_json::json!(["watched"]));
        assert_eq!((&denied["capacity"], &denied["remaining"]), (&3.0.into(), &1.0.into()));
        let wait = denied["retry_after_ms"].as_f64().unwrap();
        assert!((1_100_000.0..=1_200_000.0).contains(&wait), "{wait}");
        assert_eq!((&denied["source"], &denied["degraded"]), (&"store".into(), &false.into()));
        assert!(!denied.to_string().contains("canary"), "{denied}");

        let unknown =
            json(caller.ask(&[descriptor(&[("unknown", "x")])]).dynamic_metadata.unwrap());
        assert_eq!(unknown["allowed"], true);
        assert!(unknown.get("rule").is_none(), "{unknown}");
    });
}

#[test]
fn there_is_no_metadata_unless_the_operator_asks_for_it() {
    on_both(|caller| {
        assert_eq!(caller.ask(&[descriptor(&[("sold_out", "yes")])]).dynamic_metadata, None);
    });
}
