//! `POST /v1/check` over HTTP/1.1: one check at a time on each connection.

use std::sync::{Mutex, PoisonError};

use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Bytes;
use hyper::client::conn::http1::{self, SendRequest};
use hyper::header::{AUTHORIZATION, HOST};
use hyper::{Request, StatusCode};
use hyper_util::rt::TokioIo;
use serde::Deserialize;
use serde_json::json;
use tokio::sync::Semaphore;

use super::{Answer, Checks, Endpoint, connect, host_and_port, key, no_token, source, unreachable};
use crate::Failure;

pub(in crate::bench) struct Http {
    pub(super) endpoint: Endpoint,
    host: String,
    port: u16,
    /// A request body without the subject, which goes in between.
    body: (String, String),
    free: Semaphore,
    idle: Mutex<Vec<SendRequest<Full<Bytes>>>>,
}

/// The fields of the answer that are counted.
#[derive(Deserialize)]
struct CheckAnswer<'a> {
    allowed: bool,
    #[serde(borrow)]
    source: std::borrow::Cow<'a, str>,
}

impl Http {
    pub(super) async fn connect(endpoint: Endpoint, checks: &Checks) -> Result<Http, Failure> {
        let (host, port) = host_and_port(&endpoint.url)?;
        let free = Semaphore::new(endpoint.connections);
        let http = Http { body: body(checks), host, port, free, idle: Mutex::default(), endpoint };
        for _ in 0..http.endpoint.connections {
            let connection =
                http.open().await.map_err(|why| unreachable(&http.endpoint.url, &why))?;
            http.put_back(connection);
        }
        Ok(http)
    }

    pub(super) async fn ask(&self, subject: u64) -> Answer {
        let Ok(_free) = self.free.acquire().await else { return failed("no connection") };
        let idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner).pop();
        if let Some(mut connection) = idle {
            // The last caller may have read its whole answer before the connection notices that it ended.
            if connection.ready().await.is_ok() {
                return self.ask_on(connection, subject).await;
            }
        }
        match self.open().await {
            Ok(connection) => self.ask_on(connection, subject).await,
            Err(_) => failed("cannot connect"),
        }
    }

    async fn ask_on(&self, mut connection: SendRequest<Full<Bytes>>, subject: u64) -> Answer {
        let body = format!("{}{}{}", self.body.0, key(subject), self.body.1);
        let request = Request::post("/v1/check").header(HOST, &self.host);
        let request = match &self.endpoint.token {
            Some(token) => request.header(AUTHORIZATION, token),
            None => request,
        };
        let Ok(request) = request.body(Full::new(Bytes::from(body))) else {
            return failed("the host does not fit into a header field");
        };
        let Ok(response) = connection.send_request(request).await else {
            return failed("the connection broke");
        };
        let status = response.status();
        let Ok(reply) = Limited::new(response.into_body(), REPLY_MAX).collect().await else {
            return failed("the answer broke off");
        };
        self.put_back(connection);
        let reply = reply.to_bytes();
        if status == StatusCode::UNAUTHORIZED {
            return no_token();
        }
        if !status.is_success() {
            return Answer::Failed(problem(status.as_u16(), &reply));
        }
        match serde_json::from_slice::<CheckAnswer<'_>>(&reply) {
            Ok(answer) if answer.allowed => Answer::Allowed(source(&answer.source)),
            Ok(answer) => Answer::Denied(source(&answer.source)),
            Err(_) => failed("not an answer of Spillgate"),
        }
    }

    fn put_back(&self, connection: SendRequest<Full<Bytes>>) {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner).push(connection);
    }

    async fn open(&self) -> Result<SendRequest<Full<Bytes>>, String> {
        let stream = connect(&self.host, self.port, self.endpoint.patience).await?;
        let shaken = http1::handshake(TokioIo::new(stream)).await;
        let (sender, connection) = shaken.map_err(|error| error.to_string())?;
        tokio::spawn(connection);
        Ok(sender)
    }
}

fn failed(why: &str) -> Answer {
    Answer::Failed(why.to_owned())
}

/// Returns the status, and the detail of a problem document.
fn problem(status: u16, reply: &[u8]) -> String {
    let problem: serde_json::Value = serde_json::from_slice(reply).unwrap_or_default();
    match problem["detail"].as_str() {
        Some(detail) => format!("{status}: {detail}"),
        None => format!("{status}"),
    }
}

fn body(checks: &Checks) -> (String, String) {
    let body = match checks {
        Checks::InlineLimit(inline) => {
            let mut limit = json!({ "quota": inline.quota });
            if let Some(burst) = inline.burst {
                limit["burst"] = burst.into();
            }
            if let Some(algorithm) = &inline.algorithm {
                limit["algorithm"] = algorithm.as_str().into();
            }
            json!({ "key": SUBJECT, "limit": limit })
        }
        Checks::ByRules(rules) => {
            let mut attributes = serde_json::Map::new();
            for (name, value) in &rules.with {
                attributes.insert(name.clone(), value.as_str().into());
            }
            attributes.insert(rules.by.clone(), SUBJECT.into());
            json!({ "domain": rules.domain, "attributes": attributes })
        }
    };
    let body = body.to_string();
    let (before, after) = body.split_once(SUBJECT).unwrap_or((&body, ""));
    (before.to_owned(), after.to_owned())
}

/// Stands where the subject goes. No flag contains it by accident.
const SUBJECT: &str = "@the subject@";
/// A decision has at most 64 limits, far less than this.
const REPLY_MAX: usize = 1024 * 1024;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::target::{ByRules, InlineLimit};

    #[test]
    fn a_body_holds_the_subject_where_it_belongs() {
        let whole = |checks: &Checks| {
            let (before, after) = body(checks);
            serde_json::from_str::<serde_json::Value>(&format!("{before}user-7{after}")).unwrap()
        };
        let inline = InlineLimit::new("5/minute", Some(9), None).unwrap();
        assert_eq!(
            whole(&Checks::InlineLimit(inline)),
            json!({ "key": "user-7", "limit": { "quota": "5/minute", "burst": 9 } })
        );
        let with = vec![("route".to_owned(), "/a\"b".to_owned())];
        let rules = ByRules { domain: "web".into(), by: "ip".into(), with };
        assert_eq!(
            whole(&Checks::ByRules(rules)),
            json!({ "domain": "web", "attributes": { "ip": "user-7", "route": "/a\"b" } })
        );
    }
}
