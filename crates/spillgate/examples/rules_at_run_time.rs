//! Changes rules while the service runs: during a sale every client may order more.
//!
//! Run `cargo run --example rules_at_run_time`, then `curl -i -X POST localhost:3000/orders` until it is
//! denied, `curl -X PUT localhost:3000/sale`, and order again. Usage from before the change still counts.

use std::error::Error;
use std::net::SocketAddr;

use axum::Router;
use axum::routing::{post, put};
use spillgate::http::ByIp;
use spillgate::tower::RateLimitLayer;
use spillgate::{Limiter, Policy, PolicyError};
use tokio::net::TcpListener;

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let limiter = Limiter::builder().policy(orders(3)?).build().await?;
    let limits = RateLimitLayer::new(limiter.clone()).identify(ByIp::direct());
    let sale = move || {
        let limiter = limiter.clone();
        async move {
            match orders(5) {
                Ok(policy) => limiter.set_policy(policy),
                Err(error) => return format!("the rules did not change: {error}\n"),
            }
            "the sale has begun\n".to_owned()
        }
    };

    let app = Router::new()
        .route("/orders", post(async || "ordered\n"))
        .layer(limits)
        .route("/sale", put(sale));
    let port = std::env::var("PORT").map_or(Ok(3000), |port| port.parse())?;
    let listener = TcpListener::bind(("127.0.0.1", port)).await?;
    axum::serve(listener, app.into_make_service_with_connect_info::<SocketAddr>()).await?;
    Ok(())
}

/// This many orders per minute for each client.
fn orders(per_minute: u32) -> Result<Policy, PolicyError> {
    Policy::from_toml(&format!(
        "[[rule]]\nname = \"orders\"\nkey = [\"ip\"]\nlimits = [\"{per_minute}/minute\"]"
    ))
}
