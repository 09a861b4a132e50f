//! Putting a limiter together: every setting that the library takes.

use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
#[cfg(feature = "redis")]
use parking_lot::Mutex;

use super::{Control, Counters, InForce, Inner, Limiter};
#[cfg(feature = "redis")]
use super::{leasing, upkeep};
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

/// Puts a limiter together.
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
    clock: Clock,
}

impl LimiterBuilder {
    /// The rules.
    pub fn policy(self, policy: Policy) -> LimiterBuilder {
        LimiterBuilder { policy, ..self }
    }

    /// State in this Redis or Valkey, shared with whoever names the same:
    /// `redis://user:password@host:port/database`, `rediss://` for TLS, or `unix:///path?db=0`.
    #[cfg(feature = "redis")]
    pub fn redis(self, url: impl Into<String>) -> LimiterBuilder {
        LimiterBuilder { store: Some(Store::Url(url.into())), ..self }
    }

    /// State on whoever is primary under a name that these sentinels watch. User, password, database
    /// and TLS of the first address are the primary's too.
    #[cfg(feature = "redis")]
    pub fn sentinel(
        self,
        master: impl Into<String>,
        urls: impl IntoIterator<Item = impl Into<String>>,
    ) -> LimiterBuilder {
        let urls = urls.into_iter().map(Into::into).collect();
        LimiterBuilder { store: Some(Store::Sentinel { master: master.into(), urls }), ..self }
    }

    /// State on a Redis Cluster, by the addresses of some of its nodes. User and password of the
    /// first are those of all.
    #[cfg(feature = "redis")]
    pub fn cluster(self, urls: impl IntoIterator<Item = impl Into<String>>) -> LimiterBuilder {
        let urls = urls.into_iter().map(Into::into).collect();
        LimiterBuilder { store: Some(Store::Cluster(urls)), ..self }
    }

    /// State spread over the nodes of a ring.
    #[cfg(feature = "redis")]
    pub fn ring(self, ring: Ring) -> LimiterBuilder {
        LimiterBuilder { store: Some(Store::Ring(ring)), ..self }
    }

    /// Whom `rediss://` servers are trusted by, and who we are there.
    #[cfg(feature = "redis")]
    pub fn tls(self, tls: Tls) -> LimiterBuilder {
        LimiterBuilder { tls: Some(tls), ..self }
    }

    /// How many processes share the limits, where that is known beforehand: while the store is out of
    /// reach each enforces its part alone. More that were heard of lately count.
    #[cfg(feature = "redis")]
    pub fn expected_instances(self, nodes: u32) -> LimiterBuilder {
        LimiterBuilder { expected_instances: nodes, ..self }
    }

    /// Decide by this process's clock, set by the store's once a second, where scripts may not ask
    /// for the time themselves.
    #[cfg(feature = "redis")]
    pub fn client_clock(self) -> LimiterBuilder {
        LimiterBuilder { client_clock: true, ..self }
    }

    /// What a server that has lost what it held is taken to have held; [`OnStateLoss::Fresh`] unless
    /// said otherwise.
    #[cfg(feature = "redis")]
    pub fn on_state_loss(self, on_state_loss: OnStateLoss) -> LimiterBuilder {
        LimiterBuilder { on_state_loss, ..self }
    }

    /// Has other instances not count this one: for commands that ask a store once and leave.
    #[cfg(feature = "redis")]
    #[doc(hidden)]
    pub fn onlooker(self) -> LimiterBuilder {
        LimiterBuilder { presence: Presence::Onlooker, ..self }
    }

    /// Whether a refusal by the store is remembered until its wait is over, for a second at most: who is
    /// refused and asks again does not reach the store. It is, unless this says otherwise. What another
    /// process refunds or resets within that second is noticed after it.
    #[cfg(feature = "redis")]
    pub fn denial_cache(self, remembers: bool) -> LimiterBuilder {
        LimiterBuilder { denial_cache: Some(remembers), ..self }
    }

    /// Connections to each server: 1 to 16. By itself one for every two cores, four at most.
    #[cfg(feature = "redis")]
    pub fn connections(self, connections: usize) -> LimiterBuilder {
        LimiterBuilder { connections: Some(connections.clamp(1, CONNECTIONS_MAX)), ..self }
    }

    /// Sets how long the store may send no byte while it owes an answer, or be without a connection, 25 ms by default.
    /// After that it is out of reach, and each rule's `on_outage` decides.
    pub fn timeout(self, timeout: Duration) -> LimiterBuilder {
        LimiterBuilder { timeout: Some(timeout), ..self }
    }

