//! What the layer settles when a response has ended.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use http::{Request, Response, StatusCode};
use http_body_util::BodyExt;
use hyper::body::{Body, Frame, SizeHint};
use spillgate::reservation::Usage;
use spillgate::tower::{RateLimitLayer, from_header};
use spillgate::{Cost, Limiter, LimiterBuilder, Policy, Request as CheckRequest};
use spillgate_testkit::RedisServer;
use tower::{Layer, Service, ServiceExt, service_fn};

use crate::support::clock::Clock;
use crate::support::random::Random;
use crate::support::world::TODAY_US;

/// A body of pieces, which counts the tokens that it has produced. It fails after the last piece if `fails`
/// is set.
struct Stream {
    pieces: VecDeque<&'static str>,
    fails: bool,
    produced: Produced,
}

#[derive(Clone, Default)]
struct Produced(Arc<AtomicU64>);

impl Body for Stream {
    type Data = hyper::body::Bytes;
    type Error = &'static str;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Self::Data>, Self::Error>>> {
        let Some(piece) = self.pieces.pop_front() else {
            return Poll::Ready(self.fails.then_some(Err("broken off")));
        };
        self.produced.0.fetch_add(10, Ordering::Relaxed);
        Poll::Ready(Some(Ok(Frame::data(piece.into()))))
    }
}

const STREAMS: &str = r#"
    [[rule]]
    name = "model"
    key = ["user"]
    limits = [
        { quota = "100000/366d", name = "requests" },
        { quota = "30000/366d", name = "tokens", unit = "tokens" },
        { quota = "40", name = "streams", algorithm = "concurrency", max_hold = "1h" },
    ]
"#;
const TOKENS: u64 = 30_000;
const ESTIMATE: u64 = 100;

fn tokens_of(served: &spillgate::tower::Served) -> Usage<'static> {
    let produced = served.head().and_then(|head| head.extensions.get::<Produced>());
    Usage::of_unit("tokens", produced.map_or(0, |tokens| tokens.0.load(Ordering::Relaxed)))
}

fn left(peeked: &spillgate::Decision) -> Vec<u64> {
    peeked.limits().map(|counter| counter.remaining().unwrap()).collect()
}

