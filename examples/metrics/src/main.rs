//! Exports the counts of a limiter through the facade `metrics`.
//!
//! Run `cargo run -p metrics-example RULES.toml redis://127.0.0.1:6379` in the folder `examples`. It checks a request
//! for each line of its input, which is a user's name. At the end it prints the metrics for Prometheus.

use std::error::Error;
use std::time::Duration;

use metrics_exporter_prometheus::PrometheusBuilder;
use spillgate::{Limiter, Policy, Request};
use tokio::io::{AsyncBufReadExt, BufReader, stdin};

mod publish;

use publish::publish;

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let exporter = PrometheusBuilder::new().install_recorder()?;
    let mut arguments = std::env::args().skip(1);
    let file = arguments.next().unwrap_or_else(|| "limits.toml".to_owned());
    let redis = arguments.next().unwrap_or_else(|| "redis://127.0.0.1:6379".to_owned());
    let policy = Policy::from_toml_named(&file, &std::fs::read_to_string(&file)?)?;
    let limiter = Limiter::builder().policy(policy).redis(redis).build().await?;

    let published = limiter.clone();
    tokio::spawn(async move {
        loop {
            publish(&published);
            tokio::time::sleep(Duration::from_secs(5)).await;
        }
    });

    let mut users = BufReader::new(stdin()).lines();
    while let Some(user) = users.next_line().await? {
        let decision = limiter.check(&Request::new().with("user", &user)).await;
        println!("# {user}: {}", decision.reason().map_or("allowed", |reason| reason.as_str()));
    }
    publish(&limiter);
    print!("{}", exporter.render());
    Ok(())
}
