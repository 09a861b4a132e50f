//! The attributes that the layer derives from a request: each kind of attribute, through axum and bare hyper.

use std::net::SocketAddr;

use axum::routing::get;
use axum::{Extension, Router};
use hyper_util::rt::TokioIo;
use hyper_util::service::TowerToHyperService;
use spillgate::http::ByIp;
use spillgate::tower::{
    Identity, RateLimitLayer, constant, from_header, from_matched_path, from_method, from_path,
    from_path_parameter, from_path_segment, from_request,
};
use spillgate::{Decision, Limiter, Policy};
use tower::{Layer, service_fn};

use super::client::{Client, Served, serve, threads};

/// A service that admits each value of an attribute `times` times.
fn limited_by(identity: impl Into<Identity>, times: u32) -> Served {
    limited_by_attribute("client", identity, times)
}

fn limited_by_attribute(name: &str, identity: impl Into<Identity>, times: u32) -> Served {
    let runtime = threads();
    let policy = format!("[[rule]]\nname = \"r\"\nkey = [\"{name}\"]\nlimits = [\"{times}/day\"]");
    let builder = Limiter::builder().policy(Policy::from_toml(&policy).unwrap());
    let limiter = runtime.block_on(builder.build()).unwrap();
    let layer = RateLimitLayer::new(limiter).with(name, identity);
    let within = Router::new().route("/posts/{post}", get(async || "post"));
    let app = Router::new()
        .route("/users/{user}", get(async || "user"))
        .route("/files/{*path}", get(async || "file"))
        .nest("/blogs/{blog}", within)
        .route("/", get(async || "root").post(async || "posted"))
        .layer(layer);
    serve(runtime, app)
}

/// Method, path, lines of header.
type Call<'a> = (&'a str, &'a str, &'a [(&'a str, &'a str)]);

