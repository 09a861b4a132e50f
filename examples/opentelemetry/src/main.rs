//! Exports the counts of a limiter through an OpenTelemetry meter, by OTLP.
//!
//! Run `cargo run -p opentelemetry-example RULES.toml redis://127.0.0.1:6379` in the folder `examples`. It checks a
//! request for each line of its input, which is a user's name. `OTEL_EXPORTER_OTLP_ENDPOINT` names the collector.

use std::error::Error;

use opentelemetry::metrics::MeterProvider;
use opentelemetry_otlp::{MetricExporter, Protocol, WithExportConfig};
use opentelemetry_sdk::metrics::SdkMeterProvider;
use spillgate::{Limiter, Policy, Request};
use tokio::io::{AsyncBufReadExt, BufReader, stdin};

mod observe;

use observe::observe;

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let file = arguments.next().unwrap_or_else(|| "limits.toml".to_owned());
    let redis = arguments.next().unwrap_or_else(|| "redis://127.0.0.1:6379".to_owned());
    let policy = Policy::from_toml_named(&file, &std::fs::read_to_string(&file)?)?;
    let limiter = Limiter::builder().policy(policy).redis(redis).build().await?;

    let exporter =
        MetricExporter::builder().with_http().with_protocol(Protocol::HttpJson).build()?;
    let meters = SdkMeterProvider::builder().with_periodic_exporter(exporter).build();
    observe(&limiter, &meters.meter("spillgate"));

    let mut users = BufReader::new(stdin()).lines();
    while let Some(user) = users.next_line().await? {
        let decision = limiter.check(&Request::new().with("user", &user)).await;
        println!("{user}: {}", decision.reason().map_or("allowed", |reason| reason.as_str()));
    }
    // It sends what is left.
    tokio::task::spawn_blocking(move || meters.shutdown()).await??;
    Ok(())
}
