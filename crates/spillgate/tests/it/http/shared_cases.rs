//! Runs the cases of the clients for other languages through the tower layer; `clients/conformance/README.md`
//! describes their format. Cases about the server's absence, its token or a call over HTTP have no
//! counterpart here.

use std::convert::Infallible;
use std::fs;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use http::response::Parts;
use http::{HeaderMap, HeaderName, Request, Response};
use http_body_util::{BodyExt, Full};
use hyper::body::Bytes;
use serde_json::Value;
use spillgate::http::{ByIp, HeaderStyle};
use spillgate::tower::{RateLimitLayer, from_method, from_path};
use spillgate::{Cost, Limiter, Policy};
use spillgate_testkit::RedisServer;
use tokio::runtime::Runtime;
use tower::{Layer, ServiceExt, service_fn};

use crate::support::world::runtime;

fn read(file: &str) -> String {
    let path = format!("{}/../../clients/conformance/{file}", env!("CARGO_MANIFEST_DIR"));
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{path}: {error}"))
}

#[test]
fn the_layer_passes_the_cases_of_the_clients_on_memory_and_on_redis() {
    let cases: Value = serde_json::from_str(&read("cases.json")).unwrap();
    let cases = cases["cases"].as_array().unwrap().iter();
    let cases: Vec<&Value> = cases.filter(|case| is_about_middleware(case)).collect();
    assert!(cases.len() > 15, "only {} cases", cases.len());
    let server = RedisServer::start();
    let runtime = runtime();
    // A machine that stops for a moment is no outage.
    let patient = || Limiter::builder().timeout(Duration::from_secs(10));
    for builder in [patient(), patient().redis(server.url())] {
        let builder = builder.policy(Policy::from_toml(&read("policy.toml")).unwrap());
        let limiter = runtime.block_on(builder.build()).unwrap();
        for (run, case) in (1..).zip(&cases) {
            play(case, run, &limiter, &runtime);
        }
    }
}

fn is_about_middleware(case: &Value) -> bool {
    let is_up = case["server"].is_null() && case["options"]["token"].is_null();
    let steps = case["steps"].as_array().unwrap();
    let is_played = |step: &Value| !step["http"].is_null() || !step["pause_ms"].is_null();
    is_up && !steps[0]["http"].is_null() && steps.iter().all(is_played)
}

fn play(case: &Value, run: u32, limiter: &Limiter, runtime: &Runtime) {
    let filled = case.to_string().replace("{run}", &run.to_string());
    let case: Value = serde_json::from_str(&filled.replace("{long}", &"a".repeat(5_000))).unwrap();
    let name = case["name"].as_str().unwrap();
    let layer = layer(&case["options"], limiter);
    for step in case["steps"].as_array().unwrap() {
        if let Some(pause_ms) = step["pause_ms"].as_u64() {
            runtime.block_on(async { tokio::time::sleep(Duration::from_millis(pause_ms)).await });
            continue;
        }
        let (head, body) = runtime.block_on(answer(&layer, &step["http"]));
        let expect = &step["expect"];
        assert_eq!(head.status.as_u16(), expect["status"], "{name}: {step}");
        assert_eq!(body == APP, expect["reaches_app"], "{name}: {step}");
        for (field, expected) in expect["headers"].as_object().into_iter().flatten() {
            let value = head.headers.get(field.to_lowercase()).map(|value| value.to_str().unwrap());
            holds(expected, &value.map_or(Value::Null, Value::from), &format!("{name}: {field}"));
        }
        for (field, expected) in expect["json"].as_object().into_iter().flatten() {
            let body: Value = serde_json::from_slice(&body).unwrap();
            holds(expected, &body[field], &format!("{name}: {field}"));
        }
    }
}

fn layer(options: &Value, limiter: &Limiter) -> RateLimitLayer {
    let proxies = options["trusted_proxies"].as_array().into_iter().flatten();
    let by_ip = ByIp::trusting(proxies.map(|network| network.as_str().unwrap()));
    let style = options["headers"].as_str().unwrap_or("ietf");
    let cost = options["cost"].as_u64().unwrap_or(1);
    RateLimitLayer::new(limiter.clone())
        .identify(by_ip)
        .with("method", from_method())
        .with("path", from_path())
        .headers(HeaderStyle::named(style).unwrap())
        .cost(move |_| Cost::requests(cost))
}

async fn answer(layer: &RateLimitLayer, case: &Value) -> (Parts, Vec<u8>) {
    let text = |field: &str| case[field].as_str().unwrap();
    let mut request = Request::builder().method(text("method")).uri(text("path"));
    for field in case["headers"].as_array().into_iter().flatten() {
        request = request.header(field[0].as_str().unwrap(), field[1].as_str().unwrap());
    }
    let peer = SocketAddr::new(text("peer").parse().unwrap(), 50_000);
    let request = request.extension(peer).body(()).unwrap();
    let response = layer.layer(service_fn(app)).oneshot(request).await.unwrap();
    let (head, body) = response.into_parts();
    (head, body.collect().await.unwrap().to_bytes().to_vec())
}

async fn app(request: Request<()>) -> Result<Response<Full<Bytes>>, Infallible> {
    let mut response = Response::new(Full::from(APP));
    if request.uri().path() == "/own-fields" {
        response.headers_mut().insert("ratelimit", "\"inner\";r=7".parse().unwrap());
    }
    Ok(response)
}

fn holds(expected: &Value, actual: &Value, place: &str) {
    let holds = if let Some(pattern) = expected["$matches"].as_str() {
        let pattern = regex::Regex::new(pattern).unwrap();
        actual.as_str().is_some_and(|actual| pattern.is_match(actual))
    } else if expected["$absent"] == true {
        actual.is_null()
    } else {
        expected == actual
    };
    assert!(holds, "{place}: {actual}, expected {expected}");
}

#[test]
fn every_client_address_equals_that_of_the_other_clients() {
    let rows: Value = serde_json::from_str(&read("addresses.json")).unwrap();
    let mut seen = 0;
    for row in rows.as_array().unwrap() {
        let texts =
            |field: &str| row[field].as_array().unwrap().iter().map(|text| text.as_str().unwrap());
        // A service on a Unix socket has no peer address.
        let Ok(peer) = row["peer"].as_str().unwrap().parse::<IpAddr>() else { continue };
        let by_ip = ByIp::trusting(texts("trusted_proxies").filter(|network| *network != "unix"));
        let mut headers = HeaderMap::new();
        for line in texts("forwarded_for") {
            headers.append(HeaderName::from_static("x-forwarded-for"), line.parse().unwrap());
        }
        let client =
            spillgate::Request::new().with("ip", by_ip.attribute(by_ip.client(peer, &headers)));
        let subject = Policy::default().typed(&client).attribute("ip").map(<[u8]>::to_vec);
        assert_eq!(subject.as_deref(), row["ip"].as_str().map(str::as_bytes), "{row}");
        seen += 1;
    }
    assert!(seen > 40, "only {seen} rows");
}

const APP: &[u8] = b"ok";
