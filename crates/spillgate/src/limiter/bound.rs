//! A request together with the policy or the inline limit that decides it. Its plan, its names and
//! its samples all come from there.

use std::slice::from_ref;
use std::sync::Arc;

use smallvec::SmallVec;

use super::Inner;
use super::in_force::Held;
use crate::counter::{LimitHandle, PlannedCharge};
use crate::decision::{CounterOutcome, Names};
use crate::limit::{Limit, NamedLimit};
use crate::metrics::Meters;
use crate::plan::{LimitHandleFrom, Plan, PlanMode, SharedMatch};
use crate::policy::{Matched, Mode, Policy, TypedRequest};
use crate::request::{Cost, Request};
use crate::reservation::{Opening, random_id};
use crate::subject::Secret;

/// A request with the policy or the inline limit that decides it.
pub enum BoundRequest<'q, 'a> {
    ByPolicy { request: TypedRequest<'q, 'a>, in_force: Held<'q> },
    Inline { request: &'q Request<'a>, key: &'q str, limit: NamedLimit },
}

impl Inner {
    /// Binds a request to the policy in force, or to the inline limit that it brings.
    #[inline]
    pub fn bind<'q, 'a>(&self, request: &'q Request<'a>) -> BoundRequest<'q, 'a> {
        match request.inline_limit() {
            None => {
                self.expire_if_unwatched();
                BoundRequest::by_policy(request, Held::Shared(self.in_force.load()))
            }
            Some((key, limit)) => BoundRequest::inline(request, key, limit),
        }
    }

    /// Makes the plan of a request.
    pub fn plan(&self, bound: &BoundRequest<'_, '_>, mode: PlanMode) -> Box<Plan> {
        if !bound.is_plain() {
            let requests = from_ref(bound.request());
            let matches = SharedMatch::all(bound.policy(), requests, &self.secret, mode);
            return Box::new(Plan::of_shared_matches(&matches));
        }
        let mut plan = Box::new(Plan::empty());
        self.add_counters(&mut plan, bound, &bound.rules(), mode);
        plan
    }

    /// Adds the counters of a plain request that matches `rules` to an empty plan.
    #[inline]
    pub fn add_counters<'p, L: LimitHandleFrom<'p>>(
        &self,
        plan: &mut Plan<L>,
        bound: &'p BoundRequest<'_, '_>,
        rules: &[Matched<'p>],
        mode: PlanMode,
    ) {
        match bound {
            BoundRequest::ByPolicy { request, .. } => {
                plan.add_rules(rules, request, &self.secret, mode);
            }
            BoundRequest::Inline { request, key, limit } => {
                let domain = request.domain();
                let key = limit.inline_key(self.secret.inline_key_in(domain, key));
                let free = Cost::requests(0);
                let cost = if mode == PlanMode::Peek { &free } else { request.cost() };
                plan.add_inline(key, limit, cost);
            }
        }
    }

    /// Makes the plan that charges a request. If it charges permits, it opens a record, which is
    /// needed to release them.
    pub fn plan_to_charge(&self, bound: &BoundRequest<'_, '_>) -> Box<Plan> {
        let mut plan = self.plan(bound, PlanMode::Charge);
        self.open_permits(&mut plan);
        plan
    }

    /// Makes a plan that charges permits open a record.
    pub fn open_permits<L: LimitHandle>(&self, plan: &mut Plan<L>) {
        if let Some(max_hold_us) = plan.max_hold_us() {
            plan.open(Arc::new(Opening::new(random_id(), 0, max_hold_us)));
        }
    }

    /// Samples the subjects of a decision for `top`, which shows use and denials, so no refunds.
    pub fn sample(&self, bound: &BoundRequest<'_, '_>, counters: &[CounterOutcome]) {
        if counters.is_empty() || bound.request().refunds() {
            return;
        }
        match bound {
            BoundRequest::ByPolicy { request, in_force } => {
                let allowed = || !counters.iter().any(CounterOutcome::denies);
                self.metrics.watch(&in_force.policy, request, &self.secret, counters, allowed);
            }
            BoundRequest::Inline { request, .. } => {
                self.sample_inline(request, counters[0].allows());
            }
        }
    }

    /// Samples the key of a request with an inline limit for `top`.
    #[inline]
    pub fn sample_inline(&self, request: &Request<'_>, allowed: bool) {
        let Some((key, limit)) = request.inline_limit() else { return };
        let subject = || self.secret.inline_key_in(request.domain(), key);
        self.metrics.watch_inline(key, subject, request.cost().of_limit(limit), allowed);
    }
}

impl<'q, 'a> BoundRequest<'q, 'a> {
    /// Binds a request to a policy.
    #[inline]
    pub fn by_policy(request: &'q Request<'a>, in_force: Held<'q>) -> BoundRequest<'q, 'a> {
        BoundRequest::ByPolicy { request: in_force.policy.typed(request), in_force }
    }

    /// Binds a request to the inline limit that it brings.
    #[inline]
    pub fn inline(request: &'q Request<'a>, key: &'q str, limit: &Limit) -> BoundRequest<'q, 'a> {
        BoundRequest::Inline { request, key, limit: NamedLimit::new(limit.clone(), 0) }
    }

    /// Returns the request.
    #[inline]
    pub fn request(&self) -> &Request<'a> {
        match self {
            BoundRequest::ByPolicy { request, .. } => request,
            BoundRequest::Inline { request, .. } => request,
        }
    }

    /// Returns whether the request only charges the limits that it matches. Others refund, or add
    /// a limit to those of rules.
    #[inline]
    pub fn is_plain(&self) -> bool {
        let request = self.request();
        !request.refunds() && request.request_limit().is_none()
    }

    /// Returns the rules that the request matches; none for an inline limit.
    #[inline]
    pub fn rules(&self) -> SmallVec<[Matched<'_>; 4]> {
        match self {
            BoundRequest::ByPolicy { request, in_force } => in_force.policy.matched(request),
            BoundRequest::Inline { .. } => SmallVec::new(),
        }
    }

    /// Returns the charge of a plain request that needs no plan. It has one enforced limit and a cost
    /// within the capacity, and time alone refills the limit. A permit needs a receipt, so
    /// concurrency limits do not qualify.
    #[inline]
    pub fn only_charge<'p>(
        &'p self,
        rules: &[Matched<'p>],
        secret: &Secret,
    ) -> Option<PlannedCharge<&'p NamedLimit>> {
        let (key, limit, cost, attributes) = match (self, rules) {
            (BoundRequest::Inline { request, key, limit }, _) => {
                let cost = plain_cost(limit, request.cost())?;
                let key = secret.inline_key_in(request.domain(), key);
                (limit.inline_key(key), limit, cost, 1)
            }
            (BoundRequest::ByPolicy { request, .. }, [matched]) => {
                let [limit] = matched.limits else { return None };
                // Shadow and post-paid rules need groups of their own.
                if matched.rule.mode() != Mode::Enforce || matched.rule.postpaid() {
                    return None;
                }
                let cost = plain_cost(limit, request.cost())?;
                // A rule has a few attributes.
                let attributes = matched.rule.key().len() as u8;
                (matched.rule.subject_key(request, secret), limit, cost, attributes)
            }
            (BoundRequest::ByPolicy { .. }, _) => return None,
        };
        Some(PlannedCharge { cost, attributes, ..PlannedCharge::new(key, limit) })
    }

    /// Returns the policy of the rules; `None` for an inline limit.
    #[inline]
    pub fn policy(&self) -> Option<&Policy> {
        match self {
            BoundRequest::ByPolicy { in_force, .. } => Some(&in_force.policy),
            BoundRequest::Inline { .. } => None,
        }
    }

    /// Returns the meters of the rules; `None` for an inline limit.
    #[inline]
    pub fn meters(&self) -> Option<&Meters> {
        match self {
            BoundRequest::ByPolicy { in_force, .. } => Some(&in_force.meters),
            BoundRequest::Inline { .. } => None,
        }
    }

    /// Returns the source of its counters' names.
    #[inline]
    pub fn names(&self) -> Names {
        match self {
            BoundRequest::ByPolicy { in_force, .. } => Names::Policy(Arc::clone(&in_force.policy)),
            BoundRequest::Inline { limit, .. } => Names::Inline(limit.limit().clone()),
        }
    }
}

/// Returns the cost under a limit if it is within the capacity and time alone refills the limit. A
/// permit needs a record, which only a plan opens.
#[inline]
fn plain_cost(limit: &NamedLimit, cost: &Cost<'_>) -> Option<u64> {
    let cost = cost.of_limit(limit.limit());
    let is_in_bounds = (1..=limit.params()?.capacity()).contains(&cost);
    (is_in_bounds && !limit.algorithm().counts_permits()).then_some(cost)
}
