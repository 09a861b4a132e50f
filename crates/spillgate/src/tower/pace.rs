//! Limits the calls of a client: each waits for room before it is sent, and for as long as the API
//! asks.

use std::collections::HashMap;
use std::convert::Infallible;
use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use http::{HeaderMap, Request as HttpRequest, Response, StatusCode};
use parking_lot::Mutex;
use tokio::time::{Instant, sleep_until};
use tower_layer::Layer;
use tower_service::Service;

use super::attributes::Identity;
use super::diagnostics::Diagnostics;
use super::head::without_body;
use super::{Attributes, CostOf, Head, Unsettled};
use crate::decision::{Decision, Reason};
use crate::limiter::Limiter;
use crate::request::Cost;
use crate::time::Clock;
use crate::waiting::deadline_after;

mod reply;

use reply::requested_wait;

/// Makes the client of an API wait before each call: until a [`Limiter`] has room, in order, and
/// while the API denies calls. [`PaceLayer::waiting_at_most`] bounds both waits. Clones share
/// everything.
///
/// An API announces a wait by `Retry-After` of a 429 or 503, or by the `RateLimit` fields of any
/// response when no quota is left, in the IETF or older styles. It applies to all calls to that
/// host. The limiter keeps the published rate of the API, for a whole fleet if its store is shared.
/// Permits of concurrency limits are released when the call has its response, has failed, or has
/// lost its caller.
///
/// ```
/// use std::time::Duration;
/// use spillgate::tower::PaceLayer;
/// use spillgate::{Limiter, Policy};
/// use tower::{Service, ServiceBuilder, service_fn};
/// # tokio::runtime::Runtime::new().unwrap().block_on(async {
/// let published = "[[rule]]\nname = \"api\"\nkey = []\nlimits = [\"50/second\"]";
/// let limiter = Limiter::builder().policy(Policy::from_toml(published)?).build().await?;
/// let pace = PaceLayer::new(limiter).waiting_at_most(Duration::from_secs(10));
/// # let http_client = service_fn(async |_request: http::Request<()>| {
/// #     Ok::<_, std::convert::Infallible>(http::Response::new(()))
/// # });
///
/// let mut client = ServiceBuilder::new().layer(pace).service(http_client);
/// let request = http::Request::get("http://api.example/items").body(())?;
/// assert_eq!(client.call(request).await?.status(), 200);
/// # Ok::<(), Box<dyn std::error::Error>>(()) }).unwrap();
/// ```
#[derive(Clone, Debug)]
pub struct PaceLayer {
    limiter: Limiter,
    settings: Arc<Settings>,
    holds: Arc<Holds>,
}

/// A client behind a [`PaceLayer`].
#[derive(Clone, Debug)]
pub struct Pace<S> {
    inner: S,
    layer: PaceLayer,
}

#[derive(Clone)]
struct Settings {
    attributes: Attributes,
    within: Duration,
    diagnostics: Diagnostics,
}

/// The reason why a call has no response.
///
/// A client behind a [`PaceLayer`] returns it.
#[derive(Debug)]
#[non_exhaustive]
pub enum PaceError<E> {
    /// A limit has no room in time or blocks, or the store is unavailable. Nothing was sent.
    Denied(Box<Decision>),
    /// The API asked for a longer wait than allowed. Nothing was sent.
    HeldOff(Duration),
    /// The client failed.
    Client(E),
}

impl PaceLayer {
    /// Makes a layer whose calls have no attributes. They match only rules without a key, until you
    /// add some.
    pub fn new(limiter: Limiter) -> PaceLayer {
        let settings = Settings {
            attributes: Attributes::default(),
            within: WITHIN,
            diagnostics: Diagnostics::default(),
        };
        PaceLayer { limiter, settings: Arc::new(settings), holds: Arc::default() }
    }

    /// Adds an attribute, for APIs that limit by it, or replaces the one of this name.
    pub fn with(mut self, name: &str, identity: impl Into<Identity>) -> PaceLayer {
        Arc::make_mut(&mut self.settings).attributes.set(name, identity.into());
        self
    }

