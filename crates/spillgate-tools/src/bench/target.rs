//! What is asked: the limiter in this process, a door, or a yardstick. Each takes a subject and gives an
//! [`Answer`].

use std::fmt;
use std::time::Duration;

use spillgate::{Algorithm, Limit, LimitSpec, Request};
use tokio::net::TcpStream;
use tokio::time::timeout;

use super::OpenLimiter;
use super::tally::Answer;
use crate::Failure;

mod grpc;
mod http;
mod line;
mod resp;
mod yardstick;

use grpc::Grpc;
use http::Http;
use line::Line;
use resp::Resp;
pub(crate) use yardstick::Yardstick;
use yardstick::{Evalsha, Governor, Incr};

/// Whoever is asked.
pub(super) enum Target {
    Library(Box<Library>),
    Http(Http),
    Grpc(Grpc),
    Resp(Resp),
    Evalsha(Evalsha),
    Incr(Incr),
    Governor(Governor),
}

/// What is asked of each subject.
#[derive(Clone)]
pub(super) enum Question {
    /// A limit that comes with the question.
    AdHoc(AdHoc),
    ByRules(ByRules),
}

/// A limit, and the words for it.
#[derive(Clone)]
pub(super) struct AdHoc {
    pub(super) quota: String,
    pub(super) burst: Option<u64>,
    pub(super) algorithm: Option<String>,
    pub(super) limit: Limit,
}

/// Rules that whoever is asked has already.
#[derive(Clone)]
pub(super) struct ByRules {
    pub(super) domain: String,
    /// Which attribute is the subject.
    pub(super) by: String,
    pub(super) with: Vec<(String, String)>,
}

/// How whoever is asked over a network is reached.
#[derive(Clone)]
pub(super) struct Way {
    pub(super) url: String,
    pub(super) connections: usize,
    pub(super) patience: Duration,
    pub(super) token: Option<String>,
}

impl Target {
    /// The limiter of this process, over any store. One that is out of reach is told at once: what
    /// decides without it is not what was to be measured.
    pub(super) async fn library(
        opened: OpenLimiter,
        question: Question,
    ) -> Result<Target, Failure> {
        if let Some((name, why)) = opened.limiter.probe(0).await.unreachable().next() {
            return Err(format!(
                "{name}: {why}; start it, or name another with --redis, or leave --redis out for memory"
            )
            .into());
        }
        Ok(Target::Library(Box::new(Library { opened, question })))
    }

    /// A door, by its URL.
    pub(super) async fn door(way: Way, question: Question) -> Result<Target, Failure> {
        let scheme = way.url.split_once("://").map(|(scheme, _)| scheme);
        match scheme {
            Some("http") => Http::connect(way, &question).await.map(Target::Http),
            Some("grpc") => Grpc::connect(way, question).await.map(Target::Grpc),
            Some("resp") => Resp::connect(way, question).await.map(Target::Resp),
            Some("redis" | "rediss" | "unix") => Err(format!(
                "--url: {} is a store, and --url is for doors of `spillgate serve`; write --redis for the \
                 limiter over that store, or resp:// for the door for Redis clients",
                without_password(&way.url)
            )
            .into()),
            _ => Err(format!(
                "--url: {} is no door; write http://127.0.0.1:8080, grpc://127.0.0.1:8081 or \
                 resp://127.0.0.1:6380, without TLS",
                without_password(&way.url)
            )
            .into()),
        }
    }

    pub(super) async fn yardstick(
        yardstick: Yardstick,
        redis: Option<Way>,
        limit: &Limit,
    ) -> Result<Target, Failure> {
        let bucket = limit.algorithm() == Algorithm::TokenBucket && limit.window().is_some();
        if yardstick != Yardstick::Redis && !bucket {
            let name = yardstick.name();
            return Err(format!(
                "--against {name}: it is a token bucket, and so must be the limit; leave --algorithm out"
            )
            .into());
        }
        let redis = redis.map(Line::new).transpose()?.ok_or_else(|| {
            format!("--against {}: name the one Redis that both ask: --redis URL", yardstick.name())
        });
        Ok(match yardstick {
            Yardstick::Evalsha => Target::Evalsha(Evalsha::open(redis?, limit)),
            Yardstick::Redis => Target::Incr(Incr::open(redis?)),
            Yardstick::Governor => Target::Governor(Governor::new(limit)),
        })
    }

    pub(super) async fn ask(&self, subject: u64) -> Answer {
        match self {
            Target::Library(library) => library.ask(subject).await,
            Target::Http(http) => http.ask(subject).await,
            Target::Grpc(grpc) => grpc.ask(subject).await,
            Target::Resp(resp) => resp.ask(subject).await,
            Target::Evalsha(evalsha) => evalsha.ask(subject).await,
            Target::Incr(incr) => incr.ask(subject).await,
            Target::Governor(governor) => governor.ask(subject),
        }
    }

