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

use crate::cli::{AdminAccess, AdminApi};

mod tls;

/// A listener of a server.
#[derive(Clone, Copy)]
pub(crate) struct Server<'s> {
    /// The paths of requests are appended to that of the URL.
    pub(crate) url: &'s str,
    /// The file of the authority that signed the server's certificate; `None` for those of the machine.
    pub(crate) ca: Option<&'s Path>,
}

impl<'s> Server<'s> {
    /// Sends a request to the HTTP API, with the token of a file if one is named.
    pub(crate) async fn ask(
        self,
        token_file: Option<&Path>,
        request: Builder,
        body: Vec<u8>,
    ) -> Result<Bytes, Failure> {
        self.session(token(token_file)?, NO_DATA_TOKEN).ask(request, body).await
    }

    fn session(self, token: Option<String>, unauthorized: &'static str) -> Session<'s> {
        Session { server: self, token, unauthorized, connection: None }
    }

    async fn connect(self) -> Result<Connection, Failure> {
        let url: Uri = self.url.parse().map_err(|_| NO_ADDRESS)?;
        let (is_tls, authority) = match (url.scheme_str(), url.authority()) {
            (Some("http"), Some(authority)) => (false, authority),
            (Some("https"), Some(authority)) => (true, authority),
            _ => return Err(NO_ADDRESS.into()),
        };
        if self.ca.is_some() && !is_tls {
            return Err("--ca is for a URL that begins with https://".into());
        }
        let host = authority.host().trim_matches(['[', ']']);
        let port = authority.port_u16().unwrap_or(if is_tls { 443 } else { 80 });
        let stream = TcpStream::connect((host, port)).await.map_err(|error| {
            format!("{error}; start a server with `spillgate serve`, or name another with --url")
        })?;
        let sender = match is_tls {
            false => shake_hands(stream).await?,
            true => shake_hands(tls::shake_hands(stream, host, self.ca).await?).await?,
        };
        let (authority, path) =
            (authority.to_string(), url.path().trim_end_matches('/').to_owned());
        Ok(Connection { sender, authority, path })
    }
}

/// Requests to one server, one after another over one connection. If the server has closed it, the next request opens
/// another.
pub(crate) struct Session<'s> {
    server: Server<'s>,
    /// The value of the header `authorization`.
    token: Option<String>,
    /// The error for a token that the server refuses.
    unauthorized: &'static str,
    connection: Option<Connection>,
}

struct Connection {
    sender: http1::SendRequest<Full<Bytes>>,
    authority: String,
    /// The path of the URL, to which those of requests are appended.
    path: String,
}

impl Session<'_> {
    /// Opens a session with an admin API, with the token of a file if one is named, else with that of the environment
    /// if it has one. The first request opens the connection.
    pub(crate) fn of_admin_api(api: &AdminApi) -> Result<Session<'_>, Failure> {
        Session::to(&api.url, &api.access)
    }

    /// Opens such a session with the admin API at a URL.
    pub(crate) fn to<'a>(url: &'a str, access: &'a AdminAccess) -> Result<Session<'a>, Failure> {
        let token = token(access.token_file.as_deref())?.or_else(token_in_environment);
        Ok(Server { url, ca: access.ca.as_deref() }.session(token, NO_TOKEN))
    }

    /// Sends a request, and returns the answer. A problem is an error.
    pub(crate) async fn ask(&mut self, request: Builder, body: Vec<u8>) -> Result<Bytes, Failure> {
        let (status, reply) = self.send(request, body).await?;
        answer_or_problem(status, reply)
    }

    /// Sends a request, and returns status and body of the answer. Only a refused token is an error.
    pub(crate) async fn send(
        &mut self,
        request: Builder,
        body: Vec<u8>,
    ) -> Result<(StatusCode, Bytes), Failure> {
        let request = match &self.token {
            Some(token) => request.header(AUTHORIZATION, token),
            None => request,
        };
        let sent = timeout(TIMEOUT, self.exchange(request, body)).await;
        let url = if self.server.url.is_empty() { "--url" } else { self.server.url };
        let answer =
            sent.map_err(|_| format!("{url} did not answer within {} s", TIMEOUT.as_secs()))?;
        match answer.map_err(|error| format!("{url}: {error}"))? {
            (StatusCode::UNAUTHORIZED, _) => Err(self.unauthorized.into()),
            answer => Ok(answer),
        }
    }

    async fn exchange(
        &mut self,
        request: Builder,
        body: Vec<u8>,
    ) -> Result<(StatusCode, Bytes), Failure> {
        // A new connection takes a request at once; a kept one may have been closed since.
        let is_open = match &mut self.connection {
            Some(kept) => kept.sender.ready().await.is_ok(),
            None => false,
        };
        let connection = match self.connection.take().filter(|_| is_open) {
            Some(kept) => kept,
            None => self.server.connect().await?,
        };
        let connection = self.connection.insert(connection);
        let mut request =
            request.header(HOST, &connection.authority).body(Full::new(Bytes::from(body)))?;
        *request.uri_mut() = format!("{}{}", connection.path, request.uri()).parse()?;
        let response = connection.sender.send_request(request).await.map_err(|error| {
            match error.is_parse() || error.is_incomplete_message() || error.is_canceled() {
                true => Failure::from(format!("no HTTP answer ({error}); {WRONG_LISTENER}")),
                false => error.into(),
            }
        })?;
        let status = response.status();
        let reply = Limited::new(response.into_body(), REPLY_MAX).collect().await;
        Ok((status, reply.map_err(|error| error.to_string())?.to_bytes()))
    }
}

/// Begins HTTP on a new connection.
async fn shake_hands(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
) -> Result<http1::SendRequest<Full<Bytes>>, Failure> {
    let (sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
    tokio::spawn(connection);
    Ok(sender)
}

/// Sends one request to an admin API. See [`Session::of_admin_api`].
pub(crate) async fn ask_admin_api(
    api: &AdminApi,
    request: Builder,
    body: Vec<u8>,
) -> Result<Bytes, Failure> {
    Session::of_admin_api(api)?.ask(request, body).await
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
    match status {
        StatusCode::OK | StatusCode::ACCEPTED => Ok(reply),
        _ => Err(problem(status, &reply).into()),
    }
}

/// Returns the text of a problem that a server answered.
pub(crate) fn problem(status: StatusCode, reply: &[u8]) -> String {
    let problem: serde_json::Value = serde_json::from_slice(reply).unwrap_or_default();
    problem["detail"].as_str().map_or_else(
        || format!("the server answered {status}, and not as Spillgate does; check the URL"),
        str::to_owned,
    )
}

/// The token of commands that name no file. It is no setting of the service.
const TOKEN_VARIABLE: &str = "SPILLGATE_ADMIN_TOKEN";

const NO_ADDRESS: &str = "this is not the address of a server; write one such as http://127.0.0.1:8082, or http://127.0.0.1:8080 for check";

const WRONG_LISTENER: &str = "check the port in --url, and write https:// if the listener has TLS";

const NO_DATA_TOKEN: &str =
    "no token or a wrong one; name the file with the server's data token with --token-file";

const NO_TOKEN: &str = "no token or a wrong one; name its file with --token-file, or put the token into the environment \
     as SPILLGATE_ADMIN_TOKEN";

/// The longest wait for an answer. A server decides in milliseconds.
const TIMEOUT: Duration = Duration::from_secs(10);

/// The most bytes of an answer: those of 10,000 overrides, of which each has up to 8 KiB of subject and limits.
const REPLY_MAX: usize = 128 * 1024 * 1024;
