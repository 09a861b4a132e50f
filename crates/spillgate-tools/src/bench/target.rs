//! The targets of a bench: the limiter in this process, an API of the service, or a baseline. Each takes a subject
//! and returns an [`Answer`].

use std::fmt;
use std::time::Duration;

use spillgate::{Algorithm, Limit, LimitSpec, Request};
use tokio::net::TcpStream;
use tokio::time::timeout;

use super::OpenLimiter;
use super::tally::Answer;
use crate::{Failure, counted};

mod baseline;
mod grpc;
mod http;
mod redis_connections;
mod resp;

pub(crate) use baseline::Baseline;
use baseline::Evalsha;
use grpc::Grpc;
use http::Http;
use redis_connections::RedisConnections;
use resp::Resp;

/// A limiter or a baseline that is measured.
pub(super) enum Target {
    Library(Box<Library>),
    Http(Http),
    Grpc(Grpc),
    Resp(Resp),
    Evalsha(Evalsha),
}

/// The checks that are made for each subject.
#[derive(Clone)]
pub(super) enum Checks {
    /// Against an inline limit.
    InlineLimit(InlineLimit),
    /// By rules that the target has already.
    ByRules(ByRules),
}

/// An inline limit, and the parameters that it was made of.
#[derive(Clone)]
pub(super) struct InlineLimit {
    pub(super) quota: String,
    pub(super) burst: Option<u64>,
    pub(super) algorithm: Option<String>,
    pub(super) limit: Limit,
}

/// A check by the rules of the target.
#[derive(Clone)]
pub(super) struct ByRules {
    pub(super) domain: String,
    /// The attribute that holds the subject.
    pub(super) by: String,
    pub(super) with: Vec<(String, String)>,
}

/// How a target is reached over a network.
#[derive(Clone)]
pub(super) struct Endpoint {
    pub(super) url: String,
    pub(super) connections: usize,
    pub(super) patience: Duration,
    pub(super) token: Option<String>,
}

impl Target {
    /// Returns the limiter of this process over any store. A store that is out of reach is an error: otherwise the
    /// bench would measure the local fallback.
    pub(super) async fn library(opened: OpenLimiter, checks: Checks) -> Result<Target, Failure> {
        if let Checks::ByRules(ByRules { by, .. }) = &checks
            && opened.limiter.policy().rules().len() == 0
        {
            return Err(format!(
                "--by {by}: there are no rules to check by; name a file with rules with --config, or a \
                 server with --url"
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

    /// Connects to an API of the service, by its URL.
    pub(super) async fn service(endpoint: Endpoint, checks: Checks) -> Result<Target, Failure> {
        let scheme = endpoint.url.split_once("://").map(|(scheme, _)| scheme);
        match scheme {
            Some("http") => Http::connect(endpoint, &checks).await.map(Target::Http),
            Some("grpc") => Grpc::connect(endpoint, checks).await.map(Target::Grpc),
            Some("resp") => Resp::connect(endpoint, checks).await.map(Target::Resp),
            Some("redis" | "rediss" | "unix") => Err(format!(
                "--url: {} is a store, and --url is for an API of `spillgate serve`; write --redis for the \
                 limiter over that store, or resp:// for the API for Redis clients",
                without_password(&endpoint.url)
            )
            .into()),
            _ => Err(format!(
                "--url: {} is no API of Spillgate; write http://127.0.0.1:8080, grpc://127.0.0.1:8081 or \
                 resp://127.0.0.1:6380, without TLS",
                without_password(&endpoint.url)
            )
            .into()),
        }
    }

    /// Opens the baseline for this limit; `redis` is the server that the limiter uses too.
    pub(super) fn evalsha(
        redis: Option<Endpoint>,
        inline: &InlineLimit,
    ) -> Result<Target, Failure> {
        let limit = &inline.limit;
        if limit.algorithm() != Algorithm::TokenBucket || limit.window().is_none() {
            return Err(
                "--against evalsha: it is a token bucket, so the limit must be one too; leave out --algorithm"
                    .into(),
            );
        }
        let redis =
            redis.ok_or("--against evalsha: name the one Redis that both use: --redis URL")?;
        Ok(Target::Evalsha(Evalsha::new(RedisConnections::new(redis)?, inline)))
    }

    pub(super) async fn ask(&self, subject: u64) -> Answer {
        match self {
            Target::Library(library) => library.ask(subject).await,
            Target::Http(http) => http.ask(subject).await,
            Target::Grpc(grpc) => grpc.ask(subject).await,
            Target::Resp(resp) => resp.ask(subject).await,
            Target::Evalsha(evalsha) => evalsha.ask(subject).await,
        }
    }

    /// The name in tables.
    pub(super) fn name(&self) -> &'static str {
        match self {
            Target::Library(_) => "library",
            Target::Http(_) => "http",
            Target::Grpc(_) => "grpc",
            Target::Resp(_) => "resp",
            Target::Evalsha(_) => "evalsha",
        }
    }

    /// A description for people, with the place of the state.
    pub(super) fn place(&self) -> String {
        match self {
            Target::Library(library) => match library.opened.store.as_str() {
                "memory" => "the library in this process, state in memory".to_owned(),
                store => format!("the library in this process, state in {store}"),
            },
            Target::Http(http) => http.endpoint.place(),
            Target::Grpc(grpc) => grpc.endpoint.place(),
            Target::Resp(resp) => resp.connections.endpoint.place(),
            Target::Evalsha(_) => {
                "the shortest correct token bucket, one EVALSHA a call".to_owned()
            }
        }
    }

    /// Returns unspent lease tokens to the store.
    pub(super) async fn close(&self) {
        if let Target::Library(library) = self {
            library.opened.limiter.end_leases().await;
        }
    }
}

/// The limiter of this process.
pub(super) struct Library {
    opened: OpenLimiter,
    checks: Checks,
}

impl Library {
    async fn ask(&self, subject: u64) -> Answer {
        let key = key(subject);
        let limiter = &self.opened.limiter;
        let decision = match &self.checks {
            Checks::InlineLimit(InlineLimit { limit, .. }) => {
                limiter.check(&Request::keyed(&key, limit)).await
            }
            Checks::ByRules(ByRules { domain, by, with }) => {
                let request = Request::new().in_domain(domain).with(by, &key);
                let request = with
                    .iter()
                    .fold(request, |request, (name, value)| request.with(name, value.as_str()));
                limiter.check(&request).await
            }
        };
        match decision.allowed() {
            true => Answer::Allowed(Some(decision.source())),
            false => Answer::Denied(Some(decision.source())),
        }
    }
}

impl Endpoint {
    /// A description for people.
    fn place(&self) -> String {
        format!("{}, {}", without_password(&self.url), counted(self.connections, "connection"))
    }
}

impl fmt::Display for Checks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Checks::InlineLimit(InlineLimit { limit, .. }) => {
                write!(f, "{limit} per subject ({})", limit.algorithm().name())
            }
            Checks::ByRules(ByRules { domain, by, with }) => {
                write!(f, "by the rules of domain {domain}, subject {by}")?;
                with.iter().try_for_each(|(name, value)| write!(f, ", {name}={value}"))
            }
        }
    }
}

