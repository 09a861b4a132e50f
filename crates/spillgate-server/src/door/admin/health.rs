//! Whether the process lives, and whether it can answer: which it can without a store, by policy.
//! One outage of the store must not take every replica out of service.

use axum::extract::State;
use axum::response::{IntoResponse, Response};
use hyper::header::{CONTENT_TYPE, HeaderValue};
use hyper::{StatusCode, Uri};
use tokio::sync::watch;

use crate::app::App;
use crate::commands::counted;

/// What health is about.
#[derive(Clone)]
pub(crate) struct Health {
    pub(crate) app: App,
    /// Becomes true when the process is told to end.
    pub(crate) stop: watch::Receiver<bool>,
}

pub(super) async fn live() -> Response {
    plain(StatusCode::OK, "ok\n".to_owned())
}

/// With `?verbose`, also what it stands on; only then the store is asked.
pub(super) async fn ready(State(health): State<Health>, uri: Uri) -> Response {
    let stopping = *health.stop.borrow();
    let (status, mut text) = match stopping {
        false => (StatusCode::OK, "ok\n".to_owned()),
        true => (StatusCode::SERVICE_UNAVAILABLE, "stopping\n".to_owned()),
    };
    if uri.query() == Some("verbose") {
        let rules = health.app.limiter().policy().rules().len();
        let store = match health.app.limiter().store_answers().await {
            true => "answers",
            false => "does not answer: each rule's on_outage decides",
        };
        text.push_str(&format!("policy: {}\nstore: {store}\n", counted(rules, "rule")));
        for shard in health.app.limiter().shards() {
            let trouble = shard.trouble.as_deref().unwrap_or("no trouble");
            text.push_str(&format!("shard {}: {trouble}\n", shard.name));
        }
    }
    plain(status, text)
}

pub(super) async fn metrics(State(health): State<Health>) -> Response {
    let mut response = health.app.metrics_text().into_response();
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(METRICS_TYPE));
    response
}

fn plain(status: StatusCode, text: String) -> Response {
    (status, text).into_response()
}

const METRICS_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";
