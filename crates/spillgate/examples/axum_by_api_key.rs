//! Limits the customers of an axum service by API key, each by the limits of its plan.
//!
//! Run `cargo run --example axum_by_api_key`, then `curl -i -H 'x-api-key: f-1' localhost:3000` three times,
//! and with `p-1`. Requests with any other key share one limit.

use std::error::Error;

use axum::{Router, routing::get};

use spillgate::tower::{Head, RateLimitLayer, from_request};
use spillgate::{Limiter, Policy};
use tokio::net::TcpListener;

const RULES: &str = r#"
    [[rule]]
    name = "unknown"
    match = { plan = "none" }
    key = []
    limits = ["1/minute"]

    [[rule]]
    name = "free"
    match = { plan = "free" }
    key = ["customer"]
    limits = ["2/minute", { quota = "100/day", name = "daily" }]

    [[rule]]
    name = "pro"
    match = { plan = "pro" }
    key = ["customer"]
    limits = [{ quota = "5/minute", burst = 10 }]
"#;

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let limiter = Limiter::builder().policy(Policy::from_toml(RULES)?).build().await?;
    let limits = RateLimitLayer::new(limiter)
        .with("customer", from_request(|head| Some(account(head).0)))
        .with("plan", from_request(|head| Some(account(head).1)));
    let app = Router::new().route("/", get(async || "hello\n")).layer(limits);

    let port = std::env::var("PORT").map_or(Ok(3000), |port| port.parse())?;
    axum::serve(TcpListener::bind(("127.0.0.1", port)).await?, app).await?;
    Ok(())
}

/// Returns customer and plan, as a lookup in a database would.
fn account(head: Head<'_>) -> (&'static str, &'static str) {
    match head.headers.get("x-api-key").map(|key| key.as_bytes()) {
        Some(b"f-1") => ("Ada", "free"),
        Some(b"p-1") => ("Bob", "pro"),
        _ => ("anyone", "none"),
    }
}
