//! What operators read of a limiter: the subjects with the most use, and the metrics as text.

use super::Limiter;
use crate::engine::Memory;
use crate::metrics::{Counts, Kind, Text, Top};
use spillgate_core::memory::RecordsHeld;

#[cfg(feature = "redis")]
mod store;

impl Limiter {
    /// Returns the subjects with the most use and those with the most denials, `n` of each for each rule or for one
    /// rule, as this instance saw them in the last minute or two. Counts are estimates. No subject with more than a
    /// thousandth of a rule's use is missing. A reservation counts once, with its estimate.
    ///
    /// ```
    /// # tokio::runtime::Runtime::new().unwrap().block_on(async {
    /// use spillgate::{Limiter, Policy, Request};
    /// let policy = "[[rule]]\nname = \"api\"\nkey = [\"user\"]\nlimits = [\"100/minute\"]";
    /// let limiter = Limiter::builder().policy(Policy::from_toml(policy)?).build().await?;
    /// for user in ["ann", "bob", "ann"] {
    ///     limiter.check(&Request::new().with("user", user)).await;
    /// }
    /// let top = limiter.top(Some("api"), 10);
    /// let first = &top.rules()[0].consumers()[0];
    /// assert_eq!(first.attributes().collect::<Vec<_>>(), [("user", b"ann".as_slice())]);
    /// # Ok::<(), Box<dyn std::error::Error>>(()) }).unwrap();
    /// ```
    pub fn top(&self, rule: Option<&str>, n: usize) -> Top {
        self.inner.metrics.top(rule, n)
    }

    /// Returns the counts of each rule and shard since the limiter was built, for the application's own graphs.
    /// [`Limiter::metrics_text`] has the same numbers in Prometheus's format.
    ///
    /// ```
    /// # tokio::runtime::Runtime::new().unwrap().block_on(async {
    /// use spillgate::{Limiter, Policy, Reason, Request};
    /// let policy = "[[rule]]\nname = \"api\"\nkey = [\"user\"]\nlimits = [\"1/minute\"]";
    /// let limiter = Limiter::builder().policy(Policy::from_toml(policy)?).build().await?;
    /// for _ in 0..3 {
    ///     limiter.check(&Request::new().with("user", "ann")).await;
    /// }
    /// let api = &limiter.counts().rules[0];
    /// assert_eq!((api.rule(), api.allowed(), api.denied(Reason::LimitExceeded)), ("api", 1, 2));
    /// let denied = api.decisions().iter().find(|kind| kind.reason.is_some()).unwrap();
    /// assert_eq!((&*denied.limit, denied.count), ("0", 2));
    /// # Ok::<(), Box<dyn std::error::Error>>(()) }).unwrap();
    /// ```
    pub fn counts(&self) -> Counts {
        let unmatched = self.inner.counts.read().unmatched;
        let counts = self.inner.metrics.read(&self.inner.in_force.load().meters, unmatched);
        #[cfg(feature = "redis")]
        if let Some(store) = self.inner.engine.store() {
            return Counts { shards: store::counts(store), ..counts };
        }
        counts
    }

    /// Returns the metrics of this limiter in Prometheus's text format, `text/plain; version=0.0.4`.
    ///
    /// ```
    /// # tokio::runtime::Runtime::new().unwrap().block_on(async {
    /// use spillgate::{Limiter, Request};
    /// let limiter = Limiter::builder().build().await.unwrap();
    /// limiter.check(&Request::new()).await;
    /// assert!(limiter.metrics_text().contains("\nspillgate_unmatched_total 1\n"));
    /// # });
    /// ```
    pub fn metrics_text(&self) -> String {
        let in_force = self.inner.in_force.load_full();
        let metrics = &self.inner.metrics;
        let mut text = Text::default();
        metrics.write(&in_force.meters, self.inner.counts.read().unmatched, &mut text);
        if let Some(memory) = self.inner.engine.memory() {
            text.memory(memory);
        }
        #[cfg(feature = "redis")]
        if let Some(store) = self.inner.engine.store() {
            text.store(self, store, &in_force.policy);
        }
        text.into_string()
    }
}

impl Text {
    fn memory(&mut self, memory: &Memory) {
        let evictions = memory.evictions();
        self.family(Kind::Counter, "evictions_total", EVICTIONS);
        self.sample("evictions_total", &[("live", "true")], evictions.live);
        self.family(Kind::Counter, "overflows_total", OVERFLOWS);
        self.sample("overflows_total", &[], evictions.overflowed);
        self.records(memory.records());
    }

    /// Writes the records of reservations in this process. With a store they are those of its local fallback.
    fn records(&mut self, held: RecordsHeld) {
        self.family(Kind::Gauge, "reservations", RESERVATIONS);
        self.sample("reservations", &[("state", "open")], held.open);
        self.sample("reservations", &[("state", "ended")], held.ended);
        self.family(Kind::Gauge, "reservation_bytes", RESERVATION_BYTES);
        self.sample("reservation_bytes", &[], held.bytes);
    }
}

const EVICTIONS: &str = "Counters that the memory store evicted for want of room.";
const OVERFLOWS: &str =
    "Charges of new subjects to a shared overflow counter of the full memory store.";
const RESERVATIONS: &str = "Records of reservations in this process.";
const RESERVATION_BYTES: &str = "Bytes of the records of reservations in this process.";
