//! A rate limiter as articles build it: axum, and a token bucket in Redis by one EVALSHA for each request.

use std::process::ExitCode;

use axum::extract::State;
use axum::routing::post;
use axum::{Json, Router};
use redis::aio::MultiplexedConnection;
use redis::{Client, RedisError, cmd};

use crate::bare::TOKEN_BUCKET;
use crate::echo::{Answer, Check, answer};

/// What makes this program the limiter; the store's URL follows.
pub const FLAG: &str = "--articles";

/// One connection that all requests share, which is what this client is fastest with.
#[derive(Clone)]
struct Store {
    connection: MultiplexedConnection,
    sha: String,
}

/// Prints its port, and limits until it is killed.
pub fn serve(url: &str) -> ExitCode {
    let runtime = tokio::runtime::Runtime::new().expect("the system gives a runtime");
    let served = runtime.block_on(async {
        let store = Store::connect(url).await.map_err(std::io::Error::other)?;
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
        println!("{}", listener.local_addr()?.port());
        let routes = Router::new().route("/v1/check", post(check)).with_state(store);
        axum::serve(listener, routes).await
    });
    if served.is_ok() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

async fn check(State(store): State<Store>, Json(check): Json<Check>) -> Json<Answer> {
    let left = store.take(&check.key).await.expect("the store answers");
    Json(answer(check.limit.quota, left))
}

impl Store {
    async fn connect(url: &str) -> Result<Store, RedisError> {
        let mut connection = Client::open(url)?.get_multiplexed_async_connection().await?;
        let sha = cmd("SCRIPT").arg("LOAD").arg(TOKEN_BUCKET).query_async(&mut connection).await?;
        Ok(Store { connection, sha })
    }

    /// The tokens that are left.
    async fn take(&self, key: &str) -> Result<u64, RedisError> {
        let mut command = cmd("EVALSHA");
        command.arg(&self.sha).arg(1).arg(key).arg(INTERVAL_US).arg(BURST_US);
        let (allowed, left): (i64, i64) = command.query_async(&mut self.connection.clone()).await?;
        assert_eq!(allowed, 1, "the burst is made to last");
        Ok(left.unsigned_abs())
    }
}

/// A million a second.
const INTERVAL_US: u64 = 1;
const BURST_US: u64 = 1_000_000;
