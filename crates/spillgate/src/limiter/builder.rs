//! Builds a limiter from the settings of the library.

use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
#[cfg(feature = "redis")]
use parking_lot::Mutex;

use super::{Control, Counters, InForce, Inner, Limiter};
#[cfg(feature = "redis")]
use super::{leasing, upkeep};
use crate::control::SubjectsInLog;
#[cfg(feature = "redis")]
use crate::denial_cache::DenialCache;
#[cfg(feature = "redis")]
use crate::engine::Redis;
use crate::engine::{Engine, Memory};
use crate::error::BuildError;
#[cfg(feature = "redis")]
use crate::fallback::Fallback;
#[cfg(feature = "redis")]
use crate::lease::Leases;
use crate::metrics::{Meters, Metrics, Wanted};
use crate::policy::Policy;
use crate::reservation::Seal;
#[cfg(feature = "redis")]
use crate::store::{OnStateLoss, Presence, Ring, Store, StoreOptions, Tls};
use crate::subject::{SHARED_SECRET, Secret};
use crate::testing::ManualClock;
use crate::time::Clock;
use crate::waiting::Waiting;

/// Builds a [`Limiter`]. Every setting has a default.
///
/// ```
/// # tokio::runtime::Runtime::new().unwrap().block_on(async {
/// use spillgate::{Limit, Limiter, Policy, Rule};
///
/// let login = Rule::new("login").key(["ip"]).limit(Limit::per_minute(5));
/// let limiter = Limiter::builder()
///     .policy(Policy::builder().rule(login).build()?)
///     .max_keys(100_000)
///     .build()
///     .await?;
/// # let _ = limiter;
/// # Ok::<(), Box<dyn std::error::Error>>(()) }).unwrap();
/// ```
#[derive(Debug, Default)]
pub struct LimiterBuilder {
    policy: Policy,
    #[cfg(feature = "redis")]
    pub(super) store: Option<Store>,
    #[cfg(feature = "redis")]
    pub(super) tls: Option<Tls>,
    #[cfg(feature = "redis")]
    connections: Option<usize>,
    #[cfg(feature = "redis")]
    expected_instances: u32,
    #[cfg(feature = "redis")]
    client_clock: bool,
    #[cfg(feature = "redis")]
    on_state_loss: OnStateLoss,
    #[cfg(feature = "redis")]
    presence: Presence,
    #[cfg(feature = "redis")]
    denial_cache: Option<bool>,
    #[cfg(feature = "redis")]
    store_clock: Option<Clock>,
    secret: Option<[u8; 16]>,
    #[cfg(feature = "redis")]
    previous_secret: Option<[u8; 16]>,
    timeout: Option<Duration>,
    #[cfg(feature = "redis")]
    overload_wait: Option<Duration>,
    /// How long `build` waits for the store, if it has to answer.
    #[cfg(feature = "redis")]
    required_within: Option<Duration>,
    max_keys: Option<usize>,
    wanted: Wanted,
    subjects_in_log: SubjectsInLog,
    clock: Clock,
}

impl LimiterBuilder {
    /// Sets the rules. By default there are none, and every request is allowed.
    pub fn policy(self, policy: Policy) -> LimiterBuilder {
        LimiterBuilder { policy, ..self }
    }

    /// Keeps state on one Redis or Valkey server, shared with all instances that use it.
    ///
    /// The URL is `redis://user:password@host:port/database`, `rediss://` for TLS, or
    /// `unix:///path?db=0`.
    ///
    /// A limiter starts without its store, and uses it as soon as it answers:
    ///
    /// ```
    /// # tokio::runtime::Runtime::new().unwrap().block_on(async {
    /// use spillgate::{Limit, Limiter, Request};
    ///
    /// // No server listens on this port, so this instance enforces its local share.
    /// let limiter = Limiter::builder().redis("redis://127.0.0.1:1").build().await?;
    /// let request = Request::keyed("user:42", Limit::per_minute(100));
    /// let decision = limiter.check(&request).await;
    /// assert!(decision.allowed() && decision.degraded());
    /// # Ok::<(), Box<dyn std::error::Error>>(()) }).unwrap();
    /// ```
    #[cfg(feature = "redis")]
    pub fn redis(self, url: impl Into<String>) -> LimiterBuilder {
        LimiterBuilder { store: Some(Store::Url(url.into())), ..self }
    }

