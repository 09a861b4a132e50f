//! Whole responses through the layer, word for word: 200, 304, 429, 503, redirects, stacked layers.

use std::convert::Infallible;

use http::{Request, Response, StatusCode};
use http_body_util::{BodyExt, Full};
use hyper::body::Bytes;
use spillgate::http::HeaderStyle;
use spillgate::tower::RateLimitLayer;
use spillgate::{Limiter, Policy};
use spillgate_testkit::free_port;
use tower::{Layer, ServiceExt, service_fn};

use crate::support::clock::Clock;
use crate::support::world::{TODAY_US, runtime};

/// The response to `GET /` of a service that returns `status`, through these layers, the outermost last.
fn answer(layers: &[&RateLimitLayer], status: u16) -> Vec<String> {
    let served = service_fn(move |_: Request<Full<Bytes>>| async move {
        let response = Response::builder().status(status).header("etag", "\"1\"");
        Ok::<_, Infallible>(response.body(Full::<Bytes>::from("served")).unwrap())
    });
    let request = Request::new(Full::default());
    runtime().block_on(async move {
        match layers {
            [one] => written(one.layer(served).oneshot(request).await.unwrap()).await,
            [inner, outer] => {
                let service = outer.layer(inner.layer(served));
                written(service.oneshot(request).await.unwrap()).await
            }
            [inner, middle, outer] => {
                let service = outer.layer(middle.layer(inner.layer(served)));
                written(service.oneshot(request).await.unwrap()).await
            }
            _ => panic!("one to three layers"),
        }
    })
}

/// Status, header lines in order, body.
async fn written<B: BodyExt<Data = Bytes, Error = Infallible>>(
    response: Response<B>,
) -> Vec<String> {
    let mut lines = vec![response.status().to_string()];
    let headers = response.headers().iter();
    let mut fields: Vec<String> =
        headers.map(|(name, value)| format!("{name}: {}", value.to_str().unwrap())).collect();
    fields.sort();
    lines.extend(fields);
    let body = response.into_body().collect().await.unwrap().to_bytes();
    lines.push(String::from_utf8(body.into()).unwrap());
    lines
}

/// A layer over rules in memory, with a stopped clock.
fn layer(policy: &str) -> RateLimitLayer {
    let builder = Limiter::builder().policy(Policy::from_toml(policy).unwrap());
    let limiter = builder.manual_clock(Clock::given(TODAY_US).manual()).build();
    RateLimitLayer::new(runtime().block_on(limiter).unwrap())
}

fn rule(name: &str, quota: &str) -> String {
    format!("[[rule]]\nname = \"{name}\"\nkey = []\nlimits = [\"{quota}\"]\n")
}

const PROBLEM: &str = r#"{"type":"https://iana.org/assignments/http-problem-types#quota-exceeded","title":"Quota exceeded","status":429,"detail":"Try again in 30 s.","violated-policies":["site"]}"#;

/// For each style: the fields of an allowed response, and the fields of a denial beside the problem.
const STYLES: [(HeaderStyle, &[&str], &[&str]); 5] = [
    (
        HeaderStyle::Ietf,
        &["ratelimit-policy: \"site\";q=2;w=60", "ratelimit: \"site\";r=1;t=30"],
        &["ratelimit-policy: \"site\";q=2;w=60", "ratelimit: \"site\";r=0;t=30"],
    ),
    (
        HeaderStyle::Draft7,
        &["ratelimit-policy: 2;w=60", "ratelimit: limit=2, remaining=1, reset=30"],
        &["ratelimit-policy: 2;w=60", "ratelimit: limit=2, remaining=0, reset=30"],
    ),
    (
        HeaderStyle::Draft6,
        &[
            "ratelimit-limit: 2",
            "ratelimit-policy: 2;w=60",
            "ratelimit-remaining: 1",
            "ratelimit-reset: 30",
        ],
        &[
            "ratelimit-limit: 2",
            "ratelimit-policy: 2;w=60",
            "ratelimit-remaining: 0",
            "ratelimit-reset: 30",
        ],
    ),
    (
        HeaderStyle::Legacy,
        &["x-ratelimit-limit: 2", "x-ratelimit-remaining: 1", "x-ratelimit-reset: 30"],
        &["x-ratelimit-limit: 2", "x-ratelimit-remaining: 0", "x-ratelimit-reset: 30"],
    ),
    (HeaderStyle::None, &[], &[]),
];

fn sorted<'a>(parts: impl IntoIterator<Item = &'a [&'a str]>) -> Vec<String> {
    let mut lines: Vec<String> =
        parts.into_iter().flatten().map(|line| (*line).to_owned()).collect();
    lines.sort();
    lines
}