    /// Sets the cost of a call. The default is one request.
    pub fn cost(
        mut self,
        cost: impl Fn(Head<'_>) -> Cost<'_> + Send + Sync + 'static,
    ) -> PaceLayer {
        let cost: Arc<CostOf> = Arc::new(cost);
        Arc::make_mut(&mut self.settings).attributes.cost = Some(cost);
        self
    }

    /// Sets how long a call may wait before it is sent. The default is 30 seconds.
    pub fn waiting_at_most(mut self, within: Duration) -> PaceLayer {
        Arc::make_mut(&mut self.settings).within = within;
        self
    }

    /// Waits until a call may be sent, for clients that are no tower services. [`PaceLayer::note_reply`] takes the reply.
    ///
    /// Permits of concurrency limits are not released after the reply: they end at the limit's
    /// `max_hold`.
    ///
    /// # Errors
    /// [`PaceError::Denied`] or [`PaceError::HeldOff`]: the call must not be sent.
    ///
    /// ```
    /// use spillgate::tower::PaceLayer;
    /// # use spillgate::{Limiter, Policy};
    /// # tokio::runtime::Runtime::new().unwrap().block_on(async {
    /// # let published = "[[rule]]\nname = \"api\"\nkey = []\nlimits = [\"50/second\"]";
    /// # let limiter = Limiter::builder().policy(Policy::from_toml(published)?).build().await?;
    /// # let send = async |_call: &http::Request<()>| http::Response::new(());
    /// let pace = PaceLayer::new(limiter);
    /// let call = http::Request::get("http://api.example/items").body(())?;
    /// pace.wait(&call).await?;
    /// let reply = send(&call).await;
    /// pace.note_reply(&call, reply.status(), reply.headers());
    /// # Ok::<(), Box<dyn std::error::Error>>(()) }).unwrap();
    /// ```
    pub async fn wait<B>(&self, call: &HttpRequest<B>) -> Result<(), PaceError<Infallible>> {
        if let Some(permits) = self.wait_for_room::<Infallible>(Head::from_request(call)).await? {
            permits.keep();
        }
        Ok(())
    }

    /// Reads how long the API asks its clients to wait, from the reply to a call. Later calls to that host wait.
    pub fn note_reply<B>(&self, call: &HttpRequest<B>, status: StatusCode, headers: &HeaderMap) {
        self.holds.learn(host(Head::from_request(call)).into(), status, headers);
    }

    /// Returns the permits of a call that may be sent, if it holds any.
    async fn wait_for_room<E>(&self, head: Head<'_>) -> Result<Option<Unsettled>, PaceError<E>> {
        let deadline = deadline_after(self.settings.within);
        self.holds.wait::<E>(host(head), deadline).await?;
        let Settings { attributes, diagnostics, .. } = &*self.settings;
        let found = attributes.find(head, diagnostics);
        let request = attributes.request(&found, head);
        let decision = self.limiter.acquire(&request, left(deadline)).await;
        if !decision.allowed() {
            return Err(PaceError::Denied(Box::new(decision)));
        }
        let permits = decision
            .receipt()
            .map(|receipt| Unsettled::new(self.limiter.clone(), receipt.clone(), None));
        // The API may have asked for a wait in the meantime.
        self.holds.wait::<E>(host(head), deadline).await?;
        Ok(permits)
    }
}

impl<S> Layer<S> for PaceLayer {
    type Service = Pace<S>;

    fn layer(&self, inner: S) -> Pace<S> {
        Pace { inner, layer: self.clone() }
    }
}

impl<S, B, R> Service<HttpRequest<B>> for Pace<S>
where
    S: Service<HttpRequest<B>, Response = Response<R>> + Clone + Send + 'static,
    S::Future: Send,
    B: Send + 'static,
{
    type Response = S::Response;
    type Error = PaceError<S::Error>;
    type Future = Pin<Box<dyn Future<Output = Result<S::Response, Self::Error>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.inner.poll_ready(context).map_err(PaceError::Client)
    }

