//! The limiter: from a request to a decision.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use arc_swap::ArcSwap;
#[cfg(feature = "redis")]
use parking_lot::Mutex;

use crate::decision::Decision;
#[cfg(feature = "redis")]
use crate::denial_cache::DenialCache;
use crate::engine::Engine;
#[cfg(feature = "redis")]
use crate::fallback::{Fallback, INSTANCES_UNKNOWN};
#[cfg(feature = "redis")]
use crate::lease::Leases;
use crate::limit::{Limit, NamedLimit};
use crate::metrics::Metrics;
use crate::plan::Plan;
use crate::policy::Policy;
use crate::probe::StoreProbe;
use crate::request::{Cost, Request};
use crate::reservation::Seal;
#[cfg(feature = "redis")]
use crate::store::{InstanceMismatch, ShardStatus};
use crate::subject::DEFAULT_DOMAIN;
use crate::subject::Secret;
use crate::waiting::Waiting;

#[cfg(feature = "redis")]
mod access;
mod acquiring;
mod answer;
mod bound;
mod builder;
mod control;
mod counters;
mod evaluate;
pub(crate) mod explain;
mod in_force;
#[cfg(feature = "redis")]
mod leasing;
#[cfg(feature = "metrics")]
mod metrics_text;
mod reserving;
mod together;
#[cfg(feature = "redis")]
mod upkeep;

use bound::BoundRequest;
pub use builder::LimiterBuilder;
use control::Control;
use counters::Counters;
pub use counters::Stats;
use evaluate::Evaluated;
pub use explain::{ExplainedLimit, ExplainedRule, Explanation, OverriddenBy, Raise};
pub(crate) use in_force::InForce;

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
    pub(crate) inner: Arc<Inner>,
}

#[derive(Debug)]
pub(crate) struct Inner {
    pub(crate) engine: Engine,
    /// As [`Control`] joins the file's rules and what operators set.
    pub(crate) in_force: ArcSwap<InForce>,
    pub(crate) secret: Secret,
    receipts: Seal,
    pub(crate) control: Control,
    pub(crate) metrics: Metrics,
    #[cfg(feature = "redis")]
    pub(crate) fallback: Fallback,
    #[cfg(feature = "redis")]
    pub(crate) denials: DenialCache,
    #[cfg(feature = "redis")]
    pub(crate) leases: Leases,
    /// By the last heartbeat that the store answered.
    #[cfg(feature = "redis")]
    pub(crate) mismatch: Mutex<InstanceMismatch>,
    counters: Counters,
    waiting: Waiting,
}

