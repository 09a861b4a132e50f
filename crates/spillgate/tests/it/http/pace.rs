//! Clients that pace themselves: by the published limits of an API, and by its replies.

use std::convert::Infallible;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use http::{Request, Response};
use spillgate::tower::{Pace, PaceError, PaceLayer};
use spillgate::{Limiter, Policy};
use tokio::time::Instant;
use tower::{Layer, Service, service_fn};

use crate::support::world::runtime;

/// An API that records the times of calls and sends `fields` in each response.
#[derive(Clone)]
struct Api {
    calls: Arc<Mutex<Vec<Instant>>>,
    status: u16,
    fields: &'static [(&'static str, &'static str)],
}

impl Api {
    fn new(status: u16, fields: &'static [(&'static str, &'static str)]) -> Api {
        Api { calls: Arc::default(), status, fields }
    }

    fn answer(&self) -> Response<()> {
        self.calls.lock().unwrap().push(Instant::now());
        let answer = Response::builder().status(self.status);
        let add = |answer: http::response::Builder, (name, value): &(&str, &str)| {
            answer.header(*name, *value)
        };
        self.fields.iter().fold(answer, add).body(()).unwrap()
    }

    fn calls(&self) -> Vec<Instant> {
        self.calls.lock().unwrap().clone()
    }
}

/// A client that keeps these limits and waits at most this long.
async fn client(
    api: &Api,
    limits: &str,
    within: Duration,
) -> Pace<
    impl Service<Request<()>, Response = Response<()>, Error = Infallible, Future: Send>
    + Clone
    + Send
    + use<>,
> {
    let policy = format!("[[rule]]\nname = \"api\"\nkey = []\nlimits = [{limits:?}]");
    let policy = Policy::from_toml(&policy).unwrap();
    let limiter = Limiter::builder().policy(policy).build().await.unwrap();
    let api = api.clone();
    let service = service_fn(move |_: Request<()>| std::future::ready(Ok(api.answer())));
    PaceLayer::new(limiter).waiting_at_most(within).layer(service)
}

fn get(host: &str) -> Request<()> {
    Request::get(format!("http://{host}/items")).body(()).unwrap()
}

#[test]
fn calls_wait_for_room_under_the_published_limit() {
    runtime().block_on(async {
        let api = Api::new(200, &[]);
        let mut client = client(&api, "20/second", MINUTE).await;
        let began = Instant::now();
        for _ in 0..25 {
            client.call(get("api")).await.unwrap();
        }
        assert!(began.elapsed() >= Duration::from_millis(240), "five calls wait");
    });
}

#[test]
fn a_permit_is_released_after_the_response_or_the_failure_of_its_call() {
    runtime().block_on(async {
        let limit = "{ quota = \"2\", algorithm = \"concurrency\", max_hold = \"30s\" }";
        let policy = format!("[[rule]]\nname = \"api\"\nkey = []\nlimits = [{limit}]");
        let policy = Policy::from_toml(&policy).unwrap();
        let limiter = Limiter::builder().policy(policy).build().await.unwrap();
        let pace = PaceLayer::new(limiter).waiting_at_most(Duration::from_millis(200));

        let api = Api::new(200, &[]);
        let answers = move |_: Request<()>| std::future::ready(Ok::<_, Infallible>(api.answer()));
        let mut client = pace.layer(service_fn(answers));
        for _ in 0..5 {
            client.call(get("api")).await.unwrap();
        }

        let fails = |_: Request<()>| std::future::ready(Err::<Response<()>, _>("connection reset"));
        let mut client = pace.layer(service_fn(fails));
        for _ in 0..5 {
            let error = client.call(get("api")).await.unwrap_err();
            assert!(matches!(error, PaceError::Client("connection reset")), "{error}");
        }
    });
}

#[test]
fn a_client_without_tower_waits_for_room_and_as_the_reply_asks() {
    runtime().block_on(async {
        let policy = "[[rule]]\nname = \"api\"\nkey = []\nlimits = [\"1/hour\"]";
        let policy = Policy::from_toml(policy).unwrap();
        let limiter = Limiter::builder().policy(policy).build().await.unwrap();
        let pace = PaceLayer::new(limiter).waiting_at_most(Duration::from_millis(10));
        let denied = Response::builder().status(429).header("retry-after", "60").body(()).unwrap();

        pace.wait(&get("api")).await.unwrap();
        let no_room = pace.wait(&get("api")).await;
        assert!(matches!(no_room, Err(PaceError::Denied(_))), "{no_room:?}");
        pace.note_reply(&get("api"), denied.status(), denied.headers());
        let held_off = pace.wait(&get("api")).await;
        assert!(matches!(held_off, Err(PaceError::HeldOff(_))), "{held_off:?}");
        let other = pace.wait(&get("other")).await;
        assert!(matches!(other, Err(PaceError::Denied(_))), "another host asked for no wait");
    });
}

#[test]
fn a_call_that_cannot_be_sent_in_time_is_not_sent() {
    runtime().block_on(async {
        let api = Api::new(200, &[]);
        let mut client = client(&api, "1/hour", MINUTE).await;
        client.call(get("api")).await.unwrap();
        let error = client.call(get("api")).await.unwrap_err();
        assert_eq!(error.to_string(), "not sent: api does not allow it in time (limit-exceeded)");
        assert!(matches!(error, PaceError::Denied(decision) if !decision.allowed()));
        assert_eq!(api.calls().len(), 1);
    });
}

#[test]
fn a_blocked_call_is_not_sent_and_its_error_has_the_reason() {
    runtime().block_on(async {
        let api = Api::new(200, &[]);
        let error = client(&api, "block", MINUTE).await.call(get("api")).await.unwrap_err();
        assert_eq!(error.to_string(), "not sent: api does not allow it in time (blocked)");
        assert!(api.calls().is_empty());
    });
}

#[test]
fn calls_pause_for_as_long_as_the_api_asks() {
    let replies: [(u16, &[(&str, &str)]); 3] = [
        (429, &[("retry-after", "1")]),
        (200, &[("ratelimit", "\"api\";r=0;t=1")]),
        (200, &[("x-ratelimit-remaining", "0"), ("x-ratelimit-reset", "1")]),
    ];
    for (status, fields) in replies {
        runtime().block_on(async {
            let api = Api::new(status, fields);
            let mut client = client(&api, "1000/second", MINUTE).await;
            client.call(get("api")).await.unwrap();
            // Another host has set no wait.
            client.call(get("other")).await.unwrap();
            client.call(get("api")).await.unwrap();
            let calls = api.calls();
            assert!(calls[2] - calls[0] >= Duration::from_secs(1), "{fields:?}");
        });
    }
}

#[test]
fn the_longest_patience_is_a_wait_like_any_other() {
    runtime().block_on(async {
        let api = Api::new(200, &[]);
        let mut client = client(&api, "10/second", Duration::MAX).await;
        for _ in 0..11 {
            assert_eq!(client.call(get("api")).await.unwrap().status(), 200);
        }
        assert_eq!(api.calls().len(), 11);
    });
}

#[test]
fn a_call_that_would_wait_too_long_fails_at_once() {
    runtime().block_on(async {
        let api = Api::new(503, &[("retry-after", "3600")]);
        let mut client = client(&api, "1000/second", MINUTE).await;
        client.call(get("api")).await.unwrap();
        let error = client.call(get("api")).await.unwrap_err();
        assert!(matches!(error, PaceError::HeldOff(wait) if wait > MINUTE), "{error}");
        assert_eq!(api.calls().len(), 1);
    });
}

const MINUTE: Duration = Duration::from_secs(60);
