//! A rate limiter as articles build it: axum, and a token bucket in Redis by one EVALSHA for each request.

use std::process::ExitCode;
use std::sync::{Arc, Mutex};

use axum::extract::State;
use axum::routing::post;
use axum::{Json, Router};
use redis::aio::MultiplexedConnection;
use redis::{Client, RedisError, cmd};
use tokio::sync::Semaphore;

use crate::bare::TOKEN_BUCKET;
use crate::echo::{Answer, Check, answer};

/// What makes this program the limiter; the store's URL follows, and how many connections it has.
pub const FLAG: &str = "--articles";

/// A pool of this many is what articles tune their limiters to.
pub const POOL: &str = "50";

/// A single one is shared by all requests, whose commands then leave many at a time: what this client is fastest with.
pub const SHARED: &str = "1";

#[derive(Clone)]
struct Store {
    sha: String,
    connections: Connections,
}

#[derive(Clone)]
enum Connections {
    Shared(MultiplexedConnection),
    /// Each has one request at a time.
    Pool {
        idle: Arc<Mutex<Vec<MultiplexedConnection>>>,
        free: Arc<Semaphore>,
    },
}

/// Prints its port, and limits until it is killed.
pub fn serve(url: &str, connections: &str) -> ExitCode {
    let connections = connections.parse().expect("a number of connections");
    let runtime = tokio::runtime::Runtime::new().expect("the system gives a runtime");
    let served = runtime.block_on(async {
        let store = Store::connect(url, connections).await.map_err(std::io::Error::other)?;
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

/// A connection of the pool, which goes back also where its request is given up.
struct Lent<'p> {
    connection: Option<MultiplexedConnection>,
    idle: &'p Mutex<Vec<MultiplexedConnection>>,
}

impl Drop for Lent<'_> {
    fn drop(&mut self) {
        self.idle.lock().expect("unpoisoned").extend(self.connection.take());
    }
}

impl Store {
    async fn connect(url: &str, connections: usize) -> Result<Store, RedisError> {
        let client = Client::open(url)?;
        let mut first = client.get_multiplexed_async_connection().await?;
        let sha = cmd("SCRIPT").arg("LOAD").arg(TOKEN_BUCKET).query_async(&mut first).await?;
        if connections == 1 {
            return Ok(Store { sha, connections: Connections::Shared(first) });
        }
        let mut idle = vec![first];
        while idle.len() < connections {
            idle.push(client.get_multiplexed_async_connection().await?);
        }
        let (idle, free) = (Arc::new(Mutex::new(idle)), Arc::new(Semaphore::new(connections)));
        Ok(Store { sha, connections: Connections::Pool { idle, free } })
    }

    /// The tokens that are left.
    async fn take(&self, key: &str) -> Result<u64, RedisError> {
        match &self.connections {
            Connections::Shared(connection) => self.take_by(&mut connection.clone(), key).await,
            Connections::Pool { idle, free } => {
                let _seat = free.acquire().await.expect("nobody closes it");
                let connection = idle.lock().expect("unpoisoned").pop();
                let mut lent = Lent { connection, idle };
                let connection = lent.connection.as_mut().expect("one for each seat");
                self.take_by(connection, key).await
            }
        }
    }

    async fn take_by(
        &self,
        connection: &mut MultiplexedConnection,
        key: &str,
    ) -> Result<u64, RedisError> {
        let mut command = cmd("EVALSHA");
        command.arg(&self.sha).arg(1).arg(key).arg(INTERVAL_US).arg(BURST_US);
        let (allowed, left): (i64, i64) = command.query_async(connection).await?;
        assert_eq!(allowed, 1, "the burst is made to last");
        Ok(left.unsigned_abs())
    }
}

/// A million a second.
const INTERVAL_US: u64 = 1;
const BURST_US: u64 = 1_000_000;