/// One question of several: a request, or a key with a limit of its own.
#[derive(Clone, Debug)]
pub enum Question<'a> {
    /// Whatever rules of the policy it meets.
    Request(Request<'a>),
    /// One limit that comes with the question. The same domain, key and algorithm with other
    /// numbers is the same state under a changed limit.
    Inline {
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
            Engine::Memory(memory) => {
                Some(self.inner.decide_in(memory, self.inner.bind_to_policy(request)))
            }
            #[cfg(feature = "redis")]
            Engine::Redis(_) => None,
        }
    }

    /// May this happen now? An outage of the store is a decision too: this cannot fail.
    pub async fn check(&self, request: &Request<'_>) -> Decision {
        match &self.inner.engine {
            Engine::Memory(memory) => {
                self.inner.decide_in(memory, self.inner.bind_to_policy(request))
            }
            #[cfg(feature = "redis")]
            Engine::Redis(_) => self.inner.decide(self.inner.bind_to_policy(request)).await,
        }
    }

    /// What a cost of one would be told now, with the numbers as they stand; nothing is written.
    pub async fn peek(&self, request: &Request<'_>) -> Decision {
        Box::pin(self.inner.look(self.inner.bind_to_policy(request))).await
    }

    /// One key against one limit, without a policy.
    ///
    /// ```
    /// # tokio::runtime::Runtime::new().unwrap().block_on(async {
    /// use spillgate::{Limit, Limiter, Reason};
    /// let limiter = Limiter::builder().build().await.unwrap();
    /// let limit = Limit::per_second(1).burst(2);
    /// assert!(limiter.check_limit("user:42", &limit, 2).await.allowed());
    /// assert_eq!(limiter.check_limit("user:42", &limit, 1).await.reason(), Some(Reason::LimitExceeded));
    /// assert_eq!(limiter.check_limit("user:42", &limit, 3).await.reason(), Some(Reason::CostExceedsLimit));
    /// # });
    /// ```
    pub async fn check_limit<'a>(
        &self,
        key: &str,
        limit: &Limit,
        cost: impl Into<Cost<'a>>,
    ) -> Decision {
        match &self.inner.engine {
            Engine::Memory(memory) => {
                let cost = cost.into();
                self.inner.decide_in(memory, BoundRequest::limit(DEFAULT_DOMAIN, key, limit, &cost))
            }
            #[cfg(feature = "redis")]
            Engine::Redis(_) => {
                let cost = cost.into();
                self.inner.decide(BoundRequest::limit(DEFAULT_DOMAIN, key, limit, &cost)).await
            }
        }
    }

    /// [`Limiter::check`] or [`Limiter::check_limit`], as the question is, and that in any domain.
    pub async fn check_for(&self, question: &Question<'_>) -> Decision {
        match &self.inner.engine {
            Engine::Memory(memory) => self.inner.decide_in(memory, self.inner.bind(question)),
            #[cfg(feature = "redis")]
            Engine::Redis(_) => self.inner.decide(self.inner.bind(question)).await,
        }
    }

    /// Decides several requests, each by itself, in order, in as few calls to the store as possible.
    ///
    /// Each returned decision belongs to the request at the same position.
    ///
    /// ```
    /// # tokio::runtime::Runtime::new().unwrap().block_on(async {
    /// use spillgate::{Limiter, Policy, Question, Request};
    ///
    /// let rule = "[[rule]]\nname = \"login\"\nkey = [\"ip\"]\nlimits = [\"1/minute\"]";
    /// let limiter = Limiter::builder().policy(Policy::from_toml(rule).unwrap()).build().await.unwrap();
    /// let login = || Question::Request(Request::new().with("ip", "203.0.113.7"));
    ///
    /// let decisions = limiter.check_batch(&[login(), login()]).await;
    /// assert!(decisions[0].allowed() && !decisions[1].allowed());
    /// # });
    /// ```
    pub async fn check_batch(&self, questions: &[Question<'_>]) -> Vec<Decision> {
        if let [question] = questions {
            return vec![self.check_for(question).await];
        }
        match &self.inner.engine {
            Engine::Memory(memory) => {
                let now = |question| self.inner.decide_in(memory, self.inner.bind(question));
                questions.iter().map(now).collect()
            }
            #[cfg(feature = "redis")]
            Engine::Redis(_) => {
                let all = questions.iter().map(|question| self.inner.bind(question));
                Box::pin(self.inner.decide_each(all.collect())).await
            }
        }
    }

    /// From the next request on, this policy; a request under way keeps the one it began with.
    /// What was set while running stays set.
    pub fn set_policy(&self, policy: Policy) {
        let in_force = InForce::new(policy, &self.inner.in_force.load().meters);
        self.inner.control.set_policy(&in_force, &self.inner.in_force);
    }

    /// The policy in force, with what was set while running.
    pub fn policy(&self) -> Arc<Policy> {
        Arc::clone(&self.inner.in_force.load().policy)
    }

    /// Whether the store answers now, within the time that a decision has; memory always does.
    pub async fn store_answers(&self) -> bool {
        let named = NamedLimit::new(Limit::per_second(1), 0);
        // The key of nobody: callers' keys are never empty.
        let key = self.inner.secret.inline_key("");
        let plan: Plan = Plan::inline([key], &named, &Cost::requests(0));
        self.inner.engine.decide_one(&plan.transaction).await.is_ok()
    }

    /// What this limiter has done so far.
    pub fn stats(&self) -> Stats {
        self.inner.stats()
    }

    /// The servers of the store, as this process sees them; none in memory.
    #[cfg(feature = "redis")]
    pub fn shards(&self) -> Vec<ShardStatus> {
        match &self.inner.engine {
            Engine::Memory(_) => Vec::new(),
            Engine::Redis(redis) => redis.shards(),
        }
    }

    /// Returns how many live instances on the store differ from this one in key secret, ring or schema, as the
    /// last heartbeat found them; none in memory. An instance that stops is counted for 5 seconds more.
    #[cfg(feature = "redis")]
    pub fn instance_mismatch(&self) -> InstanceMismatch {
        *self.inner.mismatch.lock()
    }

    /// Looks at every server of the store: how it is set up, whether the script decides there as it
    /// should, and how long each of `samples` calls takes.
    pub async fn probe(&self, samples: usize) -> StoreProbe {
        let probe = self.inner.engine.probe(samples).await;
        #[cfg(feature = "redis")]
        let probe = StoreProbe {
            shares: self.inner.fallback.expected_instances().unwrap_or(INSTANCES_UNKNOWN),
            share_is_guessed: self.inner.fallback.expected_instances().is_none(),
            ..probe
        };
        probe
    }

    /// The engine below.
    #[doc(hidden)]
    pub fn engine(&self) -> &Engine {
        &self.inner.engine
    }
}

impl Inner {
    /// Decides a plan, and waits no longer for the store than `within`.
    async fn evaluate_within(
        &self,
        plan: Box<Plan>,
        policy: &Policy,
        within: Duration,
    ) -> Evaluated {
        match &self.engine {
            Engine::Memory(_) => self.evaluate(plan, Some(policy)).await,
            #[cfg(feature = "redis")]
            Engine::Redis(redis) => {
                self.evaluate_on(&redis.within(within), plan, Some(policy)).await
            }
        }
    }

    fn stats(&self) -> Stats {
        let stats = Stats { waiting: self.waiting.count(), ..self.counters.read() };
        #[cfg(feature = "redis")]
        let stats = Stats {
            store_errors: self.fallback.store_errors(),
            state_losses: match &self.engine {
                Engine::Memory(_) => 0,
                Engine::Redis(redis) => redis.epoch_changes(),
            },
            clock_steps: match &self.engine {
                Engine::Memory(_) => 0,
                Engine::Redis(redis) => redis.clock_steps(),
            },
            live_instances: self.fallback.nodes(),
            leased_counters: self.leases.counters(),
            lease_outstanding: self.leases.outstanding(crate::time::boottime_us()),
            ..stats
        };
        stats
    }

    /// Somebody has made room: what was refused may be allowed now.
    pub(crate) fn note_room(&self) {
        #[cfg(feature = "redis")]
        self.denials.end();
        self.waiting.note_room();
    }

    /// Counts what an operator refunded.
    pub(crate) fn note_given_back(&self, amount: u64) {
        self.counters.refunded.fetch_add(amount, Ordering::Relaxed);
    }
}
