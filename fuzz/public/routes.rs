//! Checks the answers of the HTTP API to any body, and of `explain` to any query, over a store in memory.

use std::cell::LazyCell;

use axum::Router;
use axum::body::Body;
use axum::http::{Request, StatusCode};
use http_body_util::BodyExt;
use hyper::service::Service;
use hyper_util::service::TowerToHyperService;
use spillgate::Policy;
use spillgate_server::config::Store;
use spillgate_server::{App, EXPLAIN, explain_routes, http_routes};
use tokio::runtime::{Builder, Runtime};

/// Panics if a body makes a path fail or answer at length. An answer must not grow with a request that is refused.
pub fn http(body: &[u8]) {
    for path in PATHS {
        let request = Request::post(path).body(Body::from(body.to_vec()));
        let (status, answer) = answer(|routes| &routes.http, request.expect("a path of ours"));
        assert!(status.is_success() || status.is_client_error(), "{path}: {status}");
        assert!(status.is_success() || answer.len() <= PROBLEM_MAX, "{path}: {}", answer.len());
        assert!(answer.starts_with(b"{"), "{path}: every answer is a JSON object");
    }
}

/// Panics if a query makes `explain` fail, or makes it answer at length when it refuses.
pub fn explain(query: &[u8]) {
    let uri = [EXPLAIN.as_bytes(), b"?", query].concat();
    let Ok(request) = Request::get(&uri[..]).body(Body::empty()) else { return };
    let (status, answer) = answer(|routes| &routes.explain, request);
    assert!(status.is_success() || status.is_client_error(), "{status}");
    assert!(status.is_success() || answer.len() <= PROBLEM_MAX, "{}", answer.len());
}

fn answer(router: fn(&Routes) -> &Router, request: Request<Body>) -> (StatusCode, Vec<u8>) {
    ROUTES.with(|routes| {
        let called = TowerToHyperService::new(router(routes).clone()).call(request);
        routes.runtime.block_on(async {
            let response = called.await.unwrap_or_else(|never| match never {});
            let status = response.status();
            let body = response.into_body().collect().await.expect("a body in memory");
            (status, body.to_bytes().to_vec())
        })
    })
}

struct Routes {
    runtime: Runtime,
    http: Router,
    explain: Router,
}

thread_local! {
    static ROUTES: LazyCell<Routes> = const { LazyCell::new(|| {
        let runtime = Builder::new_current_thread().enable_all().build().expect("a runtime");
        let app = runtime.block_on(App::open(&Store::default(), Policy::default()));
        let app = app.unwrap_or_else(|_| panic!("memory opens always"));
        Routes { http: http_routes(app.clone()), explain: explain_routes(app), runtime }
    }) };
}

/// Those that need no connection: a batch takes room at its own.
const PATHS: [&str; 6] =
    ["/v1/check", "/v1/reserve", "/v1/settle", "/v1/cancel", "/v1/release", "/v1/renew"];

/// The longest problem: a field and a message of 300 characters each, all of them escaped.
const PROBLEM_MAX: usize = 8 * 1024;
