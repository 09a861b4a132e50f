//! `POST /v1/check` over HTTP/1.1: one check at a time on each connection.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::error::Error;

use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Bytes;
use hyper::header::{AUTHORIZATION, HeaderValue};
use hyper::{Request, StatusCode, Uri};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use serde::Deserialize;
use serde_json::{Value, json};
use spillgate::Source;

use super::{Answer, BenchArgs};
use crate::{Failure, token};

pub struct Http {
    client: Client<HttpConnector, Full<Bytes>>,
    url: Uri,
    token: Option<HeaderValue>,
    /// A request body with [`SUBJECT`] in place of the subject.
    body: String,
}

/// The fields of the answer that are counted.
#[derive(Deserialize)]
struct CheckAnswer<'a> {
    allowed: bool,
    #[serde(borrow)]
    source: Cow<'a, str>,
}

impl Http {
    pub fn new(args: &BenchArgs) -> Result<Http, Failure> {
        let url = args.url.as_deref().unwrap_or_default();
        let url: Option<Uri> = format!("{}/v1/check", url.trim_end_matches('/')).parse().ok();
        // The report shows the URL, so it may have no password.
        let url = url.filter(|url| {
            url.scheme_str() == Some("http")
                && url.authority().is_some_and(|it| !it.as_str().contains('@'))
        });
        let url = url.ok_or(NOT_HTTP)?;
        let token = token(args.token_file.as_deref())?.map(HeaderValue::try_from).transpose()?;
        let mut connector = HttpConnector::new();
        connector.set_nodelay(true);
        connector.set_connect_timeout(Some(args.timeout));
        let client = Client::builder(TokioExecutor::new())
            .pool_max_idle_per_host(args.callers as usize)
            .build(connector);
        Ok(Http { client, url, token, body: body(args).to_string() })
    }

    pub fn url(&self) -> String {
        self.url.to_string()
    }

    pub async fn ask(&self, subject: &str) -> Answer {
        let body = self.body.replacen(SUBJECT, subject, 1);
        let mut request = Request::new(Full::new(Bytes::from(body)));
        *request.method_mut() = hyper::Method::POST;
        *request.uri_mut() = self.url.clone();
        if let Some(token) = &self.token {
            request.headers_mut().insert(AUTHORIZATION, token.clone());
        }
        let response = match self.client.request(request).await {
            Ok(response) => response,
            Err(error) if error.is_connect() => return Answer::Failed(cause(&error)),
            Err(_) => return failed("the connection broke"),
        };
        let status = response.status();
        let Ok(reply) = Limited::new(response.into_body(), REPLY_MAX).collect().await else {
            return failed("the answer broke off");
        };
        let reply = reply.to_bytes();
        if status == StatusCode::UNAUTHORIZED {
            return failed("no token or a wrong one; name its file with --token-file");
        }
        if !status.is_success() {
            let problem: Value = serde_json::from_slice(&reply).unwrap_or_default();
            let detail = problem["detail"].as_str().unwrap_or("no answer of Spillgate");
            return Answer::Failed(format!("{}: {detail}", status.as_u16()));
        }
        let answer: Option<CheckAnswer<'_>> = serde_json::from_slice(&reply).ok();
        let known = answer.and_then(|it| Some((it.allowed, source(&it.source)?)));
        match known {
            Some((true, source)) => Answer::Allowed(source),
            Some((false, source)) => Answer::Denied(source),
            None => failed("not an answer of Spillgate"),
        }
    }
}

/// Returns the innermost cause of an error, which has no address in it, so that equal failures are counted together.
fn cause(error: &dyn Error) -> String {
    let mut cause = error;
    while let Some(inner) = cause.source() {
        cause = inner;
    }
    format!("{cause}; start a server with `spillgate serve`, or name another with --url")
}

fn failed(why: &str) -> Answer {
    Answer::Failed(why.to_owned())
}

/// Returns the source of a decision by its name.
fn source(name: &str) -> Option<&'static str> {
    let known =
        [Source::Store, Source::Lease, Source::DenialCache, Source::Fallback, Source::OutagePolicy];
    known.map(Source::name).into_iter().find(|known| *known == name)
}

fn body(args: &BenchArgs) -> Value {
    let BenchArgs { quota, burst, algorithm, domain, with, .. } = args;
    let Some(by) = &args.by else {
        let limit = json!({ "quota": quota, "burst": burst, "algorithm": algorithm });
        return json!({ "key": SUBJECT, "limit": limit });
    };
    let subject = (by.clone(), SUBJECT.to_owned());
    let attributes: BTreeMap<_, _> = with.iter().cloned().chain([subject]).collect();
    json!({ "domain": domain, "attributes": attributes })
}

const NOT_HTTP: &str = "--url: write the HTTP API of a server, such as http://127.0.0.1:8080, without TLS or a \
                        password; for a store write --redis, and load gRPC and RESP with k6 and redis-benchmark";
/// Stands where the subject goes. No flag contains it by accident.
const SUBJECT: &str = "@the subject@";
/// A decision has at most 64 limits, far less than this.
const REPLY_MAX: usize = 1024 * 1024;

#[cfg(test)]
mod tests {
    use clap::{Args, FromArgMatches};

    use super::*;

    fn http(url: &str, flags: &[&str]) -> Result<Http, Failure> {
        let command = BenchArgs::augment_args(clap::Command::new("bench"));
        let matches = command.get_matches_from([&["bench", "--url", url], flags].concat());
        Http::new(&BenchArgs::from_arg_matches(&matches).unwrap())
    }

    #[test]
    fn a_body_holds_the_subject_where_it_belongs() {
        let whole = |flags: &[&str]| {
            let body = http("http://a", flags).unwrap().body.replacen(SUBJECT, "240.0.0.7", 1);
            serde_json::from_str::<Value>(&body).unwrap()
        };
        assert_eq!(
            whole(&["--quota", "5/minute", "--burst", "9"]),
            json!({ "key": "240.0.0.7", "limit": { "quota": "5/minute", "burst": 9, "algorithm": null } })
        );
        assert_eq!(
            whole(&["--by", "ip", "--with", "route=/a\"b", "--domain", "web"]),
            json!({ "domain": "web", "attributes": { "ip": "240.0.0.7", "route": "/a\"b" } })
        );
    }

    #[test]
    fn only_a_plain_http_address_without_a_password_is_taken() {
        let url = |url| http(url, &[]).map(|http| http.url());
        assert_eq!(url("http://[::1]:80/").unwrap(), "http://[::1]:80/v1/check");
        for other in ["https://a", "grpc://a:1", "redis://a", "a", "", "http://u:hush@a"] {
            let error = url(other).unwrap_err().to_string();
            assert!(error.contains("--redis") && !error.contains("hush"), "{other}: {error}");
        }
    }
}
