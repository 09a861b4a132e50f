//! Server-sent events: once a second, all that the dashboard shows and that changes by itself. Few listen at
//! a time, and all of them are told the same.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use axum::body::Body;
use axum::extract::State;
use axum::response::Response;
use http_body_util::channel::{Channel, Sender};
use hyper::StatusCode;
use hyper::body::Bytes;
use hyper::header::{CACHE_CONTROL, CONTENT_TYPE, HeaderValue};
use serde::Serialize;
use spillgate::ShardStatus;
use tokio::sync::Mutex;
use tokio::time::{Instant, MissedTickBehavior, interval};

use super::Problem;
use super::health::Health;
use super::top::TopAnswer;
use crate::door::http::answer;

/// Who listens, and what was told last.
#[derive(Clone)]
pub(crate) struct Events {
    health: Health,
    began: Instant,
    listeners: Arc<AtomicUsize>,
    last: Arc<Mutex<Option<(Instant, Bytes)>>>,
}

#[derive(Serialize)]
struct Event<'e> {
    /// On a clock of the process that nobody steps.
    at_ms: u64,
    up_ms: u64,
    version: &'static str,
    store: &'e str,
    rules: usize,
    /// About the policy's file.
    warning: Option<&'e str>,
    shards: Vec<ShardAnswer<'e>>,
    top: TopAnswer<'e>,
    metrics: &'e str,
}

#[derive(Serialize)]
struct ShardAnswer<'e> {
    name: &'e str,
    asked: bool,
    degraded: bool,
    trouble: Option<&'e str>,
}

impl Events {
    pub(crate) fn new(health: Health) -> Events {
        let (listeners, last) = (Arc::default(), Arc::default());
        Events { health, began: Instant::now(), listeners, last }
    }

    /// What is so now, made anew once a second at most, however many listen.
    async fn now(&self) -> Bytes {
        let mut last = self.last.lock().await;
        match &*last {
            Some((at, event)) if at.elapsed() < EVERY / 2 => event.clone(),
            _ => {
                let metrics = self.health.scrapes.text(EVERY / 2).await;
                let event = self.event(std::str::from_utf8(&metrics).expect("metrics are text"));
                *last = Some((Instant::now(), event.clone()));
                event
            }
        }
    }

    fn event(&self, metrics: &str) -> Bytes {
        let app = &self.health.app;
        let limiter = app.limiter();
        let (shards, top) = (limiter.shards(), limiter.top(None, TOP));
        let warning = app.reloads.warning();
        let at_ms = answer::ms_up(self.began.elapsed());
        let event = Event {
            at_ms,
            up_ms: at_ms,
            version: concat!("version ", env!("CARGO_PKG_VERSION")),
            store: &app.store,
            rules: limiter.policy().rules().len(),
            warning: warning.as_deref(),
            shards: shards.iter().map(ShardAnswer::of).collect(),
            top: TopAnswer::of(&top),
            metrics,
        };
        let mut bytes = b"data: ".to_vec();
        serde_json::to_writer(&mut bytes, &event)
            .expect("strings and numbers always make JSON, and memory takes them");
        bytes.extend_from_slice(b"\n\n");
        bytes.into()
    }

    /// Until the listener leaves or the server does.
    async fn tell(self, mut to: Sender<Bytes>, _place: Place) {
        let mut ticks = interval(EVERY);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut stop = self.health.stop.clone();
        loop {
            tokio::select! {
                _ = stop.wait_for(|stop| *stop) => return,
                _ = ticks.tick() => {}
            }
            // Whoever does not read holds nobody else up, and is cut by the connection's bounds.
            if to.send_data(self.now().await).await.is_err() {
                return;
            }
        }
    }
}

pub(super) async fn listen(State(events): State<Events>) -> Result<Response, Problem> {
    let place = Place(Arc::clone(&events.listeners));
    if place.0.fetch_add(1, Ordering::Relaxed) >= LISTENERS_MAX {
        return Err(Problem::of(StatusCode::SERVICE_UNAVAILABLE, TOO_MANY.to_owned()));
    }
    let (sender, channel) = Channel::<Bytes>::new(1);
    tokio::spawn(events.tell(sender, place));
    let mut response = Response::new(Body::new(channel));
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    Ok(response)
}

/// A place among the listeners.
struct Place(Arc<AtomicUsize>);

impl Drop for Place {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl<'e> ShardAnswer<'e> {
    fn of(shard: &'e ShardStatus) -> ShardAnswer<'e> {
        let ShardStatus { name, asked, degraded, trouble, .. } = shard;
        ShardAnswer { name, asked: *asked, degraded: *degraded, trouble: trouble.as_deref() }
    }
}

const EVERY: Duration = Duration::from_secs(1);
/// Of each rule, for the two lists.
const TOP: usize = 8;
/// More screens than operators have.
const LISTENERS_MAX: usize = 32;
const TOO_MANY: &str = "32 listen already; close a dashboard that nobody looks at";
