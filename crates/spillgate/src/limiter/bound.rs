//! A request together with the policy or the inline limit that decides it. Its plan, its names and
//! its samples all come from there.

use std::slice::from_ref;
use std::sync::Arc;

use super::Inner;
use super::in_force::{Held, InForce};
use crate::counter::LimitHandle;
use crate::decision::{CounterOutcome, Names};
use crate::limit::{Limit, NamedLimit};
use crate::plan::{LimitHandleFrom, Plan, PlanMode, SharedMatch};
use crate::policy::{Policy, TypedRequest};
use crate::request::{Cost, Request};
use crate::reservation::{Opening, random_id};

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
        self.add_counters(&mut plan, bound, mode);
        plan
    }

    /// Adds the counters of a plain request to an empty plan.
    #[inline]
    pub fn add_counters<'p, L: LimitHandleFrom<'p>>(
        &self,
        plan: &mut Plan<L>,
        bound: &'p BoundRequest<'_, '_>,
        mode: PlanMode,
    ) {
        match bound {
            BoundRequest::ByPolicy { request, in_force } => {
                plan.add_rules(&in_force.policy, request, &self.secret, mode);
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

    /// Counts the subjects of some decisions for `top`, which shows use and denials, so no refunds. If denials are
    /// recorded, it counts the subjects of each, and of those decisions that are allowed. `allowed` is the result of the
    /// decision.
    #[inline]
    pub fn sample(
        &self,
        request: &Request<'_>,
        policy: Option<&Policy>,
        counters: &[CounterOutcome],
        allowed: bool,
    ) {
        if !counters.is_empty()
            && let Some(weight) = self.metrics.tops.draw()
            && !request.refunds()
        {
            self.metrics.tops.note(weight, policy, request, &self.secret, counters, allowed);
            if allowed
                && self.denials.is_on()
                && let Some(policy) = policy
            {
                self.note_allowed(weight, policy, request, counters);
            }
        }
        if !allowed
            && self.denials.is_on()
            && let Some(policy) = policy
        {
            self.note_denials(policy, request, counters);
        }
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

    /// Returns the policy of the rules with their meters; `None` for an inline limit.
    #[inline]
    pub fn in_force(&self) -> Option<&InForce> {
        match self {
            BoundRequest::ByPolicy { in_force, .. } => Some(in_force),
            BoundRequest::Inline { .. } => None,
        }
    }

    /// Returns the policy of the rules; `None` for an inline limit.
    #[inline]
    pub fn policy(&self) -> Option<&Policy> {
        self.in_force().map(|in_force| &*in_force.policy)
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
