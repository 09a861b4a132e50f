//! Reservations over HTTP: `POST /v1/reserve`, `/v1/settle`, `/v1/cancel`, `/v1/release`, `/v1/renew`. A reservation
//! is a check with a time to live and perhaps an id. The other calls take its receipt.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::State;
use axum::response::Response;
use axum::routing::post;
use hyper::StatusCode;
use serde::Serialize;
use serde::de::{Deserialize, Deserializer, Error};
use spillgate::Reason;
use spillgate::reservation::{EndResult, Receipt, ReservationError, Usage};

use super::answer::{self, json};
use super::json::{Object, Text, parse};
use super::problem::Problem;
use super::request::{Check, CostField, Whole};
use crate::app::App;
use crate::bounds::{NO_ROOM, PART_DOWN};

/// Returns the routes of reservations.
pub fn routes() -> Router<Arc<App>> {
    Router::new()
        .route("/v1/reserve", post(reserve))
        .route("/v1/settle", post(settle))
        .route("/v1/cancel", post(cancel))
        .route("/v1/release", post(release))
        .route("/v1/renew", post(renew))
}

async fn reserve(State(app): State<Arc<App>>, body: Body) -> Result<Response, Problem> {
    app.takes_reservations().map_err(Problem::forbidden)?;
    let body = super::body::read(body).await?;
    let check: Check<'_> = parse(&body)?;
    let (request, reserve) = check.reservation()?;
    let unused = app.require_names(&request)?;
    let decision = app.reserve(&request, &reserve).await?;
    if decision.reason() == Some(Reason::Overloaded) {
        return Err(Problem::overloaded(NO_ROOM.to_owned()));
    }
    Ok(answer::to_check(&decision, check.headers(), &unused))
}

async fn settle(State(app): State<Arc<App>>, body: Body) -> Result<Response, Problem> {
    app.takes_reservations().map_err(Problem::forbidden)?;
    let body = super::body::read(body).await?;
    let Object(SettleFields { receipt, cost }) = parse(&body)?;
    let usage = cost.usage();
    let unused = app.note_units(&usage);
    let result = app.limiter().settle(&receipt.0, &usage).await?.name();
    let unused = unused.iter().map(|sentence| &**sentence).collect();
    Ok(json(&EndAnswer { result, unused }, answer::ANSWER_BYTES))
}

async fn cancel(State(app): State<Arc<App>>, body: Body) -> Result<Response, Problem> {
    answer_end(app.limiter().cancel(&receipt_of(&app, body).await?).await)
}

async fn release(State(app): State<Arc<App>>, body: Body) -> Result<Response, Problem> {
    answer_end(app.limiter().release(&receipt_of(&app, body).await?).await)
}

async fn renew(State(app): State<Arc<App>>, body: Body) -> Result<Response, Problem> {
    app.takes_reservations().map_err(Problem::forbidden)?;
    let body = super::body::read(body).await?;
    let Object(RenewFields { receipt, ttl_ms }) = parse(&body)?;
    answer_end(app.limiter().renew(&receipt.0, Duration::from_millis(ttl_ms.0)).await)
}

async fn receipt_of(app: &App, body: Body) -> Result<Receipt, Problem> {
    app.takes_reservations().map_err(Problem::forbidden)?;
    let body = super::body::read(body).await?;
    let Object(ReceiptFields { receipt }) = parse(&body)?;
    Ok(receipt.0)
}

fn answer_end(outcome: Result<EndResult, ReservationError>) -> Result<Response, Problem> {
    let result = outcome?.name();
    Ok(json(&EndAnswer { result, unused: Vec::new() }, answer::ANSWER_BYTES))
}

#[derive(Serialize)]
struct EndAnswer<'a> {
    result: &'static str,
    /// A sentence about each unit of a settlement that no rule counts.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    unused: Vec<&'a str>,
}

#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields, expecting = "an object such as {\"receipt\": \"AQAB…\", \"cost\": 1}")]
struct SettleFields<'a> {
    receipt: ReceiptField,
    #[serde(borrow)]
    cost: CostField<'a>,
}

#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields, expecting = "an object such as {\"receipt\": \"AQAB…\"}")]
struct ReceiptFields {
    receipt: ReceiptField,
}

#[derive(serde::Deserialize)]
#[serde(
    deny_unknown_fields,
    expecting = "an object such as {\"receipt\": \"AQAB…\", \"ttl_ms\": 30000}"
)]
struct RenewFields {
    receipt: ReceiptField,
    ttl_ms: Whole,
}

/// A text in the form of a receipt. Only the limiter can verify it.
struct ReceiptField(Receipt);

impl<'de> Deserialize<'de> for ReceiptField {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let Text(text) = Text::deserialize(deserializer)?;
        text.parse().map(ReceiptField).map_err(D::Error::custom)
    }
}

impl CostField<'_> {
    /// Returns the usage, by the units that are named.
    fn usage(&self) -> Usage<'_> {
        match self {
            CostField::Requests(amount) => Usage::from(*amount),
            CostField::ByUnit(amounts) => {
                amounts.iter().fold(Usage::default(), |usage, (unit, Whole(amount))| {
                    usage.and(unit.as_ref(), *amount)
                })
            }
        }
    }
}

impl From<ReservationError> for Problem {
    fn from(error: ReservationError) -> Problem {
        let message = error.to_string();
        match error {
            ReservationError::Lasting(_) => Problem::in_field("ttl_ms", &message),
            ReservationError::Conflict => {
                Problem::in_field("id", &message).with_status(StatusCode::CONFLICT)
            }
            ReservationError::Ended(how) => Problem::ended(how.name(), &message),
            ReservationError::EndedOtherwise => {
                Problem::in_field("receipt", &message).with_status(StatusCode::CONFLICT)
            }
            ReservationError::Retryable { .. } => Problem::retryable(PART_DOWN.to_owned()),
            _ => Problem::new(StatusCode::BAD_REQUEST, message),
        }
    }
}
