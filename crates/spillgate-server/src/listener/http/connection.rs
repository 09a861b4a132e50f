//! Serves HTTP/1 on one connection: with bounded heads and bodies, and an end that loses no request.

use std::convert::Infallible;
use std::net::IpAddr;
use std::pin::{Pin, pin};
use std::sync::{Arc, Once};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::response::IntoResponse;
use http_body_util::{Either, Full};
use hyper::body::{Body as HttpBody, Frame, Incoming, SizeHint};
use hyper::header::{CONNECTION, HeaderValue};
use hyper::server::conn::http1;
use hyper::service::{Service, service_fn};
use hyper::{Request, Response};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::sync::watch;
use tokio::time::{MissedTickBehavior, interval};

use super::problem::Problem;
use super::{check_by, is_check, request_id};
use crate::app::App;
use crate::listener::{
    Browsers, Call, Connection, ConnectionState, FailedLogins, Metering, Peer, Protocol, Shown,
    Stage, Token,
};

/// HTTP/1, answered by routes, for clients with the token if one is set.
#[derive(Clone)]
pub(crate) struct Http {
    routes: TowerToHyperService<Router>,
    /// The app that answers checks on the fast path. Without it checks go through the routes.
    checks: Option<Arc<App>>,
    token: Option<Token>,
    browsers: Browsers,
    failed_logins: FailedLogins,
    /// The warning about a client that speaks HTTP/2, logged once.
    http2: Arc<Once>,
}

/// A client's connection: the parts that answers depend on.
struct Client {
    peer: Peer,
    port: u16,
    state: Arc<ConnectionState>,
    stage: watch::Receiver<Stage>,
}

/// The way in which a request is answered.
enum Answering<F> {
    Refusal(Problem),
    Check(Arc<App>, CountedBody),
    ByRoutes(F),
}

