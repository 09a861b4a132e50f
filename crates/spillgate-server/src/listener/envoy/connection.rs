//! Serves HTTP/2 on one connection, with a bound on everything that a peer may use, and an end that loses no call.

use std::convert::Infallible;
use std::future::poll_fn;
use std::hash::{BuildHasher, RandomState};
use std::net::IpAddr;
use std::pin::{Pin, pin};
use std::sync::{Arc, Once};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use hyper::body::Incoming;
use hyper::header::{HeaderMap, HeaderName};
use hyper::server::conn::http2;
use hyper::service::{Service, service_fn};
use hyper::{Request, Response};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::time::{sleep, timeout};
use tonic::Status;

use super::MESSAGE_MAX;
use super::message::{Messages, RequestKind};
use crate::listener::{
    Browsers, Call, Connection, ConnectionState, FailedLogins, Metering, Protocol, Shown, Stage,
    Token,
};

/// gRPC, answered by routes, for clients with the token if one is set. The health service is open to every client,
/// because probes have no token.
#[derive(Clone)]
pub(crate) struct Grpc {
    routes: TowerToHyperService<Router>,
    token: Option<Token>,
    browsers: Browsers,
    failed_logins: FailedLogins,
    /// The warning about a client that speaks HTTP/1, logged once.
    http1: Arc<Once>,
}

impl Grpc {
    pub(crate) fn new(
        routes: Router,
        token: Option<Token>,
        browsers: Browsers,
        failed_logins: FailedLogins,
    ) -> Grpc {
        let (routes, http1) = (TowerToHyperService::new(routes), Arc::new(Once::new()));
        Grpc { routes, token, browsers, failed_logins, http1 }
    }

    /// Admits or refuses a call by its head, and returns the future of its answer. No byte of a refused message is read.
    fn answer(
        &self,
        state: &Arc<ConnectionState>,
        port: u16,
        peer: IpAddr,
        request: Request<Incoming>,
    ) -> impl Future<Output = Result<Response<Body>, Infallible>> + use<> {
        let path = request.uri().path();
        let shown = match &self.token {
            Some(token) if !path.starts_with(HEALTH) => token.shown_in(request.headers()),
            Some(_) | None => Shown::Right,
        };
        if shown == Shown::Wrong {
            self.failed_logins.report(peer);
        }
        let refusal = match self.browsers.admit(&request, port) {
            _ if shown != Shown::Right => Some(no_token()),
            Err(page) => Some(Status::permission_denied(page.message())),
            Ok(()) => None,
        };
        let answer = match refusal {
            Some(status) => Err(status),
            None => {
                let call = path.starts_with(ENVOY).then(|| Call::on(state));
                let longest = if call.is_some() { MESSAGE_MAX } else { PROBE_MAX };
                let kind = request_kind(path);
                let (state, arriving) = (Arc::clone(state), call.clone());
                let mut request = request;
                keep_known(request.headers_mut());
                let request =
                    request.map(|body| Messages::new(body, kind, longest, state, arriving));
                Ok((self.routes.call(request), call))
            }
        };
        async move {
            match answer {
                Ok((answer, call)) => {
                    let answer = answer.await;
                    drop(call);
                    answer
                }
                Err(status) => Ok(status.into_http()),
            }
        }
    }
}

impl Protocol for Grpc {
    async fn serve(self, connection: Connection) {
        let mut closing = connection.stage();
        let (port, state) = (connection.port, connection.state());
        let silent = without_preface(connection.state());
        let flooded = connection.state();
        let reading = connection.state();
        let (peer, http1) = (connection.peer.0, Arc::clone(&self.http1));
        // hyper drops the future of a call that its client resets, so a call that still waits charges nothing.
        let service = service_fn(move |request| self.answer(&state, port, peer, request));
        let mut serving = pin!(
            http2::Builder::new(TokioExecutor::new())
                .timer(TokioTimer::new())
                .initial_connection_window_size(CONNECTION_WINDOW)
                .initial_stream_window_size(STREAM_WINDOW)
                .max_concurrent_streams(STREAMS_MAX)
                .max_header_list_size(HEADERS_MAX)
                .max_pending_accept_reset_streams(RESETS_MAX)
                .max_local_error_reset_streams(RESETS_MAX)
                .max_send_buf_size(SEND_BUFFER_MAX)
                .keep_alive_interval(PING)
                .keep_alive_timeout(PONG)
                .serve_connection(TokioIo::new(connection.metered(Metering::Messages)), service)
        );
        // An error ends this connection only (the client left, or a time-out), so it is ignored.
        let leaving = tokio::select! {
            _ = in_turns(serving.as_mut(), &reading) => {
                if reading.speaks_http1() {
                    http1.call_once(|| tracing::warn!(target: "spillgate", "{}", no_http2(peer)));
                }
                return;
            }
            () = silent => return,
            () = sleep(age()) => LEAVING,
            () = flooded.until_flooded() => {
                if !flooded.has_been_served() {
                    return;
                }
                FLOODED_LEAVING
            }
            _ = closing.wait_for(|stage| *stage == Stage::Closing) => LEAVING,
        };
        // GOAWAY: the client opens another connection for later calls; calls that it has sent are answered.
        serving.as_mut().graceful_shutdown();
        let _ = timeout(leaving, in_turns(serving, &reading)).await;
    }
}

