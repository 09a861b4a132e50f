//! HTTP/1 over one connection: heads and bodies within bounds, and a way to leave.

use std::convert::Infallible;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::response::IntoResponse;
use http_body_util::{Either, Full};
use hyper::body::Incoming;
use hyper::header::{CONNECTION, HeaderValue};
use hyper::server::conn::http1;
use hyper::service::{Service, service_fn};
use hyper::{Request, Response};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;

use super::problem::Problem;
use super::{check_by, is_check};
use crate::app::App;
use crate::door::{Connection, Protocol, Stage, Token};

/// HTTP/1 that is answered by routes, for callers who show the token if there is one.
#[derive(Clone)]
pub(crate) struct Http {
    routes: TowerToHyperService<Router>,
    /// Who answers checks, unless they take the way of all others.
    checks: Option<Arc<App>>,
    token: Option<Token>,
}

/// What becomes of a request.
enum Answering<F> {
    Strangers,
    Check(Arc<App>, Incoming),
    ByRoutes(F),
}

impl Http {
    pub(crate) fn new(routes: Router, token: Option<Token>) -> Http {
        Http { routes: TowerToHyperService::new(routes), checks: None, token }
    }

    /// The same, whose checks go around the routes: a router takes a tenth of what they take.
    pub(crate) fn with_checks_by(self, app: App) -> Http {
        Http { checks: Some(Arc::new(app)), ..self }
    }
}

impl Protocol for Http {
    async fn serve(self, connection: Connection) {
        let stage = connection.stage();
        let mut closing = connection.stage();
        let peer = connection.peer();
        let Http { routes, checks, token } = self;
        let service = service_fn(move |mut request: Request<Incoming>| {
            let known = token.as_ref().is_none_or(|token| token.is_in(request.headers()));
            let answering = match &checks {
                _ if !known => Answering::Strangers,
                Some(app) if is_check(&request) => {
                    Answering::Check(Arc::clone(app), request.into_body())
                }
                Some(_) | None => {
                    request.extensions_mut().insert(peer);
                    Answering::ByRoutes(routes.call(request))
                }
            };
            let stage = stage.clone();
            async move {
                let mut answer = match answering {
                    Answering::Strangers => Problem::no_token().into_response().map(Either::Right),
                    Answering::Check(app, body) => match check_by(&app, body).await {
                        Ok(answer) => answer.map(Either::Left),
                        Err(problem) => problem.into_response().map(Either::Right),
                    },
                    Answering::ByRoutes(answer) => answer.await?.map(Either::Right),
                };
                if *stage.borrow() != Stage::Open {
                    answer.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
                }
                Ok::<Response<Either<Full<Bytes>, Body>>, Infallible>(answer)
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