impl Http {
    pub(crate) fn new(routes: Router, token: Option<Token>, failed_logins: FailedLogins) -> Http {
        let browsers = Browsers::Admitted;
        Http {
            routes: TowerToHyperService::new(routes),
            checks: None,
            token,
            browsers,
            failed_logins,
            http2: Arc::new(Once::new()),
        }
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

    /// Admits or refuses a request by its head, and returns the future of its answer.
    fn answer(
        &self,
        client: &Client,
        request: Request<Incoming>,
    ) -> impl Future<Output = Result<Response<Either<Full<Bytes>, Body>>, Infallible>> + use<> {
        let stage = client.stage.clone();
        let request_id = request_id::sent(request.headers());
        client.state.note_call();
        let call = Call::on(&client.state);
        let mut request = request.map(|body| CountedBody::new(&call, body));
        // Without a token every request is right.
        let token = self.token.as_ref();
        let shown = token.map_or(Shown::Right, |token| token.shown_in(request.headers()));
        if shown == Shown::Wrong {
            self.failed_logins.report(client.peer.0);
        }
        let refusal = match self.browsers.admit(&request, client.port) {
            _ if shown != Shown::Right => Some(Problem::no_token()),
            Err(page) => Some(Problem::forbidden(&page.message())),
            Ok(()) => None,
        };
        let answering = match (refusal, &self.checks) {
            (Some(problem), _) => Answering::Refusal(problem),
            (None, Some(app)) if is_check(&request) => {
                Answering::Check(Arc::clone(app), request.into_body())
            }
            (None, _) => {
                request.extensions_mut().insert(client.peer);
                request.extensions_mut().insert(Arc::clone(&client.state));
                Answering::ByRoutes(self.routes.call(request))
            }
        };
        let connection = Arc::clone(&client.state);
        async move {
            let mut answer = match answering {
                Answering::Refusal(problem) => problem.into_response().map(Either::Right),
                Answering::Check(app, body) => {
                    match check_by(&app, Some(&connection), body).await {
                        Ok(answer) => answer.map(Either::Left),
                        Err(problem) => problem.into_response().map(Either::Right),
                    }
                }
                Answering::ByRoutes(answer) => answer.await?.map(Either::Right),
            };
            // An id for each answer would cost every check a header, and only a refused request is looked for later.
            let is_refused = answer.status().is_client_error() || answer.status().is_server_error();
            if let Some(id) = request_id.or_else(|| is_refused.then(request_id::made)) {
                answer.headers_mut().insert(request_id::X_REQUEST_ID, id);
            }
            if *stage.borrow() != Stage::Open {
                answer.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
            }
            call.note_whole();
            call.connection().note_answer();
            Ok(answer)
        }
    }
}

impl Protocol for Http {
    async fn serve(self, connection: Connection) {
        let mut closing = connection.stage();
        let (peer, port, state) = (connection.peer, connection.port, connection.state());
        let watched = Arc::clone(&state);
        let client = Client { peer, port, state, stage: connection.stage() };
        let (http2, listener) = (Arc::clone(&self.http2), self.failed_logins.listener());
        let service = service_fn(move |request| self.answer(&client, request));
        let mut ticks = interval(TICK);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut connection = pin!(
            http1::Builder::new()
                .timer(TokioTimer::new())
                .header_read_timeout(IDLE_TIMEOUT)
                .max_headers(FIELDS_MAX)
                .max_buf_size(BUFFER_MAX)
                .serve_connection(TokioIo::new(connection.metered(Metering::Bytes)), service)
        );
        let mut answer_ticks = AnswerTicks::default();
        // An error ends this connection only (the client left, or a time-out), so the loop just returns.
        let mut is_closing = false;
        loop {
            tokio::select! {
                biased;
                ended = connection.as_mut() => {
                    if ended.is_err_and(|error| error.is_parse_version_h2()) {
                        http2.call_once(|| {
                            tracing::warn!(target: "spillgate", "{listener}: {}", no_http1(peer.0));
                        });
                    }
                    return;
                }
                _ = closing.wait_for(|stage| *stage == Stage::Closing), if !is_closing => {
                    is_closing = true;
                    connection.as_mut().graceful_shutdown();
                }
                _ = ticks.tick() => {
                    if answer_ticks.is_too_slow(&watched) {
                        return;
                    }
                }
            }
        }
    }
}

fn no_http1(peer: IpAddr) -> String {
    format!(
        "{peer} sent a request of HTTP/2, and this listener takes HTTP/1; gRPC, such as Envoy's rate limit \
         service, belongs to the gRPC listener, server.grpc"
    )
}

/// The body of a request. When it ends, the request has arrived whole, which the call notes.
struct CountedBody {
    body: Incoming,
    call: Call,
}

impl CountedBody {
    fn new(call: &Call, body: Incoming) -> CountedBody {
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

/// Counts the ticks in which a client has not taken an answer.
#[derive(Default)]
struct AnswerTicks {
    last: Option<u32>,
    ticks: u32,
}

impl AnswerTicks {
    /// Returns whether the client takes too long for one answer. Call it at every tick. A body has a deadline of its
    /// own, and hyper's time-out for heads ends a connection that sends none.
    fn is_too_slow(&mut self, state: &ConnectionState) -> bool {
        let now = state.untaken_answer();
        self.ticks = if now == self.last { self.ticks + 1 } else { 0 };
        self.last = now;
        now.is_some() && self.ticks >= ANSWER_TICKS
    }
}

/// The longest time from the end of an answer to the end of the next request's head: longer than the idle time of common
/// client pools, and short enough that silent connections make room for others.
const IDLE_TIMEOUT: Duration = Duration::from_secs(75);

/// The time between two looks at the answer of a connection, so that no answer costs a timer.
const TICK: Duration = Duration::from_secs(5);

/// The ticks in which a client must take its whole answer: a minute and a tick. The answer to the largest batch has
/// some 400 KB, and with 64 limits for each check 11 MB.
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
    use tokio::net::{TcpListener, TcpSocket, TcpStream};
    use tokio::time;

    use super::*;
    use crate::config::Store;
    use crate::listener::http::routes;

    /// Returns how long a connection stays open whose client sends these bytes and no more. Time is paused, so it
    /// passes at once while nothing happens.
    async fn kept_open(sent: &[u8]) -> Duration {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let mut client = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        client.write_all(sent).await.unwrap();
        let open = serve_one(&listener).await;
        client.read_to_end(&mut Vec::new()).await.unwrap();
        open
    }

    /// Serves one connection, and returns how long it stays open.
    async fn serve_one(listener: &TcpListener) -> Duration {
        let app = App::open(&Store::default(), Policy::default()).await.unwrap();
        let (stream, peer) = listener.accept().await.unwrap();
        let (_stage, stages) = watch::channel(Stage::Open);
        let began = time::Instant::now();
        let (peer, state) = (Peer(peer.ip()), ConnectionState::alone());
        let connection = Connection::open(stream, peer, None, stages, state).await.unwrap();
        let http = Http::new(routes(app.clone()), None, FailedLogins::at("HTTP"));
        http.with_fast_checks(app).serve(connection).await;
        began.elapsed()
    }

    #[tokio::test(start_paused = true)]
    async fn a_connection_without_a_whole_head_is_closed_after_the_idle_timeout() {
        let whole = b"POST /v1/check HTTP/1.1\r\nhost: a\r\ncontent-length: 2\r\n\r\n{}";
        let second = [&whole[..], b"POST /v1/che"].concat();
        for sent in [&b""[..], b"POST /v1/check HTTP/1.1\r\nhost:", whole, &second] {
            let open = kept_open(sent).await;
            let most = IDLE_TIMEOUT + Duration::from_secs(10);
            assert!((IDLE_TIMEOUT..=most).contains(&open), "{open:?} after {sent:?}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_connection_with_half_a_body_is_closed_after_ten_seconds_and_a_tick() {
        let whole = b"POST /v1/check HTTP/1.1\r\nhost: a\r\ncontent-length: 2\r\n\r\n{}";
        let open = kept_open(&whole[..whole.len() - 1]).await;
        let range = Duration::from_secs(10)..=Duration::from_secs(20);
        assert!(range.contains(&open), "{open:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_pipelined_request_does_not_end_the_deadline_of_the_answer_before_it() {
        let socket = TcpSocket::new_v4().unwrap();
        socket.set_send_buffer_size(4096).unwrap();
        socket.bind((Ipv4Addr::LOCALHOST, 0).into()).unwrap();
        let listener = socket.listen(1).unwrap();
        let socket = TcpSocket::new_v4().unwrap();
        socket.set_recv_buffer_size(4096).unwrap();
        let mut client = socket.connect(listener.local_addr().unwrap()).await.unwrap();
        // The handler of this path answers without reading the body, so hyper parses the second head at once.
        let first = "GET /v1/openapi.json HTTP/1.1\r\nhost: a\r\ncontent-length: 1\r\n\r\nx";
        let second = "GET /v1/openapi.json HTTP/1.1\r\nhost: a\r\n\r\n";
        client.write_all(format!("{first}{second}").as_bytes()).await.unwrap();
        let reader = tokio::spawn(async move {
            let mut part = [0; 4096];
            loop {
                time::sleep(Duration::from_secs(20)).await;
                if !matches!(client.read(&mut part).await, Ok(1..)) {
                    return;
                }
            }
        });
        let open = serve_one(&listener).await;
        let most = TICK * ANSWER_TICKS + Duration::from_secs(10);
        assert!(open <= most, "{open:?}");
        reader.abort();
    }

    #[test]
    fn an_answer_is_untaken_until_it_is_flushed_even_if_the_next_call_has_begun() {
        let state = ConnectionState::alone();
        let mut answer_ticks = AnswerTicks::default();
        state.note_call();
        state.note_answer();
        state.note_call();
        let ticks = (0..=ANSWER_TICKS).find(|_| answer_ticks.is_too_slow(&state));
        assert_eq!(ticks, Some(ANSWER_TICKS));
        state.flushed();
        assert_eq!(state.untaken_answer(), None);
        state.note_answer();
        assert_eq!(state.untaken_answer(), Some(1), "the second message");
        state.flushed();
        assert_eq!(state.untaken_answer(), None);
    }
}