/// Polls the connection, and lets it read a few bytes each time. h2 reads on before it passes on each call, and ends a
/// connection on which too many calls were reset before they were passed on. A proxy resets hundreds at once when its
/// clients leave or its calls time out, and all its other calls would end with them.
async fn in_turns<C: Future>(mut connection: Pin<&mut C>, reading: &ConnectionState) -> C::Output {
    poll_fn(|context| {
        reading.begin_turn();
        connection.as_mut().poll(context)
    })
    .await
}

fn request_kind(path: &str) -> RequestKind {
    if path.starts_with(REFLECTION) { RequestKind::Stream } else { RequestKind::Unary }
}

/// Returns if the client has not sent the preface of HTTP/2 in time; else never.
async fn without_preface(state: Arc<ConnectionState>) {
    sleep(PREFACE).await;
    if state.received() >= PREFACE_BYTES {
        std::future::pending::<()>().await;
    }
}

fn no_http2(peer: IpAddr) -> String {
    format!(
        "gRPC: {peer} sent a request of HTTP/1, and this listener takes HTTP/2; in Envoy, set \
         http2_protocol_options for the cluster of the rate limit service; send POST /v1/check and \
         forward auth to the HTTP listener, server.http"
    )
}

/// Drops the fields that no service reads. A call waits for its message for seconds, and a client may send 64 KiB of
/// fields with each of many calls.
fn keep_known(headers: &mut HeaderMap) {
    let known = KNOWN.into_iter().filter_map(|name| {
        let value = headers.remove(name)?;
        Some((HeaderName::from_static(name), value))
    });
    *headers = known.collect();
}

fn no_token() -> Status {
    Status::unauthenticated(
        "no token or a wrong one; send the metadata `authorization: Bearer TOKEN` with the token in \
         data_token_file",
    )
}

/// Returns the age at which a connection ends: a tenth more or less than [`AGE`] at random, so that the clients of a
/// fleet do not all connect again at once.
fn age() -> Duration {
    let random = RandomState::new().hash_one(());
    let spread = AGE / 5;
    AGE - spread / 2 + spread * (random % 1_000) as u32 / 1_000
}

/// The fields that tonic and the services read.
const KNOWN: [&str; 5] =
    ["content-type", "te", "grpc-timeout", "grpc-encoding", "grpc-accept-encoding"];

const HEALTH: &str = "/grpc.health.v1.Health/";
const ENVOY: &str = "/envoy.service.ratelimit.v3.RateLimitService/";
/// The reflection services, in two versions: the only ones whose clients send a stream of messages.
const REFLECTION: &str = "/grpc.reflection.";

/// The most bytes of a message to the health and reflection services: a few names.
const PROBE_MAX: usize = 1024;

/// The most bytes of one call that a client may send before they are taken from the buffers: the default of HTTP/2.
const STREAM_WINDOW: u32 = 64 * 1024;

/// The most bytes of all calls of one connection that may be in the buffers. The h2 crate also counts the cost of small
/// frames that wait against half of it: 500 of them, two for every call.
const CONNECTION_WINDOW: u32 = 256 * 1024;

/// The longest time for the preface and the settings, which a client sends first and at once.
const PREFACE: Duration = Duration::from_secs(10);

/// The bytes of the preface and of the head of the settings.
const PREFACE_BYTES: usize = 24 + 9;

/// The longest time for calls under way when a connection ends by its age. Streams that watch health end with it.
const LEAVING: Duration = Duration::from_secs(60);

/// The longest time for calls under way when a connection ends after too many oversized messages, if it has also served
/// good calls. A call takes milliseconds, so the good clients of a proxy's connection lose none.
const FLOODED_LEAVING: Duration = Duration::from_millis(500);

/// The age of a connection. Clients choose a server when they connect; a client that never connects again would never
/// use a new instance.
const AGE: Duration = Duration::from_secs(30 * 60);

/// The most calls at once on one connection. A proxy's worker has fewer, or opens another connection.
const STREAMS_MAX: u32 = 256;

/// The most bytes of a call's metadata: a dozen short lines, and what Envoy passes on of its client for tracing, such as
/// a `tracestate`. Envoy takes heads of 60 KiB by default. A longer list is an error, and Envoy would admit the client.
const HEADERS_MAX: u32 = 64 * 1024;

/// The most calls that were reset by the client before a handler took them, or by this server for errors of the
/// client: more than fit into one turn of reading.
const RESETS_MAX: usize = 1024;

/// The most bytes that wait to be sent on one call.
const SEND_BUFFER_MAX: usize = 64 * 1024;

/// The silence after which the server sends a PING.
const PING: Duration = Duration::from_secs(60);

/// The longest wait for the answer to a PING, after which the connection is closed.
const PONG: Duration = Duration::from_secs(20);
