//! Loads many rules from a file: `rules.toml` beside this one, or the file that you name.
//!
//! Run `cargo run --example rules_from_file [FILE]`, then `curl -i -X POST localhost:3000/login`.

use std::error::Error;
use std::net::SocketAddr;

use axum::{Router, routing::get, routing::post};
use spillgate::http::ByIp;
use spillgate::tower::{RateLimitLayer, from_header, from_matched_path, from_method};
use spillgate::{Cost, Limiter, Policy};
use tokio::net::TcpListener;

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let beside = concat!(env!("CARGO_MANIFEST_DIR"), "/examples/rules.toml");
    let file = std::env::args().nth(1).unwrap_or_else(|| beside.to_owned());
    // An error names the line of the problem and how to fix it.
    let policy = Policy::from_path(&file)?;
    let limiter = Limiter::builder().policy(policy).build().await?;
    let limits = RateLimitLayer::new(limiter)
        .identify(ByIp::direct())
        .with("route", from_matched_path())
        .with("method", from_method())
        .with("tenant", from_header("x-tenant"))
        .cost(|head| Cost::requests(if head.uri.path() == "/export" { 10 } else { 1 }))
        .skip(|head| head.uri.path() == "/health");

    let app = Router::new()
        .route("/", get(async || "welcome\n"))
        .route("/login", post(async || "logged in\n"))
        .route("/articles/{id}", get(async || "an article\n").put(async || "saved\n"))
        .route("/export", get(async || "everything\n"))
        .route("/health", get(async || "fine\n"))
        .layer(limits);
    let port = std::env::var("PORT").map_or(Ok(3000), |port| port.parse())?;
    let listener = TcpListener::bind(("127.0.0.1", port)).await?;
    axum::serve(listener, app.into_make_service_with_connect_info::<SocketAddr>()).await?;
    Ok(())
}