/// Runs a thousand streams that begin, continue, end, break off and are dropped, in any order.
async fn thousand_streams(builder: LimiterBuilder, seed: u64) {
    let mut random = Random::new(seed);
    let builder = builder.timeout(Duration::from_secs(10)).denial_cache(false);
    let builder = builder.manual_clock(Clock::given(TODAY_US).manual());
    let limiter = builder.policy(Policy::from_toml(STREAMS).unwrap()).build().await.unwrap();
    let layer = RateLimitLayer::new(limiter.clone())
        .with("user", from_header("x-user"))
        .cost(|_| Cost::requests(1).and("tokens", ESTIMATE))
        .settle(Duration::from_secs(600), tokens_of);
    let handler = service_fn(|request: Request<(usize, bool)>| {
        let (pieces, fails) = *request.body();
        async move {
            let produced = Produced::default();
            let pieces = vec!["piece"; pieces].into();
            let stream = Stream { pieces, fails, produced: produced.clone() };
            let mut response = Response::new(stream);
            response.extensions_mut().insert(produced);
            Ok::<_, Infallible>(response)
        }
    });
    let mut service = layer.layer(handler);
    let mut under_way: Vec<(Pin<Box<dyn Body<Data = _, Error = _>>>, Produced)> = Vec::new();
    let (mut begun, mut denied) = (0_u64, 0);
    // The streams in flight when the last one was admitted.
    let mut last: Vec<Produced> = Vec::new();
    let (mut ended, mut unread): (Vec<Produced>, Vec<_>) = (Vec::new(), Vec::new());
    while begun + denied < 1_000 {
        match random.below(4) {
            0 | 1 => {
                // Some use far more than their estimate, most far less.
                let pieces = if random.one_in(10) { 30 } else { random.below(8) as usize };
                let request = Request::builder().header("x-user", "ada");
                let request = request.body((pieces, random.one_in(6))).unwrap();
                let response = service.ready().await.unwrap().call(request).await.unwrap();
                if response.status() != StatusCode::OK {
                    denied += 1;
                    continue;
                }
                begun += 1;
                let produced = response.extensions().get::<Produced>().unwrap().clone();
                under_way.push((Box::pin(response.into_body()), produced));
                last = under_way.iter().map(|(_, produced)| produced.clone()).collect();
            }
            2 if !under_way.is_empty() => {
                let place = random.below(under_way.len() as u64) as usize;
                for _ in 0..1 + random.below(6) {
                    if !matches!(under_way[place].0.frame().await, Some(Ok(_))) {
                        // A stream that has ended is settled before it is dropped.
                        let (body, produced) = under_way.swap_remove(place);
                        unread.push(body);
                        ended.push(produced);
                        break;
                    }
                }
            }
            _ if !under_way.is_empty() => {
                let place = random.below(under_way.len() as u64) as usize;
                let (mut body, produced) = under_way.swap_remove(place);
                if random.one_in(2) {
                    while let Some(Ok(_)) = body.frame().await {}
                }
                drop(body);
                ended.push(produced);
            }
            _ => {}
        }
        assert!(under_way.len() <= 40, "seed {seed}: {} concurrent streams", under_way.len());
    }
    ended.extend(under_way.drain(..).map(|(_, produced)| produced));
    let tokens = |of: &Produced| of.0.load(Ordering::Relaxed);
    let spent: u64 = ended.iter().map(tokens).sum();
    let over: u64 = last.iter().map(|of| tokens(of).saturating_sub(ESTIMATE)).sum();
    assert!(spent <= TOKENS + over, "seed {seed}: {spent} spent, {over} above estimates");
    let peek_request = CheckRequest::new().with("user", "ada").costing(0);
    let expected = [100_000 - begun, TOKENS.saturating_sub(spent), 40];
    for _ in 0..PATIENCE {
        if left(&limiter.peek(&peek_request).await) == expected {
            println!("seed {seed}: {begun} streams, {denied} denied, {spent} tokens");
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!(
        "seed {seed}: {:?} remain, expected {expected:?}",
        left(&limiter.peek(&peek_request).await)
    );
}

#[test]
fn a_thousand_streams_stay_within_the_limit_and_leak_no_permit() {
    let server = RedisServer::start();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        for seed in 1..=4 {
            thousand_streams(Limiter::builder(), seed).await;
        }
        thousand_streams(Limiter::builder().redis(server.url()), 5).await;
    });
}

#[test]
fn permits_are_released_at_the_end_of_a_response_without_usage() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        let policy = Policy::from_toml(STREAMS).unwrap();
        let limiter = Limiter::builder().policy(policy).build().await.unwrap();
        let layer = RateLimitLayer::new(limiter.clone()).with("user", from_header("x-user"));
        let peek_request = CheckRequest::new().with("user", "ada").costing(0);
        let request = || Request::builder().header("x-user", "ada").body(()).unwrap();

        let answers = layer.layer(service_fn(|_: Request<()>| async {
            Ok::<_, Infallible>(Response::new(http_body_util::Full::<hyper::body::Bytes>::from(
                "x",
            )))
        }));
        let response = answers.clone().oneshot(request()).await.unwrap();
        assert_eq!(left(&limiter.peek(&peek_request).await)[2], 39, "the response has not ended");
        response.into_body().collect().await.unwrap();
        assert_eq!(left(&limiter.peek(&peek_request).await)[2], 40);
        drop(answers.oneshot(request()).await.unwrap());
        assert_eq!(left(&limiter.peek(&peek_request).await)[2], 40, "left unread");

        let fails = layer
            .layer(service_fn(|_: Request<()>| async { Err::<Response<String>, _>("no answer") }));
        assert!(fails.oneshot(request()).await.is_err());
        assert_eq!(left(&limiter.peek(&peek_request).await)[2], 40, "no answer");
    });
}

