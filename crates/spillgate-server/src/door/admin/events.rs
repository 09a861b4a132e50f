//! Server-sent events for the dashboard: once a second, the values that change by themselves. All dashboards get the
//! same event.

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

/// The state behind the events. Clones share it.
#[derive(Clone)]
pub(crate) struct Events {
    health: Health,
    began: Instant,
    listeners: Arc<AtomicUsize>,
    last: Arc<Mutex<Option<(Instant, Bytes)>>>,
}

#[derive(Serialize)]
struct Event<'e> {
    /// The time since the process started, by a clock that never steps.
    at_ms: u64,
    up_ms: u64,
    version: &'static str,
    store: &'e str,
    rules: usize,
    /// The warning about the policy file that stands.
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

    /// Returns the current event. It is made at most twice a second, for any number of dashboards.
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

    /// Sends events until the dashboard leaves or the service stops.
    async fn send_all(self, mut to: Sender<Bytes>, _place: Place) {
        let mut ticks = interval(EVERY);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut stop = self.health.stop.clone();
        loop {
            tokio::select! {
                _ = stop.wait_for(|stop| *stop) => return,
                _ = ticks.tick() => {}
            }
            // Each dashboard has a task of its own, so one that does not read delays no other. The time-out of its
            // connection's writes ends it.
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
    tokio::spawn(events.send_all(sender, place));
    let mut response = Response::new(Body::new(channel));
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    Ok(response)
}

/// One of the dashboards that listen, counted while this lives.
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
/// The subjects of each rule in each of the two lists.
const TOP: usize = 8;
/// The most dashboards that listen at once: more than operators have open.
const LISTENERS_MAX: usize = 32;
const TOO_MANY: &str = "32 dashboards receive events already; close one of them";
