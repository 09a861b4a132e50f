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

use crate::app::App;
use crate::listener::ConnectionState;

pub mod answer;
pub mod body;
mod connection;
pub mod json;
pub mod limit;
pub mod problem;
pub mod request;
mod request_id;
pub mod reservation;
pub mod room;

use answer::Answers;
pub(crate) use connection::Http;
use problem::Problem;
use request::{Batch, Check};
use room::Room;

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

async fn check(
    State(app): State<Arc<App>>,
    connection: Option<Extension<Arc<ConnectionState>>>,
    body: Body,
) -> Result<Response, Problem> {
    let connection = connection.map(|Extension(connection)| connection);
    check_by(&app, connection.as_deref(), body).await
}

/// Returns whether a request is a check, as nearly all are.
fn is_check<B>(request: &Request<B>) -> bool {
    request.uri().path() == CHECK && request.method() == Method::POST
}

/// Decides one check. There is no connection if a command of this program asks itself.
async fn check_by<B, A>(
    app: &App,
    connection: Option<&ConnectionState>,
    body: B,
) -> Result<Response<A>, Problem>
where
    B: HttpBody<Data = Bytes, Error: Into<BoxError>> + Unpin,
    A: From<Vec<u8>>,
{
    let body = body::read(body).await?;
    let check: Check<'_> = json::parse(&body)?;
    let (request, wait) = (check.request()?, check.wait()?);
    let unused = app.require_names(&request)?;
    let room = Room::new(&app.limiter().policy(), [(&request, check.headers())]);
    if let Some(connection) = connection.filter(|_| room.is_large()) {
        body::room_for(connection, body.len() + room.decided() + room.answer()?).await?;
    }
    let decision = match wait {
        Duration::ZERO => app.check(&request).await,
        wait => {
            if let Some(connection) = connection {
                connection.note_wait();
            }
            app.acquire(&request, wait).await
        }
    };
    Ok(answer::to_check(&decision, check.headers(), &unused))
}

async fn check_batch(
    State(app): State<Arc<App>>,
    Extension(connection): Extension<Arc<ConnectionState>>,
    body: Body,
) -> Result<Response, Problem> {
    let body = body::read(body).await?;
    let listed = Batch::listed(&body)?;
    let decoded = room::decoded(&body, listed.len());
    body::room_for(&connection, decoded).await?;
    let batch = Batch::decode(listed);
    let mut requests = Vec::new();
    let (mut items, mut unused) = (Vec::new(), Vec::new());
    for item in batch.requests() {
        let known = item.and_then(|(request, headers)| {
            for sentence in app.require_names(&request)? {
                if unused.len() < UNUSED_MAX && !unused.contains(&sentence) {
                    unused.push(sentence);
                }
            }
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
    let styles = items.iter().filter_map(|item| item.as_ref().ok().copied());
    let room = Room::new(&app.limiter().policy(), requests.iter().zip(styles));
    let problems = items.iter().filter_map(|item| item.as_ref().err());
    let problems: usize = problems.map(|problem| problem.len() + room::PROBLEM).sum();
    let sentences: usize = unused.iter().map(|sentence| room::escaped(sentence)).sum();
    let answer = room.answer()? + problems + sentences;
    body::room_for(&connection, decoded + room.decided() + answer).await?;
    let mut answers = Answers::to(items.len());
    let mut rest = &requests[..];
    let mut decisions = Vec::new().into_iter();
    let is_large = room.next(requests.len()) < requests.len();
    for item in &items {
        match item {
            Ok(headers) => {
                if decisions.len() == 0 {
                    // Not all at once: decisions over many limits take more memory than their answers.
                    let (next, after) = rest.split_at(room.next(rest.len()));
                    (decisions, rest) = (app.check_part(next, is_large).await.into_iter(), after);
                }
                let decision = decisions.next().expect("each request has a decision");
                answers.add(&decision, *headers);
            }
            Err(problem) => answers.add_problem(problem),
        }
    }
    let answer = answers.response(&unused);
    // Most answers need a small part of the room. The rest is free for others before the client takes its answer.
    let length = usize::try_from(answer.body().size_hint().lower()).unwrap_or(usize::MAX);
    connection.buffer_share.shrink_to(connection.buffered().saturating_add(length));
    Ok(answer)
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
/// The most unused names that the answer to a batch reports.
const UNUSED_MAX: usize = 16;
/// The paths that the answer to an unknown path names.
const PATHS: &str = "POST /v1/check, /v1/check/batch, /v1/reserve, /v1/settle, /v1/cancel, /v1/release and /v1/renew, /v1/auth for proxies and GET /v1/openapi.json";

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use spillgate::Policy;

    use super::*;
    use crate::config::Store;

    #[tokio::test]
    async fn a_large_batch_lets_others_decide_between_its_parts() {
        let limits: Vec<String> = (1..=64).map(|n| format!("'{n}/{n}d'")).collect();
        let limits = limits.join(",");
        let wide =
            |n| format!("[[rule]]\nname = 'wide-{n}'\nkey = ['user']\nlimits = [{limits}]\n");
        let policy = Policy::from_toml(&(0..8).map(wide).collect::<String>()).unwrap();
        let app = State(Arc::new(App::open(&Store::default(), policy).await.unwrap()));
        let one = r#"{"attributes":{"user":"u"}}"#;
        let many = Body::from(format!("[{}]", [one; 20].join(",")));
        let batch_ended = Cell::new(false);
        let batch = async {
            let connection = Extension(ConnectionState::alone());
            assert!(check_batch(app.clone(), connection, many).await.is_ok());
            batch_ended.set(true);
        };
        let other = async {
            assert!(check(app.clone(), None, Body::from(one)).await.is_ok());
            assert!(!batch_ended.get());
        };
        // One thread runs both, the batch first.
        tokio::join!(batch, other);
    }
}
