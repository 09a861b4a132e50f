//! A pingora proxy whose requests are limited.
//!
//! Run `cargo run -p pingora-example UPSTREAM RULES.toml redis://127.0.0.1:6379 [TRUSTED_NETWORK...]` in the folder
//! `examples`. `UPSTREAM` is an address such as 127.0.0.1:8000. `PORT` sets another port than 3000.

use std::error::Error;

use pingora::prelude::{Server, http_proxy_service};
use spillgate::http::ByIp;
use spillgate::{Limiter, Policy};

mod proxy;

use proxy::Proxy;

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let upstream = arguments.next().ok_or("usage: UPSTREAM [RULES.toml] [REDIS] [NETWORK...]")?;
    let file = arguments.next().unwrap_or_else(|| "limits.toml".to_owned());
    let redis = arguments.next().unwrap_or_else(|| "redis://127.0.0.1:6379".to_owned());
    let policy = Policy::from_toml_named(&file, &std::fs::read_to_string(&file)?)?;
    // It holds the connections to Redis, so it must live as long as the proxy.
    let runtime = tokio::runtime::Runtime::new()?;
    let limiter = runtime.block_on(Limiter::builder().policy(policy).redis(redis).build())?;

    let proxy = Proxy { limiter, by_ip: ByIp::try_trusting(arguments)?, upstream };
    let mut server = Server::new(None)?;
    server.bootstrap();
    let mut service = http_proxy_service(&server.configuration, proxy);
    let port = std::env::var("PORT").unwrap_or_else(|_| "3000".to_owned());
    service.add_tcp(&format!("127.0.0.1:{port}"));
    server.add_service(service);
    server.run_forever()
}
