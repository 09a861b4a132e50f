//! A request together with the policy or limit that decides it. Its plan, its names and its samples
//! all come from there.

use std::sync::Arc;

use arc_swap::Guard;
use smallvec::SmallVec;

use super::{InForce, Inner, Question};
use crate::counter::{LimitHandle, PlannedCharge};
use crate::decision::{CounterOutcome, Names};
use crate::limit::{Algorithm, Limit, NamedLimit};
use crate::metrics::Meters;
use crate::plan::{LimitHandleFrom, Plan, PlanMode};
use crate::policy::{Matched, Mode, Policy};
use crate::request::{Cost, Request};
use crate::reservation::{Opening, random_id};
use crate::subject::Secret;

/// A request with the policy that decides it, or a key with its inline limit.
pub(super) enum BoundRequest<'q, 'a> {
    Request {
        request: &'q Request<'a>,
        in_force: Guard<Arc<InForce>>,
    },
    /// A key with its inline limit.
    Limit {
        domain: &'q str,
        key: &'q str,
        limit: NamedLimit,
        cost: &'q Cost<'a>,
    },
}

impl Inner {
    /// Binds a request to the policy in force.
    pub(super) fn bind_to_policy<'q, 'a>(&self, request: &'q Request<'a>) -> BoundRequest<'q, 'a> {
        BoundRequest::Request { request, in_force: self.in_force.load() }
    }

    /// Binds a request to the policy in force, or a key to its inline limit.
    pub(super) fn bind<'q, 'a>(&self, question: &'q Question<'a>) -> BoundRequest<'q, 'a> {
        match question {
            Question::Request(request) => self.bind_to_policy(request),
            Question::Inline { domain, key, limit, cost } => {
                BoundRequest::limit(domain, key, limit, cost)
            }
        }
    }

    /// Makes the plan of a request.
    pub(super) fn plan<'p, L: LimitHandleFrom<'p>>(
        &self,
        bound: &'p BoundRequest<'_, '_>,
        mode: PlanMode,
    ) -> Plan<L> {
        self.plan_by_rules(bound, &bound.rules(), mode)
    }

    /// Makes the plan of a request that matches `rules`.
    #[inline]
    pub(super) fn plan_by_rules<'p, L: LimitHandleFrom<'p>>(
        &self,
        bound: &'p BoundRequest<'_, '_>,
        rules: &[Matched<'p>],
        mode: PlanMode,
    ) -> Plan<L> {
        match bound {
            BoundRequest::Request { request, .. } => {
                Plan::of_rules(rules, request, &self.secret, mode)
            }
            BoundRequest::Limit { domain, key, limit, cost } => {
                let keys = self.secret.each().map(|secret| secret.inline_key_in(domain, key));
                let free = Cost::requests(0);
                Plan::inline(keys, limit, if mode == PlanMode::Peek { &free } else { cost })
            }
        }
    }

    /// Makes the plan that charges a request. If it charges permits, it opens a record, which is
    /// needed to release them.
    pub(super) fn plan_to_charge(&self, bound: &BoundRequest<'_, '_>) -> Box<Plan> {
        let mut plan = Box::new(self.plan(bound, PlanMode::Charge));
        self.open_permits(&mut plan);
        plan
    }

    /// Makes a plan that charges permits open a record.
    pub(super) fn open_permits<L: LimitHandle>(&self, plan: &mut Plan<L>) {
        if let Some(max_hold_us) = plan.holds_slots_us() {
            self.open_held(plan, Opening::new(random_id(), 0, max_hold_us));
        }
    }

    /// Samples the subjects of a decision for `top`.
    pub(super) fn sample(&self, bound: &BoundRequest<'_, '_>, counters: &[CounterOutcome]) {
        match bound {
            BoundRequest::Request { request, in_force } => {
                self.sample_request(request, counters, &in_force.policy);
            }
            BoundRequest::Limit { domain, key, limit, cost } => {
                let subject = || self.secret.inline_key_in(domain, key);
                let cost = cost.of_limit(limit.limit());
                self.metrics.watch_inline(key, subject, cost, counters[0].allows());
            }
        }
    }

    fn sample_request(&self, request: &Request<'_>, counters: &[CounterOutcome], policy: &Policy) {
        if counters.is_empty() {
            return;
        }
        let denies = |counter: &CounterOutcome| counter.decides() && !counter.allows();
        let allowed = || !counters.iter().any(denies);
        self.metrics.watch(policy, request, &self.secret, counters, allowed);
    }
}

impl<'q, 'a> BoundRequest<'q, 'a> {
    /// Binds a key to its inline limit.
    pub(super) fn limit(
        domain: &'q str,
        key: &'q str,
        limit: &Limit,
        cost: &'q Cost<'a>,
    ) -> BoundRequest<'q, 'a> {
        BoundRequest::Limit { domain, key, limit: NamedLimit::new(limit.clone(), 0), cost }
    }

