//! The least that a JSON service does: parse the request, serialise an answer of the same shape.

use std::process::ExitCode;

use axum::routing::post;
use axum::{Json, Router};
use serde::{Deserialize, Serialize};

/// What makes this program the echo.
pub const FLAG: &str = "--echo";

#[derive(Deserialize)]
struct Check {
    key: String,
    limit: Limit,
}

#[derive(Deserialize)]
struct Limit {
    quota: String,
}

#[derive(Serialize)]
struct Answer {
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
        axum::serve(listener, Router::new().route("/v1/check", post(echo))).await
    });
    if served.is_ok() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

async fn echo(Json(check): Json<Check>) -> Json<Answer> {
    let tier = Tier {
        rule: None,
        limit: check.limit.quota,
        unit: "requests",
        capacity: 1_000_000,
        remaining: 999_999,
        retry_after_ms: 0,
        reset_after_ms: 1,
        verdict: "allowed",
        source: "store",
    };
    Json(Answer {
        verdict: "allowed",
        allowed: true,
        rule: None,
        limit: check.key,
        capacity: 1_000_000,
        remaining: 999_999,
        retry_after_ms: 0,
        reset_after_ms: 1,
        source: "store",
        degraded: false,
        tiers: [tier],
    })
}
