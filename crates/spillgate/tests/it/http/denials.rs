//! The denials of rules: the responses that the layer sends for them.

use std::convert::Infallible;
use std::future::ready;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::routing::get;
use http::{HeaderMap, Request as HttpRequest, Response};
use http_body_util::{BodyExt, Full};
use hyper::body::Bytes;
use proptest::prelude::*;
use spillgate::http::{DenialResponse, HeaderStyle};
use spillgate::policy::DenialSpec;
use spillgate::testing::ManualClock;
use spillgate::tower::{RateLimitLayer, from_header};
use spillgate::{Cost, Decision, Limit, Limiter, Policy, Request, Rule};
use spillgate_testkit::free_port;
use tower::{Layer, ServiceExt, service_fn};

use super::fields::{LimitItem, read};
use crate::support::world::runtime;

/// A response: its status, header fields and body.
struct Reply {
    status: u16,
    headers: HeaderMap,
    body: String,
}

impl Reply {
    #[track_caller]
    fn has(&self, status: u16, media_type: &str, body: &str) {
        assert_eq!(
            (self.status, &self.headers["content-type"]),
            (status, &media_type.parse().unwrap())
        );
        assert_eq!(self.body, body);
    }
}

/// A limiter in memory, with a clock that stands still.
fn limiter(policy: &str) -> Limiter {
    let builder = Limiter::builder().policy(Policy::from_toml(policy).unwrap());
    runtime().block_on(builder.manual_clock(&ManualClock::new()).build()).unwrap()
}

fn layer(policy: &str) -> RateLimitLayer {
    RateLimitLayer::new(limiter(policy)).with("user", from_header("user"))
}

/// Returns the response to the first request that the layer denies.
fn denied_by(layer: &RateLimitLayer, request: fn() -> HttpRequest<Full<Bytes>>) -> Reply {
    let service = service_fn(|_: HttpRequest<Full<Bytes>>| {
        ready(Ok::<_, Infallible>(Response::new(Full::<Bytes>::from(SERVED))))
    });
    runtime().block_on(async {
        loop {
            let response = layer.layer(service).oneshot(request()).await.unwrap();
            let (head, body) = response.into_parts();
            let body = body.collect().await.unwrap().to_bytes();
            if body != SERVED {
                let body = String::from_utf8(body.into()).unwrap();
                return Reply { status: head.status.as_u16(), headers: head.headers, body };
            }
        }
    })
}

fn plain() -> HttpRequest<Full<Bytes>> {
    HttpRequest::get("/").header("user", "ada").body(Full::default()).unwrap()
}

/// Returns the response to a request that a rule with this denial denies.
fn denied(denial: &str) -> Reply {
    denied_by(&layer(&rule("free", "1/day", denial)), plain)
}

fn rule(name: &str, quota: &str, denial: &str) -> String {
    format!("[[rule]]\nname = \"{name}\"\nkey = [\"user\"]\nlimits = [\"{quota}\"]\n{denial}\n")
}

#[test]
fn a_rule_sets_the_status_the_text_and_fields() {
    let reply = denied(
        "denial = { status = 402, text = \"Your free calls are used up.\", headers = { x-plan = \"free\" } }",
    );
    reply.has(402, "text/plain; charset=utf-8", "Your free calls are used up.");
    assert_eq!(reply.headers["x-plan"], "free");
    assert_eq!(reply.headers["ratelimit-policy"], "\"free\";q=1;w=86400");
    assert_eq!(reply.headers["ratelimit"], "\"free\";r=0;t=86400");
    assert_eq!(reply.headers["retry-after"], "86400");
    assert_eq!(reply.headers.len(), 5);
}

#[test]
fn a_status_alone_leaves_the_problem() {
    denied("denial = { status = 503 }").has(
        503,
        "application/problem+json",
        r#"{"type":"https://iana.org/assignments/http-problem-types#quota-exceeded","title":"Quota exceeded","status":503,"detail":"Try again in 86400 s.","violated-policies":["free"]}"#,
    );
}

#[test]
fn a_body_is_text_json_or_a_problem() {
    denied("denial = { text = \"Slow down.\" }").has(
        429,
        "text/plain; charset=utf-8",
        "Slow down.",
    );
    denied("denial.json = { error = { code = 1_007, retry = true } }").has(
        429,
        "application/json",
        r#"{"error":{"code":1007,"retry":true}}"#,
    );
    denied("denial.problem = { title = \"No calls left\", plan = \"free\", instance = \"/plans/free\" }").has(
        429,
        "application/problem+json",
        r#"{"type":"https://iana.org/assignments/http-problem-types#quota-exceeded","title":"No calls left","status":429,"detail":"Try again in 86400 s.","violated-policies":["free"],"instance":"/plans/free","plan":"free"}"#,
    );
}

#[test]
fn a_content_type_of_the_rule_replaces_that_of_the_body() {
    let page =
        "denial = { text = \"<h1>Slow down</h1>\", headers = { Content-Type = \"text/html\" } }";
    denied(page).has(429, "text/html", "<h1>Slow down</h1>");
}