    /// For tables.
    pub(super) fn name(&self) -> &'static str {
        match self {
            Target::Library(_) => "library",
            Target::Http(_) => "http",
            Target::Grpc(_) => "grpc",
            Target::Resp(_) => "resp",
            Target::Evalsha(_) => Yardstick::Evalsha.name(),
            Target::Incr(_) => Yardstick::Redis.name(),
            Target::Governor(_) => Yardstick::Governor.name(),
        }
    }

    /// Where it is.
    pub(super) fn place(&self) -> String {
        match self {
            Target::Library(library) => match library.opened.store.as_str() {
                "memory" => "the library in this process, state in memory".to_owned(),
                store => format!("the library in this process, state in {store}"),
            },
            Target::Http(http) => http.place(),
            Target::Grpc(grpc) => grpc.place(),
            Target::Resp(resp) => resp.place(),
            Target::Evalsha(_) => {
                "the shortest correct token bucket, one EVALSHA a call".to_owned()
            }
            Target::Incr(_) => "one INCR a call, which limits nothing".to_owned(),
            Target::Governor(_) => "governor's keyed limiter in this process".to_owned(),
        }
    }

    /// Gives back what it holds, and takes away what would stay in a store for ever.
    pub(super) async fn close(&self, subjects: u64) {
        match self {
            Target::Library(library) => library.opened.limiter.end_leases().await,
            Target::Incr(incr) => incr.clean(subjects).await,
            _ => {}
        }
    }
}

/// The limiter of this process.
pub(super) struct Library {
    opened: OpenLimiter,
    question: Question,
}

impl Library {
    async fn ask(&self, subject: u64) -> Answer {
        let key = key(subject);
        let limiter = &self.opened.limiter;
        let decision = match &self.question {
            Question::AdHoc(AdHoc { limit, .. }) => limiter.check_limit(&key, limit, 1).await,
            Question::ByRules(ByRules { domain, by, with }) => {
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

impl Question {
    pub(super) fn limit(&self) -> Option<&Limit> {
        match self {
            Question::AdHoc(ad_hoc) => Some(&ad_hoc.limit),
            Question::ByRules(_) => None,
        }
    }
}

impl fmt::Display for Question {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Question::AdHoc(AdHoc { limit, .. }) => {
                write!(f, "{limit} each ({})", limit.algorithm().name())
            }
            Question::ByRules(ByRules { domain, by, with }) => {
                write!(f, "by the rules of {domain}, {by} the subject")?;
                with.iter().try_for_each(|(name, value)| write!(f, ", {name}={value}"))
            }
        }
    }
}

impl AdHoc {
    pub(super) fn new(
        quota: &str,
        burst: Option<u64>,
        algorithm: Option<&str>,
    ) -> Result<AdHoc, Failure> {
        let mut spec = LimitSpec::new(quota);
        if let Some(burst) = burst {
            spec = spec.burst(burst);
        }
        if let Some(algorithm) = algorithm {
            spec = spec.algorithm(algorithm);
        }
        let limit = spec.build().map_err(|error| format!("--{}: {error}", error.field()))?;
        let (quota, algorithm) = (quota.to_owned(), algorithm.map(str::to_owned));
        Ok(AdHoc { quota, burst, algorithm, limit })
    }

    /// How long a bucket takes for a token, in thousandths of a microsecond.
    fn interval_ns(&self) -> Option<u64> {
        interval_ns(&self.limit)
    }
}

fn interval_ns(limit: &Limit) -> Option<u64> {
    let ns = limit.window()?.as_nanos() / u128::from(limit.capacity()?.max(1));
    u64::try_from(ns).ok()
}

/// Who a subject is, to everybody who is asked.
fn key(subject: u64) -> String {
    format!("user-{subject}")
}

/// The source of a decision, by its word.
fn source(word: &str) -> Option<spillgate::Source> {
    super::tally::SOURCES.into_iter().find(|source| source.name() == word)
}

/// What may be shown of an address.
fn without_password(url: &str) -> String {
    match (url.split_once("://"), url.rsplit_once('@')) {
        (Some((scheme, _)), Some((_, host))) => format!("{scheme}://{host}"),
        _ => url.to_owned(),
    }
}

/// The host and the port of `scheme://host:port`.
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

/// A connection to a door, if it comes in time.
async fn connect(host: &str, port: u16, patience: Duration) -> Result<TcpStream, String> {
    let stream = timeout(patience, TcpStream::connect((host, port))).await;
    let stream = stream.map_err(|_| format!("no connection within {patience:?}"))?;
    let stream = stream.map_err(|error| error.to_string())?;
    stream.set_nodelay(true).map_err(|error| error.to_string())?;
    Ok(stream)
}

/// What to do about a door that is not there.
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
    fn an_interval_is_what_a_bucket_takes_for_a_token() {
        let of = |quota, burst| AdHoc::new(quota, burst, None).unwrap().interval_ns();
        assert_eq!(of("100/second", None), Some(10_000_000));
        assert_eq!(of("3/second", Some(300)), Some(333_333_333));
        assert_eq!(of("unlimited", None), None);
    }
}
