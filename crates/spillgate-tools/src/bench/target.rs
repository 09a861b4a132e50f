//! The targets of a bench: the limiter in this process, the HTTP API of a server, or a baseline. Each takes a subject
//! and returns an [`Answer`].

use std::fmt;
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Client, RedisError, Script};
use spillgate::{Algorithm, Limit, LimitSpec, Request};

use super::tally::Answer;
use super::{BenchArgs, OpenLimiter, subjects};
use crate::Failure;

mod http;

use http::Http;

/// A limiter or a baseline that is measured.
pub enum Target {
    Library(Box<Library>),
    Http(Box<Http>),
    Evalsha(Evalsha),
}

/// The limiter of this process.
pub struct Library {
    opened: OpenLimiter,
    checks: Checks,
}

/// The baseline: the same subjects, at the same times, by the shortest correct script.
pub struct Evalsha {
    connection: MultiplexedConnection,
    script: Script,
    /// Microseconds to refill one token, and to refill the whole bucket.
    interval_us: String,
    burst_us: String,
}

/// The checks that are made for each subject.
#[derive(Clone)]
pub enum Checks {
    InlineLimit(Limit),
    /// By rules that the target has already. `by` is the attribute that has the subject.
    ByRules {
        domain: String,
        by: String,
        with: Vec<(String, String)>,
    },
}

impl Checks {
    /// Returns the checks that the flags describe.
    pub fn new(args: &BenchArgs) -> Result<Checks, Failure> {
        if let Some(by) = args.by.clone() {
            let (domain, with) = (args.domain.clone(), args.with.clone());
            return Ok(Checks::ByRules { domain, by, with });
        }
        let mut spec = LimitSpec::new(&args.quota);
        if let Some(burst) = args.burst {
            spec = spec.burst(burst);
        }
        if let Some(algorithm) = &args.algorithm {
            spec = spec.algorithm(algorithm);
        }
        let limit = spec.build().map_err(|error| format!("--{}: {error}", error.field()))?;
        Ok(Checks::InlineLimit(limit))
    }
}

impl fmt::Display for Checks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Checks::InlineLimit(limit) => {
                write!(f, "{limit} per subject ({})", limit.algorithm().name())
            }
            Checks::ByRules { domain, by, with } => {
                write!(f, "by the rules of domain {domain}, subject {by}")?;
                with.iter().try_for_each(|(name, value)| write!(f, ", {name}={value}"))
            }
        }
    }
}

impl Target {
    /// Takes the limiter of this process over any store. A store that is down is an error: otherwise the bench would
    /// measure the local fallback.
    pub async fn library(opened: OpenLimiter, checks: Checks) -> Result<Target, Failure> {
        if let Checks::ByRules { by, .. } = &checks
            && opened.limiter.policy().rules().len() == 0
        {
            return Err(format!(
                "--by {by}: there are no rules to check by; name a file with rules with --config, or a server \
                 with --url"
            )
            .into());
        }
        if let Some((name, why)) = opened.limiter.probe(0).await.unreachable().next() {
            return Err(format!(
                "{name}: {why}; start it, or name another with --redis, or leave --redis out for memory"
            )
            .into());
        }
        Ok(Target::Library(Box::new(Library { opened, checks })))
    }

    /// Prepares calls to the HTTP API of a server.
    pub fn http(args: &BenchArgs) -> Result<Target, Failure> {
        Http::new(args).map(|http| Target::Http(Box::new(http)))
    }

    /// Connects the baseline for this limit to the Redis at a URL, which the limiter uses too.
    pub async fn evalsha(
        url: Option<&str>,
        limit: &Limit,
        patience: Duration,
    ) -> Result<Target, Failure> {
        let (Algorithm::TokenBucket, Some(capacity), Some(window)) =
            (limit.algorithm(), limit.capacity(), limit.window())
        else {
            return Err(
                "--against evalsha: it is a token bucket, so the limit must be one too; leave out --algorithm"
                    .into(),
            );
        };
        let url = url.ok_or("--against evalsha: name the one Redis that both use: --redis URL")?;
        let failed = |error: RedisError| format!("--against evalsha: {error}");
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(patience))
            .set_response_timeout(Some(patience))
            .set_pipeline_buffer_size(PIPELINE);
        let client = Client::open(url).map_err(failed)?;
        let connection = client.get_multiplexed_async_connection_with_config(&config).await;
        // An empty bucket is full again after the window.
        let interval_ns = (window.as_nanos() as u64 / capacity.max(1)).max(1);
        let us = |ns: u64| format!("{}.{:03}", ns / 1_000, ns % 1_000);
        Ok(Target::Evalsha(Evalsha {
            connection: connection.map_err(failed)?,
            script: Script::new(TOKEN_BUCKET),
            interval_us: us(interval_ns),
            burst_us: us(interval_ns.saturating_mul(capacity)),
        }))
    }

    pub async fn ask(&self, subject: u64) -> Answer {
        let name = subjects::name(subject);
        match self {
            Target::Library(library) => library.ask(&name).await,
            Target::Http(http) => http.ask(&name).await,
            Target::Evalsha(evalsha) => evalsha.ask(&name).await,
        }
    }

    /// The name in tables.
    pub fn name(&self) -> &'static str {
        match self {
            Target::Library(_) => "library",
            Target::Http(_) => "http",
            Target::Evalsha(_) => "evalsha",
        }
    }

    /// A description for people, with the place of the state.
    pub fn place(&self) -> String {
        match self {
            Target::Library(library) => {
                format!("the library in this process, state in {}", library.opened.store)
            }
            Target::Http(http) => http.url(),
            Target::Evalsha(_) => {
                "the shortest correct token bucket, one EVALSHA a call".to_owned()
            }
        }
    }

    /// Returns unspent lease tokens to the store.
    pub async fn close(&self) {
        if let Target::Library(library) = self {
            library.opened.limiter.close().await;
        }
    }
}

impl Library {
    async fn ask(&self, subject: &str) -> Answer {
        let request = match &self.checks {
            Checks::InlineLimit(limit) => Request::keyed(subject, limit),
            Checks::ByRules { domain, by, with } => {
                let request = Request::new().in_domain(domain).with(by, subject);
                with.iter().fold(request, |it, (name, value)| it.with(name, value.as_str()))
            }
        };
        let decision = self.opened.limiter.check(&request).await;
        match decision.allowed() {
            true => Answer::Allowed(decision.source().name()),
            false => Answer::Denied(decision.source().name()),
        }
    }
}

impl Evalsha {
    async fn ask(&self, subject: &str) -> Answer {
        let mut call = self.script.prepare_invoke();
        // No key of the limiter has this prefix.
        call.key(format!("spillgate-bench:bucket:{subject}"));
        call.arg(&self.interval_us).arg(&self.burst_us);
        match call.invoke_async::<(i64, i64)>(&mut self.connection.clone()).await {
            Ok((1, _)) => Answer::Allowed("script"),
            Ok(_) => Answer::Denied("script"),
            Err(error) if error.is_timeout() => Answer::TimedOut,
            Err(error) => Answer::Failed(error.to_string()),
        }
    }
}

/// As many commands as the limiter's own connections hold.
const PIPELINE: usize = 1_024;

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
