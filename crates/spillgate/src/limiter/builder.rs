//! Builds a limiter from the settings of the library.

use std::sync::Arc;
use std::time::Duration;

use super::identity::Identity;
use super::{Control, DecisionCounts, InForce, Inner, Limiter, Published};
use crate::control::SubjectsInLog;
use crate::denials::{AllowedCounts, Keeping, Recorder};
use crate::engine::{Engine, Memory};
use crate::error::BuildError;
use crate::metrics::{Counting, Meters, Metrics};
use crate::policy::Policy;
use crate::reservation::Seal;
use crate::subject::{SHARED_SECRET, Secret};
use crate::testing::ManualClock;
use crate::time::Clock;
use crate::waiting::Waiting;

#[cfg(feature = "redis")]
mod store;
#[cfg(not(feature = "redis"))]
#[path = "builder/no_store.rs"]
mod store;

pub(crate) use store::StoreSettings;

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
    pub(crate) store: StoreSettings,
    secret: Option<[u8; 16]>,
    timeout: Option<Duration>,
    max_keys: Option<usize>,
    counting: Counting,
    subjects_in_log: SubjectsInLog,
    name: Option<String>,
    denials: bool,
    clock: Clock,
}

impl LimiterBuilder {
    /// Sets the rules. By default there are none, and every request is allowed.
    pub fn policy(self, policy: Policy) -> LimiterBuilder {
        LimiterBuilder { policy, ..self }
    }

    /// Sets how long the store may stay silent while a reply is due, or be without a connection.
    /// The default is 25 ms, and more than 60 s counts as 60 s.
    ///
    /// After that it counts as out of reach, and each rule's `on_outage` decides.
    ///
    /// ```
    /// use std::time::Duration;
    /// use spillgate::Limiter;
    ///
    /// let builder = Limiter::builder().timeout(Duration::from_millis(50));
    /// ```
    pub fn timeout(self, timeout: Duration) -> LimiterBuilder {
        LimiterBuilder { timeout: Some(timeout), ..self }
    }

    /// Sets the secret under which subjects are hashed. All instances of a fleet need the same.
    ///
    /// Without a secret of your own, any client of the limiter can choose subjects that fall on one
    /// shard.
    ///
    /// ```
    /// use spillgate::Limiter;
    ///
    /// // Read yours from a file that only the service may read.
    /// let builder = Limiter::builder().key_secret(*b"0123456789abcdef");
    /// ```
    pub fn key_secret(self, secret: [u8; 16]) -> LimiterBuilder {
        LimiterBuilder { secret: Some(secret), ..self }
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
        let counting = match self.counting {
            Counting::Nothing => Counting::Nothing,
            Counting::All | Counting::WithoutTop if watched => Counting::All,
            Counting::All | Counting::WithoutTop => Counting::WithoutTop,
        };
        LimiterBuilder { counting, ..self }
    }

    /// Sets whether the log names the values of subjects in changes by operators. The default is
    /// `false`: it names attributes only.
    ///
    /// ```
    /// use spillgate::Limiter;
    ///
    /// let builder = Limiter::builder().log_subjects(true);
    /// ```
    pub fn log_subjects(self, logged: bool) -> LimiterBuilder {
        let subjects_in_log = if logged { SubjectsInLog::Values } else { SubjectsInLog::Names };
        LimiterBuilder { subjects_in_log, ..self }
    }

    /// Sets the name of this instance, by which operators know it. The default is the name of the host.
    ///
    /// ```
    /// use spillgate::Limiter;
    ///
    /// let builder = Limiter::builder().instance_name("checkout-7f9c");
    /// ```
    pub fn instance_name(self, name: impl Into<String>) -> LimiterBuilder {
        LimiterBuilder { name: Some(name.into()), ..self }
    }

    /// Sets whether every denial is recorded by rule, limit and subject, for
    /// [`Limiter::denials_of`](Limiter::denials_of). The default is `false`.
    ///
    /// The record is kept for 48 hours: on the store, sealed with the key secret, or with state in memory in this
    /// process. Set a [`key_secret`](Self::key_secret) of your own too, because the default one is public.
    ///
    /// ```
    /// use spillgate::Limiter;
    ///
    /// let builder = Limiter::builder().key_secret(*b"0123456789abcdef").denials(true);
    /// ```
    pub fn denials(self, recorded: bool) -> LimiterBuilder {
        LimiterBuilder { denials: recorded, ..self }
    }

    /// Turns off counting by rule, timing and `top`, whatever [`top`](Self::top) was set to.
    ///
    /// `Limiter::metrics_text` then shows 0 decisions; unmatched requests are still counted. For
    /// applications with metrics of their own, and to measure the cost of ours.
    ///
    /// ```
    /// use spillgate::Limiter;
    ///
    /// let builder = Limiter::builder().without_metrics();
    /// ```
    pub fn without_metrics(self) -> LimiterBuilder {
        LimiterBuilder { counting: Counting::Nothing, ..self }
    }

