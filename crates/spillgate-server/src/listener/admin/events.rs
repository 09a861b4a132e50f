//! Server-sent events for the dashboard: once a second, the values that change by themselves. All dashboards get the
//! same event.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::extract::State;
use axum::response::Response;
use http_body_util::channel::{Channel, Sender};
use hyper::body::Bytes;
use hyper::header::{CACHE_CONTROL, CONTENT_TYPE, HeaderMap, HeaderValue};
use serde::Serialize;
use spillgate::store::ShardStatus;
use tokio::sync::Mutex;
use tokio::task::AbortHandle;
use tokio::time::{Instant, MissedTickBehavior, interval};

use super::fleet::FleetLoad;
use super::health::Health;
use super::history::{Points, Whose};
use super::top::TopAnswer;
use crate::history::{Latest, Rate};
use crate::listener::http::answer;
use crate::status::{Facts, Status};

/// The state behind the events. Clones share it.
#[derive(Clone)]
pub(crate) struct Events {
    health: Health,
    began: Instant,
    /// The tasks that send events, the oldest first.
    streams: Arc<std::sync::Mutex<VecDeque<AbortHandle>>>,
    last: Arc<Mutex<Option<(Instant, Bytes)>>>,
}

#[derive(Serialize)]
struct Event<'e> {
    /// The time by the wall clock, since 1970.
    at_ms: u64,
    up_ms: u64,
    version: &'static str,
    store: &'e str,
    rules: usize,
    status: Status,
    shards: Vec<ShardAnswer<'e>>,
    facts: FactsAnswer,
    /// All instances on the store together; null without a store, and while it does not answer.
    fleet: Option<FleetLoad>,
    /// The last second, as columns of one point; null before the first second.
    point: Option<Points>,
    /// The decisions of the last second, of each rule that decided.
    rates: Vec<RateAnswer<'e>>,
    top: TopAnswer<'e>,
}

#[derive(Serialize)]
struct ShardAnswer<'e> {
    name: &'e str,
    asked: bool,
    degraded: bool,
    trouble: Option<&'e str>,
    clock_ahead_us: i64,
    /// The calls of the last second.
    calls: u64,
    failed: u64,
    unsent: u64,
    p99_ns: Option<u64>,
}

/// Counts since the start of the process.
#[derive(Serialize)]
struct FactsAnswer {
    live_instances: u32,
    unmatched: u64,
    state_losses: u64,
    clock_steps: u64,
    evictions: u64,
    overflows: u64,
}

#[derive(Serialize)]
struct RateAnswer<'e> {
    rule: &'e str,
    allowed: u64,
    denied: u64,
    would_deny: u64,
    near_limit: u32,
}

impl Events {
    pub(crate) fn new(health: Health) -> Events {
        Events { health, began: Instant::now(), streams: Arc::default(), last: Arc::default() }
    }

    /// Returns the current event. It is made at most twice a second, for any number of dashboards.
    async fn now(&self) -> Bytes {
        let mut last = self.last.lock().await;
        match &*last {
            Some((at, event)) if at.elapsed() < EVERY / 2 => event.clone(),
            _ => {
                let event = self.event().await;
                *last = Some((Instant::now(), event.clone()));
                event
            }
        }
    }

