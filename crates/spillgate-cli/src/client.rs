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
use serde::Deserialize;
use serde::de::DeserializeOwned;
use spillgate_server::config::{Config, Flags};
use spillgate_server::{App, complain};
use spillgate_tools::{Failure, token};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::cli::AdminApi;

mod tls;

/// A listener of a server.
#[derive(Clone, Copy)]
pub(crate) struct Server<'s> {
    /// The paths of requests are appended to that of the URL.
    pub(crate) url: &'s str,
    /// The file of the authority that signed the server's certificate; `None` for those of the machine.
    pub(crate) ca: Option<&'s Path>,
}

impl Server<'_> {
    /// Sends a request to the HTTP API, with the token of a file if one is named.
    pub(crate) async fn ask(
        self,
        token_file: Option<&Path>,
        request: Builder,
        body: Vec<u8>,
    ) -> Result<Bytes, Failure> {
        self.ask_with(token(token_file)?, request, body, NO_DATA_TOKEN).await
    }

    async fn ask_with(
        self,
        token: Option<String>,
        request: Builder,
        body: Vec<u8>,
        unauthorized: &str,
    ) -> Result<Bytes, Failure> {
        let request = match token {
            Some(token) => request.header(AUTHORIZATION, token),
            None => request,
        };
        let sent = timeout(TIMEOUT, self.send(request, body)).await;
        let url = if self.url.is_empty() { "--url" } else { self.url };
        let answer =
            sent.map_err(|_| format!("{url} did not answer within {} s", TIMEOUT.as_secs()))?;
        match answer.map_err(|error| format!("{url}: {error}"))? {
            (StatusCode::UNAUTHORIZED, _) => Err(unauthorized.into()),
            (status, reply) => answer_or_problem(status, reply),
        }
    }

    async fn send(self, request: Builder, body: Vec<u8>) -> Result<(StatusCode, Bytes), Failure> {
        let url: Uri = self.url.parse().map_err(|_| NO_ADDRESS)?;
        let (is_tls, authority) = match (url.scheme_str(), url.authority()) {
            (Some("http"), Some(authority)) => (false, authority),
            (Some("https"), Some(authority)) => (true, authority),
            _ => return Err(NO_ADDRESS.into()),
        };
        if self.ca.is_some() && !is_tls {
            return Err("--ca is for a URL that begins with https://".into());
        }
        let mut request =
            request.header(HOST, authority.as_str()).body(Full::new(Bytes::from(body)))?;
        let path = format!("{}{}", url.path().trim_end_matches('/'), request.uri());
        *request.uri_mut() = path.parse()?;

        let host = authority.host().trim_matches(['[', ']']);
        let port = authority.port_u16().unwrap_or(if is_tls { 443 } else { 80 });
        let stream = TcpStream::connect((host, port)).await.map_err(|error| {
            format!("{error}; start a server with `spillgate serve`, or name another with --url")
        })?;
        match is_tls {
            false => exchange(stream, request).await,
            true => exchange(tls::shake_hands(stream, host, self.ca).await?, request).await,
        }
    }
}

/// Sends a request over a new connection, and returns status and body of the answer.
async fn exchange(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    request: Request<Full<Bytes>>,
) -> Result<(StatusCode, Bytes), Failure> {
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
    tokio::spawn(connection);
    let response = sender.send_request(request).await.map_err(|error| {
        match error.is_parse() || error.is_incomplete_message() || error.is_canceled() {
            true => Failure::from(format!("no HTTP answer ({error}); {WRONG_LISTENER}")),
            false => error.into(),
        }
    })?;
    let status = response.status();
    let reply = Limited::new(response.into_body(), REPLY_MAX).collect().await;
    Ok((status, reply.map_err(|error| error.to_string())?.to_bytes()))
}