    /// Decides by a clock that a test sets. On a shared store the clock applies to this limiter alone.
    pub fn manual_clock(self, clock: &ManualClock) -> LimiterBuilder {
        LimiterBuilder { clock: clock.clock(), ..self }
    }

    /// Builds the limiter.
    ///
    /// # Errors
    /// Returns [`BuildError`] if a setting is invalid: an address, a ring or a certificate. A store
    /// that is out of reach is no error, and requests are decided as during any outage, unless
    /// [`require_store`](Self::require_store) was set.
    ///
    /// ```
    /// # #[cfg(feature = "redis")]
    /// # tokio::runtime::Runtime::new().unwrap().block_on(async {
    /// use spillgate::{BuildError, Limiter};
    ///
    /// let error = Limiter::builder().redis("http://10.0.0.1").build().await.unwrap_err();
    /// assert!(matches!(error, BuildError::StoreUrl { .. }), "{error}");
    /// # });
    /// ```
    pub async fn build(mut self) -> Result<Limiter, BuildError> {
        let (secret, waiting) = (self.own_secret()?, Waiting::default());
        let engine = match self.open_store(self.keys_at_most(), &secret, &waiting).await? {
            Some(store) => Engine::Redis(store),
            None => self.memory(),
        };
        let store = std::mem::take(&mut self.store);
        let limiter = self.assemble(engine, secret, waiting);
        // Runtime changes, such as blocks, must be known before the first request.
        if !limiter.inner.engine.is_memory() {
            limiter.inner.read_changes_and_watch().await;
        }
        limiter.begin(&store).await?;
        Ok(limiter)
    }

    /// Builds a limiter whose state is in this process, without a future and without a runtime.
    ///
    /// It decides by [`Limiter::check_now`], or by `check` wherever there is a runtime.
    ///
    /// # Errors
    /// Returns [`BuildError::NotInMemory`] if a store was set, which only [`build`](Self::build) can open.
    ///
    /// ```
    /// use spillgate::{Limit, Limiter, Request};
    ///
    /// let limiter = Limiter::builder().max_keys(100_000).build_in_memory()?;
    /// let decision = limiter.check_now(&Request::keyed("user:42", Limit::per_minute(5)));
    /// assert!(decision.is_some_and(|decision| decision.allowed()));
    /// # Ok::<(), spillgate::BuildError>(())
    /// ```
    pub fn build_in_memory(self) -> Result<Limiter, BuildError> {
        if self.store.names_a_store() {
            return Err(BuildError::NotInMemory);
        }
        let (secret, engine) = (self.own_secret()?, self.memory());
        Ok(self.assemble(engine, secret, Waiting::default()))
    }

    fn own_secret(&self) -> Result<Secret, BuildError> {
        self.store.secret(Secret::new(&self.secret.unwrap_or(SHARED_SECRET)))
    }

    fn keys_at_most(&self) -> usize {
        self.max_keys.unwrap_or(MAX_KEYS)
    }

    fn memory(&self) -> Engine {
        Engine::Memory(Box::new(Memory::new(self.keys_at_most(), self.clock.clone())))
    }

    /// Puts the limiter together. If state is in memory it is then complete.
    fn assemble(self, engine: Engine, secret: Secret, waiting: Waiting) -> Limiter {
        let in_force = InForce::new(self.policy.as_written(), &Meters::default());
        let keeping = match (self.denials, engine.is_memory()) {
            (false, _) => Keeping::Off,
            (true, true) => Keeping::InMemory,
            (true, false) => Keeping::OnStore,
        };
        let allowed = match self.counting {
            Counting::All => AllowedCounts::sampled(),
            Counting::WithoutTop | Counting::Nothing => AllowedCounts::unknown(),
        };
        let inner = Arc::new(Inner {
            denials: Recorder::new(keeping, allowed, self.clock.clone(), &secret),
            #[cfg(feature = "redis")]
            history: crate::history::Recorder::new(self.clock.clone(), &secret),
            metrics: Metrics::new(!engine.is_memory(), self.counting),
            engine,
            in_force: Published::new(in_force),
            receipts: Seal::new(&secret),
            control: Control::new(self.clock, &secret, self.subjects_in_log),
            secret,
            counts: DecisionCounts::default(),
            waiting,
            identity: Identity::new(self.name),
        });
        if self.denials && inner.engine.is_memory() {
            inner.watch();
        }
        Limiter { inner, note: None }
    }
}

/// Envoy waits 20 ms, and people notice 100 ms: a store that is silent for longer counts as gone.
const TIMEOUT: Duration = Duration::from_millis(25);
/// Ten million counters take less than 1 GiB.
const MAX_KEYS: usize = 10_000_000;