    /// Keeps state on the current primary of a master name that these Sentinels watch.
    ///
    /// User, password, database and TLS of the first URL apply to the primary too.
    #[cfg(feature = "redis")]
    pub fn sentinel(
        self,
        master: impl Into<String>,
        urls: impl IntoIterator<Item = impl Into<String>>,
    ) -> LimiterBuilder {
        let urls = urls.into_iter().map(Into::into).collect();
        LimiterBuilder { store: Some(Store::Sentinel { master: master.into(), urls }), ..self }
    }

    /// Keeps state on a Redis Cluster, found through some of its nodes.
    ///
    /// User and password of the first URL apply to all nodes.
    #[cfg(feature = "redis")]
    pub fn cluster(self, urls: impl IntoIterator<Item = impl Into<String>>) -> LimiterBuilder {
        let urls = urls.into_iter().map(Into::into).collect();
        LimiterBuilder { store: Some(Store::Cluster(urls)), ..self }
    }

    /// Keeps state on independent servers, spread by consistent hashing.
    #[cfg(feature = "redis")]
    pub fn ring(self, ring: Ring) -> LimiterBuilder {
        LimiterBuilder { store: Some(Store::Ring(ring)), ..self }
    }

    /// Sets the certificate authority for `rediss://` servers and this instance's own certificate.
    #[cfg(feature = "redis")]
    pub fn tls(self, tls: Tls) -> LimiterBuilder {
        LimiterBuilder { tls: Some(tls), ..self }
    }

    /// Sets the number of instances that share the limits, if you know it beforehand.
    ///
    /// While the store is out of reach, each instance enforces this fraction of every limit. If
    /// recent heartbeats show more instances, their number is used.
    #[cfg(feature = "redis")]
    pub fn expected_instances(self, nodes: u32) -> LimiterBuilder {
        LimiterBuilder { expected_instances: nodes, ..self }
    }

    /// Decides by this instance's clock instead of the store's, for services that bar `TIME` in
    /// scripts.
    ///
    /// The clock is set by the store's once a second.
    #[cfg(feature = "redis")]
    pub fn client_clock(self) -> LimiterBuilder {
        LimiterBuilder { client_clock: true, ..self }
    }

    /// Sets the usage to assume on a server that lost its data. The default is
    /// [`OnStateLoss::Fresh`].
    #[cfg(feature = "redis")]
    pub fn on_state_loss(self, on_state_loss: OnStateLoss) -> LimiterBuilder {
        LimiterBuilder { on_state_loss, ..self }
    }

    /// Keeps other instances from counting this one. For commands that call a store once and end.
    #[cfg(feature = "redis")]
    #[doc(hidden)]
    pub fn onlooker(self) -> LimiterBuilder {
        LimiterBuilder { presence: Presence::Onlooker, ..self }
    }

    /// Sets whether a denial by the store is remembered until its wait is over, for at most 1
    /// second. The default is `true`.
    ///
    /// A denied subject that tries again does not reach the store. A refund or reset by another
    /// instance takes effect here up to 1 second late.
    #[cfg(feature = "redis")]
    pub fn denial_cache(self, remembers: bool) -> LimiterBuilder {
        LimiterBuilder { denial_cache: Some(remembers), ..self }
    }

    /// Sets the number of connections to each server, 1 to 16. The default is one for every two
    /// cores, at most 4.
    #[cfg(feature = "redis")]
    pub fn connections(self, connections: usize) -> LimiterBuilder {
        LimiterBuilder { connections: Some(connections.clamp(1, CONNECTIONS_MAX)), ..self }
    }

    /// Sets how long the store may stay silent while a reply is due, or be without a connection.
    /// The default is 25 ms.
    ///
    /// After that it counts as out of reach, and each rule's `on_outage` decides.
    pub fn timeout(self, timeout: Duration) -> LimiterBuilder {
        LimiterBuilder { timeout: Some(timeout), ..self }
    }

    /// Sets how long a decision waits for a store that is busy but works. The default is 250 ms,
    /// and never less than [`timeout`](Self::timeout).
    ///
    /// A decision that waits longer is denied as [`Reason::Overloaded`](crate::Reason::Overloaded),
    /// or allowed if the rule has `on_outage = "allow"`.
    #[cfg(feature = "redis")]
    pub fn overload_wait(self, wait: Duration) -> LimiterBuilder {
        LimiterBuilder { overload_wait: Some(wait), ..self }
    }

