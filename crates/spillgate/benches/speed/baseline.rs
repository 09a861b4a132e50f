//! The baselines on Redis: the shortest correct token bucket, and a plain SET, through the same client crate
//! with the same settings.

use std::time::Duration;

use redis::aio::{ConnectionLike, MultiplexedConnection};
use redis::{AsyncConnectionConfig, Client, RedisError, cmd};
use spillgate::Limit;
use spillgate_testkit::RedisServer;

/// Has a connection of its own, with the script loaded.
#[derive(Clone)]
pub struct Baseline {
    connection: MultiplexedConnection,
    sha: String,
}

impl Baseline {
    pub async fn connect(server: &RedisServer) -> Result<Baseline, RedisError> {
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(Duration::from_secs(1)))
            .set_response_timeout(Some(Duration::from_secs(1)))
            .set_pipeline_buffer_size(1_024);
        let client = Client::open(server.url())?;
        let mut connection = client.get_multiplexed_async_connection_with_config(&config).await?;
        let sha = cmd("SCRIPT").arg("LOAD").arg(TOKEN_BUCKET).query_async(&mut connection).await?;
        Ok(Baseline { connection, sha })
    }

    /// Makes one check by the bare script with our numbers. Returns whether it was allowed.
    pub async fn check(&self, key: &str) -> bool {
        take(&mut self.connection.clone(), &self.sha, key).await
    }

    /// Sends one pipeline of plain SETs.
    pub async fn set(&self, keys: impl Iterator<Item = String>, ttl_ms: u64) {
        let mut pipeline = redis::pipe();
        for key in keys {
            pipeline.cmd("SET").arg(key).arg(1).arg("PX").arg(ttl_ms).ignore();
        }
        let mut connection = self.connection.clone();
        pipeline.exec_async(&mut connection).await.expect("the baseline's server replies");
    }
}

/// Runs the bare script over any connection that reaches the key's server.
pub async fn take(connection: &mut impl ConnectionLike, sha: &str, key: &str) -> bool {
    let mut command = cmd("EVALSHA");
    command.arg(sha).arg(1).arg(key).arg(INTERVAL_US).arg(BURST_US);
    let answer = command.query_async::<(i64, i64)>(connection).await;
    let (allowed, _) = answer.expect("the baseline's server replies");
    allowed == 1
}

/// Our limit with the numbers of the baseline.
pub fn limit() -> Limit {
    Limit::per_second(QUOTA.0).burst(QUOTA.1)
}

/// The quota that the baseline's constants encode.
pub const QUOTA: (u64, u64) = (100, 200);
const INTERVAL_US: u64 = 1_000_000 / QUOTA.0;
const BURST_US: u64 = INTERVAL_US * QUOTA.1;

/// One instant per key: when the bucket is full again. ARGV: µs per token, µs per burst. Returns: whether it
/// is allowed, and the µs to wait or the tokens left.
pub const TOKEN_BUCKET: &str = "
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local full = math.max(now, tonumber(redis.call('GET', KEYS[1]) or 0)) + ARGV[1]
local wait = full - now - ARGV[2]
if wait > 0 then return {0, wait} end
redis.call('SET', KEYS[1], string.format('%.0f', full), 'PX', math.ceil((full - now) / 1000))
return {1, math.floor(-wait / ARGV[1])}
";
