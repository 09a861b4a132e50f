//! The HTTP API: `POST /v1/check`, `POST /v1/check/batch` and the paths of reservations. A handler decodes the body,
//! asks the app, and encodes the answer. Every decision is a 200; a malformed request is a problem, and charges
//! nothing.

use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, Bytes, HttpBody};
use axum::extract::{Extension, State};
use axum::response::Response;
use axum::routing::{get, post};
use axum::{BoxError, Router};
use hyper::header::{CONTENT_TYPE, HeaderValue};
use hyper::{Method, Request, Uri};
use spillgate::Policy;

use crate::app::App;
use crate::listener::ConnectionState;

pub(super) mod answer;
pub(super) mod body;
mod connection;
#[cfg(any(test, fuzzing))]
pub(crate) mod fuzzed;
pub(super) mod json;
pub(super) mod limit;
pub(super) mod problem;
pub(super) mod request;
pub(super) mod reservation;
mod ticks;

use answer::Item;
pub(crate) use connection::Http;
use problem::Problem;
use request::{Batch, Check};

/// Returns the routes of the HTTP API.
pub fn routes(app: App) -> Router {
    Router::new()
        .route(CHECK, post(check))
        .route("/v1/check/batch", post(check_batch))
        .merge(reservation::routes())
        .route(OPENAPI, get(openapi))
        .fallback(no_such_path)
        .method_not_allowed_fallback(wrong_method)
        .with_state(Arc::new(app))
}

async fn check(State(app): State<Arc<App>>, body: Body) -> Result<Response, Problem> {
    check_by(&app, body).await
}

/// Returns whether a request is a check, as nearly all are.
fn is_check<B>(request: &Request<B>) -> bool {
    request.uri().path() == CHECK && request.method() == Method::POST
}

async fn check_by<B, A>(app: &App, body: B) -> Result<Response<A>, Problem>
where
    B: HttpBody<Data = Bytes, Error: Into<BoxError>> + Unpin,
    A: From<Vec<u8>>,
{
    let body = body::read(body).await?;
    let check: Check<'_> = json::parse(&body)?;
    let (request, wait) = (check.request()?, check.wait()?);
    let unused = app.require_names(&request)?;
    let decision = match wait {
        Duration::ZERO => app.check(&request).await,
        wait => app.acquire(&request, wait).await,
    };
    Ok(answer::to_check(&decision, check.headers(), &unused))
}

async fn check_batch(
    State(app): State<Arc<App>>,
    Extension(connection): Extension<Arc<ConnectionState>>,
    body: Body,
) -> Result<Response, Problem> {
    let body = body::read(body).await?;
    let batch = Batch::parse(&body)?;
    let mut requests = Vec::new();
    let mut items = Vec::new();
    for item in batch.requests() {
        let known = item.and_then(|(request, headers)| {
            app.require_names(&request)?;
            Ok((request, headers))
        });
        items.push(match known {
            Ok((request, headers)) => {
                requests.push(request);
                Ok(headers)
            }
            Err(problem) => Err(problem.json()),
        });
    }
    let room = body.len() + answers_max(&app.limiter().policy(), &items);
    body::room_for(&connection, room).await?;
    let decisions = app.check_batch(&requests).await;
    let answer = answer::to_many(&decisions, &items);
    // Most answers need a small part of the room. The rest is free for others before the client takes its answer.
    let length = usize::try_from(answer.body().size_hint().lower()).unwrap_or(usize::MAX);
    connection.buffer_share().shrink_to(connection.buffered().saturating_add(length));
    Ok(answer)
}

/// Returns the bytes that the answer to a batch may have: as if each check met all limits of the policy.
fn answers_max(policy: &Policy, items: &[Item]) -> usize {
    let mut limits = 0;
    for rule in policy.rules() {
        limits += rule.limits().len();
        // A policy may have a million rules, and a decision has no more limits than this.
        if limits >= LIMITS_MAX {
            break;
        }
    }
    // A check with an inline limit needs no rule.
    let of_decision = ANSWER_OF_ONE + ANSWER_OF_LIMIT * limits.clamp(1, LIMITS_MAX);
    let of_item = |item: &Item| match item {
        Ok(None) => of_decision,
        Ok(Some(_)) => of_decision + HEADERS_OF_ONE,
        Err(problem) => problem.len() + ERROR_OF_ONE,
    };
    items.iter().map(of_item).sum()
}

/// Answers with the description of all HTTP paths, for generators of clients.
async fn openapi() -> Response {
    let mut response = Response::new(Body::from(include_str!("http/openapi.json")));
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

async fn no_such_path(uri: Uri) -> Problem {
    let path = uri.path();
    match path.starts_with("/admin/") || ["/livez", "/readyz", "/metrics"].contains(&path) {
        true => Problem::elsewhere(path, "the admin listener, server.admin"),
        false => Problem::no_such_path(path, PATHS),
    }
}

async fn wrong_method(method: Method, uri: Uri) -> Problem {
    let remedy = if uri.path() == OPENAPI { "send GET" } else { "send POST" };
    Problem::not_taken(&method, uri.path(), remedy)
}

const CHECK: &str = "/v1/check";
const OPENAPI: &str = "/v1/openapi.json";
/// The estimated bytes of one answer of a batch, its limits and headers left out.
const ANSWER_OF_ONE: usize = 256;
/// The bytes around the problem of an item.
const ERROR_OF_ONE: usize = 16;
/// The estimated bytes of one limit in an answer.
const ANSWER_OF_LIMIT: usize = 192;
/// The most limits in an answer: a decision has no more counters.
const LIMITS_MAX: usize = 64;
/// The most bytes of ready-made headers in an answer: the body and the fields that a rule sets for its denials.
const HEADERS_OF_ONE: usize = (4 + 2) * 1024;
/// The paths that the answer to an unknown path names.
const PATHS: &str = "POST /v1/check, /v1/check/batch, /v1/reserve, /v1/settle, /v1/cancel, /v1/release and /v1/renew, /v1/auth for proxies and GET /v1/openapi.json";

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Store;

    #[tokio::test]
    async fn the_answer_to_a_batch_has_no_more_bytes_than_are_counted() {
        for rules in [1, 64] {
            let rule = |number| {
                format!(
                    "[[rule]]\nname = \"rule-{number}\"\nkey = [\"user\"]\nlimits = [\"5/day\"]\n"
                )
            };
            let policy = Policy::from_toml(&(0..rules).map(rule).collect::<String>()).unwrap();
            let app = App::open(&Store::default(), policy).await.unwrap();
            for check in
                [r#"{"attributes":{"user":"u"}}"#, r#"{"key":"u","limit":{"quota":"5/day"}}"#]
            {
                let body = format!("[{check},{check},{check}]");
                let batch = Batch::parse(body.as_bytes()).unwrap();
                let requests: Vec<_> = batch.requests().map(|item| item.unwrap().0).collect();
                let items = vec![Ok(None); requests.len()];
                let counted = answers_max(&app.limiter().policy(), &items);
                let decisions = app.check_batch(&requests).await;
                let answer = answer::to_many(&decisions, &items);
                let length = answer.body().size_hint().exact().unwrap();
                assert!(length <= counted as u64, "{rules} rules: {length} bytes of {counted}");
            }
        }
    }
}
