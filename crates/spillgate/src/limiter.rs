//! The limiter: from a request to a decision.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use arc_swap::ArcSwap;

use crate::decision::{Decision, Names, Source, Tiers, Verdict};
use crate::engine::{Ask, Engine, Memory, StoreError, Told};
use crate::error::BuildError;
use crate::fallback::Fallback;
use crate::limit::{Limit, NamedLimit};
use crate::plan::{Asking, Plan};
use crate::policy::Policy;
use crate::request::{Cost, DEFAULT_DOMAIN, Request};
use crate::subject::{SHARED_SECRET, Secret};
use crate::time::Clock;

/// Decides whether something may happen now, for a whole fleet when its store is shared.
///
/// Cheap to clone: clones share everything.
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
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    engine: Engine,
    policy: ArcSwap<Policy>,
    secret: Secret,
    fallback: Fallback,
    counters: Counters,
}

/// What a limiter has done since it was built.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stats {
    /// Decisions that allowed.
    pub allowed: u64,
    /// Decisions that denied.
    pub denied: u64,
    /// Decisions that no wait would have changed.
    pub never: u64,
    /// Requests that met no rule.
    pub unmatched: u64,
    /// Shadow rules that would have denied.
    pub would_deny: u64,
    /// Decisions that the store had no part in.
    pub degraded: u64,
    /// Calls to the store that failed.
    pub store_errors: u64,
}

#[derive(Debug, Default)]
struct Counters {
    allowed: AtomicU64,
    denied: AtomicU64,
    never: AtomicU64,
    unmatched: AtomicU64,
    would_deny: AtomicU64,
    degraded: AtomicU64,
    store_errors: AtomicU64,
}

/// Puts a limiter together.
#[derive(Debug, Default)]
pub struct LimiterBuilder {
    policy: Policy,
    redis: Option<String>,
    secret: Option<[u8; 16]>,
    timeout: Option<Duration>,
    keys_max: Option<usize>,
    clock: Clock,
}

/// One question of several: a request, or a key with a limit of its own.
#[derive(Clone, Debug)]
pub enum Question<'a> {
    /// Whatever rules of the policy it meets.
    Request(Request<'a>),
    /// One limit that comes with the question. The same domain, key and algorithm with other
    /// numbers is the same state under a changed limit.
    AdHoc {
        /// The domain of the key.
        domain: &'a str,
        /// Who is limited.
        key: &'a str,
        /// By what.
        limit: Limit,
        /// At what cost.
        cost: Cost<'a>,
    },
}

impl Limiter {
    /// A builder: in memory and without rules, until told otherwise.
    pub fn builder() -> LimiterBuilder {
        LimiterBuilder::default()
    }

    /// May this happen now? An outage of the store is a decision too: this cannot fail.
    pub async fn check(&self, request: &Request<'_>) -> Decision {
        self.inner.check(request, Asking::ToCharge).await
    }

    /// What a cost of one would be told now, with the numbers as they stand; nothing is written.
    pub async fn peek(&self, request: &Request<'_>) -> Decision {
        self.inner.check(request, Asking::ToPeek).await
    }

