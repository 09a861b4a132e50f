//! The admin API. Health, metrics and the dashboard's files are open to every client that reaches the listener. Rules,
//! state and overrides are for operators, which send a token or are programs of this machine. A viewer's token reads.

use axum::Router;
use axum::body::Body;
use axum::extract::Request;
use axum::middleware::{Next, from_fn, from_fn_with_state};
use axum::response::Response;
use axum::routing::{get, put};
use hyper::{Method, StatusCode, Uri};

use super::http::body;
use super::http::problem::Problem;
use crate::app::App;

mod audit;
mod dashboard;
mod denials;
mod events;
mod explain;
mod fleet;
mod guard;
mod health;
mod history;
mod instant;
mod overrides;
mod refusal;
mod rules;
mod scrapes;
mod state;
mod subject;
mod tokens;
mod top;
mod versions;
mod whoami;

pub(crate) use audit::warn_of_unsaved;
use events::Events;
pub(crate) use guard::Guard;
pub(crate) use health::Health;
pub(crate) use tokens::Tokens;

/// Returns the routes of the admin API.
pub(crate) fn routes(app: App, guard: Guard, health: Health) -> Router {
    let events = Router::new()
        .route("/admin/v1/events", get(events::listen))
        .with_state(Events::new(health.clone()));
    let guarded = Router::new()
        .route("/admin/v1/rules", get(rules::list))
        .route("/admin/v1/rules/{*mode_of}", put(rules::set_mode).delete(rules::clear_mode))
        .route("/admin/v1/state", get(state::show).post(state::change).delete(state::forget))
        .route(
            "/admin/v1/overrides",
            get(overrides::list).put(overrides::set).delete(overrides::remove),
        )
        .route(EXPLAIN, get(explain::show))
        .route("/admin/v1/top", get(top::show))
        .route("/admin/v1/audit", get(audit::list))
        .route("/admin/v1/whoami", get(whoami::show))
        .route("/admin/v1/history", get(history::show))
        .route("/admin/v1/fleet", get(fleet::list))
        .route("/admin/v1/denials", get(denials::find))
        .route("/admin/v1/status", get(health::status))
        .with_state(app)
        .merge(events)
        .method_not_allowed_fallback(wrong_method)
        .layer(from_fn(refuse_ignored_body))
        .layer(from_fn_with_state(guard, guard::admit));
    let open = Router::new()
        .route("/livez", get(health::live))
        .route("/readyz", get(health::ready))
        .route("/metrics", get(health::metrics))
        .method_not_allowed_fallback(wrong_method)
        .with_state(health);
    let files = dashboard::routes().method_not_allowed_fallback(wrong_method);
    open.merge(guarded).merge(files).fallback(no_such_path)
}

/// Returns the route of `explain` alone, for the command that calls it in its own process.
pub fn explain_routes(app: App) -> Router {
    Router::new().route(EXPLAIN, get(explain::show)).with_state(app)
}

/// Refuses the body of a DELETE, so that fields in it, such as the reason of a change, are not lost silently.
async fn refuse_ignored_body(request: Request, next: Next) -> Result<Response, Problem> {
    if request.method() != Method::DELETE {
        return Ok(next.run(request).await);
    }
    let (head, body) = request.into_parts();
    if !body::read(body).await?.is_empty() {
        return Err(Problem::new(StatusCode::BAD_REQUEST, NO_BODY.to_owned()));
    }
    Ok(next.run(Request::from_parts(head, Body::empty())).await)
}

async fn no_such_path(uri: Uri) -> Problem {
    match uri.path().starts_with("/v1/") {
        true => Problem::elsewhere(uri.path(), "the HTTP listener, server.http"),
        false => Problem::no_such_path(uri.path(), PATHS),
    }
}

async fn wrong_method(method: Method, uri: Uri) -> Problem {
    Problem::not_taken(&method, uri.path(), &format!("there are {PATHS}"))
}

/// The paths that the answer to an unknown path names.
const PATHS: &str = "GET /livez, /readyz and /metrics, the dashboard at /, GET /admin/v1/rules, PUT and DELETE \
    /admin/v1/rules/NAME/mode, GET, POST and DELETE /admin/v1/state, GET, PUT and DELETE \
    /admin/v1/overrides, and GET /admin/v1/explain, /admin/v1/top, /admin/v1/audit, /admin/v1/history, \
    /admin/v1/fleet, /admin/v1/denials, /admin/v1/status, /admin/v1/whoami and /admin/v1/events";

const NO_BODY: &str = "DELETE takes no body here; write its fields into the query, such as \
     ?rule=login&attr.ip=203.0.113.7&reason=scraper";

/// The path of `explain`.
pub const EXPLAIN: &str = "/admin/v1/explain";
