//! Shows the limits of a rule for one subject, and lets operators charge, refund and reset them.

use axum::Extension;
use axum::body::Body;
use axum::extract::State;
use axum::response::Response;
use hyper::{HeaderMap, Uri};

use super::refusal::problem_of;
use super::rules::{done, written};
use super::subject::{KeyValues, Query, subject};
use super::tokens::Holder;
use super::{Problem, versions};
use crate::app::App;
use crate::listener::http::json::{Object, Text};
use crate::listener::http::request::CostField;
use crate::listener::http::{answer, body, json};

#[derive(serde::Deserialize)]
#[serde(
    deny_unknown_fields,
    expecting = "an object such as {\"rule\": \"login\", \"subject\": {\"ip\": \"203.0.113.7\"}, \"refund\": 1}"
)]
pub struct ChangeFields<'a> {
    #[serde(borrow)]
    rule: Text<'a>,
    #[serde(borrow)]
    pub(crate) subject: KeyValues<'a>,
    #[serde(borrow)]
    charge: Option<CostField<'a>>,
    #[serde(borrow)]
    refund: Option<CostField<'a>>,
    #[serde(borrow)]
    reason: Option<Text<'a>>,
}

pub async fn show(State(app): State<App>, uri: Uri) -> Result<Response, Problem> {
    let query = Query::parse(&uri)?.without_all()?;
    Ok(answer::with_quotas(&app.limiter().state(&query.rule, &query.subject).await?))
}

pub async fn change(
    State(app): State<App>,
    Extension(holder): Extension<Holder>,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, Problem> {
    versions::refuse_any(&headers)?;
    let body = body::read(body).await?;
    let Object(fields): Object<ChangeFields<'_>> = json::parse(&body)?;
    let (rule, subject) = (&fields.rule.0, subject(&fields.subject));
    let note = holder.note(fields.reason.as_ref().map(|Text(reason)| &**reason))?;
    let limiter = app.limiter().with_note(note);
    let (field, changed) = match (&fields.charge, &fields.refund) {
        (Some(cost), None) => ("charge", limiter.charge(rule, &subject, cost.cost()).await),
        (None, Some(cost)) => ("refund", limiter.refund(rule, &subject, cost.cost()).await),
        (None, None) => return Err(Problem::in_field("charge", NOTHING_TO_DO)),
        (Some(_), Some(_)) => return Err(Problem::in_field("refund", ONE_OF_TWO)),
    };
    let state = changed.map_err(|error| problem_of(&error, field))?;
    Ok(answer::with_quotas(&state))
}

/// Resets one subject, or with `all=true` all subjects of a rule.
pub async fn forget(
    State(app): State<App>,
    Extension(holder): Extension<Holder>,
    headers: HeaderMap,
    uri: Uri,
) -> Result<Response, Problem> {
    versions::refuse_any(&headers)?;
    let query = Query::parse(&uri)?;
    let limiter = app.limiter().with_note(holder.note(query.reason.as_deref())?);
    if query.all {
        if query.subject.attributes().next().is_some() {
            return Err(Problem::in_field("all", ALL_OR_ONE));
        }
        return Ok(written(&limiter.reset_rule(&query.rule).await?));
    }
    limiter.reset(&query.rule, &query.subject).await?;
    Ok(done())
}

const NOTHING_TO_DO: &str = "missing; add \"charge\": 1 to take, or \"refund\": 1 to return";
const ONE_OF_TWO: &str = "charge is there too; send them one after the other";
const ALL_OR_ONE: &str =
    "attributes name one subject; leave them out to reset all, or leave out all";
