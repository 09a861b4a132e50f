//! The settings of a shared store.

use std::sync::Arc;
use std::time::Duration;

use super::super::Limiter;
use super::{LimiterBuilder, TIMEOUT};
use crate::engine::{OwnPart, RedisStore};
use crate::error::BuildError;
use crate::store::{OnStateLoss, Presence, Ring, Store, StoreOptions, Tls};
use crate::subject::Secret;
use crate::time::Clock;
use crate::waiting::Waiting;
use spillgate_redis::Redis;

/// The settings of a shared store. Without an address, state is in memory.
#[derive(Debug, Default)]
pub(crate) struct StoreSettings {
    pub(crate) address: Option<Store>,
    pub(crate) tls: Option<Tls>,
    connections: Option<usize>,
    pub(crate) expected_instances: u32,
    on_state_loss: OnStateLoss,
    presence: Presence,
    namespace: Option<String>,
    pub(crate) denial_cache: Option<bool>,
    overload_wait: Option<Duration>,
    /// How long `build` waits for the store, if it has to answer.
    pub(crate) required_within: Option<Duration>,
}

impl LimiterBuilder {
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
    pub fn redis(mut self, url: impl Into<String>) -> LimiterBuilder {
        self.store.address = Some(Store::Url(url.into()));
        self
    }

    /// Keeps state on the current primary of a master name that these Sentinels watch.
    ///
    /// User, password, database and TLS of the first URL apply to the primary too. `build` returns an error if two URLs
    /// have the same host and port, because one Sentinel would count as two of a majority.
    ///
    /// ```
    /// use spillgate::Limiter;
    ///
    /// let sentinels = ["redis://10.0.0.1:26379", "redis://10.0.0.2:26379", "redis://10.0.0.3:26379"];
    /// let builder = Limiter::builder().sentinel("spillgate", sentinels);
    /// ```
    pub fn sentinel(
        mut self,
        master: impl Into<String>,
        urls: impl IntoIterator<Item = impl Into<String>>,
    ) -> LimiterBuilder {
        let urls = urls.into_iter().map(Into::into).collect();
        self.store.address = Some(Store::Sentinel { master: master.into(), urls, password: None });
        self
    }

    /// Sets the password of the Sentinels, where it is not that of the primary. Call it after
    /// [`sentinel`](Self::sentinel); other stores have no Sentinels, and ignore it.
    ///
    /// ```
    /// use spillgate::Limiter;
    ///
    /// let builder = Limiter::builder().sentinel("spillgate", ["redis://:of-the-primary@10.0.0.1:26379"]);
    /// let builder = builder.sentinel_password("of-the-sentinels");
    /// ```
    pub fn sentinel_password(mut self, own: impl Into<String>) -> LimiterBuilder {
        if let Some(Store::Sentinel { password, .. }) = &mut self.store.address {
            *password = Some(own.into());
        }
        self
    }

    /// Keeps state on a Redis Cluster, found through some of its nodes.
    ///
    /// User and password of the first URL apply to all nodes.
    ///
    /// ```
    /// use spillgate::Limiter;
    ///
    /// let nodes = ["redis://10.0.0.1:6379", "redis://10.0.0.2:6379"];
    /// let builder = Limiter::builder().cluster(nodes);
    /// ```
    pub fn cluster(mut self, urls: impl IntoIterator<Item = impl Into<String>>) -> LimiterBuilder {
        let urls = urls.into_iter().map(Into::into).collect();
        self.store.address = Some(Store::Cluster(urls));
        self
    }

    /// Keeps state on independent servers, spread by consistent hashing.
    ///
    /// ```
    /// use spillgate::store::Ring;
    /// use spillgate::Limiter;
    ///
    /// let ring = Ring::new().node("a", "redis://10.0.0.1:6379").node("b", "redis://10.0.0.2:6379");
    /// let builder = Limiter::builder().ring(ring);
    /// ```
    pub fn ring(mut self, ring: Ring) -> LimiterBuilder {
        self.store.address = Some(Store::Ring(ring));
        self
    }

    /// Sets the certificate authority for `rediss://` servers and this instance's own certificate.
    ///
    /// ```
    /// use spillgate::store::Tls;
    /// use spillgate::Limiter;
    ///
    /// # fn connect() -> std::io::Result<()> {
    /// let authority = std::fs::read("/etc/spillgate/ca.pem")?;
    /// let builder = Limiter::builder().redis("rediss://10.0.0.1:6379").tls(Tls::new().trusting(authority));
    /// # Ok(()) }
    /// ```
    pub fn tls(mut self, tls: Tls) -> LimiterBuilder {
        self.store.tls = Some(tls);
        self
    }

