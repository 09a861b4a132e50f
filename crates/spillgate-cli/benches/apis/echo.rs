//! The least that a JSON service does: parse the request, serialise an answer of the same shape.

use std::collections::HashMap;
use std::process::ExitCode;

use axum::routing::post;
use axum::{Json, Router};
use serde::{Deserialize, Serialize};

/// What makes this program the echo.
pub const FLAG: &str = "--echo";

#[derive(Deserialize)]
pub struct Check {
    pub key: String,
    pub limit: Limit,
}

#[derive(Deserialize)]
pub struct Limit {
    pub quota: String,
}

#[derive(Deserialize)]
struct Attributes {
    attributes: HashMap<String, String>,
}

#[derive(Serialize)]
pub struct Answer {
    verdict: &'static str,
    allowed: bool,
    rule: Option<String>,
    limit: String,
    capacity: u64,
    remaining: u64,
    retry_after_ms: u64,
    reset_after_ms: u64,
    source: &'static str,
    degraded: bool,
    tiers: [Tier; 1],
}

#[derive(Serialize)]
struct Tier {
    rule: Option<String>,
    limit: String,
    unit: &'static str,
    capacity: u64,
    remaining: u64,
    retry_after_ms: u64,
    reset_after_ms: u64,
    verdict: &'static str,
    source: &'static str,
}

/// Prints its port, and echoes until it is killed.
pub fn serve() -> ExitCode {
    let runtime = tokio::runtime::Runtime::new().expect("the system gives a runtime");
    let served = runtime.block_on(async {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
        println!("{}", listener.local_addr()?.port());
        let routes = Router::new().route("/v1/check", post(echo));
        axum::serve(listener, routes.route("/by-attributes", post(echo_attributes))).await
    });
    if served.is_ok() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

async fn echo(Json(check): Json<Check>) -> Json<Answer> {
    Json(Answer { limit: check.key, ..answer(check.limit.quota, 999_999) })
}

async fn echo_attributes(Json(asked): Json<Attributes>) -> Json<Answer> {
    let user = asked.attributes.into_values().next().unwrap_or_default();
    Json(answer(user, 999_999))
}

/// An admission with the fields of ours.
pub fn answer(limit: String, remaining: u64) -> Answer {
    let tier = Tier {
        rule: None,
        limit: limit.clone(),
        unit: "requests",
        capacity: 1_000_000,
        remaining,
        retry_after_ms: 0,
        reset_after_ms: 1,
        verdict: "allowed",
        source: "store",
    };
    Answer {
        verdict: "allowed",
        allowed: true,
        rule: None,
        limit,
        capacity: 1_000_000,
        remaining,
        retry_after_ms: 0,
        reset_after_ms: 1,
        source: "store",
        degraded: false,
        tiers: [tier],
    }
}
