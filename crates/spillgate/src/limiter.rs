//! The limiter: from a request to a decision.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use arc_swap::ArcSwap;
#[cfg(feature = "redis")]
use parking_lot::Mutex;

use crate::decision::{Decision, Judged, Tiers, Verdict};
#[cfg(feature = "redis")]
use crate::denial_cache::DenialCache;
use crate::engine::Engine;
use crate::engine::memory::Tally;
#[cfg(feature = "redis")]
use crate::fallback::{Fallback, NODES_UNTOLD};
#[cfg(feature = "redis")]
use crate::lease::Leases;
use crate::limit::{Limit, NamedLimit};
use crate::metrics::Metrics;
use crate::plan::{Asking, Plan};
use crate::policy::Policy;
use crate::probe::StoreProbe;
#[cfg(feature = "redis")]
use crate::request::DEFAULT_DOMAIN;
use crate::request::{Cost, Request};
use crate::reservation::Seal;
#[cfg(feature = "redis")]
use crate::store::{InstanceMismatch, ShardStatus};
use crate::subject::Secret;
use crate::waiting::Waiting;

#[cfg(feature = "redis")]
mod access;
mod acquiring;
mod at_once;
mod builder;
mod control;
mod counters;
pub(crate) mod explain;
mod in_force;
#[cfg(feature = "redis")]
mod leasing;
#[cfg(feature = "metrics")]
mod metrics_text;
#[cfg(feature = "redis")]
mod on_store;
#[cfg(feature = "redis")]
mod refusing;
mod reserving;
mod together;
#[cfg(feature = "redis")]
mod upkeep;

use at_once::in_memory;
pub use builder::LimiterBuilder;
use control::Control;
use counters::Counters;
pub use counters::Stats;
pub use explain::{ExplainedRule, ExplainedTier, Explanation, OverriddenBy, Raise};
pub(crate) use in_force::{InForce, Under};
#[cfg(feature = "redis")]
use refusing::Way;

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

/// What [`Question::AdHoc`] asks.
#[cfg(feature = "redis")]
#[derive(Clone, Copy)]
struct AdHoc<'a, 'c> {
    domain: &'a str,
    key: &'a str,
    limit: &'a Limit,
    cost: &'a Cost<'c>,
}

impl Limiter {
    /// A builder: in memory and without rules, until told otherwise.
    pub fn builder() -> LimiterBuilder {
        LimiterBuilder::default()
    }

    /// May this happen now? An outage of the store is a decision too: this cannot fail.
    pub async fn check(&self, request: &Request<'_>) -> Decision {
        match &self.inner.engine {
            Engine::Memory(memory) => self.inner.check_now(memory, request, Asking::ToCharge),
            #[cfg(feature = "redis")]
            Engine::Redis(redis) => {
                if let Some(decision) = self.inner.check_leased(request) {
                    return decision;
                }
                match self.inner.way_of(redis, request) {
                    Way::Told(decision) => decision,
                    Way::Joined(alike, of) => {
                        Box::pin(self.inner.arrived(redis, request, alike, of)).await
                    }
                    Way::Planned => {
                        Box::pin(self.inner.check_in(redis, request, Asking::ToCharge)).await
                    }
                }
            }
        }
    }

    /// What a cost of one would be told now, with the numbers as they stand; nothing is written.
    pub async fn peek(&self, request: &Request<'_>) -> Decision {
        match &self.inner.engine {
            Engine::Memory(memory) => self.inner.check_now(memory, request, Asking::ToPeek),
            #[cfg(feature = "redis")]
            Engine::Redis(redis) => {
                Box::pin(self.inner.check_in(redis, request, Asking::ToPeek)).await
            }
        }
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
        match &self.inner.engine {
            Engine::Memory(memory) => {
                let subject = self.inner.secret.ad_hoc_key(key);
                self.inner.check_limit_now(memory, key, subject, limit, &cost.into())
            }
            #[cfg(feature = "redis")]
            Engine::Redis(redis) => {
                let asked = AdHoc { domain: DEFAULT_DOMAIN, key, limit, cost: &cost.into() };
                self.inner.check_ad_hoc(redis, asked).await
            }
        }
    }

    /// [`Limiter::check`] or [`Limiter::check_limit`], as the question is, and that in any domain.
    pub async fn check_for(&self, question: &Question<'_>) -> Decision {
        match (&self.inner.engine, question) {
            (Engine::Memory(memory), _) => self.inner.decide_now(memory, question),
            #[cfg(feature = "redis")]
            (Engine::Redis(_), Question::Request(request)) => self.check(request).await,
            #[cfg(feature = "redis")]
            (Engine::Redis(redis), Question::AdHoc { domain, key, limit, cost }) => {
                self.inner.check_ad_hoc(redis, AdHoc { domain, key, limit, cost }).await
            }
        }
    }

