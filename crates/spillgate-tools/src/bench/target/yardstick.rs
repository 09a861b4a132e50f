//! What ours is held against: asked the same, at the same times, by the same clients.

use std::num::NonZeroU32;
use std::time::Duration;

use governor::{DefaultKeyedRateLimiter, Quota};
use redis::{Cmd, ErrorKind, Script, ServerErrorKind, cmd};
use spillgate::Limit;

use super::line::{self, Line};
use super::{Answer, interval_ns, key};

/// As `--against` takes them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Yardstick {
    /// The shortest correct token bucket, one script call for each check.
    Evalsha,
    /// INCR, one for each check: what a store answers at best.
    Redis,
    /// A well-known limiter of one process.
    Governor,
}

impl Yardstick {
    pub(crate) const NAMES: [(&str, Yardstick); 3] = [
        ("evalsha", Yardstick::Evalsha),
        ("redis", Yardstick::Redis),
        ("governor", Yardstick::Governor),
    ];

    pub(in crate::bench) fn name(self) -> &'static str {
        let named = Yardstick::NAMES.iter().find(|(_, yardstick)| *yardstick == self);
        named.map_or("", |(name, _)| name)
    }

    /// Whether it is asked of a Redis.
    pub(in crate::bench) fn is_remote(self) -> bool {
        self != Yardstick::Governor
    }
}

pub(in crate::bench) struct Evalsha {
    line: Line,
    sha: String,
    /// What a token takes, and what a full bucket does, in microseconds.
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

    /// Its counts have no end of their own.
    pub(super) async fn clean(&self, subjects: u64) {
        let mut unlink = Cmd::new();
        for subject in 0..subjects {
            if subject.is_multiple_of(UNLINKED_AT_ONCE) {
                unlink = cmd("UNLINK");
            }
            unlink.arg(own_key("count", subject));
            let whole = (subject + 1).is_multiple_of(UNLINKED_AT_ONCE) || subject + 1 == subjects;
            // A store that is gone has forgotten them.
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

/// Of the yardsticks alone: no key of the limiter begins so.
fn own_key(kind: &str, subject: u64) -> String {
    format!("spillgate-bench:{kind}:{}", key(subject))
}

const UNLINKED_AT_ONCE: u64 = 1_000;

/// One instant per key: when the bucket will be full again. ARGV: microseconds per token, and per burst.
/// Returns whether it is allowed, and the microseconds to wait or the tokens left.
const TOKEN_BUCKET: &str = "
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local full = math.max(now, tonumber(redis.call('GET', KEYS[1]) or 0)) + ARGV[1]
local wait = full - now - ARGV[2]
if wait > 0 then return {0, wait} end
redis.call('SET', KEYS[1], string.format('%.0f', full), 'PX', math.ceil((full - now) / 1000))
return {1, math.floor(-wait / ARGV[1])}
";
