//! Limits the callers of a gRPC service by their address, with a separate limit for one method.
//!
//! Run `cargo run --example tonic`, then call `grpc.health.v1.Health/Check` on localhost:50051.

use std::error::Error;

use spillgate::http::ByIp;
use spillgate::tower::{RateLimitLayer, from_path};
use spillgate::{Limiter, Policy};
use tonic::transport::Server;

const RULES: &str = r#"
    [[rule]]
    name = "calls"
    key = ["ip"]
    limits = ["100/second"]

    [[rule]]
    name = "health"
    match = { method = "/grpc.health.v1.Health/Check" }
    key = ["ip"]
    limits = ["3/minute"]
"#;

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let limiter = Limiter::builder().policy(Policy::from_toml(RULES)?).build().await?;
    let limits = RateLimitLayer::new(limiter).identify(ByIp::direct()).with("method", from_path());
    // Any service works here; this one comes ready-made.
    let (_reporter, health) = tonic_health::server::health_reporter();

    let port: u16 = std::env::var("PORT").map_or(Ok(50051), |port| port.parse())?;
    Server::builder()
        .layer(limits)
        .add_service(health)
        .serve(([127, 0, 0, 1], port).into())
        .await?;
    Ok(())
}