    /// One key against one limit, without a policy.
    ///
    /// ```
    /// # tokio::runtime::Runtime::new().unwrap().block_on(async {
    /// use spillgate::{Limit, Limiter, Verdict};
    /// let limiter = Limiter::builder().build().await.unwrap();
    /// let limit = Limit::per_second(1).burst(2);
    /// assert!(limiter.check_limit("user:42", &limit, 2).await.allowed());
    /// assert_eq!(limiter.check_limit("user:42", &limit, 1).await.verdict(), Verdict::Denied);
    /// assert_eq!(limiter.check_limit("user:42", &limit, 3).await.verdict(), Verdict::Never);
    /// # });
    /// ```
    pub async fn check_limit<'a>(
        &self,
        key: &str,
        limit: &Limit,
        cost: impl Into<Cost<'a>>,
    ) -> Decision {
        self.inner.check_limit(key, limit, cost.into()).await
    }

    /// Judges each question alone, in order, in as few calls to the store as it takes.
    pub async fn decide(&self, questions: &[Question<'_>]) -> Vec<Decision> {
        let policy = self.inner.policy.load_full();
        let named: Vec<Option<NamedLimit>> = questions
            .iter()
            .map(|question| match question {
                Question::Request(_) => None,
                Question::AdHoc { limit, .. } => Some(NamedLimit::new(limit.clone(), 0)),
            })
            .collect();
        let secret = &self.inner.secret;
        let plans: Vec<(Plan<'_>, Names)> = questions
            .iter()
            .zip(&named)
            .map(|(question, named)| match (question, named) {
                (Question::AdHoc { domain, key, limit, cost }, Some(named)) => {
                    (Plan::ad_hoc(domain, key, named, cost, secret), Names::AdHoc(limit.clone()))
                }
                (Question::Request(request), _) => {
                    let plan = Plan::of_request(&policy, request, secret, Asking::ToCharge);
                    (plan, Names::Policy(Arc::clone(&policy)))
                }
                (Question::AdHoc { .. }, None) => {
                    unreachable!("every ad hoc limit was named above")
                }
            })
            .collect();
        let asks: Vec<Ask<'_>> = plans
            .iter()
            .filter(|(plan, _)| plan.asks())
            .map(|(plan, _)| plan.ask.clone())
            .collect();
        let mut told = self.inner.engine.decide(&asks).await.into_iter();
        plans
            .into_iter()
            .map(|(plan, names)| {
                let answer = if plan.asks() { told.next() } else { None };
                self.inner.decision(self.inner.judged(plan, answer), names)
            })
            .collect()
    }

    /// Forgets what a rule holds of one subject: the request's key attributes say of whom.
    pub async fn reset(&self, rule: &str, subject: &Request<'_>) -> Result<(), ResetError> {
        let policy = self.inner.policy.load_full();
        let found = policy.rule(rule).ok_or(ResetError::UnknownRule)?;
        if let Some(missing) = found.missing_from(subject) {
            return Err(ResetError::MissingAttribute(missing.to_owned()));
        }
        let key = found.subject_key(subject, &self.inner.secret);
        let limits = policy.limits_ever_in_force(found, subject);
        self.inner.engine.reset(key, &limits).await.map_err(ResetError::Store)
    }

    /// From the next request on, this policy; a request under way keeps the one it began with.
    pub fn set_policy(&self, policy: Policy) {
        self.inner.policy.store(Arc::new(policy));
    }

    /// The policy in force.
    pub fn policy(&self) -> Arc<Policy> {
        self.inner.policy.load_full()
    }

    /// What this limiter has done so far.
    pub fn stats(&self) -> Stats {
        self.inner.counters.read()
    }

    /// The engine below.
    #[doc(hidden)]
    pub fn engine(&self) -> &Engine {
        &self.inner.engine
    }
}

/// In memory there is nothing to wait for, and a check is one plain call. On a store it is a future,
/// boxed: else every caller would move its kilobyte about, in memory too.
impl Inner {
    async fn check(&self, request: &Request<'_>, asking: Asking) -> Decision {
        match &self.engine {
            Engine::Memory(memory) => {
                let policy = self.policy.load_full();
                let plan = Plan::of_request(&policy, request, &self.secret, asking);
                let told = plan.asks().then(|| Ok(memory.decide(&plan.ask)));
                self.decision(self.judged(plan, told), Names::Policy(policy))
            }
            store => {
                Box::pin(async move {
                    let policy = self.policy.load_full();
                    let plan = Plan::of_request(&policy, request, &self.secret, asking);
                    let judged = self.asked(store, plan).await;
                    self.decision(judged, Names::Policy(policy))
                })
                .await
            }
        }
    }

    async fn check_limit(&self, key: &str, limit: &Limit, cost: Cost<'_>) -> Decision {
        match &self.engine {
            Engine::Memory(memory) => {
                let named = NamedLimit::new(limit.clone(), 0);
                let plan = Plan::ad_hoc(DEFAULT_DOMAIN, key, &named, &cost, &self.secret);
                let told = plan.asks().then(|| Ok(memory.decide(&plan.ask)));
                self.decision(self.judged(plan, told), Names::AdHoc(named.into_limit()))
            }
            store => {
                Box::pin(async move {
                    let named = NamedLimit::new(limit.clone(), 0);
                    let plan = Plan::ad_hoc(DEFAULT_DOMAIN, key, &named, &cost, &self.secret);
                    let judged = self.asked(store, plan).await;
                    self.decision(judged, Names::AdHoc(named.into_limit()))
                })
                .await
            }
        }
    }

    async fn asked(&self, store: &Engine, plan: Plan<'_>) -> Tiers {
        let told = if plan.asks() { Some(store.decide_one(&plan.ask).await) } else { None };
        self.judged(plan, told)
    }

    /// The one place where an outage becomes a decision.
    fn judged(&self, plan: Plan<'_>, told: Option<Result<Told, StoreError>>) -> Tiers {
        match told {
            None => plan.judged,
            Some(Ok(told)) => plan.judged_by(&told, Source::Store),
            Some(Err(_)) => {
                self.counters.store_errors.fetch_add(1, Ordering::Relaxed);
                self.fallback.judge(plan)
            }
        }
    }

    fn decision(&self, judged: Tiers, names: Names) -> Decision {
        let decision = Decision::new(judged, names);
        self.counters.count(&decision);
        decision
    }
}

/// Why a subject could not be reset.
#[derive(Debug)]
#[non_exhaustive]
pub enum ResetError {
    /// The policy has no rule of that name.
    UnknownRule,
    /// The rule's key needs an attribute that was not given.
    MissingAttribute(String),
    /// The store did not answer.
    Store(StoreError),
}

impl std::fmt::Display for ResetError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            ResetError::UnknownRule => f.write_str("the policy has no rule of that name"),
            ResetError::MissingAttribute(name) => {
                write!(f, "the rule's key needs the attribute {name:?}; give it a value")
            }
            ResetError::Store(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for ResetError {}

impl LimiterBuilder {
    /// The rules.
    pub fn policy(self, policy: Policy) -> LimiterBuilder {
        LimiterBuilder { policy, ..self }
    }

    /// State in this Redis or Valkey, shared with whoever names the same: `redis://host:port/db`.
    #[cfg(feature = "redis")]
    pub fn redis(self, url: impl Into<String>) -> LimiterBuilder {
        LimiterBuilder { redis: Some(url.into()), ..self }
    }

    /// How long a decision may wait for the store; 25 ms unless said otherwise.
    pub fn timeout(self, timeout: Duration) -> LimiterBuilder {
        LimiterBuilder { timeout: Some(timeout), ..self }
    }

    /// The secret that subjects are hashed under: the same in every process of a fleet. Without
    /// one, whoever can reach the limiter can aim subjects at one shard.
    pub fn key_secret(self, secret: [u8; 16]) -> LimiterBuilder {
        LimiterBuilder { secret: Some(secret), ..self }
    }

    /// How many tiers the memory engine holds at most; ten million unless said otherwise.
    pub fn keys_max(self, keys_max: usize) -> LimiterBuilder {
        LimiterBuilder { keys_max: Some(keys_max), ..self }
    }

    /// The memory engine's clock.
    #[doc(hidden)]
    pub fn clock(self, clock: Clock) -> LimiterBuilder {
        LimiterBuilder { clock, ..self }
    }

    /// The limiter. A store that is out of reach is no error: it is an outage, and decided as one.
    pub async fn build(self) -> Result<Limiter, BuildError> {
        let keys_max = self.keys_max.unwrap_or(KEYS_MAX);
        let engine = match &self.redis {
            None => Engine::Memory(Memory::new(keys_max, self.clock.clone())),
            #[cfg(feature = "redis")]
            Some(url) => {
                let timeout = self.timeout.unwrap_or(TIMEOUT);
                Engine::Redis(crate::engine::Redis::connect(url, timeout).await?)
            }
            #[cfg(not(feature = "redis"))]
            Some(_) => unreachable!("only the feature `redis` sets a url"),
        };
        let secret = Secret::new(&self.secret.unwrap_or(SHARED_SECRET));
        let inner = Inner {
            engine,
            policy: ArcSwap::from_pointee(self.policy),
            secret,
            fallback: Fallback::new(keys_max, self.clock),
            counters: Counters::default(),
        };
        Ok(Limiter { inner: Arc::new(inner) })
    }
}

impl Counters {
    fn count(&self, decision: &Decision) {
        let add = |counter: &AtomicU64| counter.fetch_add(1, Ordering::Relaxed);
        add(match decision.verdict() {
            Verdict::Allowed => &self.allowed,
            Verdict::Denied => &self.denied,
            Verdict::Never => &self.never,
        });
        if decision.tiers().len() == 0 {
            add(&self.unmatched);
        }
        if decision.degraded() {
            add(&self.degraded);
        }
        for tier in decision.tiers().filter(|tier| tier.shadow() && decision.allowed()) {
            if tier.verdict() != Verdict::Allowed {
                add(&self.would_deny);
            }
        }
    }

    fn read(&self) -> Stats {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Stats {
            allowed: read(&self.allowed),
            denied: read(&self.denied),
            never: read(&self.never),
            unmatched: read(&self.unmatched),
            would_deny: read(&self.would_deny),
            degraded: read(&self.degraded),
            store_errors: read(&self.store_errors),
        }
    }
}

/// Envoy waits 20 ms, people notice 100: a store that takes longer is as good as gone.
const TIMEOUT: Duration = Duration::from_millis(25);
/// Below 1 GiB of tiers.
const KEYS_MAX: usize = 10_000_000;