    /// Sets how long a decision waits for a store that is busy but works, 250 ms by default and never less than
    /// [`timeout`](Self::timeout). A decision that waits longer is denied as
    /// [`Reason::Overloaded`](crate::Reason::Overloaded), or allowed where the rule says `on_outage = "allow"`.
    #[cfg(feature = "redis")]
    pub fn overload_wait(self, wait: Duration) -> LimiterBuilder {
        LimiterBuilder { overload_wait: Some(wait), ..self }
    }

    /// The secret that subjects are hashed under: the same in every process of a fleet. Without
    /// one, whoever can reach the limiter can aim subjects at one shard.
    pub fn key_secret(self, secret: [u8; 16]) -> LimiterBuilder {
        LimiterBuilder { secret: Some(secret), ..self }
    }

    /// The secret before that, for as long as a limit may wait after the last process has changed
    /// over: until then what is stored under it is judged and charged as well, so nobody gets a fresh
    /// allowance. Each decision costs the store twice as much meanwhile. [`SHARED_SECRET`] is what who
    /// had none had.
    #[cfg(feature = "redis")]
    pub fn previous_key_secret(self, secret: [u8; 16]) -> LimiterBuilder {
        LimiterBuilder { previous_secret: Some(secret), ..self }
    }

    /// How many counters the memory engine holds at most; ten million unless said otherwise.
    pub fn max_keys(self, max_keys: usize) -> LimiterBuilder {
        LimiterBuilder { max_keys: Some(max_keys), ..self }
    }

    /// Whether it is watched who uses most and who is refused most, for `Limiter::top`: names of subjects
    /// are in this process's memory then. It is, unless this says otherwise; some megabytes at most.
    pub fn top(self, watched: bool) -> LimiterBuilder {
        let wanted = match self.wanted {
            Wanted::Nothing => Wanted::Nothing,
            Wanted::All | Wanted::Unwatched if watched => Wanted::All,
            Wanted::All | Wanted::Unwatched => Wanted::Unwatched,
        };
        LimiterBuilder { wanted, ..self }
    }

    /// That nothing is counted by rule, timed or watched, whatever [`top`](Self::top) says:
    /// `Limiter::metrics_text` says zero of all decisions. For whoever has counts of their own, and to
    /// see what these cost.
    pub fn without_metrics(self) -> LimiterBuilder {
        LimiterBuilder { wanted: Wanted::Nothing, ..self }
    }

    /// The memory engine's clock.
    #[doc(hidden)]
    pub fn clock(self, clock: Clock) -> LimiterBuilder {
        LimiterBuilder { clock, ..self }
    }

    /// The clock of decisions, on a store too.
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

    /// Makes the limiter. A store that is out of reach is an outage, not an error, unless
    /// [`require_store`](Self::require_store) says otherwise.
    ///
    /// # Errors
    ///
    /// Fails if a setting cannot work: an address, a ring, certificates.
    pub async fn build(self) -> Result<Limiter, BuildError> {
        #[cfg(feature = "redis")]
        let required_within = self.required_within;
        let max_keys = self.max_keys.unwrap_or(MAX_KEYS);
        let secret = self.subject_secret();
        let engine = self.engine(max_keys).await?;
        #[cfg(feature = "redis")]
        let remembers = self.denial_cache.unwrap_or(!matches!(engine, Engine::Memory(_)));
        // Who goes by two secrets has two counters for one.
        #[cfg(feature = "redis")]
        let leases = !matches!(engine, Engine::Memory(_)) && secret.previous().is_none();
        let in_force = InForce::new(self.policy.as_written(), &Meters::default());
        let inner = Inner {
            metrics: Metrics::new(!matches!(engine, Engine::Memory(_)), self.wanted),
            engine,
            in_force: ArcSwap::from_pointee(in_force),
            receipts: Seal::new(&secret),
            control: Control::new(self.clock.clone(), &secret),
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
        if !matches!(inner.engine, Engine::Memory(_)) {
            inner.catch_up().await;
        }
        #[cfg(feature = "redis")]
        {
            leasing::warm_up(&inner).await;
            upkeep::begin(&inner);
            leasing::begin(&inner);
        }
        let limiter = Limiter { inner };
        #[cfg(feature = "redis")]
        if let Some(within) = required_within {
            limiter.wait_for_store(within).await?;
        }
        Ok(limiter)
    }

    fn subject_secret(&self) -> Secret {
        let secret = Secret::new(&self.secret.unwrap_or(SHARED_SECRET));
        // What is in memory was never under another.
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
/// Envoy waits 20 ms, people notice 100: a store that says nothing for longer is as good as gone.
const TIMEOUT: Duration = Duration::from_millis(25);
/// Below 1 GiB of counters.
const MAX_KEYS: usize = 10_000_000;
/// One task drives a connection: more than any machine has cores for.
#[cfg(feature = "redis")]
const CONNECTIONS_MAX: usize = 16;
