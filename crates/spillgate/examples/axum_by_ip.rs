//! Limits the clients of an axum service by their address.
//!
//! Run `cargo run --example axum_by_ip`, then `curl -i localhost:3000` four times.

use std::error::Error;
use std::net::SocketAddr;

use axum::{Router, routing::get};
use spillgate::http::ByIp;
use spillgate::tower::RateLimitLayer;
use spillgate::{Limiter, Policy};
use tokio::net::TcpListener;

const RULES: &str = r#"
    [[rule]]
    name = "visitors"
    key = ["ip"]
    limits = ["3/minute"]
"#;

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let limiter = Limiter::builder().policy(Policy::from_toml(RULES)?).build().await?;
    // Behind a proxy use `ByIp::trusting(["10.0.0.0/8"])` with the networks of your proxies.
    let limits = RateLimitLayer::new(limiter).identify(ByIp::direct());
    let app = Router::new().route("/", get(async || "welcome\n")).layer(limits);

    let port = std::env::var("PORT").map_or(Ok(3000), |port| port.parse())?;
    let listener = TcpListener::bind(("127.0.0.1", port)).await?;
    axum::serve(listener, app.into_make_service_with_connect_info::<SocketAddr>()).await?;
    Ok(())
}