#[test]
fn a_request_is_settled_by_status_and_size_of_its_response() {
    let policy = r#"
        [[rule]]
        name = "download"
        key = []
        limits = ["10/366d", { quota = "1000/366d", unit = "bytes" }]
    "#;
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        let builder = Limiter::builder().policy(Policy::from_toml(policy).unwrap());
        let limiter = builder.build().await.unwrap();
        let layer = RateLimitLayer::new(limiter.clone())
            .cost(|_| Cost::requests(1).and("bytes", 500))
            .settle(Duration::from_secs(60), |served| {
                let usage = Usage::of_unit("bytes", served.bytes());
                // A request that finds nothing costs nothing.
                let found = served.head().is_some_and(|head| head.status.is_success());
                if found { usage } else { usage.and("requests", 0) }
            });
        let service = layer.layer(service_fn(|request: Request<u16>| async move {
            let status = StatusCode::from_u16(*request.body()).unwrap();
            let body = http_body_util::Full::<hyper::body::Bytes>::from("seventeen letters");
            Ok::<_, Infallible>(Response::builder().status(status).body(body).unwrap())
        }));
        for (status, expected) in [(200, [9, 983]), (404, [9, 966])] {
            let response = service.clone().oneshot(Request::new(status)).await.unwrap();
            response.into_body().collect().await.unwrap();
            let peeked = limiter.peek(&CheckRequest::new().costing(0)).await;
            assert_eq!(left(&peeked), expected, "{status}");
        }
    });
}

/// A body of these frames, which may report its length and its end, or fail after the last frame.
struct ByHand {
    frames: VecDeque<Frame<hyper::body::Bytes>>,
    length: Option<u64>,
    reports_its_end: bool,
    breaks_off: bool,
}

impl Body for ByHand {
    type Data = hyper::body::Bytes;
    type Error = &'static str;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Self::Data>, Self::Error>>> {
        let frame = self.frames.pop_front().map(Ok);
        let broken_off = self.breaks_off.then_some(Err("broken off"));
        Poll::Ready(frame.or(broken_off))
    }

    fn is_end_stream(&self) -> bool {
        self.reports_its_end && self.frames.is_empty()
    }

    fn size_hint(&self) -> SizeHint {
        self.length.map_or_else(SizeHint::default, SizeHint::with_exact)
    }
}

