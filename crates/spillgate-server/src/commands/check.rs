//! `spillgate check`: asks once, of a server or of a store, and tells the verdict.
//!
//! Both ways ask the HTTP door's own question and read its answer; without a server the door is
//! asked in this process.

use std::process::ExitCode;
use std::time::Duration;

use axum::body::Body;
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Bytes;
use hyper::client::conn::http1;
use hyper::header::HOST;
use hyper::service::Service;
use hyper::{Request, StatusCode, Uri};
use hyper_util::rt::TokioIo;
use hyper_util::service::TowerToHyperService;
use serde::{Serialize, Serializer};
use tokio::net::TcpStream;
use tokio::runtime::Runtime;
use tokio::time::timeout;

use super::{Failure, say};
use crate::app::App;
use crate::cli::{CheckArgs, Cost};
use crate::config::{Config, Flags};
use crate::door::http;

mod answer;

use answer::Answer;

pub(super) fn run(args: &CheckArgs) -> Result<ExitCode, Failure> {
    let body = serde_json::to_vec(&Question::of(args))?;
    let reply = Runtime::new()?.block_on(async {
        match &args.redis {
            None => ask_server(&args.url, body).await,
            Some(store) => ask_store(args, store, body).await,
        }
    })?;
    let answer = Answer::read(&reply)?;
    match args.json {
        true => say(&String::from_utf8_lossy(&reply))?,
        false => say(&answer)?,
    }
    Ok(answer.exit_code())
}

/// The body of a check.
#[derive(Serialize)]
struct Question<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    domain: Option<&'a str>,
    #[serde(skip_serializing_if = "<[_]>::is_empty", serialize_with = "as_object")]
    attributes: &'a [(String, String)],
    #[serde(skip_serializing_if = "Option::is_none")]
    key: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    limit: Option<Limit<'a>>,
    #[serde(skip_serializing_if = "Option::is_none", serialize_with = "as_cost")]
    cost: Option<&'a Cost>,
}

#[derive(Serialize)]
struct Limit<'a> {
    quota: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    burst: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    algorithm: Option<&'a str>,
}

impl<'a> Question<'a> {
    fn of(args: &'a CheckArgs) -> Question<'a> {
        let (burst, algorithm) = (args.burst, args.algorithm.as_deref());
        Question {
            domain: args.domain.as_deref(),
            attributes: &args.attributes,
            key: args.key.as_deref(),
            limit: args.quota.as_deref().map(|quota| Limit { quota, burst, algorithm }),
            cost: args.cost.as_ref(),
        }
    }
}

/// A name given twice stays twice: the door says so.
fn as_object<S: Serializer>(
    attributes: &&[(String, String)],
    serializer: S,
) -> Result<S::Ok, S::Error> {
    serializer.collect_map(attributes.iter().map(|(name, value)| (name, value)))
}

fn as_cost<S: Serializer>(cost: &Option<&Cost>, serializer: S) -> Result<S::Ok, S::Error> {
    match cost {
        None => serializer.serialize_none(),
        Some(Cost::Requests(amount)) => serializer.serialize_u64(*amount),
        Some(Cost::ByUnit(amounts)) => {
            serializer.collect_map(amounts.iter().map(|(unit, amount)| (unit, amount)))
        }
    }
}

async fn ask_store(args: &CheckArgs, store: &str, body: Vec<u8>) -> Result<Bytes, Failure> {
    let flags = Flags { redis: Some(store), ..Flags::default() };
    let config = Config::load(args.config.as_deref(), flags)?;
    let app = App::open(&config.settings.store, config.policy).await?;
    let request = Request::post(PATH).body(Body::from(body))?;
    let response = TowerToHyperService::new(http::routes(app)).call(request).await?;
    let status = response.status();
    verdict_or_problem(status, response.into_body().collect().await?.to_bytes())
}

async fn ask_server(url: &str, body: Vec<u8>) -> Result<Bytes, Failure> {
    let asked = timeout(TIMEOUT, post(url, body)).await;
    let (status, reply) = asked
        .map_err(|_| format!("{url} did not answer within {} s", TIMEOUT.as_secs()))?
        .map_err(|error| format!("{url}: {error}"))?;
    verdict_or_problem(status, reply)
}

async fn post(url: &str, body: Vec<u8>) -> Result<(StatusCode, Bytes), Failure> {
    let url: Uri = url.parse()?;
    let (Some("http"), Some(authority)) = (url.scheme_str(), url.authority()) else {
        return Err("no address of a server; write for example http://127.0.0.1:8080".into());
    };
    let host = authority.host().trim_matches(['[', ']']);
    let stream =
        TcpStream::connect((host, authority.port_u16().unwrap_or(80))).await.map_err(|error| {
            format!("{error}; start one with `spillgate serve`, or name another with --url")
        })?;
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
    tokio::spawn(connection);
    let path = format!("{}{PATH}", url.path().trim_end_matches('/'));
    let request =
        Request::post(path).header(HOST, authority.as_str()).body(Full::new(Bytes::from(body)))?;
    let response = sender.send_request(request).await?;
    let status = response.status();
    let reply = Limited::new(response.into_body(), REPLY_MAX).collect().await;
    Ok((status, reply.map_err(|error| error.to_string())?.to_bytes()))
}

fn verdict_or_problem(status: StatusCode, reply: Bytes) -> Result<Bytes, Failure> {
    if status == StatusCode::OK {
        return Ok(reply);
    }
    let problem: serde_json::Value = serde_json::from_slice(&reply).unwrap_or_default();
    match problem["detail"].as_str() {
        Some(detail) => Err(detail.into()),
        None => {
            Err(format!("the server answered {status}, and that is no answer of Spillgate's")
                .into())
        }
    }
}

const PATH: &str = "/v1/check";

/// A server decides in milliseconds; one that takes this long will not.
const TIMEOUT: Duration = Duration::from_secs(10);

/// A decision has 64 tiers at most, so no answer comes near.
const REPLY_MAX: usize = 1024 * 1024;
