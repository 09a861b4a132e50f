//! The limiter: answers requests with decisions.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::control::ChangeNote;
use crate::decision::Decision;
use crate::denials::Recorder;
use crate::engine::{Engine, Memory};
use crate::limit::{Limit, NamedLimit};
use crate::metrics::Metrics;
use crate::plan::Plan;
use crate::policy::Policy;
use crate::request::{Cost, Request};
use crate::reservation::Seal;
use crate::subject::Secret;
use crate::waiting::Waiting;

#[cfg(feature = "redis")]
mod access;
mod acquiring;
mod atomic;
mod bound;
mod builder;
mod control;
mod decide;
mod evaluate;
pub(crate) mod explain;
mod identity;
mod in_force;
mod memory_stats;
#[cfg(feature = "metrics")]
mod metrics_text;
mod reserving;
mod stats;
#[cfg(feature = "redis")]
mod store;

pub use atomic::AtomicDecision;
pub use builder::LimiterBuilder;
use control::Control;
pub use explain::{ExplainedLimit, ExplainedRule, Explanation, OverriddenBy, Raise};
use identity::Identity;
pub(crate) use in_force::{InForce, Published};
pub use memory_stats::MemoryStats;
use stats::DecisionCounts;
pub use stats::Stats;

/// Decides whether a request may proceed now, by the rules of a policy or by an inline limit.
///
/// Instances that use the same store enforce one limit together. A limiter is cheap to clone;
/// clones share everything.
///
/// ```
/// # tokio_test(async {
/// use spillgate::{Limit, Limiter, Policy, Request};
///
/// let limiter = Limiter::builder()
///     .policy(Policy::from_toml(r#"
///         [[rule]]
///         name = "login"
///         key = ["ip"]
///         limits = ["5/minute"]
///     "#)?)
///     .build()
///     .await?;
/// let request = Request::new().with("ip", "203.0.113.7");
/// assert!(limiter.check(&request).await.allowed());
/// # Ok::<(), Box<dyn std::error::Error>>(()) });
/// # fn tokio_test(f: impl Future<Output = Result<(), Box<dyn std::error::Error>>>) {
/// #     tokio::runtime::Runtime::new().unwrap().block_on(f).unwrap()
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Limiter {
    pub(crate) inner: Arc<Inner>,
    /// The note of runtime changes by this clone.
    note: Option<Arc<ChangeNote>>,
}

#[derive(Debug)]
pub(crate) struct Inner {
    pub(crate) engine: Engine,
    /// The rules of the file joined with the runtime changes, as [`Control`] publishes them.
    pub(crate) in_force: Published,
    pub(crate) secret: Secret,
    receipts: Seal,
    pub(crate) control: Control,
    pub(crate) metrics: Metrics,
    counts: DecisionCounts,
    waiting: Waiting,
    identity: Identity,
    pub(crate) denials: Recorder,
    #[cfg(feature = "redis")]
    pub(crate) history: crate::history::Recorder,
}

impl Limiter {
    /// Returns a builder. Without further settings, state is in memory and there are no rules.
    pub fn builder() -> LimiterBuilder {
        LimiterBuilder::default()
    }

    /// Makes a limiter of these rules whose state is in this process. It needs neither a future nor a runtime.
    ///
    /// ```
    /// use spillgate::{Limit, Limiter, Policy, Request, Rule};
    ///
    /// let login = Rule::new("login").key(["ip"]).limit(Limit::per_minute(5));
    /// let limiter = Limiter::in_memory(Policy::builder().rule(login).build()?);
    /// let decision = limiter.check_now(&Request::new().with("ip", "203.0.113.7"));
    /// assert_eq!(decision.and_then(|decision| decision.remaining()), Some(4));
    /// # Ok::<(), spillgate::PolicyError>(())
    /// ```
    pub fn in_memory(policy: Policy) -> Limiter {
        let built = Limiter::builder().policy(policy).build_in_memory();
        built.expect("without a store and a namespace every setting is valid")
    }

    /// Decides a request without a future: [`Limiter::check`] for synchronous code on the memory store.
    ///
    /// Returns `None` if the state is in a shared store, which only [`Limiter::check`] can ask.
    ///
    /// ```
    /// # tokio::runtime::Runtime::new().unwrap().block_on(async {
    /// use spillgate::{Limiter, Policy, Request};
    ///
    /// let rule = "[[rule]]\nname = \"login\"\nkey = [\"ip\"]\nlimits = [\"1/minute\"]";
    /// let limiter = Limiter::builder().policy(Policy::from_toml(rule).unwrap()).build().await.unwrap();
    /// let login = Request::new().with("ip", "203.0.113.7");
    ///
    /// assert!(limiter.check_now(&login).expect("the state is in memory").allowed());
    /// assert!(!limiter.check_now(&login).expect("the state is in memory").allowed());
    /// # });
    /// ```
    pub fn check_now(&self, request: &Request<'_>) -> Option<Decision> {
        match &self.inner.engine {
            Engine::Memory(memory) => Some(self.inner.decide_in_memory(memory, request)),
            Engine::Redis(_) => None,
        }
    }