    fn call(&mut self, request: HttpRequest<B>) -> Self::Future {
        // The instance that was polled ready must be the one that is called.
        let clone = self.inner.clone();
        let mut inner = std::mem::replace(&mut self.inner, clone);
        let layer = self.layer.clone();
        Box::pin(async move {
            let (head, body) = without_body(request);
            let permits = layer.wait_for_room::<S::Error>(Head::from_request(&head)).await?;
            let host: Box<str> = host(Head::from_request(&head)).into();
            let answer = inner.call(head.map(|()| body)).await;
            drop(permits);
            let answer = answer.map_err(PaceError::Client)?;
            layer.holds.learn(host, answer.status(), answer.headers());
            Ok(answer)
        })
    }
}

fn host(head: Head<'_>) -> &str {
    let named = || head.headers.get(http::header::HOST).and_then(|host| host.to_str().ok());
    head.uri.authority().map(http::uri::Authority::as_str).or_else(named).unwrap_or_default()
}

fn left(deadline: Instant) -> Duration {
    deadline.saturating_duration_since(Instant::now())
}

/// The times until which hosts asked clients to wait.
#[derive(Debug, Default)]
struct Holds(Mutex<HashMap<Box<str>, Instant>>);

impl Holds {
    /// Waits until the host accepts calls again. Returns an error at once if that is after
    /// `deadline`.
    async fn wait<E>(&self, host: &str, deadline: Instant) -> Result<(), PaceError<E>> {
        // The host may ask for more while a caller waits.
        while let Some(until) = self.held_until(host) {
            if until > deadline {
                return Err(PaceError::HeldOff(left(until)));
            }
            sleep_until(until).await;
        }
        Ok(())
    }

    fn held_until(&self, host: &str) -> Option<Instant> {
        let mut holds = self.0.lock();
        let until = *holds.get(host)?;
        if left(until).is_zero() {
            holds.remove(host);
            return None;
        }
        Some(until)
    }

    /// Notes the wait that the host asks for in its reply, if it does.
    fn learn(&self, host: Box<str>, status: StatusCode, headers: &HeaderMap) {
        let now_s = Clock::System.now_us() / 1_000_000;
        if let Some(wait) = requested_wait(status, headers, now_s) {
            self.note(host, Instant::now() + wait);
        }
    }

    fn note(&self, host: Box<str>, until: Instant) {
        let mut holds = self.0.lock();
        if holds.len() >= HOSTS_MAX && !holds.contains_key(&host) {
            // Expired waits are removed only when the map is full.
            holds.retain(|_, until| !left(*until).is_zero());
        }
        if holds.len() < HOSTS_MAX || holds.contains_key(&host) {
            let known = holds.entry(host).or_insert(until);
            *known = until.max(*known);
        }
    }
}

impl<E: fmt::Display> fmt::Display for PaceError<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PaceError::Denied(decision) => {
                let rule = decision.rule().unwrap_or("the limit");
                let reason = decision.reason().map_or("denied", Reason::as_str);
                write!(f, "not sent: {rule} does not allow it in time ({reason})")
            }
            PaceError::HeldOff(wait) => {
                write!(f, "not sent: the API asks for a wait of another {} s", wait.as_secs())
            }
            PaceError::Client(error) => error.fmt(f),
        }
    }
}

impl<E: std::error::Error + 'static> std::error::Error for PaceError<E> {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            PaceError::Denied(_) | PaceError::HeldOff(_) => None,
            PaceError::Client(error) => error.source(),
        }
    }
}

impl fmt::Debug for Settings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Settings")
            .field("attributes", &self.attributes)
            .field("within", &self.within)
            .finish_non_exhaustive()
    }
}

/// As long as most clients wait for a response.
const WITHIN: Duration = Duration::from_secs(30);
/// The most hosts with a wait. Calls to further hosts are sent, and the API denies them.
const HOSTS_MAX: usize = 1_024;
