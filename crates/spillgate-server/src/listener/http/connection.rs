//! Serves HTTP/1 on one connection: with bounded heads and bodies, and an end that loses no request.

use std::convert::Infallible;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::response::IntoResponse;
use http_body_util::{Either, Full};
use hyper::body::{Body as HttpBody, Frame, Incoming, SizeHint};
use hyper::header::{CONNECTION, HeaderMap, HeaderValue};
use hyper::server::conn::http1;
use hyper::service::{Service, service_fn};
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use hyper_util::service::TowerToHyperService;

use super::problem::Problem;
use super::ticks::Ticks;
use super::{check_by, is_check};
use crate::app::App;
use crate::listener::seat::Phase;
use crate::listener::{
    Browsers, Call, Connection, Protocol, Seat, Shown, Stage, Strangers, Token, Tries,
};

/// HTTP/1, answered by routes, for clients with the token if one is set.
#[derive(Clone)]
pub(crate) struct Http {
    routes: TowerToHyperService<Router>,
    /// The app that answers checks on the fast path. Without it checks go through the routes.
    checks: Option<Arc<App>>,
    token: Option<Token>,
    browsers: Browsers,
    strangers: Strangers,
}

/// The way in which a request is answered.
enum Answering<F> {
    Refusal(Problem, Shown),
    Check(Arc<App>, CountedBody),
    ByRoutes(F),
}

impl Http {
    pub(crate) fn new(routes: Router, token: Option<Token>, strangers: Strangers) -> Http {
        let browsers = Browsers::Admitted;
        Http { routes: TowerToHyperService::new(routes), checks: None, token, browsers, strangers }
    }

    /// Returns this protocol, which admits these browsers.
    pub(crate) fn with_browsers(self, browsers: Browsers) -> Http {
        Http { browsers, ..self }
    }

    /// Returns this protocol with the fast path for checks, which goes around the router. A router takes a tenth of the
    /// time of a check.
    pub(crate) fn with_fast_checks(self, app: App) -> Http {
        Http { checks: Some(Arc::new(app)), ..self }
    }
}

impl Protocol for Http {
    async fn serve(self, connection: Connection) {
        let stage = connection.stage();
        let mut closing = connection.stage();
        let (peer, port, seat) = (connection.peer(), connection.port(), connection.seat());
        let watched = Arc::clone(&seat);
        let Http { routes, checks, token, browsers, strangers } = self;
        let tries = strangers.tries(peer.0, connection.stage());
        let service = service_fn(move |request: Request<Incoming>| {
            seat.note_call();
            let call = Call::on(&seat);
            let mut request = request.map(|body| CountedBody::of(&call, body));
            let shown = shown(token.as_ref(), &tries, request.headers());
            let refusal = match browsers.admit(&request, port) {
                _ if shown != Shown::Right => Some(Problem::no_token()),
                Err(stranger) => Some(Problem::forbidden(&stranger.message())),
                Ok(()) => None,
            };
            let answering = match (refusal, &checks) {
                (Some(problem), _) => Answering::Refusal(problem, shown),
                (None, Some(app)) if is_check(&request) => {
                    Answering::Check(Arc::clone(app), request.into_body())
                }
                (None, _) => {
                    request.extensions_mut().insert(peer);
                    request.extensions_mut().insert(Arc::clone(&seat));
                    request.extensions_mut().insert(tries.clone());
                    Answering::ByRoutes(routes.call(request))
                }
            };
            let (stage, tries) = (stage.clone(), tries.clone());
            async move {
                let mut answer = match answering {
                    Answering::Refusal(problem, shown) => {
                        if shown == Shown::Wrong {
                            tries.fail().await;
                        }
                        problem.into_response().map(Either::Right)
                    }
                    Answering::Check(app, body) => match check_by(&app, body).await {
                        Ok(answer) => answer.map(Either::Left),
                        Err(problem) => problem.into_response().map(Either::Right),
                    },
                    Answering::ByRoutes(answer) => answer.await?.map(Either::Right),
                };
                if *stage.borrow() != Stage::Open || tries.are_over() {
                    answer.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
                }
                call.note_whole();
                call.seat().note_answer();
                Ok::<Response<Either<Full<Bytes>, Body>>, Infallible>(answer)
            }
        });
        let ticks = Ticks::new();
        let mut clock = ticks.clock();
        let mut connection = pin!(
            http1::Builder::new()
                .timer(ticks.clone())
                .header_read_timeout(IDLE_TIMEOUT)
                .max_headers(FIELDS_MAX)
                .max_buf_size(BUFFER_MAX)
                .serve_connection(TokioIo::new(connection.metered_by_bytes()), service)
        );
        let mut pace = Pace::default();
        // An error ends this connection only (the client left, or a time-out), so the loop just returns.
        let mut is_closing = false;
        loop {
            tokio::select! {
                biased;
                _ = connection.as_mut() => return,
                _ = closing.wait_for(|stage| *stage == Stage::Closing), if !is_closing => {
                    is_closing = true;
                    connection.as_mut().graceful_shutdown();
                }
                _ = clock.tick() => {
                    ticks.note();
                    if pace.is_too_slow(&watched) {
                        return;
                    }
                }
            }
        }
    }
}