    /// Returns the rules that the request matches; none for an inline limit.
    #[inline]
    pub(super) fn rules(&self) -> SmallVec<[Matched<'_>; 4]> {
        match self {
            BoundRequest::Request { request, in_force } => in_force.policy.matched(request),
            BoundRequest::Limit { .. } => SmallVec::new(),
        }
    }

    /// Returns the charge of a request that needs no plan. It has one enforced limit and a cost
    /// within the capacity, and time alone refills the limit. A permit needs a receipt, so
    /// concurrency limits do not qualify.
    #[inline]
    pub(super) fn only_charge<'p>(
        &'p self,
        rules: &[Matched<'p>],
        secret: &Secret,
    ) -> Option<PlannedCharge<&'p NamedLimit>> {
        let (limit, cost, attributes) = match (self, rules) {
            (BoundRequest::Limit { limit, cost, .. }, _) => {
                (limit, cost.of_limit(limit.limit()), 1)
            }
            (BoundRequest::Request { request, .. }, [matched]) => {
                let [limit] = matched.limits else { return None };
                // Shadow and post-paid rules need groups of their own.
                if matched.rule.mode() != Mode::Enforce || matched.rule.postpaid() {
                    return None;
                }
                // A rule has a few attributes.
                (limit, request.cost().of_limit(limit.limit()), matched.rule.key().len() as u8)
            }
            (BoundRequest::Request { .. }, _) => return None,
        };
        let params = limit.params()?;
        let is_in_bounds = (1..=params.capacity()).contains(&cost);
        // A previous secret means two charges, and a permit needs a record.
        if !is_in_bounds
            || limit.algorithm() == Algorithm::Concurrency
            || secret.previous().is_some()
        {
            return None;
        }
        let key = match (self, rules) {
            (BoundRequest::Request { request, .. }, [matched]) => {
                matched.rule.subject_key(request, secret)
            }
            (BoundRequest::Limit { domain, key, .. }, _) => secret.inline_key_in(domain, key),
            (BoundRequest::Request { .. }, _) => return None,
        };
        Some(PlannedCharge { cost, attributes, ..PlannedCharge::new(key, limit) })
    }

    /// Returns the policy of the rules; `None` for an inline limit.
    #[inline]
    pub(super) fn policy(&self) -> Option<&Policy> {
        match self {
            BoundRequest::Request { in_force, .. } => Some(&in_force.policy),
            BoundRequest::Limit { .. } => None,
        }
    }

    /// Returns the meters of the rules; `None` for an inline limit.
    #[inline]
    pub(super) fn meters(&self) -> Option<&Meters> {
        match self {
            BoundRequest::Request { in_force, .. } => Some(&in_force.meters),
            BoundRequest::Limit { .. } => None,
        }
    }

    /// Returns the source of its counters' names.
    pub(super) fn into_names(self) -> Names {
        match self {
            BoundRequest::Request { in_force, .. } => Names::Policy(Arc::clone(&in_force.policy)),
            BoundRequest::Limit { limit, .. } => Names::Inline(limit.into_limit()),
        }
    }

    /// Returns the source of its counters' names, for a request that is evaluated again.
    pub(super) fn names(&self) -> Names {
        match self {
            BoundRequest::Request { in_force, .. } => Names::Policy(Arc::clone(&in_force.policy)),
            BoundRequest::Limit { limit, .. } => Names::Inline(limit.limit().clone()),
        }
    }
}
