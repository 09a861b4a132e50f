//! The probes `/livez` and `/readyz`, the status and the metrics. An outage of the store does not make the service unready: rules
//! decide by `on_outage`, and one outage must not take every replica out of service.

use axum::Extension;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use hyper::header::{CONTENT_TYPE, HeaderMap, HeaderValue};
use hyper::{StatusCode, Uri};
use serde::Serialize;
use spillgate::Mode;
use spillgate::store::ShardStatus;
use tokio::sync::watch;

use super::Problem;
use super::fleet::FleetLoad;
use super::guard::Guard;
use super::scrapes::Scrapes;
use crate::app::App;
use crate::counted::counted;
use crate::listener::Peer;
use crate::listener::http::answer;
use crate::status::{Facts, Status};

/// The state behind the probes.
#[derive(Clone)]
pub(crate) struct Health {
    pub(crate) app: App,
    /// Becomes true when the service stops.
    pub(crate) stop: watch::Receiver<bool>,
    /// Recognises operators.
    pub(crate) guard: Guard,
    pub(crate) scrapes: Scrapes,
}

impl Health {
    pub(crate) fn new(app: App, guard: Guard, stop: watch::Receiver<bool>) -> Health {
        let scrapes = Scrapes::new(app.clone());
        Health { app, stop, guard, scrapes }
    }
}

pub async fn live() -> Response {
    plain(StatusCode::OK, "ok\n".to_owned())
}

/// Answers whether the process is ready, with the warning about the policy file if there is one. With `?verbose` the
/// answer also has the number of rules, the last known state of the store and the status; no command is sent to the
/// store. Only operators see the names of rules and shards, and the troubles of shards, which hold addresses.
pub async fn ready(
    State(health): State<Health>,
    Extension(peer): Extension<Peer>,
    uri: Uri,
    headers: HeaderMap,
) -> Response {
    let stopping = *health.stop.borrow();
    let (status, mut text) = match stopping {
        false => (StatusCode::OK, "ok\n".to_owned()),
        true => (StatusCode::SERVICE_UNAVAILABLE, "stopping\n".to_owned()),
    };
    if uri.query() != Some("verbose") {
        if let Some(warning) = health.app.reloads.warning() {
            text.push_str(&format!("warning: {warning}\n"));
        }
    } else {
        let is_operator = health.guard.holder(&headers, peer).is_some();
        let facts = Facts::gather(&health.app);
        text.push_str(&format!("policy: {}\n{}", counted(facts.rules, "rule"), store(&facts)));
        for (number, shard) in (1_u32..).zip(&facts.shards) {
            let state = match (&shard.trouble, shard.degraded) {
                (Some(trouble), _) if is_operator => trouble,
                (_, true) => "does not answer",
                (_, false) if is_operator => "no trouble",
                (_, false) => "answers",
            };
            let name = if is_operator { shard.name.clone() } else { number.to_string() };
            text.push_str(&format!("shard {name}: {state}\n"));
        }
        text.push_str(&conditions(&facts, is_operator));
    }
    plain(status, text)
}

/// The status with the facts that an operator reads beside it.
#[derive(Serialize)]
struct StatusAnswer<'s> {
    at_ms: u64,
    version: &'static str,
    #[serde(flatten)]
    status: Status,
    /// The number of rules by the mode in force.
    rules: RulesAnswer,
    store: &'s str,
    shards: Vec<ShardAnswer<'s>>,
    /// All instances on the store together; null without a store, and while it does not answer.
    fleet: Option<FleetLoad>,
}

#[derive(Serialize)]
struct RulesAnswer {
    enforce: usize,
    shadow: usize,
    off: usize,
}

#[derive(Serialize)]
struct ShardAnswer<'s> {
    name: &'s str,
    degraded: bool,
    trouble: Option<&'s str>,
}

/// Answers the status of this instance as JSON.
pub async fn status(State(app): State<App>) -> Response {
    let (facts, limiter) = (Facts::gather(&app), app.limiter());
    let policy = limiter.policy();
    let in_mode = |mode| policy.rules().filter(|rule| rule.mode() == mode).count();
    let answer = StatusAnswer {
        at_ms: facts.now_ms,
        version: env!("CARGO_PKG_VERSION"),
        status: facts.status(),
        rules: RulesAnswer {
            enforce: in_mode(Mode::Enforce),
            shadow: in_mode(Mode::Shadow),
            off: in_mode(Mode::Off),
        },
        store: &app.store,
        shards: facts.shards.iter().map(ShardAnswer::new).collect(),
        fleet: FleetLoad::of_all(limiter).await,
    };
    answer::json(&answer, answer::ANSWER_BYTES * (1 + answer.status.conditions.len()))
}

/// Returns a line with the status, and a line for each condition.
fn conditions(facts: &Facts, is_operator: bool) -> String {
    let status = facts.status();
    let mut text = format!("status: {}\n", status.word);
    for condition in &status.conditions {
        let shown = match is_operator {
            true => condition.line(facts.now_ms),
            false => condition.kind.name().to_owned(),
        };
        text.push_str(&format!("{}: {shown}\n", condition.level.name()));
    }
    text
}

fn store(facts: &Facts) -> String {
    let shards = facts.shards.len();
    match facts.shards.iter().filter(|shard| shard.degraded).count() {
        0 => "store: answers\n".to_owned(),
        away if away == shards => {
            "store: does not answer: each rule's on_outage decides\n".to_owned()
        }
        away => format!(
            "store: answers in part: each rule's on_outage decides for {away} of {shards} shards\n"
        ),
    }
}

pub async fn metrics(State(health): State<Health>) -> Result<Response, Problem> {
    let mut response = health.scrapes.in_turn().await?.into_response();
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(METRICS_TYPE));
    Ok(response)
}

impl<'s> ShardAnswer<'s> {
    fn new(ShardStatus { name, degraded, trouble, .. }: &'s ShardStatus) -> ShardAnswer<'s> {
        ShardAnswer { name, degraded: *degraded, trouble: trouble.as_deref() }
    }
}

fn plain(status: StatusCode, text: String) -> Response {
    (status, text).into_response()
}

const METRICS_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";
