//! HTTP/2 over one connection, with a bound on everything that a peer may ask for, and a way to
//! leave that loses no call.

use std::convert::Infallible;
use std::hash::{BuildHasher, RandomState};
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use hyper::server::conn::http2;
use hyper::service::{Service, service_fn};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::time::{sleep, timeout};
use tonic::Status;

use super::MESSAGE_MAX;
use super::message::Messages;
use crate::door::{Browsers, Call, Connection, Protocol, Seat, Shown, Stage, Strangers, Token};

/// gRPC that is answered by routes, for callers who show the token if there is one. Health is told
/// to everybody: what probes it has no token to show.
#[derive(Clone)]
pub(crate) struct Grpc {
    routes: TowerToHyperService<Router>,
    token: Option<Token>,
    browsers: Browsers,
    strangers: Strangers,
}

impl Grpc {
    pub(crate) fn new(
        routes: Router,
        token: Option<Token>,
        browsers: Browsers,
        strangers: Strangers,
    ) -> Grpc {
        Grpc { routes: TowerToHyperService::new(routes), token, browsers, strangers }
    }
}

impl Protocol for Grpc {
    async fn serve(self, connection: Connection) {
        let mut closing = connection.stage();
        let (port, seat) = (connection.port(), connection.seat());
        let greeted = until_greeted(connection.seat());
        let flooded = connection.seat();
        let Grpc { routes, token, browsers, strangers } = self;
        let tries = strangers.tries(connection.peer().0, connection.stage());
        let failed = tries.clone();
        // A call whose caller resets it is dropped where it waits, before the store is asked. What is refused
        // here is refused before a byte of its message is read.
        let service = service_fn(move |request: hyper::Request<hyper::body::Incoming>| {
            let path = request.uri().path();
            let shown = match &token {
                Some(token) if !path.starts_with(HEALTH) => {
                    tries.judge(|| token.shown_in(request.headers()))
                }
                Some(_) | None => Shown::Right,
            };
            let refusal = match browsers.admit(&request, port) {
                _ if shown != Shown::Right => Some(no_token()),
                Err(stranger) => Some(Status::permission_denied(stranger.message())),
                Ok(()) => None,
            };
            let answer = match refusal {
                Some(status) => Err(status),
                None => {
                    let call = path.starts_with(ENVOY).then(|| Call::on(&seat));
                    let longest = if call.is_some() { MESSAGE_MAX } else { PROBE_MAX };
                    let (seat, arriving) = (Arc::clone(&seat), call.clone());
                    let request = request.map(|body| Messages::of(body, longest, seat, arriving));
                    Ok((routes.call(request), call))
                }
            };
            let tries = tries.clone();
            async move {
                match answer {
                    Ok((answer, call)) => {
                        let answer = answer.await;
                        drop(call);
                        answer
                    }
                    Err(status) => {
                        if shown == Shown::Wrong {
                            tries.fail().await;
                        }
                        Ok::<_, Infallible>(status.into_http())
                    }
                }
            }
        });
        let mut connection = pin!(
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
                .serve_connection(TokioIo::new(connection.metered_by_messages()), service)
        );
        // What ends a connection early (a client that left, a time-out) concerns no other.
        let leaving = tokio::select! {
            _ = connection.as_mut() => return,
            () = greeted => return,
            () = sleep(age()) => LEAVING,
            () = failed.over() => LEAVING,
            () = flooded.until_flooded() => {
                if !flooded.has_been_served() {
                    return;
                }
                FLOODED_LEAVING
            }
            _ = closing.wait_for(|stage| *stage == Stage::Closing) => LEAVING,
        };
        // GOAWAY: the client opens another connection for later calls; calls that it has sent are answered.
        connection.as_mut().graceful_shutdown();
        let _ = timeout(leaving, connection).await;
    }
}

/// Ends if the client has not greeted in time; else never.
async fn until_greeted(seat: Arc<Seat>) {
    sleep(GREETING).await;
    if seat.received() >= GREETING_BYTES {
        std::future::pending::<()>().await;
    }
}

fn no_token() -> Status {
    Status::unauthenticated(
        "this door wants a token: send the metadata `authorization: Bearer …` with what \
         data_token_file holds",
    )
}

/// How old a connection gets, a tenth more or less, so that a fleet does not come back at once.
fn age() -> Duration {
    let random = RandomState::new().hash_one(());
    let spread = AGE / 5;
    AGE - spread / 2 + spread * (random % 1_000) as u32 / 1_000
}

const HEALTH: &str = "/grpc.health.v1.Health/";
const ENVOY: &str = "/envoy.service.ratelimit.v3.RateLimitService/";

/// A message to the health and reflection services: a name, or a handful of them.
const PROBE_MAX: usize = 1024;

/// What a client may send of one call before it is taken out of the buffers: the default of HTTP/2.
const STREAM_WINDOW: u32 = 64 * 1024;

/// The same of all calls of one connection. The h2 crate also takes half of this for the cost of small frames
/// that wait: 500 of them, which is two of every call.
const CONNECTION_WINDOW: u32 = 256 * 1024;

/// The preface and the settings are the first that a client sends, in one go.
const GREETING: Duration = Duration::from_secs(10);

/// The preface, and the head of the settings.
const GREETING_BYTES: usize = 24 + 9;

/// Calls under way when a connection is as old as it gets have this long. Streams that watch end with it.
const LEAVING: Duration = Duration::from_secs(60);

/// Calls under way have this long on a connection with too many oversized messages that also served good calls.
/// A call takes milliseconds, so that the good callers of a proxy's connection lose none.
const FLOODED_LEAVING: Duration = Duration::from_millis(500);

/// Callers pick a server when they connect: those that never do again would not see new ones.
const AGE: Duration = Duration::from_secs(30 * 60);

/// Calls at once on one connection. A proxy's worker has fewer, and opens another connection.
const STREAMS_MAX: u32 = 256;

/// A call's metadata are a dozen short lines.
const HEADERS_MAX: u32 = 16 * 1024;

/// Calls that were reset before they were looked at, and by us for errors of the peer: a peer that
/// makes more of them floods.
const RESETS_MAX: usize = 64;

/// What waits to be sent on one call.
const SEND_BUFFER_MAX: usize = 64 * 1024;

/// A peer that is silent for so long is asked for a sign of life …
const PING: Duration = Duration::from_secs(60);

/// … and cut if it gives none.
const PONG: Duration = Duration::from_secs(20);
