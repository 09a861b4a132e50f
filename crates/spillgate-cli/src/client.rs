//! Sends one request to a server, or to the routes of a listener in this process, and returns its answer.

use std::path::Path;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Bytes;
use hyper::client::conn::http1;
use hyper::header::{AUTHORIZATION, HOST};
use hyper::http::request::Builder;
use hyper::service::Service;
use hyper::{Request, StatusCode, Uri};
use hyper_util::rt::TokioIo;
use hyper_util::service::TowerToHyperService;
use spillgate_tools::{Failure, token};
use tokio::net::TcpStream;
use tokio::time::timeout;

/// Sends a request to the server at `url`. The path of the request is appended to that of the URL.
pub(crate) async fn ask(url: &str, request: Builder, body: Vec<u8>) -> Result<Bytes, Failure> {
    let sent = timeout(TIMEOUT, send(url, request, body)).await;
    let (status, reply) = sent
        .map_err(|_| format!("{url} did not answer within {} s", TIMEOUT.as_secs()))?
        .map_err(|error| format!("{url}: {error}"))?;
    answer_or_problem(status, reply)
}

/// Sends a request to routes of this process.
pub(crate) async fn ask_in_process(
    routes: Router,
    request: Request<Body>,
) -> Result<Bytes, Failure> {
    let response = TowerToHyperService::new(routes).call(request).await?;
    let status = response.status();
    answer_or_problem(status, response.into_body().collect().await?.to_bytes())
}

/// Adds the token of a file to a request, if a file is named.
pub(crate) fn with_token(request: Builder, file: Option<&Path>) -> Result<Builder, Failure> {
    Ok(match token(file)? {
        Some(token) => request.header(AUTHORIZATION, token),
        None => request,
    })
}

async fn send(url: &str, request: Builder, body: Vec<u8>) -> Result<(StatusCode, Bytes), Failure> {
    let url: Uri = url.parse()?;
    let (Some("http"), Some(authority)) = (url.scheme_str(), url.authority()) else {
        return Err("no address of a server; write one such as http://127.0.0.1:8080".into());
    };
    let host = authority.host().trim_matches(['[', ']']);
    let stream =
        TcpStream::connect((host, authority.port_u16().unwrap_or(80))).await.map_err(|error| {
            format!("{error}; start a server with `spillgate serve`, or name another with --url")
        })?;
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
    tokio::spawn(connection);
    let mut request =
        request.header(HOST, authority.as_str()).body(Full::new(Bytes::from(body)))?;
    let path = format!("{}{}", url.path().trim_end_matches('/'), request.uri());
    *request.uri_mut() = path.parse()?;
    let response = sender.send_request(request).await?;
    let status = response.status();
    let reply = Limited::new(response.into_body(), REPLY_MAX).collect().await;
    Ok((status, reply.map_err(|error| error.to_string())?.to_bytes()))
}

fn answer_or_problem(status: StatusCode, reply: Bytes) -> Result<Bytes, Failure> {
    if status == StatusCode::OK {
        return Ok(reply);
    }
    let problem: serde_json::Value = serde_json::from_slice(&reply).unwrap_or_default();
    match problem["detail"].as_str() {
        Some(detail) => Err(detail.into()),
        None => {
            Err(format!("the server answered {status}, and not as Spillgate does; check the URL")
                .into())
        }
    }
}

/// The longest wait for an answer. A server decides in milliseconds.
const TIMEOUT: Duration = Duration::from_secs(10);

/// The most bytes of an answer, far above those of a decision with 64 limits and of the longest list of subjects.
const REPLY_MAX: usize = 4 * 1024 * 1024;