    /// Decides whether the request may proceed now, and charges it if so.
    ///
    /// This cannot fail: during an outage of the store, each rule's `on_outage` decides. If the
    /// future is dropped while a call to the store is under way, the request may stay charged.
    ///
    /// An inline limit needs no policy:
    ///
    /// ```
    /// # tokio::runtime::Runtime::new().unwrap().block_on(async {
    /// use spillgate::{Limit, Limiter, Reason, Request};
    ///
    /// let limiter = Limiter::builder().build().await.unwrap();
    /// let of = |cost: u64| Request::keyed("user:42", Limit::per_minute(1).burst(2)).costing(cost);
    /// assert!(limiter.check(&of(2)).await.allowed());
    /// assert_eq!(limiter.check(&of(1)).await.reason(), Some(Reason::LimitExceeded));
    /// assert_eq!(limiter.check(&of(3)).await.reason(), Some(Reason::CostExceedsLimit));
    /// # });
    /// ```
    pub async fn check(&self, request: &Request<'_>) -> Decision {
        match &self.inner.engine {
            Engine::Memory(memory) => self.inner.decide_in_memory(memory, request),
            Engine::Redis(_) => self.inner.decide(request).await,
        }
    }

    /// Returns the decision that a cost of 1 would get now, with the current numbers. Nothing is
    /// written, and the request's own cost has no effect.
    ///
    /// ```
    /// # tokio::runtime::Runtime::new().unwrap().block_on(async {
    /// use spillgate::{Limit, Limiter, Request};
    ///
    /// let limiter = Limiter::builder().build().await.unwrap();
    /// let request = Request::keyed("user:42", Limit::per_minute(5));
    /// assert_eq!(limiter.peek(&request).await.remaining(), Some(5));
    /// assert_eq!(limiter.peek(&request).await.remaining(), Some(5));
    /// # });
    /// ```
    pub async fn peek(&self, request: &Request<'_>) -> Decision {
        Box::pin(self.inner.look(self.inner.bind(request))).await
    }