/// Returns whether each of these is admitted, one after the other, on one connection.
fn admitted(served: &Served, requests: &[Call<'_>]) -> Vec<bool> {
    let mut client = Client::connect(served.port);
    requests
        .iter()
        .map(|(method, path, headers)| client.send(method, path, headers).status != 429)
        .collect()
}

fn paths_admitted(identity: impl Into<Identity>, paths: &[&str]) -> Vec<bool> {
    let requests: Vec<_> = paths.iter().map(|path| ("GET", *path, &[][..])).collect();
    admitted(&limited_by(identity, 1), &requests)
}

#[test]
fn callers_that_repeat_a_header_with_other_values_are_one_caller() {
    let served = limited_by(from_header("x-api-key"), 1);
    let requests = [
        ("GET", "/", &[("x-api-key", "a")][..]),
        ("GET", "/", &[("x-api-key", "b")]),
        ("GET", "/", &[("x-api-key", "a"), ("x-api-key", "a")]),
        ("GET", "/", &[("x-api-key", "a"), ("x-api-key", "c")]),
        ("GET", "/", &[("x-api-key", "d"), ("x-api-key", "a")]),
        // Without a header no rule matches.
        ("GET", "/", &[]),
        ("GET", "/", &[]),
    ];
    assert_eq!(admitted(&served, &requests), [true, true, false, true, false, true, true]);
}

#[test]
fn methods_and_constants_are_attributes() {
    let calls = [("GET", "/", &[][..]), ("POST", "/", &[]), ("GET", "/", &[])];
    assert_eq!(admitted(&limited_by(from_method(), 1), &calls), [true, true, false]);
    assert_eq!(admitted(&limited_by(constant("all"), 1), &calls), [true, false, false]);
}

#[test]
fn a_path_is_counted_in_its_normal_spelling() {
    let paths = ["/users/1?x", "//users/%31", "/users/2/../1", "/users/2", "/uSERS/1"];
    assert_eq!(paths_admitted(from_path(), &paths), [true, false, false, true, true]);
}

#[test]
fn a_path_segment_is_selected_by_its_index() {
    let paths = ["/users/1", "/files/1", "/users/%31", "/users/2", "/", "/"];
    let expected = [true, false, false, true, true, true];
    assert_eq!(paths_admitted(from_path_segment(1), &paths), expected);
    // Segments of different readings share one subject, so that a client cannot invent them.
    let paths = ["/users/3%2Fx", "/users/3", "/users/q1%2fb/../1", "/users/q2%2fb/../1"];
    assert_eq!(paths_admitted(from_path_segment(1), &paths), [true, false, true, false]);
}

#[test]
fn a_route_is_the_same_for_all_parameters() {
    let paths = ["/users/1", "/users/2", "/files/a/b", "/blogs/1/posts/1", "/blogs/2/posts/2"];
    assert_eq!(paths_admitted(from_matched_path(), &paths), [true, false, true, true, false]);
}

#[test]
fn a_path_parameter_is_counted_decoded() {
    let paths = ["/users/a!", "/users/a%21", "/users/%61%21", "/users/b", "/files/a!"];
    assert_eq!(
        paths_admitted(from_path_parameter("user"), &paths),
        [true, false, false, true, true]
    );
    let paths = ["/files/a/b", "/files/a/c", "/files/a%2fb", "/files/a/b"];
    assert_eq!(paths_admitted(from_path_parameter("path"), &paths), [true, true, false, false]);
    // Above a nested router as well.
    let paths = ["/blogs/1/posts/1", "/blogs/2/posts/1", "/blogs/3/posts/2"];
    assert_eq!(paths_admitted(from_path_parameter("post"), &paths), [true, false, true]);
    assert_eq!(paths_admitted(from_path_parameter("blog"), &paths), [true, true, true]);
}

#[test]
fn a_nested_router_sees_the_whole_path() {
    let runtime = threads();
    let policy = "[[rule]]\nname = \"r\"\nkey = [\"blog\", \"post\"]\nlimits = [\"1/day\"]";
    let builder = Limiter::builder().policy(Policy::from_toml(policy).unwrap());
    let layer = RateLimitLayer::new(runtime.block_on(builder.build()).unwrap())
        .with("blog", from_path_parameter("blog"))
        .with("post", from_path_parameter("post"));
    let within = Router::new().route("/posts/{post}", get(async || "post")).layer(layer);
    let served = serve(runtime, Router::new().nest("/blogs/{blog}", within));
    let mut client = Client::connect(served.port);
    let paths = ["/blogs/1/posts/1", "/blogs/1/posts/2", "/blogs/2/posts/1", "/blogs/1/posts/1"];
    assert_eq!(paths.map(|path| client.get(path).status), [200, 200, 200, 429]);
}

#[test]
fn a_nested_router_matches_rules_by_the_whole_path() {
    let runtime = threads();
    let policy = "[attribute.path]\ntype = \"path\"\n[[rule]]\nname = \"r\"\nmatch = { path = \"/blogs/*\" }\n\
                  key = [\"post\"]\nlimits = [\"1/day\"]";
    let builder = Limiter::builder().policy(Policy::from_toml(policy).unwrap());
    let layer = RateLimitLayer::new(runtime.block_on(builder.build()).unwrap())
        .with("path", from_path())
        .with("post", from_path_segment(3));
    let within = Router::new().route("/posts/{post}", get(async || "post")).layer(layer);
    let served = serve(runtime, Router::new().nest("/blogs/{blog}", within));
    let mut client = Client::connect(served.port);
    let paths = ["/blogs/1/posts/1", "/blogs/1/posts/2", "/blogs/2/posts/1"];
    assert_eq!(paths.map(|path| client.get(path).status), [200, 200, 429]);
}

#[test]
fn a_closure_returns_any_attribute() {
    let by_length = from_request(|head| (head.uri.path().len() > 8).then_some("long"));
    let paths = ["/users/1", "/users/1", "/users/11", "/users/12"];
    assert_eq!(paths_admitted(by_length, &paths), [true, true, true, false]);
}

#[test]
fn clients_behind_a_trusted_proxy_are_distinguished() {
    let served = limited_by_attribute("ip", ByIp::trusting(["127.0.0.0/8"]), 1);
    let from = |client: &'static str| [("x-forwarded-for", client)];
    let (first, second) = (from("203.0.113.7"), from("2001:db8::1"));
    let neighbour = from("6.6.6.6, [2001:db8::2]:80, 127.0.0.3");
    let requests = [
        ("GET", "/", &first[..]),
        ("GET", "/", &second),
        ("GET", "/", &neighbour),
        ("GET", "/", &[]),
        ("GET", "/", &first),
    ];
    assert_eq!(admitted(&served, &requests), [true, true, false, true, false]);
}

#[test]
fn bare_hyper_gives_the_peer_as_a_socket_address() {
    let runtime = threads();
    let policy = "[[rule]]\nname = \"r\"\nkey = [\"ip\"]\nlimits = [\"2/day\"]";
    let builder = Limiter::builder().policy(Policy::from_toml(policy).unwrap());
    let limiter = runtime.block_on(builder.build()).unwrap();
    let layer = RateLimitLayer::new(limiter.clone()).identify(ByIp::direct());
    let listener = runtime.block_on(tokio::net::TcpListener::bind("127.0.0.1:0")).unwrap();
    let port = listener.local_addr().unwrap().port();
    runtime.spawn(async move {
        while let Ok((stream, peer)) = listener.accept().await {
            let service = layer.layer(service_fn(async |request: http::Request<_>| {
                let remaining = request.extensions().get::<Decision>().unwrap().remaining();
                let _: hyper::body::Incoming = request.into_body();
                let body =
                    http_body_util::Full::<hyper::body::Bytes>::from(format!("{remaining:?}"));
                Ok::<_, std::convert::Infallible>(http::Response::new(body))
            }));
            let service = tower::service_fn(move |mut request: http::Request<_>| {
                request.extensions_mut().insert::<SocketAddr>(peer);
                tower::ServiceExt::oneshot(service.clone(), request)
            });
            let service = TowerToHyperService::new(service);
            let serving = hyper::server::conn::http1::Builder::new()
                .serve_connection(TokioIo::new(stream), service);
            tokio::spawn(serving);
        }
    });
    let answers = [0; 3].map(|_| Client::connect(port).get("/"));
    assert_eq!(answers.each_ref().map(|answer| answer.status), [200, 200, 429]);
    assert_eq!(answers[0].body, "Some(1)");
    let by_ip = spillgate::Request::new().with("ip", "127.0.0.1");
    assert_eq!(runtime.block_on(limiter.peek(&by_ip)).remaining(), Some(0));
}

#[test]
fn a_handler_sees_the_decision() {
    let runtime = threads();
    let policy = "[[rule]]\nname = \"r\"\nkey = []\nlimits = [\"2/day\"]";
    let builder = Limiter::builder().policy(Policy::from_toml(policy).unwrap());
    let layer = RateLimitLayer::new(runtime.block_on(builder.build()).unwrap());
    let handler = async |Extension(decision): Extension<Decision>| {
        format!("{} of {}", decision.remaining().unwrap(), decision.rule().unwrap())
    };
    let served = serve(runtime, Router::new().route("/", get(handler)).layer(layer));
    assert_eq!(Client::connect(served.port).get("/").body, "1 of r");
}