impl InlineLimit {
    pub(super) fn new(
        quota: &str,
        burst: Option<u64>,
        algorithm: Option<&str>,
    ) -> Result<InlineLimit, Failure> {
        let mut spec = LimitSpec::new(quota);
        if let Some(burst) = burst {
            spec = spec.burst(burst);
        }
        if let Some(algorithm) = algorithm {
            spec = spec.algorithm(algorithm);
        }
        let limit = spec.build().map_err(|error| format!("--{}: {error}", error.field()))?;
        let (quota, algorithm) = (quota.to_owned(), algorithm.map(str::to_owned));
        Ok(InlineLimit { quota, burst, algorithm, limit })
    }

    /// Returns the nanoseconds that a bucket takes to refill one token.
    fn interval_ns(&self) -> Option<u64> {
        let capacity = self.limit.capacity()?.max(1);
        u64::try_from(self.limit.window()?.as_nanos() / u128::from(capacity)).ok()
    }
}

/// Returns the name of a subject, the same for every target.
fn key(subject: u64) -> String {
    format!("user-{subject}")
}

/// Returns the source of a decision by its name.
fn source(word: &str) -> Option<spillgate::Source> {
    super::tally::SOURCES.into_iter().find(|source| source.name() == word)
}

/// Returns a URL without its password.
fn without_password(url: &str) -> String {
    match (url.split_once("://"), url.rsplit_once('@')) {
        (Some((scheme, _)), Some((_, host))) => format!("{scheme}://{host}"),
        _ => url.to_owned(),
    }
}

/// Returns the host and the port of `scheme://host:port`.
fn host_and_port(url: &str) -> Result<(String, u16), Failure> {
    let place = url.split_once("://").map_or(url, |(_, place)| place).trim_end_matches('/');
    let found = place.rsplit_once(':').and_then(|(host, port)| {
        let host = host.trim_matches(['[', ']']);
        let port = port.parse().ok()?;
        (!host.is_empty() && !host.contains(['/', '@'])).then(|| (host.to_owned(), port))
    });
    found.ok_or_else(|| {
        format!(
            "--url: {} names no host and port; write for example http://127.0.0.1:8080",
            without_password(url)
        )
        .into()
    })
}

/// Opens a TCP connection within `patience`.
async fn connect(host: &str, port: u16, patience: Duration) -> Result<TcpStream, String> {
    let stream = timeout(patience, TcpStream::connect((host, port))).await;
    let stream = stream.map_err(|_| format!("no connection within {patience:?}"))?;
    let stream = stream.map_err(|error| error.to_string())?;
    stream.set_nodelay(true).map_err(|error| error.to_string())?;
    Ok(stream)
}

/// The answer of an API that requires a token, with its remedy.
fn no_token() -> Answer {
    Answer::Failed("no token or a wrong one; name its file with --token-file".to_owned())
}

/// Returns the error of an API that is out of reach, with its remedy.
fn unreachable(url: &str, why: &dyn std::fmt::Display) -> Failure {
    let url = without_password(url);
    format!("{url}: {why}; start it with `spillgate serve`, or name another with --url").into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_names_a_host_and_a_port() {
        let of = |url| host_and_port(url).ok();
        assert_eq!(of("http://localhost:8080/"), Some(("localhost".to_owned(), 8080)));
        assert_eq!(of("grpc://[::1]:81"), Some(("::1".to_owned(), 81)));
        for url in ["http://localhost", "http://:80", "http://a/b:80", "http://u:p@h:80", "x:99999"]
        {
            assert_eq!(of(url), None, "{url}");
        }
        assert_eq!(without_password("resp://:secret@host:1"), "resp://host:1");
    }

    #[test]
    fn an_interval_is_the_refill_time_of_one_token() {
        let of = |quota, burst| InlineLimit::new(quota, burst, None).unwrap().interval_ns();
        assert_eq!(of("100/second", None), Some(10_000_000));
        assert_eq!(of("3/second", Some(300)), Some(333_333_333));
        assert_eq!(of("unlimited", None), None);
    }
}