    /// Decides several requests, each by itself, in order, in as few calls to the store as possible.
    ///
    /// Each returned decision belongs to the request at the same position.
    ///
    /// ```
    /// # tokio::runtime::Runtime::new().unwrap().block_on(async {
    /// use spillgate::{Limiter, Policy, Request};
    ///
    /// let rule = "[[rule]]\nname = \"login\"\nkey = [\"ip\"]\nlimits = [\"1/minute\"]";
    /// let limiter = Limiter::builder().policy(Policy::from_toml(rule).unwrap()).build().await.unwrap();
    /// let login = || Request::new().with("ip", "203.0.113.7");
    ///
    /// let decisions = limiter.check_batch(&[login(), login()]).await;
    /// assert!(decisions[0].allowed() && !decisions[1].allowed());
    /// # });
    /// ```
    pub async fn check_batch(&self, requests: &[Request<'_>]) -> Vec<Decision> {
        if let [request] = requests {
            return vec![self.check(request).await];
        }
        match &self.inner.engine {
            Engine::Memory(memory) => {
                let now = |request| self.inner.decide_in_memory(memory, request);
                requests.iter().map(now).collect()
            }
            Engine::Redis(store) => {
                let all = requests.iter().map(|request| self.inner.bind(request));
                Box::pin(self.inner.decide_each(store, all.collect())).await
            }
        }
    }

    /// Replaces the policy from the next request on. A request under way keeps the policy that it
    /// began with. Runtime changes stay in force.
    ///
    /// ```
    /// # tokio::runtime::Runtime::new().unwrap().block_on(async {
    /// use spillgate::{Limiter, Policy, Request, Rule};
    ///
    /// let per_day = |quota: u64| {
    ///     let api = Rule::new("api").key(["user"]).limit(format!("{quota}/day"));
    ///     Policy::builder().rule(api).build().unwrap()
    /// };
    /// let limiter = Limiter::builder().policy(per_day(1)).build().await.unwrap();
    /// let ada = Request::new().with("user", "ada");
    /// assert!(limiter.check(&ada).await.allowed());
    /// assert!(!limiter.check(&ada).await.allowed());
    ///
    /// limiter.set_policy(per_day(2));
    /// assert!(limiter.check(&ada).await.allowed(), "one of two is used");
    /// # });
    /// ```
    pub fn set_policy(&self, policy: Policy) {
        // Rules whose limits are named anew count anew.
        #[cfg(feature = "redis")]
        self.inner.note_history();
        let in_force = InForce::new(policy, &self.inner.in_force.load().meters);
        self.inner.control.set_policy(&in_force, &self.inner.in_force);
        #[cfg(feature = "redis")]
        self.inner.begin_history_anew();
        self.inner.note_new_limits();
    }

    /// Returns the policy in force, joined with the runtime changes.
    ///
    /// ```
    /// # tokio::runtime::Runtime::new().unwrap().block_on(async {
    /// use spillgate::Limiter;
    ///
    /// let limiter = Limiter::builder().build().await.unwrap();
    /// assert_eq!(limiter.policy().rules().len(), 0);
    /// # });
    /// ```
    pub fn policy(&self) -> Arc<Policy> {
        Arc::clone(&self.inner.in_force.load().policy)
    }

    /// Returns whether rules of the request's domain use all of its attributes and units. If not, one
    /// may be misspelt: [`Policy::unused_names`] lists them.
    ///
    /// ```
    /// # tokio::runtime::Runtime::new().unwrap().block_on(async {
    /// use spillgate::{Limiter, Policy, Request};
    /// let policy = "[[rule]]\nname = \"login\"\nkey = [\"ip\"]\nlimits = [\"5/minute\"]";
    /// let limiter = Limiter::builder().policy(Policy::from_toml(policy)?).build().await?;
    /// assert!(!limiter.uses_all_names(&Request::new().with("pi", "203.0.113.7")));
    /// # Ok::<(), Box<dyn std::error::Error>>(()) }).unwrap();
    /// ```
    pub fn uses_all_names(&self, request: &Request<'_>) -> bool {
        self.inner.in_force.load().policy.unused_names(request).next().is_none()
    }

    /// Returns whether the store answers within the time that a decision has. Memory always does.
    ///
    /// ```
    /// # tokio::runtime::Runtime::new().unwrap().block_on(async {
    /// use spillgate::Limiter;
    ///
    /// let limiter = Limiter::builder().build().await.unwrap();
    /// assert!(limiter.store_answers().await);
    /// # });
    /// ```
    pub async fn store_answers(&self) -> bool {
        let named = NamedLimit::new(Limit::per_second(1), 0);
        // No caller has this key, since callers' keys are never empty.
        let key = self.inner.secret.inline_key("");
        let mut plan: Plan = Plan::empty();
        plan.add_inline(key, &named, &Cost::requests(0));
        self.inner.engine.read(&plan.transaction).await.is_ok()
    }

    /// Returns the counts of this limiter since it was built.
    ///
    /// ```
    /// # tokio::runtime::Runtime::new().unwrap().block_on(async {
    /// use spillgate::{Limit, Limiter, Request};
    ///
    /// let limiter = Limiter::builder().build().await.unwrap();
    /// let request = Request::keyed("user:42", Limit::per_day(1));
    /// limiter.check_batch(&[request.clone(), request]).await;
    /// let stats = limiter.stats();
    /// assert_eq!((stats.allowed, stats.denied), (1, 1));
    /// # });
    /// ```
    pub fn stats(&self) -> Stats {
        let inner = &self.inner;
        let evictions = inner.engine.memory().map(Memory::evictions).unwrap_or_default();
        let stats = Stats {
            waiting: inner.waiting.count(),
            evictions: evictions.live,
            overflows: evictions.overflowed,
            denial_minutes_dropped: inner.denials.dropped(),
            ..inner.counts.read()
        };
        #[cfg(feature = "redis")]
        let stats = inner.store_stats(stats);
        stats
    }
}

impl Inner {
    /// Notes that quota was refunded, reset or raised. Remembered denials end, and waiting callers
    /// try again.
    pub(crate) fn note_room(&self) {
        match &self.engine {
            Engine::Memory(_) => self.waiting.note_room(),
            Engine::Redis(store) => store.note_room(),
        }
    }

    /// Notes that other limits are in force. Denials by the earlier ones end, and waiting callers
    /// try again.
    fn note_new_limits(&self) {
        self.waiting.forget_denials();
        self.note_room();
    }

    /// Counts an amount that an operator refunded.
    pub(crate) fn note_refunded(&self, amount: u64) {
        self.counts.refunded.fetch_add(amount, Ordering::Relaxed);
    }
}