    /// Sets the number of instances that share the limits, if you know it beforehand.
    ///
    /// While the store is out of reach, each instance enforces this fraction of every limit. If
    /// recent heartbeats show more instances, their number is used.
    ///
    /// ```
    /// use spillgate::Limiter;
    ///
    /// // Each of three instances enforces a third of every limit while the store is down.
    /// let builder = Limiter::builder().redis("redis://10.0.0.1:6379").expected_instances(3);
    /// ```
    pub fn expected_instances(mut self, instances: u32) -> LimiterBuilder {
        self.store.expected_instances = instances;
        self
    }

    /// Sets the usage to assume on a server that lost its data. The default is
    /// [`OnStateLoss::Fresh`].
    ///
    /// ```
    /// use spillgate::store::OnStateLoss;
    /// use spillgate::Limiter;
    ///
    /// let builder = Limiter::builder()
    ///     .redis("redis://10.0.0.1:6379")
    ///     .on_state_loss(OnStateLoss::Exhausted);
    /// ```
    pub fn on_state_loss(mut self, on_state_loss: OnStateLoss) -> LimiterBuilder {
        self.store.on_state_loss = on_state_loss;
        self
    }

    /// Separates this fleet from others on the same store: fleets with different namespaces share no
    /// counter, runtime change or warning. 1 to 32 of the characters `a-z 0-9 _ -`; the default is
    /// `default`.
    ///
    /// ```
    /// use spillgate::Limiter;
    ///
    /// let builder = Limiter::builder().redis("redis://10.0.0.1:6379").namespace("billing");
    /// ```
    pub fn namespace(mut self, namespace: impl Into<String>) -> LimiterBuilder {
        self.store.namespace = Some(namespace.into());
        self
    }

    /// Sends no heartbeat, so that other instances do not count this one as live.
    ///
    /// For commands that call a store a few times and end.
    ///
    /// ```
    /// use spillgate::Limiter;
    ///
    /// let builder = Limiter::builder().redis("redis://10.0.0.1:6379").without_heartbeat();
    /// ```
    pub fn without_heartbeat(mut self) -> LimiterBuilder {
        self.store.presence = Presence::Onlooker;
        self
    }

    /// Sets whether a denial by the store is remembered until its wait is over, for at most 1
    /// second. The default is `true`.
    ///
    /// A denied subject that tries again does not reach the store. A refund or reset by another
    /// instance takes effect here up to 1 second late.
    ///
    /// ```
    /// use spillgate::Limiter;
    ///
    /// let builder = Limiter::builder().redis("redis://10.0.0.1:6379").denial_cache(false);
    /// ```
    pub fn denial_cache(mut self, remembers: bool) -> LimiterBuilder {
        self.store.denial_cache = Some(remembers);
        self
    }

    /// Sets the number of connections to each server, 1 to 16. The default is one for every two
    /// cores, at most 4.
    ///
    /// ```
    /// use spillgate::Limiter;
    ///
    /// let builder = Limiter::builder().redis("redis://10.0.0.1:6379").connections(2);
    /// ```
    pub fn connections(mut self, connections: usize) -> LimiterBuilder {
        self.store.connections = Some(connections.clamp(1, CONNECTIONS_MAX));
        self
    }

    /// Sets how long a decision waits for a store that is busy but works. The default is 250 ms. A
    /// decision waits at least twice [`timeout`](Self::timeout), to tell a busy store from a silent
    /// one. More than 60 s counts as 60 s.
    ///
    /// A decision that waits longer is denied as [`Reason::Overloaded`](crate::Reason::Overloaded),
    /// or allowed if the rule has `on_outage = "allow"`.
    ///
    /// ```
    /// use std::time::Duration;
    /// use spillgate::Limiter;
    ///
    /// let builder = Limiter::builder()
    ///     .redis("redis://10.0.0.1:6379")
    ///     .overload_wait(Duration::from_millis(100));
    /// ```
    pub fn overload_wait(mut self, wait: Duration) -> LimiterBuilder {
        self.store.overload_wait = Some(wait);
        self
    }