#[test]
fn a_block_and_a_cost_above_the_limit_are_denied_as_the_rule_says() {
    let denial = "denial = { status = 451, text = \"no\" }";
    let blocked = format!(
        "{}[[override]]\nrule = \"free\"\nsubject = {{ user = \"ada\" }}\nlimits = [\"block\"]",
        rule("free", "1/day", denial)
    );
    let blocked = denied_by(&layer(&blocked), plain);
    blocked.has(451, "text/plain; charset=utf-8", "no");
    let costly = layer(&rule("free", "1/day", denial)).cost(|_| Cost::requests(2));
    let costly = denied_by(&costly, plain);
    costly.has(451, "text/plain; charset=utf-8", "no");
    assert!([blocked, costly].iter().all(|reply| !reply.headers.contains_key("retry-after")));
}

#[test]
fn the_rule_of_the_deciding_limit_sets_the_response() {
    let short = || rule("short", "1/minute", "denial.text = \"in a minute\"");
    let long = || rule("long", "1/day", "denial.text = \"tomorrow\"");
    for policy in [short() + &long(), long() + &short()] {
        assert_eq!(denied_by(&layer(&policy), plain).body, "tomorrow");
    }
    // A limit without a denial of its own has the usual response, also if another rule has one.
    let silent = denied_by(&layer(&(short() + &rule("long", "1/day", ""))), plain);
    assert!(silent.body.contains("[\"short\",\"long\"]"), "{}", silent.body);
    // Of equal waits, the first rule of the file decides.
    let equal = |name: &str| rule(name, "block", &format!("denial.text = \"{name}\""));
    assert_eq!(denied_by(&layer(&(equal("first") + &equal("second"))), plain).body, "first");
}

#[test]
fn rules_that_deny_nothing_set_no_response() {
    let shadow = rule("watched", "1/year", "mode = \"shadow\"\ndenial.status = 402");
    let post_paid = rule("paid", "1/year", "postpaid = true\ndenial.status = 402");
    for other in [shadow, post_paid] {
        for policy in
            [other.clone() + &rule("free", "2/day", ""), rule("free", "2/day", "") + &other]
        {
            let reply = denied_by(&layer(&policy), plain);
            assert_eq!(reply.status, 429, "{policy}");
            assert_eq!(reply.headers["content-type"], "application/problem+json");
        }
    }
}

#[test]
fn a_post_paid_limit_without_room_delays_no_retry() {
    let policy = r#"
        [[rule]]
        name = "bytes"
        key = ["user"]
        limits = [{ quota = "100/day", unit = "bytes" }]
        postpaid = true

        [[rule]]
        name = "calls"
        key = ["user"]
        limits = ["2/minute"]
    "#;
    let (clock, runtime) = (ManualClock::new(), runtime());
    let builder = Limiter::builder().policy(Policy::from_toml(policy).unwrap());
    let limiter = runtime.block_on(builder.manual_clock(&clock).build()).unwrap();
    let check = |requests, bytes| {
        let cost = Cost::requests(requests).and("bytes", bytes);
        runtime.block_on(limiter.check(&Request::new().with("user", "ada").costing(cost)))
    };
    assert!(check(2, 1_000).allowed());
    let denied = check(1, 50);
    assert_eq!((denied.rule(), denied.retry_after()), (Some("calls"), Some(HALF_A_MINUTE)));
    let refusal = DenialResponse::from_decision(&denied).unwrap();
    assert_eq!(refusal.violated_policies().collect::<Vec<_>>(), ["calls"]);
    let response = refusal.response(HeaderStyle::Ietf);
    assert_eq!(response.headers()["retry-after"], "30");
    let (_, limits) = read(response.headers());
    assert_eq!(limits[0], LimitItem { name: "calls".into(), remaining: 0, more_after: Some(30) });
    assert_eq!(limits[1].name, "bytes");
    let older = refusal.response(HeaderStyle::Legacy);
    assert_eq!(older.headers()["x-ratelimit-reset"], "30");
    clock.advance(HALF_A_MINUTE);
    assert!(check(1, 50).allowed());
}

#[test]
fn an_outage_has_the_usual_response() {
    let denial = "on_outage = \"deny\"\ndenial = { status = 402, text = \"Pay\", headers = { x-plan = \"free\" } }";
    let policy = Policy::from_toml(&rule("free", "1/day", denial)).unwrap();
    let builder = Limiter::builder().redis(format!("redis://127.0.0.1:{}", free_port()));
    let limiter = runtime().block_on(builder.policy(policy).build()).unwrap();
    let layer = RateLimitLayer::new(limiter).with("user", from_header("user"));
    let reply = denied_by(&layer, plain);
    assert_eq!((reply.status, &reply.headers["retry-after"]), (503, &"1".parse().unwrap()));
    assert!(reply.body.contains("#temporary-reduced-capacity"), "{}", reply.body);
    assert!(!reply.headers.contains_key("x-plan"));
}