/// Sends a request to an admin API, with the token of a file if one is named, else with that of the environment if it
/// has one.
pub(crate) async fn ask_admin_api(
    api: &AdminApi,
    request: Builder,
    body: Vec<u8>,
) -> Result<Bytes, Failure> {
    let token = token(api.token_file.as_deref())?.or_else(token_in_environment);
    let server = Server { url: &api.url, ca: api.ca.as_deref() };
    server.ask_with(token, request, body, NO_TOKEN).await
}

/// Sends a request to routes of this process, whose limiter has its state in this store. If the store did not decide,
/// writes the reason to the error output.
pub(crate) async fn ask_store(
    store: &str,
    config: Option<&Path>,
    routes: fn(App) -> Router,
    request: Request<Body>,
) -> Result<Bytes, Failure> {
    let flags = Flags { redis: Some(store), ..Flags::default() };
    let config = Config::load(config, flags)?;
    let app = App::open_to_look(&config.settings.store, config.policy).await?;
    let response = TowerToHyperService::new(routes(app.clone())).call(request).await?;
    let status = response.status();
    let reply = answer_or_problem(status, response.into_body().collect().await?.to_bytes())?;
    if read::<Degraded>(&reply)?.degraded {
        report_store_trouble(&app).await;
    }
    Ok(reply)
}

/// The field of an answer that is true if the store did not decide.
#[derive(Deserialize)]
struct Degraded {
    degraded: bool,
}

/// Writes to the error output why the store did not decide. The store is probed for that, because the limiter keeps
/// only errors of connections, and a server may also refuse the script.
async fn report_store_trouble(app: &App) {
    let probe = app.probe(0).await;
    let out_of_reach = probe.unreachable().map(|(server, why)| format!("{server}: {why}"));
    let refused = probe.reached().filter_map(|(server, facts)| {
        let why = facts.script.as_ref().err()?;
        Some(format!("{server}: {why}"))
    });
    let of_limiter = app.limiter().shards().into_iter().filter_map(|shard| {
        let why = shard.trouble?;
        Some(format!("{}: {why}", shard.name))
    });
    let why = out_of_reach.chain(refused).chain(of_limiter).next();
    let why = why.unwrap_or_else(|| format!("{}: no answer in time", app.store));
    complain(&format!(
        "the store did not decide: {why}; run `spillgate doctor --redis URL` with the same URL"
    ));
}

/// Parses an answer.
pub(crate) fn read<T: DeserializeOwned>(reply: &[u8]) -> Result<T, Failure> {
    serde_json::from_slice(reply)
        .map_err(|error| format!("the answer is not from Spillgate: {error}").into())
}

/// Returns the operator's token of the environment, as the value of the header `authorization`.
fn token_in_environment() -> Option<String> {
    let token = std::env::var(TOKEN_VARIABLE).ok().filter(|token| !token.is_empty())?;
    Some(format!("Bearer {token}"))
}

fn answer_or_problem(status: StatusCode, reply: Bytes) -> Result<Bytes, Failure> {
    // A change that some shards get later is accepted.
    if matches!(status, StatusCode::OK | StatusCode::ACCEPTED) {
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

/// The token of commands that name no file. It is no setting of the service.
const TOKEN_VARIABLE: &str = "SPILLGATE_ADMIN_TOKEN";

const NO_ADDRESS: &str =
    "no address of a server; write one such as http://127.0.0.1:8080 or https://limits.example";

const WRONG_LISTENER: &str = "check the port in --url, and write https:// if the listener has TLS";

const NO_DATA_TOKEN: &str =
    "no token or a wrong one; name the file with the server's data token with --token-file";

const NO_TOKEN: &str = "no token or a wrong one; name its file with --token-file, or put the token into the environment \
     as SPILLGATE_ADMIN_TOKEN";

/// The longest wait for an answer. A server decides in milliseconds.
const TIMEOUT: Duration = Duration::from_secs(10);

/// The most bytes of an answer, far above those of a decision with 64 limits and of the longest list of subjects.
const REPLY_MAX: usize = 4 * 1024 * 1024;