    /// Requires the store at start: [`build`](Self::build) fails if the store does not decide within `timeout`.
    ///
    /// Without it a limiter starts while the store is down, and decides by each rule's `on_outage` until the store
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
    pub fn require_store(mut self, timeout: Duration) -> LimiterBuilder {
        self.store.required_within = Some(timeout);
        self
    }
}

impl LimiterBuilder {
    /// Checks the addresses of the store, without connecting to it.
    ///
    /// # Errors
    ///
    /// Those of [`build`](Self::build) for addresses, and for the nodes of a ring.
    ///
    /// ```
    /// use spillgate::Limiter;
    ///
    /// assert!(Limiter::builder().redis("redis://127.0.0.1:70000").check_addresses().is_err());
    /// assert!(Limiter::builder().redis("redis://127.0.0.1:6379").check_addresses().is_ok());
    /// ```
    pub fn check_addresses(&self) -> Result<(), BuildError> {
        self.store.address.as_ref().map_or(Ok(()), Redis::check_addresses)
    }
}

impl StoreSettings {
    pub(crate) fn names_a_store(&self) -> bool {
        self.address.is_some()
    }

    /// Returns the secret of the namespace, so that all keys and seals of two namespaces differ.
    pub(crate) fn secret(&self, secret: Secret) -> Result<Secret, BuildError> {
        let Some(namespace) = &self.namespace else { return Ok(secret) };
        let is_plain =
            |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"_-".contains(&byte);
        match (1..=32).contains(&namespace.len()) && namespace.bytes().all(is_plain) {
            true => Ok(secret.in_namespace(namespace)),
            false => Err(BuildError::Namespace { namespace: namespace.clone() }),
        }
    }
}

impl LimiterBuilder {
    /// Opens the store; returns `None` if state is in memory. A given clock replaces the store's.
    pub(crate) async fn open_store(
        &self,
        max_keys: usize,
        secret: &Secret,
        waiting: &Waiting,
    ) -> Result<Option<Arc<RedisStore>>, BuildError> {
        let LimiterBuilder { store, clock, .. } = self;
        let Some(address) = &store.address else { return Ok(None) };
        let bounded = |wait: Duration| wait.min(WAIT_MAX);
        let defaults = StoreOptions::new(self.timeout.map_or(TIMEOUT, bounded));
        let options = StoreOptions {
            tls: store.tls.clone(),
            on_state_loss: store.on_state_loss,
            secret: secret.clone(),
            presence: store.presence,
            namespace: store.namespace.clone().unwrap_or(defaults.namespace),
            connections: store.connections.unwrap_or(defaults.connections),
            overload_wait: store.overload_wait.map_or(defaults.overload_wait, bounded),
            ..defaults
        };
        let servers = Redis::open(address, &options).await?;
        let servers = match clock {
            Clock::System => servers,
            given => servers.with_clock(given.clone()),
        };
        let own = OwnPart {
            max_keys,
            clock: clock.clone(),
            expected_instances: store.expected_instances,
            remembers: store.denial_cache.unwrap_or(true),
            room: Arc::clone(&waiting.room),
        };
        Ok(Some(Arc::new(RedisStore::new(servers, own))))
    }
}

impl Limiter {
    /// Takes the first leases, and starts the tasks of the store. Waits for a store that is required at start.
    pub(crate) async fn begin(&self, settings: &StoreSettings) -> Result<(), BuildError> {
        let inner = &self.inner;
        if let Some(store) = inner.engine.store() {
            store.warm_up(&inner.in_force.load_full().policy, &inner.secret).await;
            store.begin_upkeep();
            store.begin_leasing();
        }
        let Some(within) = settings.required_within else { return Ok(()) };
        let answers = async {
            while !self.store_answers().await {
                tokio::time::sleep(STORE_POLL).await;
            }
        };
        if tokio::time::timeout(within, answers).await.is_ok() {
            return Ok(());
        }
        let trouble = self.shards().into_iter().find_map(|shard| shard.trouble);
        let why = trouble.unwrap_or_else(|| "it does not answer in time".into());
        Err(BuildError::StoreUnavailable { waited: within, why })
    }
}

/// The time between two attempts to reach a store that is required at start.
const STORE_POLL: Duration = Duration::from_millis(20);
/// No caller waits longer for a store.
const WAIT_MAX: Duration = Duration::from_secs(60);
/// One task drives a connection. 16 are more than any machine's cores can use.
const CONNECTIONS_MAX: usize = 16;