/// The body of a request. When it ends, the request has arrived whole, which the call notes.
struct CountedBody {
    body: Incoming,
    call: Call,
}

impl CountedBody {
    fn of(call: &Call, body: Incoming) -> CountedBody {
        if body.is_end_stream() {
            call.note_whole();
        }
        CountedBody { body, call: call.clone() }
    }
}

impl HttpBody for CountedBody {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<hyper::Result<Frame<Bytes>>>> {
        let frame = ready!(Pin::new(&mut self.body).poll_frame(context));
        if frame.is_none() || self.body.is_end_stream() {
            self.call.note_whole();
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// Counts the ticks that one phase of one message takes.
#[derive(Default)]
struct Pace {
    last: Option<(Phase, u32)>,
    ticks: u32,
}

impl Pace {
    /// Returns whether the client has been in one phase for too long. Call it at every tick.
    fn is_too_slow(&mut self, seat: &Seat) -> bool {
        let now = seat.progress();
        self.ticks = if now == self.last { self.ticks + 1 } else { 0 };
        self.last = now;
        match now {
            Some((Phase::Head, _)) => self.ticks >= HEAD_TICKS,
            Some((Phase::Answer, _)) => self.ticks >= ANSWER_TICKS,
            // The body has a deadline of its own, and hyper's header time-out ends a silent connection.
            Some((Phase::Call, _)) | None => false,
        }
    }
}

/// Compares the token of a request. Without a token every request is right.
fn shown(token: Option<&Token>, tries: &Tries, headers: &HeaderMap) -> Shown {
    token.map_or(Shown::Right, |token| tries.judge(|| token.shown_in(headers)))
}

/// The longest time from the end of an answer to the next request's head: longer than the idle time of common client
/// pools, and short enough that silent connections free their seats. The next tick ends the connection.
const IDLE_TIMEOUT: Duration = Duration::from_secs(75);

/// The ticks for a head, which clients send at once: ten to fifteen seconds from its first byte.
const HEAD_TICKS: u32 = 2;

/// The ticks in which a client must take its whole answer: a minute and a tick. The longest answer has a megabyte.
const ANSWER_TICKS: u32 = 12;

/// The most fields of a head. Proxies pass on the fields of clients, mostly at most 100, and add some. With more fields
/// the answer is 431, which no proxy takes for an admission.
const FIELDS_MAX: usize = 256;

/// The most received bytes that one connection buffers: heads, and bodies piece by piece.
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
    use crate::listener::connection::Peer;
    use crate::listener::http::routes;

    /// Returns how long a connection stays open whose client sends these bytes and no more. Time is paused, so it
    /// passes at once while nothing happens.
    async fn kept_open(sent: &[u8]) -> Duration {
        let app = App::open(&Store::default(), Policy::default()).await.unwrap();
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let mut client = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let (stream, peer) = listener.accept().await.unwrap();
        let (_stage, stages) = watch::channel(Stage::Open);
        client.write_all(sent).await.unwrap();
        let began = time::Instant::now();
        let (peer, seat) = (Peer(peer.ip()), Seat::alone());
        let connection = Connection::open(stream, peer, None, stages, seat).await.unwrap();
        let http = Http::new(routes(app.clone()), None, Strangers::at("HTTP"));
        http.with_fast_checks(app).serve(connection).await;
        client.read_to_end(&mut Vec::new()).await.unwrap();
        began.elapsed()
    }

    #[tokio::test(start_paused = true)]
    async fn a_silent_connection_is_closed_after_the_idle_timeout_and_a_tick() {
        let whole = b"POST /v1/check HTTP/1.1\r\nhost: a\r\ncontent-length: 2\r\n\r\n{}";
        for sent in [&b""[..], whole] {
            let open = kept_open(sent).await;
            let most = IDLE_TIMEOUT + Duration::from_secs(10);
            assert!((IDLE_TIMEOUT..=most).contains(&open), "{open:?} after {sent:?}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_connection_with_half_a_request_is_closed_after_ten_seconds_and_a_tick() {
        let whole = b"POST /v1/check HTTP/1.1\r\nhost: a\r\ncontent-length: 2\r\n\r\n{}";
        let second = [&whole[..], b"POST /v1/che"].concat();
        for sent in [&b"POST /v1/check HTTP/1.1\r\nhost:"[..], &whole[..whole.len() - 1]] {
            let open = kept_open(sent).await;
            let range = Duration::from_secs(10)..=Duration::from_secs(20);
            assert!(range.contains(&open), "{open:?} after {sent:?}");
        }
        let open = kept_open(&second).await;
        assert!(open <= IDLE_TIMEOUT + Duration::from_secs(10), "{open:?} after {second:?}");
    }
}