    async fn event(&self) -> Bytes {
        let app = &self.health.app;
        let limiter = app.limiter();
        let (shards, top, stats) = (limiter.shards(), limiter.top(None, TOP), limiter.stats());
        let latest = app.history.latest();
        let facts = Facts::gather(app);
        let rates = latest.iter().flat_map(|latest| &latest.rates);
        let event = Event {
            at_ms: facts.now_ms,
            up_ms: answer::ms_up(self.began.elapsed()),
            version: concat!("version ", env!("CARGO_PKG_VERSION")),
            store: &app.store,
            rules: facts.rules,
            status: facts.status(),
            shards: shards.iter().map(|shard| ShardAnswer::new(shard, latest.as_ref())).collect(),
            facts: FactsAnswer {
                live_instances: stats.live_instances,
                unmatched: stats.unmatched,
                state_losses: stats.state_losses,
                clock_steps: stats.clock_steps,
                evictions: stats.evictions,
                overflows: stats.overflows,
            },
            fleet: FleetLoad::of_all(limiter).await,
            point: latest.as_ref().map(|latest| {
                Points::new(&[latest.column], &[latest.decisions], Some(Whose::Instance))
            }),
            rates: rates.map(RateAnswer::new).collect(),
            top: TopAnswer::new(&top),
        };
        let mut bytes = b"data: ".to_vec();
        serde_json::to_writer(&mut bytes, &event)
            .expect("strings and numbers always make JSON, and memory takes them");
        bytes.extend_from_slice(b"\n\n");
        bytes.into()
    }

    /// Keeps a stream, and ends the oldest of too many. One that no longer reads may look like any other, but those
    /// that read begin again, and so become the newest.
    fn keep(&self, stream: AbortHandle) {
        let mut streams = self.streams.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        streams.retain(|stream| !stream.is_finished());
        if streams.len() >= LISTENERS_MAX
            && let Some(oldest) = streams.pop_front()
        {
            oldest.abort();
        }
        streams.push_back(stream);
    }

    /// Sends events until the dashboard leaves, its token is removed or the service stops. `headers` are those of its
    /// request.
    async fn send_all(self, mut to: Sender<Bytes>, headers: HeaderMap) {
        let mut ticks = interval(EVERY);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut stop = self.health.stop.clone();
        loop {
            tokio::select! {
                _ = stop.wait_for(|stop| *stop) => return,
                _ = ticks.tick() => {}
            }
            if !self.health.guard.still_admits(&headers) {
                return;
            }
            // Each dashboard has a task of its own, so one that does not read delays no other. The time-out of its
            // connection's writes ends it.
            if to.send_data(self.now().await).await.is_err() {
                return;
            }
        }
    }
}

pub async fn listen(State(events): State<Events>, headers: HeaderMap) -> Response {
    let (sender, channel) = Channel::<Bytes>::new(1);
    events.keep(tokio::spawn(events.clone().send_all(sender, headers)).abort_handle());
    let mut response = Response::new(Body::new(channel));
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}

impl<'e> ShardAnswer<'e> {
    fn new(shard: &'e ShardStatus, latest: Option<&Latest>) -> ShardAnswer<'e> {
        let ShardStatus { name, asked, degraded, trouble, clock_ahead_us, .. } = shard;
        let rate = latest.and_then(|latest| latest.shards.iter().find(|rate| rate.shard == *name));
        let p99 = rate.and_then(|rate| rate.p99);
        ShardAnswer {
            name,
            asked: *asked,
            degraded: *degraded,
            trouble: trouble.as_deref(),
            clock_ahead_us: *clock_ahead_us,
            calls: rate.map_or(0, |rate| rate.calls),
            failed: rate.map_or(0, |rate| rate.failed),
            unsent: rate.map_or(0, |rate| rate.unsent),
            p99_ns: p99.map(|p99| u64::try_from(p99.as_nanos()).unwrap_or(u64::MAX)),
        }
    }
}

impl<'e> RateAnswer<'e> {
    fn new(rate: &'e Rate) -> RateAnswer<'e> {
        let decisions = &rate.decisions;
        RateAnswer {
            rule: &rate.rule,
            allowed: decisions.allowed(),
            denied: decisions.denied(),
            would_deny: decisions.would_deny(),
            near_limit: decisions.near_limit,
        }
    }
}

const EVERY: Duration = Duration::from_secs(1);
/// The subjects of each rule in each of the two lists.
const TOP: usize = 8;
/// The most dashboards that listen at once: more than operators have open.
const LISTENERS_MAX: usize = 32;
