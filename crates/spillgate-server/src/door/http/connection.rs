//! HTTP/1 over one connection: heads and bodies within bounds, and a way to leave.

use std::convert::Infallible;
use std::pin::pin;
use std::time::Duration;

use axum::Router;
use axum::response::IntoResponse;
use hyper::header::{CONNECTION, HeaderValue};
use hyper::server::conn::http1;
use hyper::service::{Service, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;

use super::problem::Problem;
use crate::door::{Connection, Protocol, Stage, Token};

/// HTTP/1 that is answered by routes, for callers who show the token if there is one.
#[derive(Clone)]
pub(crate) struct Http {
    routes: TowerToHyperService<Router>,
    token: Option<Token>,
}

impl Http {
    pub(crate) fn new(routes: Router, token: Option<Token>) -> Http {
        Http { routes: TowerToHyperService::new(routes), token }
    }
}

impl Protocol for Http {
    async fn serve(self, connection: Connection) {
        let stage = connection.stage();
        let mut closing = connection.stage();
        let peer = connection.peer();
        let Http { routes, token } = self;
        let service = service_fn(move |mut request: hyper::Request<hyper::body::Incoming>| {
            request.extensions_mut().insert(peer);
            let known = token.as_ref().is_none_or(|token| token.is_in(request.headers()));
            let answer = known.then(|| routes.call(request));
            let stage = stage.clone();
            async move {
                let mut answer = match answer {
                    Some(answer) => answer.await?,
                    None => Problem::no_token().into_response(),
                };
                if *stage.borrow() != Stage::Open {
                    answer.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
                }
                Ok::<_, Infallible>(answer)
            }
        });
        let mut connection = pin!(
            http1::Builder::new()
                .timer(TokioTimer::new())
                .header_read_timeout(HEAD_TIMEOUT)
                .max_buf_size(BUFFER_MAX)
                .serve_connection(TokioIo::new(connection), service)
        );
        // What ends a connection early (a client that left, a time-out) concerns nobody else.
        tokio::select! {
            _ = connection.as_mut() => return,
            _ = closing.wait_for(|stage| *stage == Stage::Closing) => {}
        }
        connection.as_mut().graceful_shutdown();
        let _ = connection.await;
    }
}

/// From the end of an answer to the next request's last header: long enough for the idle time of
/// common client pools, short enough that silent connections give their places back.
const HEAD_TIMEOUT: Duration = Duration::from_secs(75);

/// The most that one connection buffers of what came in: heads, and bodies piece by piece.
const BUFFER_MAX: usize = 64 * 1024;
