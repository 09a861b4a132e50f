//! The baseline that a limiter is compared with: the same subjects, at the same times, by the same clients.

use clap::ValueEnum;
use redis::{ErrorKind, Script, ServerErrorKind, cmd};

use super::redis_connections::{self, RedisConnections};
use super::{Answer, InlineLimit, key};

/// The baselines of `--against`.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum Baseline {
    /// The shortest correct token bucket, one script call for each check.
    Evalsha,
}

pub(in crate::bench) struct Evalsha {
    connections: RedisConnections,
    sha: String,
    /// Microseconds to refill one token, and to refill the whole bucket.
    interval_us: String,
    burst_us: String,
}

impl Evalsha {
    pub(super) fn new(connections: RedisConnections, inline: &InlineLimit) -> Evalsha {
        let interval_ns = inline.interval_ns().unwrap_or(1_000).max(1);
        let us = |ns: u64| format!("{}.{:03}", ns / 1_000, ns % 1_000);
        let burst_ns = interval_ns.saturating_mul(inline.limit.capacity().unwrap_or(1));
        let sha = Script::new(TOKEN_BUCKET).get_hash().to_owned();
        Evalsha { connections, sha, interval_us: us(interval_ns), burst_us: us(burst_ns) }
    }

    pub(super) async fn ask(&self, subject: u64) -> Answer {
        let call = |command: &str, script: &str| {
            let mut command = cmd(command);
            // No key of the limiter has this prefix.
            command.arg(script).arg(1).arg(format!("spillgate-bench:bucket:{}", key(subject)));
            command.arg(&self.interval_us).arg(&self.burst_us);
            command
        };
        let mut answer = self.connections.ask::<(i64, i64)>(&call("EVALSHA", &self.sha)).await;
        if answer
            .as_ref()
            .is_err_and(|error| error.kind() == ErrorKind::Server(ServerErrorKind::NoScript))
        {
            answer = self.connections.ask(&call("EVAL", TOKEN_BUCKET)).await;
        }
        match answer {
            Ok((1, _)) => Answer::Allowed(None),
            Ok(_) => Answer::Denied(None),
            Err(error) => redis_connections::failed(&error),
        }
    }
}

/// One instant per key: when the bucket will be full again. ARGV: microseconds per token, and per burst. Returns 1 if
/// allowed, else 0; then the tokens left, or the microseconds to wait.
const TOKEN_BUCKET: &str = "
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local full = math.max(now, tonumber(redis.call('GET', KEYS[1]) or 0)) + ARGV[1]
local wait = full - now - ARGV[2]
if wait > 0 then return {0, wait} end
redis.call('SET', KEYS[1], string.format('%.0f', full), 'PX', math.ceil((full - now) / 1000))
return {1, math.floor(-wait / ARGV[1])}
";
