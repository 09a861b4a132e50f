//! An actix-web service whose requests are limited.
//!
//! Run `cargo run -p actix-web-example RULES.toml redis://127.0.0.1:6379 [TRUSTED_NETWORK...]` in the folder
//! `examples`. `PORT` sets another port than 3000.

use std::error::Error;

use actix_web::middleware::from_fn;
use actix_web::{App, HttpServer, web};
use spillgate::http::ByIp;
use spillgate::{Limiter, Policy};

mod limits;
mod permits;

use limits::{Limits, limit};

#[actix_web::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let file = arguments.next().unwrap_or_else(|| "limits.toml".to_owned());
    let redis = arguments.next().unwrap_or_else(|| "redis://127.0.0.1:6379".to_owned());
    let policy = Policy::from_toml_named(&file, &std::fs::read_to_string(&file)?)?;
    let limiter = Limiter::builder().policy(policy).redis(redis).build().await?;
    let limits = web::Data::new(Limits { limiter, by_ip: ByIp::try_trusting(arguments)? });

    let port = std::env::var("PORT").map_or(Ok(3000), |port| port.parse())?;
    let server = HttpServer::new(move || {
        App::new()
            .app_data(limits.clone())
            .wrap(from_fn(limit))
            .route("/users/{id}", web::get().to(async || "a user"))
            .default_service(web::to(async || "ok"))
    });
    Ok(server.bind(("127.0.0.1", port))?.run().await?)
}