/// Servers end a body in several ways, and poll it to its end in few.
#[test]
fn a_response_is_whole_once_its_last_byte_was_taken() {
    let piece = || Frame::data(hyper::body::Bytes::from("piece"));
    let trailers = || Frame::trailers(http::HeaderMap::new());
    let of = |frames: Vec<Frame<hyper::body::Bytes>>| ByHand {
        frames: frames.into(),
        length: None,
        reports_its_end: false,
        breaks_off: false,
    };
    // The body, the Content-Length, the number of frames that the server takes, and whether that is all.
    let cases = [
        ("empty", ByHand { reports_its_end: true, ..of(vec![]) }, None, 0, true),
        ("no bytes", ByHand { length: Some(0), ..of(vec![]) }, None, 0, true),
        ("HEAD", ByHand { reports_its_end: true, ..of(vec![]) }, Some("10"), 0, true),
        ("its length", ByHand { length: Some(10), ..of(vec![piece(), piece()]) }, None, 2, true),
        ("a part of it", ByHand { length: Some(10), ..of(vec![piece(), piece()]) }, None, 1, false),
        ("the length of the head", of(vec![piece(), piece()]), Some("10"), 2, true),
        ("a part of that", of(vec![piece(), piece()]), Some("10"), 1, false),
        ("trailers", of(vec![piece(), trailers()]), None, 2, true),
        ("without its trailers", of(vec![piece(), trailers()]), None, 1, false),
        ("no known length", of(vec![piece(), piece()]), None, 2, false),
        ("to its end", of(vec![piece()]), None, 2, true),
        ("broken off", ByHand { breaks_off: true, ..of(vec![piece()]) }, Some("5"), 2, false),
    ];
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        let limiter =
            Limiter::builder().policy(Policy::from_toml(STREAMS).unwrap()).build().await.unwrap();
        for (name, body, length, taken, is_whole) in cases {
            let wholes = Arc::new(std::sync::Mutex::new(Vec::new()));
            let seen = Arc::clone(&wholes);
            let layer = RateLimitLayer::new(limiter.clone())
                .with("user", from_header("x-user"))
                .settle(Duration::from_secs(60), move |served| {
                    seen.lock().unwrap().push(served.is_whole());
                    Usage::of_unit("tokens", 0)
                });
            let mut response = Response::builder();
            if let Some(length) = length {
                response = response.header(http::header::CONTENT_LENGTH, length);
            }
            let response = std::sync::Mutex::new(Some(response.body(body).unwrap()));
            let service = layer.layer(service_fn(|_: Request<()>| {
                let response = response.lock().unwrap().take().unwrap();
                async move { Ok::<_, Infallible>(response) }
            }));
            let request = Request::builder().header("x-user", "ada").body(()).unwrap();
            let mut body = Box::pin(service.oneshot(request).await.unwrap().into_body());
            let _ = (body.is_end_stream(), body.size_hint());
            for _ in 0..taken {
                let _ = body.frame().await;
            }
            drop(body);
            assert_eq!(*wholes.lock().unwrap(), [is_whole], "{name}");
        }
    });
}

#[test]
fn a_request_that_no_rule_matches_is_served_and_its_receipt_settles() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        let limiter =
            Limiter::builder().policy(Policy::from_toml(STREAMS).unwrap()).build().await.unwrap();
        let layer = RateLimitLayer::new(limiter.clone())
            .with("user", from_header("x-user"))
            .settle(Duration::from_secs(60), tokens_of);
        let receipts = Arc::new(std::sync::Mutex::new(Vec::new()));
        let seen = Arc::clone(&receipts);
        let service = layer.layer(service_fn(move |request: Request<()>| {
            let decision = request.extensions().get::<spillgate::Decision>().unwrap();
            seen.lock().unwrap().extend(decision.receipt().cloned());
            async { Ok::<_, Infallible>(Response::new(String::new())) }
        }));
        let response = service.oneshot(Request::new(())).await.unwrap();
        assert_eq!(response.status(), StatusCode::OK);
        response.into_body().collect().await.unwrap();
        let receipts = receipts.lock().unwrap().clone();
        assert_eq!(receipts.len(), 1);
        assert_eq!(
            limiter.release(&receipts[0]).await,
            Ok(spillgate::reservation::EndResult::Done)
        );
    });
}

#[test]
fn the_layer_denies_requests_it_could_not_settle_and_serves_others() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        let limiter =
            Limiter::builder().policy(Policy::from_toml(STREAMS).unwrap()).build().await.unwrap();
        let day = spillgate::reservation::Reserve::lasting(Duration::from_secs(86_400));
        let free = || CheckRequest::new().with("user", "eve").costing(0);
        while limiter.reserve(&free(), &day).await.unwrap().allowed() {}
        for settles in [false, true] {
            let layer = RateLimitLayer::new(limiter.clone()).with("user", from_header("x-user"));
            let layer =
                if settles { layer.settle(Duration::from_secs(60), tokens_of) } else { layer };
            let service = layer.layer(service_fn(|_: Request<()>| async {
                Ok::<_, Infallible>(Response::new(String::new()))
            }));
            for (user, status) in [("eve", 503), ("ada", 200)] {
                let request = Request::builder().header("x-user", user).body(()).unwrap();
                let response = service.clone().oneshot(request).await.unwrap();
                assert_eq!(response.status(), status, "{user}, settles: {settles}");
            }
        }
    });
}

const PATIENCE: usize = 3_000;
