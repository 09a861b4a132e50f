//! A client that calls an API no faster than the API allows, together with all its other instances.
//!
//! Run `cargo run -p reqwest-middleware-example URL CALLS [RULES.toml] [redis://127.0.0.1:6379]` in the folder
//! `examples`.

use std::error::Error;
use std::time::Duration;

use reqwest::Client;
use reqwest_middleware::ClientBuilder;
use spillgate::tower::PaceLayer;
use spillgate::{Limiter, Policy};

mod paced;

use paced::Paced;

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let url = arguments.next().ok_or("usage: URL CALLS [RULES.toml] [REDIS]")?;
    let calls: u32 = arguments.next().ok_or("usage: URL CALLS [RULES.toml] [REDIS]")?.parse()?;
    let file = arguments.next().unwrap_or_else(|| "limits.toml".to_owned());
    let redis = arguments.next().unwrap_or_else(|| "redis://127.0.0.1:6379".to_owned());
    let policy = Policy::from_toml_named(&file, &std::fs::read_to_string(&file)?)?;
    let limiter = Limiter::builder().policy(policy).redis(redis).build().await?;

    let pace = PaceLayer::new(limiter).waiting_at_most(Duration::from_secs(10));
    let client = ClientBuilder::new(Client::new()).with(Paced(pace)).build();
    for call in 1..=calls {
        match client.get(&url).send().await {
            Ok(reply) => println!("call {call}: {}", reply.status().as_u16()),
            Err(error) => println!("call {call}: {error}"),
        }
    }
    Ok(())
}
