#![doc = include_str!("tower.md")]

use std::fmt;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use http::{Extensions, Request as HttpRequest, Response};
use smallvec::SmallVec;
use tower_layer::Layer;
use tower_service::Service;

use crate::decision::Decision;
use crate::denial_response::DenialResponse;
use crate::headers::{Fields, HeaderStyle};
use crate::identity::ByIp;
use crate::limit::Limit;
use crate::limiter::Limiter;
use crate::policy::{Policy, Rule};
use crate::request::{Cost, Request};
use crate::reservation::{Reserve, Usage};

mod attributes;
mod body;
mod diagnostics;
mod future;
mod grpc;
mod head;
mod pace;
mod settling;

use attributes::Found;
pub use attributes::{
    Identity, constant, from_header, from_method, from_path, from_path_segment, from_request,
};
#[cfg(feature = "axum")]
pub use attributes::{from_matched_path, from_path_parameter};
pub use body::ResponseBody;
use diagnostics::Diagnostics;
pub use future::ResponseFuture;
pub use head::Head;
use head::without_body;
pub use pace::{Pace, PaceError, PaceLayer};
pub use settling::Served;
use settling::{Settle, Unsettled};

/// Makes a service check each request with a [`Limiter`] first. Clones share everything.
#[derive(Clone, Debug)]
pub struct RateLimitLayer {
    settings: Arc<Settings>,
}

/// A service behind a [`RateLimitLayer`].
#[derive(Clone, Debug)]
pub struct RateLimit<S> {
    inner: S,
    settings: Arc<Settings>,
}

/// The sources of a request's attributes, domain and cost.
#[derive(Clone, Default)]
struct Attributes {
    named: Vec<(Box<str>, Identity)>,
    domain: Option<Box<str>>,
    cost: Option<Arc<CostOf>>,
}

/// All settings, with the limiter. The service is cloned for every request, so they are behind one
/// pointer.
#[derive(Clone)]
pub(crate) struct Settings {
    limiter: Limiter,
    attributes: Attributes,
    settle: Option<Settle>,
    skip: Option<Arc<Predicate>>,
    style: HeaderStyle,
    deny: Option<Arc<Deny>>,
    diagnostics: Diagnostics,
}

