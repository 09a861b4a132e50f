//! `spillgate check`: checks one request at a server or a store, and prints the decision.
//!
//! Both send the same request to the HTTP API. With `--redis` its routes run in this process, without a server.

use std::process::ExitCode;

use axum::body::Body;
use hyper::Request;
use serde::{Serialize, Serializer};
use spillgate_server::http_routes;
use spillgate_tools::{Failure, say};
use tokio::runtime::Runtime;

use crate::cli::{CheckArgs, Cost};
use crate::client::{self, Server};

mod answer;

use answer::Answer;

pub(crate) fn run(args: &CheckArgs) -> Result<ExitCode, Failure> {
    let body = serde_json::to_vec(&CheckBody::from_args(args))?;
    let reply = Runtime::new()?.block_on(async {
        match &args.asked.redis {
            None => {
                let server = Server { url: &args.url, ca: args.ca.as_deref() };
                server.ask(args.token_file.as_deref(), Request::post(PATH), body).await
            }
            Some(store) => {
                let request = Request::post(PATH).body(Body::from(body))?;
                client::ask_store(store, args.asked.config.as_deref(), http_routes, request).await
            }
        }
    })?;
    let answer: Answer = client::read(&reply)?;
    match args.asked.json {
        true => say(&String::from_utf8_lossy(&reply))?,
        false => say(&answer)?,
    }
    Ok(answer.exit_code())
}

/// The body of a check.
#[derive(Serialize)]
struct CheckBody<'a> {
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

impl<'a> CheckBody<'a> {
    fn from_args(args: &'a CheckArgs) -> CheckBody<'a> {
        let (burst, algorithm) = (args.burst, args.algorithm.as_deref());
        CheckBody {
            domain: args.asked.domain.as_deref(),
            attributes: &args.asked.attributes,
            key: args.key.as_deref(),
            limit: args.quota.as_deref().map(|quota| Limit { quota, burst, algorithm }),
            cost: args.asked.cost.as_ref(),
        }
    }
}

/// Writes the attributes as an object. A repeated name stays repeated, so that the API reports it.
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

const PATH: &str = "/v1/check";