#[test]
fn a_200_and_a_304_show_remaining_and_a_redirect_does_not() {
    for (style, allowed, _) in STYLES {
        for (status, line) in [(200, "200 OK"), (304, "304 Not Modified"), (404, "404 Not Found")] {
            let answer = answer(&[&layer(&rule("site", "2/minute")).headers(style)], status);
            assert_eq!(answer[0], line);
            assert_eq!(
                answer[1..answer.len() - 1],
                sorted([allowed, &["etag: \"1\""]]),
                "{style:?}"
            );
            assert_eq!(answer.last().unwrap(), "served");
        }
        for status in [301, 307] {
            let answer = answer(&[&layer(&rule("site", "2/minute")).headers(style)], status);
            assert_eq!(answer[1..], ["etag: \"1\"", "served"], "{style:?}");
        }
    }
}

#[test]
fn a_denial_is_a_429_with_a_problem_and_never_reaches_the_service() {
    for (style, _, denied) in STYLES {
        let layer = layer(&rule("site", "2/minute")).headers(style);
        answer(&[&layer], 200);
        answer(&[&layer], 200);
        let answer = answer(&[&layer], 200);
        assert_eq!(answer[0], "429 Too Many Requests");
        let usual = ["content-type: application/problem+json", "retry-after: 30"];
        assert_eq!(answer[1..answer.len() - 1], sorted([denied, &usual]), "{style:?}");
        assert_eq!(answer.last().unwrap(), PROBLEM);
    }
}

#[test]
fn an_outage_that_denies_is_a_503_without_numbers() {
    let policy = rule("site", "2/minute") + "on_outage = \"deny\"";
    for style in HeaderStyle::ALL {
        let builder = Limiter::builder().redis(format!("redis://127.0.0.1:{}", free_port()));
        let builder = builder.policy(Policy::from_toml(&policy).unwrap());
        let layer = RateLimitLayer::new(runtime().block_on(builder.build()).unwrap());
        let problem = r#"{"type":"https://iana.org/assignments/http-problem-types#temporary-reduced-capacity","title":"Temporarily reduced capacity","status":503,"detail":"The rate limiter cannot reach its store.","violated-policies":["site"]}"#;
        assert_eq!(
            answer(&[&layer.headers(style)], 200),
            [
                "503 Service Unavailable",
                "content-type: application/problem+json",
                "retry-after: 1",
                problem
            ]
        );
    }
}

#[test]
fn stacked_layers_show_every_limit_once() {
    let site = layer(&rule("site", "2/minute"));
    let user = layer(&rule("user", "10/minute"));
    let hour = layer(&rule("hour", "100/hour"));
    assert_eq!(
        answer(&[&user, &hour, &site], 200),
        [
            "200 OK",
            "etag: \"1\"",
            "ratelimit-policy: \"site\";q=2;w=60, \"user\";q=10;w=60, \"hour\";q=100;w=3600",
            "ratelimit: \"site\";r=1;t=30, \"user\";r=9;t=6, \"hour\";r=99;t=36",
            "served"
        ]
    );
    // The older styles have room for one limit: the tightest of all.
    let [site, user] = [("site", "3/minute"), ("user", "10/minute")]
        .map(|(name, quota)| layer(&rule(name, quota)).headers(HeaderStyle::Legacy));
    assert_eq!(
        answer(&[&user, &site], 200)[1..4],
        ["etag: \"1\"", "x-ratelimit-limit: 3", "x-ratelimit-remaining: 2"]
    );
}

#[test]
fn a_denial_by_an_inner_layer_shows_the_outer_limits_too() {
    let (site, user) = (layer(&rule("site", "10/minute")), layer(&rule("user", "1/minute")));
    answer(&[&user, &site], 200);
    let answer = answer(&[&user, &site], 200);
    assert_eq!(
        answer[..5],
        [
            StatusCode::TOO_MANY_REQUESTS.to_string().as_str(),
            "content-type: application/problem+json",
            "ratelimit-policy: \"user\";q=1;w=60, \"site\";q=10;w=60",
            "ratelimit: \"user\";r=0;t=60, \"site\";r=8;t=6",
            "retry-after: 60",
        ]
    );
    assert!(answer[5].contains("\"violated-policies\":[\"user\"]"), "{answer:?}");
}

#[test]
fn a_limit_that_two_layers_share_is_shown_once() {
    let both = layer(&rule("site", "9/minute"));
    let answer = answer(&[&both, &both], 200);
    assert_eq!(answer[2], "ratelimit-policy: \"site\";q=9;w=60");
    // Each layer charged it; the inner layer's numbers are shown.
    assert_eq!(answer[3], "ratelimit: \"site\";r=7;t=7");
}