type CostOf = dyn Fn(Head<'_>) -> Cost<'_> + Send + Sync;
type Predicate = dyn Fn(Head<'_>) -> bool + Send + Sync;
type Deny = dyn Fn(&DenialResponse<'_>, Head<'_>) -> Response<Vec<u8>> + Send + Sync;

impl RateLimitLayer {
    /// Limits each client address by itself, with state in this process. The address is that of the connection:
    /// behind a proxy, build a [`Limiter`] and pass a [`ByIp`] that trusts it to
    /// [`identify`](Self::identify).
    ///
    /// ```
    /// # #[cfg(feature = "axum")] {
    /// use axum::{Router, routing::get};
    /// use spillgate::{Limit, tower::RateLimitLayer};
    ///
    /// let app: Router = Router::new()
    ///     .route("/", get(async || "welcome"))
    ///     .layer(RateLimitLayer::per_ip(Limit::per_second(10)));
    /// // Serve it by `app.into_make_service_with_connect_info::<std::net::SocketAddr>()`.
    /// # }
    /// ```
    pub fn per_ip(limit: Limit) -> RateLimitLayer {
        let rule = Rule::new("per-ip").key(["ip"]).limit(limit);
        let policy =
            Policy::builder().rule(rule).build().expect("a rule with a key and a limit is valid");
        RateLimitLayer::new(Limiter::in_memory(policy)).identify(ByIp::direct())
    }

    /// Makes a layer whose requests have no attributes. They match only rules without a key, until
    /// you add some.
    pub fn new(limiter: Limiter) -> RateLimitLayer {
        let settings = Settings {
            limiter,
            attributes: Attributes::default(),
            settle: None,
            skip: None,
            style: HeaderStyle::default(),
            deny: None,
            diagnostics: Diagnostics::default(),
        };
        RateLimitLayer { settings: Arc::new(settings) }
    }

    /// Sets the attribute `ip`, from a [`ByIp`].
    pub fn identify(self, identity: impl Into<Identity>) -> RateLimitLayer {
        self.with("ip", identity)
    }

    /// Adds an attribute, or replaces the one of this name. A request without a value for it
    /// matches no rule that needs it.
    pub fn with(mut self, name: &str, identity: impl Into<Identity>) -> RateLimitLayer {
        Arc::make_mut(&mut self.settings).attributes.set(name, identity.into());
        self
    }

    /// Sets the domain of requests. The default is `default`.
    pub fn in_domain(mut self, domain: &str) -> RateLimitLayer {
        Arc::make_mut(&mut self.settings).attributes.domain = Some(domain.into());
        self
    }

    /// Sets the cost of a request. The default is one request.
    ///
    /// ```
    /// # use spillgate::{Cost, Limiter, tower::RateLimitLayer};
    /// # fn with_cost(layer: RateLimitLayer) -> RateLimitLayer {
    /// layer.cost(|head| if head.method == "POST" { Cost::requests(5) } else { Cost::requests(1) })
    /// # }
    /// ```
    pub fn cost(
        mut self,
        cost: impl Fn(Head<'_>) -> Cost<'_> + Send + Sync + 'static,
    ) -> RateLimitLayer {
        Arc::make_mut(&mut self.settings).attributes.cost = Some(Arc::new(cost));
        self
    }

    /// Reserves the estimated cost of a request, and settles it when its response has ended.
    ///
    /// A response ends with its body, or when its client disconnects. `usage` returns the true
    /// usage, by the status and size of the response, or from data that the service left in its
    /// extensions. A unit that it does not name was used as estimated. A reservation that is not
    /// settled within `lasting` stays charged at its estimate.
    ///
    /// Permits of a concurrency limit are released when the response ends, even without this
    /// setting. They also end at their limit's `max_hold`, so choose one that is longer than any
    /// response takes.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use spillgate::reservation::Usage;
    /// # use spillgate::{Cost, Limiter, tower::RateLimitLayer};
    /// # fn with_size(layer: RateLimitLayer) -> RateLimitLayer {
    /// layer
    ///     .cost(|_head| Cost::requests(1).and("bytes", 1_000_000))
    ///     .settle(Duration::from_secs(60), |served| Usage::of_unit("bytes", served.bytes()))
    /// # }
    /// ```
    ///
    /// # Panics
    /// If `lasting` is not from 1 ms to 24 hours.
    #[track_caller]
    pub fn settle(
        mut self,
        lasting: Duration,
        usage: impl Fn(&Served) -> Usage<'static> + Send + Sync + 'static,
    ) -> RateLimitLayer {
        let reserve = Reserve::lasting(lasting);
        if let Err(error) = reserve.lasting_us() {
            panic!("{error}");
        }
        let settle = Settle { reserve, usage: Arc::new(usage) };
        Arc::make_mut(&mut self.settings).settle = Some(settle);
        self
    }

    /// Lets some requests pass without a check, for example health checks.
    pub fn skip(
        mut self,
        skip: impl Fn(Head<'_>) -> bool + Send + Sync + 'static,
    ) -> RateLimitLayer {
        Arc::make_mut(&mut self.settings).skip = Some(Arc::new(skip));
        self
    }

    /// Sets the header fields that show how much quota is left.
    pub fn headers(mut self, style: HeaderStyle) -> RateLimitLayer {
        Arc::make_mut(&mut self.settings).style = style;
        self
    }

    /// Replaces the responses to denied requests, including those during an outage and those that a rule sets.
    ///
    /// The function can use the status, body and header fields of the denial, which are the rule's if it sets them.
    /// The fields of the style and `Retry-After` are added. gRPC requests still get a gRPC status,
    /// since their clients understand nothing else.
    ///
    /// ```
    /// # use spillgate::{Reason, tower::RateLimitLayer};
    /// # fn with_page(layer: RateLimitLayer) -> RateLimitLayer {
    /// layer.deny_with(|denial, _head| {
    ///     let page = match denial.reason() {
    ///         Reason::StoreUnavailable | Reason::Overloaded => "We will be back in a moment.",
    ///         _ => "Please slow down.",
    ///     };
    ///     let response = http::Response::builder().status(denial.status());
    ///     response.body(page.into()).expect("a status makes a response")
    /// })
    /// # }
    /// ```
    pub fn deny_with(
        mut self,
        deny: impl Fn(&DenialResponse<'_>, Head<'_>) -> Response<Vec<u8>> + Send + Sync + 'static,
    ) -> RateLimitLayer {
        Arc::make_mut(&mut self.settings).deny = Some(Arc::new(deny));
        self
    }
}

impl<S> Layer<S> for RateLimitLayer {
    type Service = RateLimit<S>;

    fn layer(&self, inner: S) -> RateLimit<S> {
        let settings = Arc::clone(&self.settings);
        settings.diagnostics.of_settings(&settings, &settings.limiter.policy());
        RateLimit { inner, settings }
    }
}

impl<S, B, R> Service<HttpRequest<B>> for RateLimit<S>
where
    S: Service<HttpRequest<B>, Response = Response<R>> + Clone,
{
    type Response = Response<ResponseBody<R>>;
    type Error = S::Error;
    type Future = ResponseFuture<S, B, S::Future>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, mut request: HttpRequest<B>) -> Self::Future {
        if self.settings.skip.as_ref().is_some_and(|skips| skips(Head::from_request(&request))) {
            return ResponseFuture::passed(self.inner.call(request), Fields::default(), None);
        }
        self.settings.diagnostics.of_policy(&self.settings);
        // In memory a decision needs no waiting, so no future has to be boxed.
        if !self.settings.limiter.inner.engine.is_memory() {
            return self.check_on_store(request);
        }
        let decision = self.decide_in_memory(Head::from_request(&request));
        match self.settings.admit(decision, &mut request) {
            Admission::Passes(fields, unsettled) => {
                ResponseFuture::passed(self.inner.call(request), fields, unsettled)
            }
            Admission::Denied(response) => ResponseFuture::denied(response),
        }
    }
}

impl<S> RateLimit<S> {
    fn decide_in_memory(&self, head: Head<'_>) -> Decision {
        let Settings { limiter, attributes, settle, diagnostics, .. } = &*self.settings;
        if settle.is_some() {
            return self.decide_at_once(head);
        }
        let decision =
            attributes.request_of(head, diagnostics, |request| limiter.check_now(request));
        decision.expect("the state is in memory")
    }

    /// Decides through the future of `decide`. Not inlined, because that future is large.
    #[inline(never)]
    fn decide_at_once(&self, head: Head<'_>) -> Decision {
        // The memory engine never waits, so one poll with a waker that does nothing is enough.
        let deciding = pin!(self.settings.decide(head));
        match deciding.poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(decision) => decision,
            Poll::Pending => unreachable!("the memory engine answers at once"),
        }
    }

    /// Checks the request on a store, which takes a future of its own.
    #[inline(never)]
    fn check_on_store<B, R>(&mut self, request: HttpRequest<B>) -> ResponseFuture<S, B, S::Future>
    where
        S: Service<HttpRequest<B>, Response = Response<R>> + Clone,
    {
        let (mut request, body) = without_body(request);
        // The instance that was polled ready must be the one that is called.
        let clone = self.inner.clone();
        let inner = std::mem::replace(&mut self.inner, clone);
        let settings = Arc::clone(&self.settings);
        let checking = Box::pin(async move {
            let decision = settings.decide(Head::from_request(&request)).await;
            (settings.admit(decision, &mut request), request)
        });
        ResponseFuture::asked(checking, body, inner)
    }
}

/// The values of one request's attributes, in order.
type Values<'r> = SmallVec<[Option<Found<'r>>; 4]>;

impl Attributes {
    fn set(&mut self, name: &str, identity: Identity) {
        self.named.retain(|(known, _)| **known != *name);
        self.named.push((name.into(), identity));
    }

    fn find<'r>(&'r self, head: Head<'r>, diagnostics: &Diagnostics) -> Values<'r> {
        self.named.iter().map(|(_, one)| one.find(head, diagnostics)).collect()
    }

    fn request<'r>(&'r self, values: &'r [Option<Found<'_>>], head: Head<'r>) -> Request<'r> {
        let mut request = Request::new();
        if let Some(domain) = &self.domain {
            request = request.in_domain(&**domain);
        }
        for ((name, _), found) in self.named.iter().zip(values) {
            if let Some(found) = found {
                request.set(&**name, found.value());
            }
        }
        match &self.cost {
            Some(cost) => request.costing(cost(head)),
            None => request,
        }
    }

    /// Builds the request and passes it on. Most requests have one attribute, and are 20 ns faster without a list.
    fn request_of<T>(
        &self,
        head: Head<'_>,
        diagnostics: &Diagnostics,
        check: impl FnOnce(&Request<'_>) -> T,
    ) -> T {
        if let [(_, one)] = &self.named[..] {
            let found = one.find(head, diagnostics);
            return check(&self.request(std::slice::from_ref(&found), head));
        }
        let found = self.find(head, diagnostics);
        check(&self.request(&found, head))
    }
}

impl Settings {
    async fn decide(&self, head: Head<'_>) -> Decision {
        let found = self.attributes.find(head, &self.diagnostics);
        let request = self.attributes.request(&found, head);
        // If the reservation fails, the request is still checked, and stays charged at its
        // estimate.
        if let Some(settle) = &self.settle
            && let Ok(decision) = self.limiter.reserve(&request, &settle.reserve).await
        {
            return decision;
        }
        self.limiter.check(&request).await
    }

    /// Admits or denies a request by its decision. An admitted request gets the decision in its
    /// extensions.
    fn admit<B>(&self, decision: Decision, request: &mut HttpRequest<B>) -> Admission {
        let above = Above::from_extensions(request.extensions_mut());
        let fields = Fields::new(self.style, &decision, &above.0);
        let Some(denial) = DenialResponse::from_decision(&decision) else {
            let unsettled = decision.receipt().map(|receipt| {
                let settle = self.settle.clone();
                Box::new(Unsettled::new(self.limiter.clone(), receipt.clone(), settle))
            });
            above.leave(decision, request.extensions_mut());
            return Admission::Passes(fields, unsettled);
        };
        Admission::Denied(self.response_to(&denial, fields, Head::from_request(request)))
    }

    /// Makes the response to a denied request.
    #[inline(never)]
    fn response_to(
        &self,
        denial: &DenialResponse<'_>,
        fields: Fields,
        head: Head<'_>,
    ) -> Response<Vec<u8>> {
        if grpc::is_asked_for(head) {
            let mut response = grpc::response(denial, head);
            fields.add_to(response.headers_mut());
            return response;
        }
        let mut response = match &self.deny {
            Some(deny) => deny(denial, head),
            None => denial.response(HeaderStyle::None),
        };
        fields.add_to(response.headers_mut());
        denial.write_retry_after(response.headers_mut());
        response
    }
}

/// The result of a decision: the request passes, its response gets these fields and its reservation
/// is settled afterwards; or it is denied with a response.
pub(crate) enum Admission {
    Passes(Fields, Option<Box<Unsettled>>),
    Denied(Response<Vec<u8>>),
}

/// The decisions of outer layers. The innermost layer writes the fields of all, and the outer ones
/// find them in the response.
#[derive(Clone, Default)]
struct Above(Vec<Decision>);

impl Above {
    fn from_extensions(extensions: &mut Extensions) -> Above {
        let Some(nearest) = extensions.remove::<Decision>() else { return Above::default() };
        let mut above = extensions.remove::<Above>().unwrap_or_default();
        above.0.push(nearest);
        above
    }

    fn leave(self, decision: Decision, extensions: &mut Extensions) {
        extensions.insert(decision);
        if !self.0.is_empty() {
            extensions.insert(self);
        }
    }
}

impl fmt::Debug for Settings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Settings")
            .field("limiter", &self.limiter)
            .field("attributes", &self.attributes)
            .field("style", &self.style)
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for Attributes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Attributes")
            .field("named", &self.named)
            .field("domain", &self.domain)
            .finish_non_exhaustive()
    }
}
