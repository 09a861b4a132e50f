//! Calls an API that allows two calls per second, from a client configured for four. The layer waits for room
//! before each call and learns from the API's replies, so no call is denied twice in a row.
//!
//! Run `cargo run --example client_of_an_api`.

use std::error::Error;

use axum::{Router, body::Body, routing::get};
use http::Request;
use hyper_util::client::legacy::Client;
use hyper_util::rt::TokioExecutor;
use spillgate::tower::{PaceLayer, RateLimitLayer};
use spillgate::{Limiter, Policy};
use tokio::net::TcpListener;
use tower::{Service, ServiceBuilder};

#[tokio::main]
#[expect(clippy::print_stdout, reason = "the example prints its result")]
async fn main() -> Result<(), Box<dyn Error>> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?;
    let limits = RateLimitLayer::new(limiter("2/second").await?);
    let api = Router::new().route("/", get(async || "hello")).layer(limits);
    tokio::spawn(async move { axum::serve(listener, api).await });

    let http = Client::builder(TokioExecutor::new()).build_http();
    let pace = PaceLayer::new(limiter("4/second").await?);
    let mut client = ServiceBuilder::new().layer(pace).service(http);
    for call in 1..=8 {
        let request = Request::get(format!("http://{address}/")).body(Body::empty())?;
        let answer = client.call(request).await?;
        println!("call {call}: {}", answer.status());
    }
    Ok(())
}

/// One limit for all calls.
async fn limiter(quota: &str) -> Result<Limiter, Box<dyn Error>> {
    let rule = format!("[[rule]]\nname = \"calls\"\nkey = []\nlimits = [{quota:?}]");
    Ok(Limiter::builder().policy(Policy::from_toml(&rule)?).build().await?)
}
