//! Connections to a server of Redis's protocol, opened again when they break.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Client, Cmd, FromRedisValue, RedisError};

use super::{Answer, Endpoint, without_password};
use crate::Failure;

/// Connections with the limiter's own settings, except for its deadlines.
pub(super) struct RedisConnections {
    client: Client,
    config: AsyncConnectionConfig,
    connections: Vec<Mutex<Option<MultiplexedConnection>>>,
    next: AtomicUsize,
    pub(super) endpoint: Endpoint,
}

impl RedisConnections {
    /// Prepares the connections; they are opened at their first use.
    pub(super) fn new(endpoint: Endpoint) -> Result<RedisConnections, Failure> {
        let secured = endpoint.url.starts_with("rediss://");
        if secured {
            return Err(
                "--against evalsha: the baseline has no TLS; compare on a redis:// address".into(),
            );
        }
        let url = endpoint.url.replacen("resp://", "redis://", 1);
        let client = Client::open(url)
            .map_err(|error| format!("{}: {error}", without_password(&endpoint.url)))?;
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(endpoint.patience))
            .set_response_timeout(Some(endpoint.patience))
            .set_pipeline_buffer_size(PIPELINE);
        let connections = (0..endpoint.connections).map(|_| Mutex::default()).collect();
        Ok(RedisConnections { client, config, connections, next: AtomicUsize::new(0), endpoint })
    }

    /// Sends a command on the next connection in turn.
    pub(super) async fn ask<T: FromRedisValue>(&self, command: &Cmd) -> Result<T, RedisError> {
        let next = self.next.fetch_add(1, Ordering::Relaxed) % self.connections.len();
        let open = || self.connections[next].lock().unwrap_or_else(PoisonError::into_inner);
        let known = open().clone();
        let mut connection = match known {
            Some(connection) => connection,
            None => {
                let config = self.config.clone();
                let opened = self.client.get_multiplexed_async_connection_with_config(&config);
                let opened = opened.await?;
                *open() = Some(opened.clone());
                opened
            }
        };
        let answer = command.query_async(&mut connection).await;
        if answer.as_ref().is_err_and(|error: &RedisError| error.is_unrecoverable_error()) {
            *open() = None;
        }
        answer
    }
}

/// Returns the reason of an error in few words, without addresses, so that equal failures are counted together.
pub(super) fn failed(error: &RedisError) -> Answer {
    if error.is_timeout() {
        return Answer::TimedOut;
    }
    let why = match (error.code(), error.detail()) {
        _ if error.is_connection_refusal() => "cannot connect".to_owned(),
        _ if error.is_io_error() => "the connection broke".to_owned(),
        (Some(code), Some(detail)) => format!("{code} {detail}"),
        _ => error.to_string(),
    };
    Answer::Failed(why)
}

/// As many commands as the limiter's own connections hold.
const PIPELINE: usize = 1_024;
