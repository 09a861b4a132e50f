//! Several requests as one decision: all of them are charged, or none is.

use std::sync::Arc;
use std::time::Duration;

use crate::decision::{Decision, Names};
use crate::limit::Limit;
use crate::limiter::Limiter;
use crate::plan::{Meeting, Plan};
use crate::request::Request;

/// One request of several that are decided together, each matched by itself.
#[derive(Clone, Debug)]
pub struct Part<'a> {
    request: Request<'a>,
    limit: Option<Limit>,
    gives_back: bool,
}

/// What became of several requests together.
#[derive(Clone, Debug)]
pub struct Combined {
    whole: Decision,
    parts: Vec<Decision>,
}

impl<'a> Part<'a> {
    /// This request.
    pub fn new(request: Request<'a>) -> Part<'a> {
        Part { request, limit: None, gives_back: false }
    }

    /// With a limit of the caller's own: a rule with `request_limit = true` enforces it beside each of its limits that
    /// it is below, with a counter of its own; other rules take no notice.
    pub fn limited_to(self, limit: Limit) -> Part<'a> {
        Part { limit: Some(limit), ..self }
    }

    /// The other way round: what it costs goes back to the rules with `negative_hits = true`, never
    /// below nothing used, and nothing is charged. It is never refused.
    pub fn giving_back(self) -> Part<'a> {
        Part { gives_back: true, ..self }
    }

    pub(crate) fn request(&self) -> &Request<'a> {
        &self.request
    }

    pub(crate) fn limit(&self) -> Option<&Limit> {
        self.limit.as_ref()
    }

    pub(crate) fn gives_back(&self) -> bool {
        self.gives_back
    }
}

impl Combined {
    /// The one decision: every tier once, its costs added up.
    pub fn whole(&self) -> &Decision {
        &self.whole
    }

    /// For each part, in order, the tiers that it met: how they stand, and what they alone would
    /// have said. Whether anything was charged only [`Combined::whole`] tells.
    pub fn parts(&self) -> &[Decision] {
        &self.parts
    }
}

impl Limiter {
    /// May all of this happen now? Every part is charged, or none is. The store is waited for no
    /// longer than `within`, or than the limiter's own timeout where that is shorter.
    ///
    /// ```
    /// # tokio::runtime::Runtime::new().unwrap().block_on(async {
    /// use std::time::Duration;
    /// use spillgate::{Limiter, Part, Policy, Request, Verdict};
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
    /// assert!(limiter.check_all(&parts, Duration::from_millis(15)).await.whole().allowed());
    ///
    /// let second = limiter.check_all(&parts, Duration::from_millis(15)).await;
    /// assert_eq!(second.whole().verdict(), Verdict::Denied);
    /// assert_eq!(second.parts()[0].remaining(), Some(9), "nothing was charged anywhere");
    /// # });
    /// ```
    pub async fn check_all(&self, parts: &[Part<'_>], within: Duration) -> Combined {
        let began = self.inner.metrics.begin();
        let policy = self.policy();
        let meetings = Meeting::all(&policy, parts, &self.inner.secret);
        let plan = Plan::of_meetings(&meetings, &self.inner.secret);
        let judged = self.inner.decide_within(plan, within).await;
        self.inner.metrics.end(began);
        let names = || Names::Policy(Arc::clone(&policy));
        let whole = self.inner.decision(judged.clone(), names());
        let each = parts.iter().enumerate().map(|(number, part)| {
            let tiers = Meeting::tiers_of(number, &meetings, &judged);
            if !part.gives_back() {
                let (metrics, secret) = (&self.inner.metrics, &self.inner.secret);
                metrics.watch(&policy, part.request(), secret, &tiers, whole.allowed());
            }
            Decision::new(tiers, names())
        });
        let parts = each.collect();
        Combined { whole, parts }
    }
}