#[test]
fn a_function_of_the_layer_wins_and_may_use_the_denial() {
    let policy = rule(
        "free",
        "1/day",
        "denial = { status = 402, text = \"Pay\", headers = { x-plan = \"free\" } }",
    );
    let own = layer(&policy)
        .deny_with(|_, _| Response::builder().status(420).body(b"mine".to_vec()).unwrap());
    let reply = denied_by(&own, plain);
    assert_eq!(
        (reply.status, reply.body.as_str(), reply.headers.get("x-plan")),
        (420, "mine", None)
    );

    let framed = layer(&policy).deny_with(|refusal, _| {
        let mut response = Response::new(format!("<{}>", refusal.body()).into_bytes());
        *response.status_mut() = refusal.status();
        *response.headers_mut() = refusal.headers();
        response
    });
    let reply = denied_by(&framed, plain);
    reply.has(402, "text/plain; charset=utf-8", "<Pay>");
    assert_eq!(reply.headers["x-plan"], "free");
}

#[test]
fn a_grpc_client_gets_a_grpc_status() {
    let policy = rule(
        "free",
        "block",
        "denial = { status = 402, text = \"Pay\", headers = { x-plan = \"free\" } }",
    );
    let reply = denied_by(&layer(&policy), || {
        let request = HttpRequest::post("/").header("content-type", "application/grpc");
        request.header("user", "ada").body(Full::default()).unwrap()
    });
    reply.has(200, "application/grpc", "");
    assert_eq!(
        (&reply.headers["grpc-status"], reply.headers.get("x-plan")),
        (&"7".parse().unwrap(), None)
    );
}

#[test]
fn a_client_that_only_claims_to_be_grpc_gets_the_usual_status() {
    let layer = layer(&rule("free", "block", "denial = { status = 402, text = \"Pay\" }"));
    let get = || {
        let request = HttpRequest::get("/").header("content-type", "application/grpc");
        request.header("user", "ada").body(Full::default()).unwrap()
    };
    let other_type = || {
        let request = HttpRequest::post("/").header("content-type", "application/grpcx");
        request.header("user", "ada").body(Full::default()).unwrap()
    };
    denied_by(&layer, get).has(402, "text/plain; charset=utf-8", "Pay");
    denied_by(&layer, other_type).has(402, "text/plain; charset=utf-8", "Pay");
}

#[test]
fn an_inline_limit_has_the_usual_response() {
    let limiter = limiter(&rule("free", "1/day", "denial.status = 402"));
    let request = Request::keyed("ada", Limit::per_day(1));
    let decisions: [Decision; 2] = [0; 2].map(|_| runtime().block_on(limiter.check(&request)));
    assert_eq!(DenialResponse::from_decision(&decisions[1]).unwrap().status().as_u16(), 429);
}

#[test]
fn an_axum_router_sends_the_response_of_the_rule() {
    let layer = layer(&rule("free", "1/day", "denial.json = { error = \"quota\" }"));
    let app = Router::new().route("/", get(async || SERVED)).layer(layer);
    runtime().block_on(async {
        let request = || HttpRequest::get("/").header("user", "ada").body(Body::empty()).unwrap();
        assert_eq!(app.clone().oneshot(request()).await.unwrap().status().as_u16(), 200);
        let response = app.oneshot(request()).await.unwrap();
        assert_eq!(response.status().as_u16(), 429);
        assert_eq!(response.headers()["content-type"], "application/json");
        let body = response.into_body().collect().await.unwrap().to_bytes();
        assert_eq!(body, r#"{"error":"quota"}"#);
    });
}

proptest! {
    /// A parser of another project reads back whatever text an application passes on.
    #[test]
    fn any_text_of_a_rule_is_sent_as_it_is(name in any::<String>(), text in any::<String>()) {
        let runtime = runtime();
        let sent = |denial: DenialSpec| {
            let rule = Rule::new("free").key(["user"]).limit("block").denial(denial);
            let policy = Policy::builder().rule(rule).build().unwrap();
            let limiter = runtime.block_on(Limiter::builder().policy(policy).build()).unwrap();
            let decision = runtime.block_on(limiter.check(&Request::new().with("user", "ada")));
            DenialResponse::from_decision(&decision).unwrap().response(HeaderStyle::Ietf).into_body()
        };
        let read = |body: Vec<u8>| serde_json::from_slice::<serde_json::Value>(&body).unwrap();
        prop_assert_eq!(sent(DenialSpec::new().text(&*text)), text.as_bytes());
        let json = read(sent(DenialSpec::new().json([(&*name, &*text)])));
        prop_assert_eq!(json, serde_json::json!({ name: text.clone() }));
        let problem = read(sent(DenialSpec::new().problem([("detail", &*text)])));
        prop_assert_eq!(&problem["detail"], &text);
    }
}

const SERVED: &str = "served";
const HALF_A_MINUTE: Duration = Duration::from_secs(30);
