//! Decides several requests as one: all are charged, or none is.

use std::sync::Arc;
use std::time::Duration;

use super::{Inner, Limiter};
use crate::decision::{self, Decision, Denial, Names};
use crate::plan::{Plan, PlanMode, SharedMatch};
use crate::request::Request;

/// The decision on several requests as one: all are charged, or none is.
///
/// [`Limiter::check_atomic`] returns it.
#[derive(Clone, Debug)]
#[must_use = "denied requests must not proceed"]
pub struct AtomicDecision {
    whole: Decision,
    by_request: Vec<Decision>,
}

impl Limiter {
    /// Decides several requests as one: charges all of them, or none.
    ///
    /// Each request is matched by itself. A counter that several of them match is charged once, for
    /// the sum of their costs. If they bring different inline limits for one key, the first of these
    /// counts. There is no receipt: permits of a concurrency limit end at their `max_hold`.
    ///
    /// ```
    /// # tokio::runtime::Runtime::new().unwrap().block_on(async {
    /// use spillgate::{Limit, Limiter, Request};
    ///
    /// let limiter = Limiter::builder().build().await.unwrap();
    /// let by_ip = Request::keyed("ip:203.0.113.7", Limit::per_minute(10));
    /// let by_user = Request::keyed("user:42", Limit::per_minute(1));
    /// let both = [by_ip, by_user];
    /// assert!(limiter.check_atomic(&both).await.allowed());
    ///
    /// let second = limiter.check_atomic(&both).await;
    /// assert!(!second.allowed());
    /// assert!(second.by_request()[0].allowed(), "this one alone would have room");
    /// assert_eq!(second.by_request()[0].remaining(), Some(9), "nothing was charged anywhere");
    /// # });
    /// ```
    pub async fn check_atomic(&self, requests: &[Request<'_>]) -> AtomicDecision {
        self.inner.decide_as_one(requests, None).await
    }

    /// Decides several requests as one, like [`Limiter::check_atomic`], for a caller with a deadline
    /// of its own.
    ///
    /// Waits at most `within` for the store, or the limiter's own timeout if that is shorter. If the
    /// store is only too slow, rules with `on_outage = "local"` decide by the local share.
    ///
    /// ```
    /// # tokio::runtime::Runtime::new().unwrap().block_on(async {
    /// use std::time::Duration;
    /// use spillgate::{Limit, Limiter, Request};
    ///
    /// let limiter = Limiter::builder().build().await.unwrap();
    /// let requests = [Request::keyed("user:42", Limit::per_minute(1))];
    /// let decision = limiter.check_atomic_within(&requests, Duration::from_millis(15)).await;
    /// assert!(decision.allowed());
    /// # });
    /// ```
    pub async fn check_atomic_within(
        &self,
        requests: &[Request<'_>],
        within: Duration,
    ) -> AtomicDecision {
        self.inner.decide_as_one(requests, Some(within)).await
    }
}

impl AtomicDecision {
    /// Returns whether the requests are allowed.
    pub fn allowed(&self) -> bool {
        self.whole.allowed()
    }

    /// Returns the reason of a denial and the time to wait, or `None` if the requests are allowed.
    pub fn denial(&self) -> Option<Denial> {
        self.whole.denial()
    }

    /// Returns the one decision on all requests. It has every counter once, with the sum of its
    /// costs.
    pub fn whole(&self) -> &Decision {
        &self.whole
    }

    /// Returns, for each request in order, the numbers of its counters, and whether these alone
    /// would allow it. Only [`AtomicDecision::whole`] shows whether anything was charged.
    pub fn by_request(&self) -> &[Decision] {
        &self.by_request
    }
}

impl Inner {
    async fn decide_as_one(
        &self,
        requests: &[Request<'_>],
        within: Option<Duration>,
    ) -> AtomicDecision {
        let began = self.metrics.begin();
        self.expire_if_unwatched();
        let in_force = self.in_force.load_full();
        let policy = &in_force.policy;
        let names = || Names::Policy(Arc::clone(policy));
        let matches = SharedMatch::all(Some(policy), requests, &self.secret, PlanMode::Charge);
        let plan = Box::new(Plan::of_shared_matches(&matches));
        let evaluated = self.evaluate(plan, Some(policy), within).await;
        self.metrics.end(began);
        let counters = evaluated.plan.outcomes;
        let summary = self.count(&counters, Some(&in_force.meters));
        let whole = decision::from_parts(summary, counters.clone(), names(), None);
        let each = requests.iter().enumerate().map(|(number, request)| {
            let counters = SharedMatch::counters_of(number, &matches, &counters);
            self.sample(request, Some(policy), &counters, whole.allowed());
            decision::from_counters(counters, names())
        });
        let by_request = each.collect();
        AtomicDecision { whole, by_request }
    }
}
