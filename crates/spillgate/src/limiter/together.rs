//! Decides several requests as one: all are charged, or none is.

use std::sync::Arc;
use std::time::Duration;

use super::Limiter;
use crate::decision::{Decision, Names};
use crate::plan::{Plan, SharedMatch};
use crate::together::{AtomicDecision, Part};

impl Limiter {
    /// Decides several requests as one: charges all of them, or none.
    ///
    /// Waits at most `within` for the store, or the limiter's own timeout if that is shorter.
    ///
    /// ```
    /// # tokio::runtime::Runtime::new().unwrap().block_on(async {
    /// use std::time::Duration;
    /// use spillgate::{Limiter, Part, Policy, Request, Reason};
    ///
    /// let policy = Policy::from_toml(r#"
    ///     [[rule]]
    ///     name = "by-ip"
    ///     key = ["ip"]
    ///     limits = ["10/minute"]
    ///     [[rule]]
    ///     name = "by-user"
    ///     key = ["user"]
    ///     limits = ["1/minute"]
    /// "#).unwrap();
    /// let limiter = Limiter::builder().policy(policy).build().await.unwrap();
    /// let by_ip = Part::new(Request::new().with("ip", "203.0.113.7"));
    /// let by_user = Part::new(Request::new().with("user", "ada"));
    /// let parts = [by_ip, by_user];
    /// assert!(limiter.check_atomic(&parts, Duration::from_millis(15)).await.whole().allowed());
    ///
    /// let second = limiter.check_atomic(&parts, Duration::from_millis(15)).await;
    /// assert_eq!(second.whole().reason(), Some(Reason::LimitExceeded));
    /// assert_eq!(second.parts()[0].remaining(), Some(9), "nothing was charged anywhere");
    /// # });
    /// ```
    pub async fn check_atomic(&self, parts: &[Part<'_>], within: Duration) -> AtomicDecision {
        let began = self.inner.metrics.begin();
        let in_force = self.inner.in_force.load_full();
        let policy = &in_force.policy;
        let shared_matches = SharedMatch::all(policy, parts, &self.inner.secret);
        let plan = Box::new(Plan::of_shared_matches(&shared_matches, &self.inner.secret));
        let judged = self.inner.evaluate_within(plan, policy, within).await.counters;
        self.inner.metrics.end(began);
        let whole = {
            let names = Names::Policy(Arc::clone(policy));
            self.inner.decision(judged.clone(), Some(&in_force.meters), names)
        };
        let each = parts.iter().enumerate().map(|(number, part)| {
            let counters = SharedMatch::counters_of(number, &shared_matches, &judged);
            // A refund is not sampled, since `top` shows use and denials.
            if !part.refunds() {
                let (metrics, secret) = (&self.inner.metrics, &self.inner.secret);
                metrics.watch(policy, part.request(), secret, &counters, || whole.allowed());
            }
            Decision::new(counters, Names::Policy(Arc::clone(policy)))
        });
        let parts = each.collect();
        AtomicDecision::new(whole, parts)
    }
}
