//! The service of docs/learn/rust-service.md: one route, limited on Redis by the rules of a file, with
//! metrics.
//!
//! Run `cargo run --example quick_start limits.toml redis://127.0.0.1:6379`, then `curl -i localhost:3000`.

use std::error::Error;
use std::net::SocketAddr;

use axum::{Router, routing::get};
use spillgate::http::ByIp;
use spillgate::tower::{RateLimitLayer, from_matched_path};
use spillgate::{Limiter, Policy};
use tokio::net::TcpListener;

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let file = arguments.next().unwrap_or_else(|| "limits.toml".to_owned());
    let redis = arguments.next().unwrap_or_else(|| "redis://127.0.0.1:6379".to_owned());
    let policy = Policy::from_path(&file)?;
    let limiter = Limiter::builder().policy(policy).redis(redis).build().await?;

    let metrics = limiter.clone();
    let limits =
        RateLimitLayer::new(limiter).identify(ByIp::direct()).with("route", from_matched_path());
    let app = Router::new()
        .route("/", get(async || "welcome\n"))
        .layer(limits)
        .route("/metrics", get(async move || metrics.metrics_text()));
    let port = std::env::var("PORT").map_or(Ok(3000), |port| port.parse())?;
    let listener = TcpListener::bind(("127.0.0.1", port)).await?;
    axum::serve(listener, app.into_make_service_with_connect_info::<SocketAddr>()).await?;
    Ok(())
}
