//! docs/reference/errors.md has the status that the layer gives to each reason of a denial.

use std::convert::Infallible;

use http::header::{CONTENT_TYPE, RETRY_AFTER};
use http::{Request, Response};
use spillgate::tower::{RateLimitLayer, from_header};
use spillgate::{Cost, Limiter, LimiterBuilder, Policy};
use spillgate_testkit::free_port;
use tonic::Status;
use tonic_types::StatusExt;
use tower::{Layer, ServiceExt, service_fn};

use crate::support::world::runtime;

/// A rule for each reason, which the header `case` chooses.
const RULES: &str = r#"
    [[rule]]
    name = "used-up"
    match = { case = "limit-exceeded" }
    key = []
    limits = ["1/day"]

    [[rule]]
    name = "small"
    match = { case = "cost-exceeds-limit" }
    key = []
    limits = ["1/day"]

    [[rule]]
    name = "closed"
    match = { case = "blocked" }
    key = []
    limits = ["block"]

    [[rule]]
    name = "strict"
    match = { case = "store-unavailable" }
    key = []
    limits = ["1/day"]
    on_outage = "deny"
"#;

#[test]
fn the_page_on_errors_has_the_status_of_each_reason() {
    let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/reference/errors.md");
    let page = std::fs::read_to_string(page).unwrap();
    runtime().block_on(async {
        let here = layer(Limiter::builder()).await;
        let url = format!("redis://127.0.0.1:{}", free_port());
        let away = layer(Limiter::builder().redis(url)).await;
        answer(&here, "limit-exceeded", "text/plain").await;
        for (reason, layer) in [
            ("limit-exceeded", &here),
            ("cost-exceeds-limit", &here),
            ("blocked", &here),
            ("store-unavailable", &away),
        ] {
            let start = format!("| `{reason}`");
            let row = page.lines().find(|line| line.starts_with(&start));
            let row = row.unwrap_or_else(|| panic!("no row of {reason}"));
            let [_, http, grpc] = row.split(" | ").collect::<Vec<_>>()[..] else { panic!("{row}") };
            holds_over_http(http, &answer(layer, reason, "text/plain").await);
            holds_over_grpc(grpc, &answer(layer, reason, "application/grpc").await);
        }
    });
}

#[track_caller]
fn holds_over_http(cell: &str, answer: &Response<()>) {
    let (status, rest) = cell.split_at(3);
    assert_eq!(answer.status().as_str(), status, "{answer:?}");
    let has_wait = answer.headers().contains_key(RETRY_AFTER);
    assert_eq!(has_wait, rest.contains("`Retry-After`"), "{answer:?}");
}

#[track_caller]
fn holds_over_grpc(cell: &str, answer: &Response<()>) {
    let status = Status::from_header_map(answer.headers()).unwrap();
    let code = cell.split('`').nth(1).unwrap().replace('_', "");
    assert!(format!("{:?}", status.code()).eq_ignore_ascii_case(&code), "{code}: {status:?}");
    let has_wait = status.get_details_retry_info().is_some();
    assert_eq!(has_wait, cell.contains("RetryInfo"), "{status:?}");
    let has_limits = status.get_details_quota_failure().is_some();
    assert_eq!(has_limits, cell.contains("QuotaFailure"), "{status:?}");
}

async fn layer(builder: LimiterBuilder) -> RateLimitLayer {
    let builder = builder.policy(Policy::from_toml(RULES).unwrap());
    let layer = RateLimitLayer::new(builder.build().await.unwrap());
    layer.with("case", from_header("case")).cost(|head| {
        let is_large = head.headers["case"] == "cost-exceeds-limit";
        Cost::requests(if is_large { 2 } else { 1 })
    })
}

/// Returns the head of the answer to a request of this case.
async fn answer(layer: &RateLimitLayer, case: &str, kind: &str) -> Response<()> {
    let service = service_fn(|_: Request<()>| async { Ok::<_, Infallible>(Response::new(())) });
    let request = Request::post("/").header("case", case).header(CONTENT_TYPE, kind);
    let answer = layer.layer(service).oneshot(request.body(()).unwrap()).await;
    answer.unwrap().map(|_| ())
}
