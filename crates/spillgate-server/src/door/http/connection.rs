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
use hyper_util::rt::TokioIo;
use hyper_util::service::TowerToHyperService;

use super::problem::Problem;
use super::ticks::Ticks;
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
        let ticks = Ticks::new();
        let mut clock = ticks.clock();
        let mut connection = pin!(
            http1::Builder::new()
                .timer(ticks.clone())
                .header_read_timeout(HEAD_TIMEOUT)
                .max_buf_size(BUFFER_MAX)
                .serve_connection(TokioIo::new(connection), service)
        );
        // What ends a connection early (a client that left, a time-out) concerns nobody else.
        let mut is_closing = false;
        loop {
            tokio::select! {
                biased;
                _ = connection.as_mut() => return,
                _ = closing.wait_for(|stage| *stage == Stage::Closing), if !is_closing => {
                    is_closing = true;
                    connection.as_mut().graceful_shutdown();
                }
                _ = clock.tick() => ticks.note(),
            }
        }
    }
}

/// From the end of an answer to the next request's last header: long enough for the idle time of
/// common client pools, short enough that silent connections give their places back. Noticed by the next tick.
const HEAD_TIMEOUT: Duration = Duration::from_secs(75);

/// The most that one connection buffers of what came in: heads, and bodies piece by piece.
const BUFFER_MAX: usize = 64 * 1024;

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use spillgate::Policy;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::{TcpListener, TcpStream};
    use tokio::sync::watch;
    use tokio::time;

    use super::*;
    use crate::config::Store;
    use crate::door::connection::Peer;
    use crate::door::http::routes;

    /// How long a client is borne that sends this and no more; time passes as fast as nothing happens.
    async fn borne(sent: &[u8]) -> Duration {
        let app = App::open(&Store::default(), Policy::default()).await.unwrap();
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let mut client = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let (stream, peer) = listener.accept().await.unwrap();
        let (_stage, stages) = watch::channel(Stage::Open);
        client.write_all(sent).await.unwrap();
        let began = time::Instant::now();
        let connection = Connection::open(stream, Peer(peer.ip()), None, stages).await.unwrap();
        Http::new(routes(app.clone()), None).with_checks_by(app).serve(connection).await;
        client.read_to_end(&mut Vec::new()).await.unwrap();
        began.elapsed()
    }

    #[tokio::test(start_paused = true)]
    async fn silence_before_the_end_of_a_head_is_borne_for_so_long_and_a_tick() {
        let whole = b"POST /v1/check HTTP/1.1\r\nhost: a\r\ncontent-length: 2\r\n\r\n{}";
        for sent in [&b""[..], b"POST /v1/check HTTP/1.1\r\nhost:", whole] {
            let borne = borne(sent).await;
            let most = HEAD_TIMEOUT + Duration::from_secs(10);
            assert!((HEAD_TIMEOUT..=most).contains(&borne), "{borne:?} after {sent:?}");
        }
    }
}