    /// Sets the secret under which subjects are hashed. All instances of a fleet need the same.
    ///
    /// Without a secret of your own, any client of the limiter can choose subjects that fall on one
    /// shard.
    pub fn key_secret(self, secret: [u8; 16]) -> LimiterBuilder {
        LimiterBuilder { secret: Some(secret), ..self }
    }

    /// Sets the secret that was in use before [`key_secret`](Self::key_secret), for a change
    /// without fresh allowances.
    ///
    /// Counters under both secrets are evaluated and charged, so each decision costs the store
    /// twice as much. Keep it set until the longest wait of any limit has passed since the last
    /// instance changed over. If there was no secret before, pass [`SHARED_SECRET`].
    #[cfg(feature = "redis")]
    pub fn previous_key_secret(self, secret: [u8; 16]) -> LimiterBuilder {
        LimiterBuilder { previous_secret: Some(secret), ..self }
    }

    /// Sets the largest number of counters that are kept in memory. The default is ten million.
    pub fn max_keys(self, max_keys: usize) -> LimiterBuilder {
        LimiterBuilder { max_keys: Some(max_keys), ..self }
    }

    /// Sets whether `Limiter::top` knows the subjects with the most use and the most denials. The
    /// default is `true`.
    ///
    /// Subject values are then kept in this process, a few megabytes at most.
    pub fn top(self, watched: bool) -> LimiterBuilder {
        let wanted = match self.wanted {
            Wanted::Nothing => Wanted::Nothing,
            Wanted::All | Wanted::Unwatched if watched => Wanted::All,
            Wanted::All | Wanted::Unwatched => Wanted::Unwatched,
        };
        LimiterBuilder { wanted, ..self }
    }

    /// Sets whether the log names the values of subjects in changes by operators. The default is
    /// `false`: it names attributes only.
    pub fn log_subjects(self, logged: bool) -> LimiterBuilder {
        let subjects_in_log = if logged { SubjectsInLog::Values } else { SubjectsInLog::Names };
        LimiterBuilder { subjects_in_log, ..self }
    }

    /// Turns off counting by rule, timing and `top`, whatever [`top`](Self::top) was set to.
    ///
    /// `Limiter::metrics_text` then shows 0 decisions. For applications with metrics of their own,
    /// and to measure the cost of ours.
    pub fn without_metrics(self) -> LimiterBuilder {
        LimiterBuilder { wanted: Wanted::Nothing, ..self }
    }

    /// Sets the clock of the state in memory.
    #[doc(hidden)]
    pub fn clock(self, clock: Clock) -> LimiterBuilder {
        LimiterBuilder { clock, ..self }
    }

    /// Sets the clock of all decisions, on a store too.
    #[cfg(feature = "redis")]
    #[doc(hidden)]
    pub fn every_clock(self, clock: Clock) -> LimiterBuilder {
        LimiterBuilder { store_clock: Some(clock.clone()), clock, ..self }
    }

    /// Requires the store at start: [`build`](Self::build) fails if the store does not decide within `timeout`.
    ///
    /// Without it a limiter starts while the store is away, and decides by each rule's `on_outage` until the store
    /// answers.
    ///
    /// ```
    /// # tokio::runtime::Runtime::new().unwrap().block_on(async {
    /// use std::time::Duration;
    /// use spillgate::{BuildError, Limiter};
    ///
    /// let builder = Limiter::builder().redis("redis://127.0.0.1:1");
    /// let error = builder.require_store(Duration::from_millis(50)).build().await.unwrap_err();
    /// assert!(matches!(error, BuildError::StoreUnavailable { .. }));
    /// # });
    /// ```
    #[cfg(feature = "redis")]
    pub fn require_store(self, timeout: Duration) -> LimiterBuilder {
        LimiterBuilder { required_within: Some(timeout), ..self }
    }

    /// Decides by a clock that a test sets. On a shared store the clock applies to this limiter alone.
    pub fn manual_clock(self, clock: &ManualClock) -> LimiterBuilder {
        #[cfg(feature = "redis")]
        return self.every_clock(clock.clock());
        #[cfg(not(feature = "redis"))]
        self.clock(clock.clock())
    }