    /// Judges each question alone, in order, in as few calls to the store as it takes.
    pub async fn decide(&self, questions: &[Question<'_>]) -> Vec<Decision> {
        if let [question] = questions {
            return vec![self.check_for(question).await];
        }
        match &self.inner.engine {
            Engine::Memory(memory) => {
                let now = |question| self.inner.decide_now(memory, question);
                questions.iter().map(now).collect()
            }
            #[cfg(feature = "redis")]
            Engine::Redis(redis) => Box::pin(self.inner.decide_on(redis, questions)).await,
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
        let key = self.inner.secret.ad_hoc_key("");
        let plan = Plan::ad_hoc([key], &named, &Cost::requests(0));
        self.inner.engine.decide_one(&plan.ask).await.is_ok()
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
            shares: self.inner.fallback.expected_nodes().unwrap_or(NODES_UNTOLD),
            share_is_guessed: self.inner.fallback.expected_nodes().is_none(),
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
    pub(crate) async fn decide_within(&self, mut plan: Plan<'_>, within: Duration) -> Tiers {
        match &self.engine {
            Engine::Memory(memory) => in_memory(memory, &mut plan),
            #[cfg(feature = "redis")]
            Engine::Redis(redis) => Box::pin(self.paid_or_in(&redis.within(within), plan)).await,
        }
    }

    fn stats(&self) -> Stats {
        let counted = self.counters.read();
        let mut stats = Stats { waiting: self.waiting.count(), ..counted };
        for tally in [Tally::AdHoc, Tally::Rule] {
            let tallied = self.engine.tallied(tally);
            stats.allowed += tallied.allowed;
            stats.denied += tallied.denied;
        }
        #[cfg(feature = "redis")]
        let stats = Stats {
            store_errors: self.fallback.store_errors(),
            epoch_changes: match &self.engine {
                Engine::Memory(_) => 0,
                Engine::Redis(redis) => redis.epoch_changes(),
            },
            clock_steps: match &self.engine {
                Engine::Memory(_) => 0,
                Engine::Redis(redis) => redis.clock_steps(),
            },
            nodes: self.fallback.nodes(),
            leased_tiers: self.leases.tiers(),
            lease_outstanding: self.leases.outstanding(crate::time::awake_or_not_us()),
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

    /// Counts what an operator gave back.
    pub(crate) fn note_given_back(&self, amount: u64) {
        self.counters.given_back.fetch_add(amount, Ordering::Relaxed);
    }

    /// The decision on a request, whose subjects are watched unless it only looked.
    pub(crate) fn decision_on(
        &self,
        request: &Request<'_>,
        judged: Tiers,
        in_force: &InForce,
        asking: Asking,
    ) -> Decision {
        if asking == Asking::ToCharge {
            self.watch_request(request, &judged, &in_force.policy);
        }
        self.decision(judged, Under::Policy(in_force))
    }

    /// The decision on a question, whose subjects are watched.
    pub(crate) fn decision_of(
        &self,
        question: &Question<'_>,
        judged: Tiers,
        under: Under<'_>,
    ) -> Decision {
        self.watch_question(question, &judged, &under);
        self.decision(judged, under)
    }

    fn watch_question(&self, question: &Question<'_>, judged: &[Judged], under: &Under<'_>) {
        match (question, under) {
            (Question::Request(request), Under::Policy(in_force)) => {
                self.watch_request(request, judged, &in_force.policy);
            }
            (Question::AdHoc { domain, key, limit, cost }, _) => {
                let subject = self.secret.ad_hoc_key_in(domain, key);
                self.metrics.watch_ad_hoc(key, subject, cost.of_limit(limit), judged[0].verdict);
            }
            (Question::Request(_), Under::AdHoc(_)) => {}
        }
    }

    fn watch_request(&self, request: &Request<'_>, judged: &[Judged], policy: &Policy) {
        if !judged.is_empty() {
            let refuses = |tier: &Judged| tier.decides() && tier.verdict != Verdict::Allowed;
            let allowed = || !judged.iter().any(refuses);
            self.metrics.watch(policy, request, &self.secret, judged, allowed);
        }
    }

    pub(crate) fn decision(&self, judged: Tiers, under: Under<'_>) -> Decision {
        self.metrics.count(&judged, under.meters());
        let decision = Decision::new(judged, under.into_names());
        self.counters.count(&decision);
        decision
    }
}
