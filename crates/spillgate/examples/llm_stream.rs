//! Serves streams of tokens, limited by requests, tokens and concurrent streams. The tokens that a stream
//! used are settled when it ends, or when its client disconnects.

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use axum::{Router, body::Body, response::Response, routing::get};
use futures_util::stream;
use spillgate::reservation::Usage;
use spillgate::tower::{RateLimitLayer, from_header};
use spillgate::{Cost, Limiter, Policy};

const POLICY: &str = r#"
    [[rule]]
    name = "model"
    key = ["customer"]
    limits = [
        "60/minute",
        { quota = "100000/minute", unit = "tokens" },
        { quota = "8", algorithm = "concurrency", max_hold = "5m" },
    ]
"#;
/// Counts the tokens produced, for the layer to read.
#[derive(Clone, Default)]
struct Produced(Arc<AtomicU64>);

async fn generate() -> Response {
    let produced = Produced::default();
    let counted = produced.clone();
    let words = stream::unfold(0, move |word| {
        let counted = counted.clone();
        async move {
            (word < 500).then(|| {
                counted.0.fetch_add(1, Ordering::Relaxed);
                (Ok::<_, Infallible>(format!("word {word} ")), word + 1)
            })
        }
    });
    let mut response = Response::new(Body::from_stream(words));
    response.extensions_mut().insert(produced);
    response
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let limiter = Limiter::builder().policy(Policy::from_toml(POLICY)?).build().await?;
    let layer = RateLimitLayer::new(limiter)
        .with("customer", from_header("x-api-key"))
        .cost(|_head| Cost::requests(1).and("tokens", 4_000))
        .settle(Duration::from_secs(600), |served| {
            let produced = served.head().and_then(|head| head.extensions.get::<Produced>());
            Usage::of_unit("tokens", produced.map_or(0, |tokens| tokens.0.load(Ordering::Relaxed)))
        });
    let port = std::env::var("PORT").unwrap_or("3000".into());
    let listener = tokio::net::TcpListener::bind(format!("127.0.0.1:{port}")).await?;
    Ok(axum::serve(listener, Router::new().route("/", get(generate)).layer(layer)).await?)
}
