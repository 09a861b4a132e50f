//! Baselines that a limiter is compared with: the same subjects, at the same times, by the same clients.

use std::num::NonZeroU32;
use std::time::Duration;

use governor::{DefaultKeyedRateLimiter, Quota};
use redis::{Cmd, ErrorKind, Script, ServerErrorKind, cmd};
use spillgate::Limit;

use super::line::{self, Line};
use super::{Answer, interval_ns, key};

/// The baselines of `--against`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Baseline {
    /// The shortest correct token bucket, one script call for each check.
    Evalsha,
    /// INCR, one for each check: the best that a store can answer.
    Redis,
    /// A well-known limiter of one process.
    Governor,
}

impl Baseline {
    pub(crate) const NAMES: [(&str, Baseline); 3] = [
        ("evalsha", Baseline::Evalsha),
        ("redis", Baseline::Redis),
        ("governor", Baseline::Governor),
    ];

    pub(in crate::bench) fn name(self) -> &'static str {
        let named = Baseline::NAMES.iter().find(|(_, baseline)| *baseline == self);
        named.map_or("", |(name, _)| name)
    }

    /// Returns whether it runs on a Redis.
    pub(in crate::bench) fn is_remote(self) -> bool {
        self != Baseline::Governor
    }
}

pub(in crate::bench) struct Evalsha {
    line: Line,
    sha: String,
    /// Microseconds to refill one token, and to refill the whole bucket.
    interval_us: String,
    burst_us: String,
}

impl Evalsha {
    pub(super) fn open(line: Line, limit: &Limit) -> Evalsha {
        let interval_ns = interval_ns(limit).unwrap_or(1_000).max(1);
        let us = |ns: u64| format!("{}.{:03}", ns / 1_000, ns % 1_000);
        let burst_ns = interval_ns.saturating_mul(limit.capacity().unwrap_or(1));
        let sha = Script::new(TOKEN_BUCKET).get_hash().to_owned();
        Evalsha { line, sha, interval_us: us(interval_ns), burst_us: us(burst_ns) }
    }

    pub(super) async fn ask(&self, subject: u64) -> Answer {
        let call = |command: &str, script: &str| {
            let mut command = cmd(command);
            command.arg(script).arg(1).arg(own_key("bucket", subject));
            command.arg(&self.interval_us).arg(&self.burst_us);
            command
        };
        let mut answer = self.line.ask::<(i64, i64)>(&call("EVALSHA", &self.sha)).await;
        if answer
            .as_ref()
            .is_err_and(|error| error.kind() == ErrorKind::Server(ServerErrorKind::NoScript))
        {
            answer = self.line.ask(&call("EVAL", TOKEN_BUCKET)).await;
        }
        match answer {
            Ok((1, _)) => Answer::Allowed(None),
            Ok(_) => Answer::Denied(None),
            Err(error) => line::failed(&error),
        }
    }
}

pub(in crate::bench) struct Incr {
    line: Line,
}

impl Incr {
    pub(super) fn open(line: Line) -> Incr {
        Incr { line }
    }

    pub(super) async fn ask(&self, subject: u64) -> Answer {
        let mut command = cmd("INCR");
        command.arg(own_key("count", subject));
        match self.line.ask::<i64>(&command).await {
            Ok(_) => Answer::Allowed(None),
            Err(error) => line::failed(&error),
        }
    }

    /// Deletes the counts, since INCR sets no expiry.
    pub(super) async fn clean(&self, subjects: u64) {
        let mut unlink = Cmd::new();
        for subject in 0..subjects {
            if subject.is_multiple_of(UNLINKED_AT_ONCE) {
                unlink = cmd("UNLINK");
            }
            unlink.arg(own_key("count", subject));
            let whole = (subject + 1).is_multiple_of(UNLINKED_AT_ONCE) || subject + 1 == subjects;
            // A store that is gone has lost them.
            if whole && self.line.ask::<i64>(&unlink).await.is_err() {
                return;
            }
        }
    }
}

pub(in crate::bench) struct Governor(DefaultKeyedRateLimiter<String>);

impl Governor {
    pub(super) fn new(limit: &Limit) -> Governor {
        let interval = Duration::from_nanos(interval_ns(limit).unwrap_or(1).max(1));
        let burst = limit.capacity().and_then(|it| NonZeroU32::new(it.min(u32::MAX.into()) as u32));
        let quota = Quota::with_period(interval).expect("no interval is 0");
        Governor(DefaultKeyedRateLimiter::keyed(
            quota.allow_burst(burst.unwrap_or(NonZeroU32::MIN)),
        ))
    }

    pub(super) fn ask(&self, subject: u64) -> Answer {
        match self.0.check_key(&key(subject)) {
            Ok(()) => Answer::Allowed(None),
            Err(_) => Answer::Denied(None),
        }
    }
}

/// Returns a key with the prefix of baselines, which no key of the limiter has.
fn own_key(kind: &str, subject: u64) -> String {
    format!("spillgate-bench:{kind}:{}", key(subject))
}

const UNLINKED_AT_ONCE: u64 = 1_000;

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
