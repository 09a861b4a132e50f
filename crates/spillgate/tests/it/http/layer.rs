//! How the layer calls the service behind it, and how it applies its settings.

use std::convert::Infallible;
use std::future::{Ready, ready};
use std::task::{Context, Poll};
use std::time::Duration;

use http::{Request, Response};
use spillgate::http::{ByIp, HeaderStyle};
use spillgate::tower::{RateLimitLayer, from_header};
use spillgate::{Cost, Limit, Limiter, Policy, Reason};
use spillgate_testkit::{RedisServer, free_port};
use tower::{Layer, Service, ServiceExt};

use crate::support::world::runtime;

/// Answers that it was served. Its body is a text, which no test reads as a stream.
#[derive(Debug)]
struct Careful {
    ready: bool,
}

impl Clone for Careful {
    /// As tower requires: a clone is not ready because the original was.
    fn clone(&self) -> Careful {
        Careful { ready: false }
    }
}

impl Service<Request<&'static str>> for Careful {
    type Response = Response<&'static str>;
    type Error = Infallible;
    type Future = Ready<Result<Response<&'static str>, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        self.ready = true;
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<&'static str>) -> Self::Future {
        assert!(std::mem::take(&mut self.ready), "called without having been polled ready");
        ready(Ok(Response::new(request.into_body())))
    }
}

pub(super) fn in_memory(policy: &str) -> RateLimitLayer {
    let builder = Limiter::builder().policy(Policy::from_toml(policy).unwrap());
    RateLimitLayer::new(runtime().block_on(builder.build()).unwrap())
}

/// Returns the statuses of requests to these paths, one after the other.
fn statuses(layer: &RateLimitLayer, paths: &[&str]) -> Vec<u16> {
    let mut service = layer.layer(Careful { ready: false });
    let one = |path: &&str| {
        let request = Request::get(*path).header("client", "me").body("hello").unwrap();
        let answer =
            runtime().block_on(async { service.ready().await.unwrap().call(request).await });
        answer.unwrap().status().as_u16()
    };
    paths.iter().map(one).collect()
}

const ALL: &str = "[[rule]]\nname = \"all\"\nkey = []\nlimits = [\"5/day\"]";

#[test]
fn the_service_that_was_polled_ready_is_the_one_that_is_called() {
    let server = RedisServer::start();
    let runtime = runtime();
    let patient = || Limiter::builder().timeout(Duration::from_secs(10));
    for builder in [patient(), patient().redis(server.url())] {
        let builder = builder.policy(Policy::from_toml(ALL).unwrap());
        let layer = RateLimitLayer::new(runtime.block_on(builder.build()).unwrap());
        let mut service = layer.layer(Careful { ready: false });
        let statuses = [0; 7].map(|_| {
            runtime.block_on(async {
                let service = service.ready().await.unwrap();
                service.call(Request::new("hello")).await.unwrap().status().as_u16()
            })
        });
        assert_eq!(statuses, [200, 200, 200, 200, 200, 429, 429]);
    }
}

#[test]
fn a_request_costs_what_the_closure_returns() {
    let layer =
        in_memory(ALL).cost(|head| Cost::requests(if head.uri.path() == "/large" { 3 } else { 1 }));
    assert_eq!(statuses(&layer, &["/large", "/large", "/", "/", "/"]), [200, 429, 200, 200, 429]);
}

#[test]
fn skipped_requests_are_not_checked() {
    let layer = in_memory(ALL).skip(|head| head.uri.path() == "/health");
    let paths = ["/health", "/", "/", "/", "/", "/", "/health", "/"];
    assert_eq!(statuses(&layer, &paths), [200, 200, 200, 200, 200, 200, 200, 429]);
}

#[test]
fn a_layer_checks_in_its_domain() {
    let policy = "[[rule]]\nname = \"web\"\ndomain = \"web\"\nkey = []\nlimits = [\"1/day\"]";
    assert_eq!(statuses(&in_memory(policy), &["/", "/"]), [200, 200]);
    assert_eq!(statuses(&in_memory(policy).in_domain("web"), &["/", "/"]), [200, 429]);
}

#[test]
fn the_later_of_two_attributes_of_one_name_counts() {
    let policy = "[[rule]]\nname = \"r\"\nkey = [\"client\"]\nlimits = [\"1/day\"]";
    let layer = in_memory(policy)
        .with("client", from_header("absent"))
        .with("client", from_header("client"));
    assert_eq!(statuses(&layer, &["/", "/"]), [200, 429]);
}

#[test]
fn clients_without_a_peer_address_share_a_counter() {
    let policy = "[[rule]]\nname = \"r\"\nkey = [\"ip\"]\nlimits = [\"2/day\"]";
    let layer = in_memory(policy).identify(ByIp::direct());
    assert_eq!(statuses(&layer, &["/", "/", "/"]), [200, 200, 429]);
}

#[test]
fn denials_and_outages_get_custom_answers() {
    let denying = format!("{ALL}\non_outage = \"deny\"");
    let out_of_reach = Limiter::builder().redis(format!("redis://127.0.0.1:{}", free_port()));
    let builders = [Limiter::builder(), out_of_reach];
    let answers = builders.map(|builder| {
        let builder = builder.policy(Policy::from_toml(&denying).unwrap());
        let layer = RateLimitLayer::new(runtime().block_on(builder.build()).unwrap())
            .headers(HeaderStyle::Legacy)
            .cost(|_| Cost::requests(5))
            .deny_with(|refusal, head| {
                let page = match refusal.reason() {
                    Reason::StoreUnavailable => format!("{} later", head.uri),
                    _ => format!("{} slower", head.uri),
                };
                let response = Response::builder().status(420).header("x-ratelimit-limit", "few");
                response.body(page.into_bytes()).unwrap()
            });
        let service = layer.layer(tower::service_fn(|_: Request<String>| {
            ready(Ok::<_, Infallible>(Response::new(String::new())))
        }));
        runtime().block_on(async {
            let request = || Request::get("/page").body(String::new()).unwrap();
            service.clone().oneshot(request()).await.unwrap();
            let response = service.oneshot(request()).await.unwrap();
            let headers = response.headers();
            let retry_after = headers["retry-after"].to_str().unwrap().to_owned();
            // Fields of a custom answer are kept, and no fields are added.
            assert_eq!(
                (headers.len(), &headers["x-ratelimit-limit"]),
                (2, &"few".parse().unwrap())
            );
            let status = response.status().as_u16();
            let body = http_body_util::BodyExt::collect(response.into_body()).await.unwrap();
            (status, retry_after, String::from_utf8(body.to_bytes().into()).unwrap())
        })
    });
    assert_eq!(answers[0], (420, "86400".to_owned(), "/page slower".to_owned()));
    assert_eq!(answers[1], (420, "1".to_owned(), "/page later".to_owned()));
}

#[test]
fn a_layer_per_ip_limits_each_address_by_itself_and_needs_no_runtime() {
    let layer = RateLimitLayer::per_ip(Limit::per_minute(1));
    let mut service = layer.layer(Careful { ready: false });
    let mut status = |peer: [u8; 4]| {
        let mut request = Request::new("hello");
        let peer = std::net::SocketAddr::from((peer, 4711));
        request.extensions_mut().insert(axum::extract::ConnectInfo(peer));
        let answer =
            runtime().block_on(async { service.ready().await.unwrap().call(request).await });
        answer.unwrap().status().as_u16()
    };
    let statuses = [[203, 0, 113, 7], [203, 0, 113, 7], [203, 0, 113, 8]].map(&mut status);
    assert_eq!(statuses, [200, 429, 200]);
}