    /// Builds the limiter.
    ///
    /// # Errors
    /// Returns [`BuildError`] if a setting is invalid: an address, a ring or a certificate. A store
    /// that is out of reach is no error, and requests are decided as during any outage, unless
    /// [`require_store`](Self::require_store) was set.
    pub async fn build(self) -> Result<Limiter, BuildError> {
        #[cfg(feature = "redis")]
        let required_within = self.required_within;
        let max_keys = self.max_keys.unwrap_or(MAX_KEYS);
        let secret = self.subject_secret();
        let engine = self.engine(max_keys).await?;
        #[cfg(feature = "redis")]
        let remembers = self.denial_cache.unwrap_or(!matches!(engine, Engine::Memory(_)));
        // Under two secrets a counter has two charges, and a lease covers only one.
        #[cfg(feature = "redis")]
        let leases = !matches!(engine, Engine::Memory(_)) && secret.previous().is_none();
        let in_force = InForce::new(self.policy.as_written(), &Meters::default());
        let inner = Inner {
            metrics: Metrics::new(!matches!(engine, Engine::Memory(_)), self.wanted),
            engine,
            in_force: ArcSwap::from_pointee(in_force),
            receipts: Seal::new(&secret),
            control: Control::new(self.clock.clone(), &secret, self.subjects_in_log),
            secret,
            #[cfg(feature = "redis")]
            fallback: Fallback::new(max_keys, self.clock, self.expected_instances),
            #[cfg(feature = "redis")]
            denials: DenialCache::new(remembers),
            #[cfg(feature = "redis")]
            leases: Leases::new(leases),
            #[cfg(feature = "redis")]
            mismatch: Mutex::default(),
            counters: Counters::default(),
            waiting: Waiting::default(),
        };
        let inner = Arc::new(inner);
        // Runtime changes, such as blocks, must be known before the first request.
        if !matches!(inner.engine, Engine::Memory(_)) {
            inner.catch_up().await;
        }
        #[cfg(feature = "redis")]
        {
            leasing::warm_up(&inner).await;
            upkeep::begin(&inner);
            leasing::begin(&inner);
        }
        let limiter = Limiter { inner, note: None };
        #[cfg(feature = "redis")]
        if let Some(within) = required_within {
            limiter.wait_for_store(within).await?;
        }
        Ok(limiter)
    }

    fn subject_secret(&self) -> Secret {
        let secret = Secret::new(&self.secret.unwrap_or(SHARED_SECRET));
        // State in memory ends with the process, so none of it can be under an earlier secret.
        #[cfg(feature = "redis")]
        if let (Some(previous), Some(_)) = (self.previous_secret, &self.store) {
            return secret.after(Secret::new(&previous));
        }
        secret
    }

    async fn engine(&self, max_keys: usize) -> Result<Engine, BuildError> {
        #[cfg(feature = "redis")]
        if let Some(store) = &self.store {
            let mut options = StoreOptions::new(self.timeout.unwrap_or(TIMEOUT));
            options.tls = self.tls.clone();
            options.client_clock = self.client_clock;
            options.on_state_loss = self.on_state_loss;
            options.secret = self.subject_secret();
            options.presence = self.presence;
            options.connections = self.connections.unwrap_or(options.connections);
            options.overload_wait = self.overload_wait.unwrap_or(options.overload_wait);
            let redis = Redis::open(store, &options).await?;
            return Ok(Engine::Redis(match &self.store_clock {
                Some(clock) => redis.with_clock(clock.clone()),
                None => redis,
            }));
        }
        Ok(Engine::Memory(Memory::new(max_keys, self.clock.clone())))
    }
}

#[cfg(feature = "redis")]
impl Limiter {
    /// Waits until the store decides, for at most `within`.
    async fn wait_for_store(&self, within: Duration) -> Result<(), BuildError> {
        let answers = async {
            while !self.store_answers().await {
                tokio::time::sleep(STORE_POLL).await;
            }
        };
        if tokio::time::timeout(within, answers).await.is_ok() {
            return Ok(());
        }
        let trouble = self.shards().into_iter().find_map(|shard| shard.trouble);
        let why = trouble.unwrap_or_else(|| "it does not answer in time".to_owned());
        Err(BuildError::StoreUnavailable { waited: within, why })
    }
}

/// The time between two attempts to reach a store that is required at start.
#[cfg(feature = "redis")]
const STORE_POLL: Duration = Duration::from_millis(20);
/// Envoy waits 20 ms, and people notice 100 ms: a store that is silent for longer counts as gone.
const TIMEOUT: Duration = Duration::from_millis(25);
/// Ten million counters take less than 1 GiB.
const MAX_KEYS: usize = 10_000_000;
/// One task drives a connection. 16 are more than any machine's cores can use.
#[cfg(feature = "redis")]
const CONNECTIONS_MAX: usize = 16;
