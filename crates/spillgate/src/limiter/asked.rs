//! A question together with what decides it, so that its plan, its names and its samples come from one place.

use std::sync::Arc;

use arc_swap::Guard;
use smallvec::SmallVec;

use super::{InForce, Inner, Question};
use crate::counter::{AskTier, HoldsLimit};
use crate::decision::{Judged, Names, Verdict};
use crate::limit::{Algorithm, Limit, NamedLimit};
use crate::metrics::Meters;
use crate::plan::{Asking, Plan, TakesLimit};
use crate::policy::{Met, Mode, Policy};
use crate::request::{Cost, Request};
use crate::reservation::{Opening, random_id};
use crate::subject::Secret;

/// A question, with the policy or the limit that decides it.
pub(super) enum Asked<'q, 'a> {
    Request {
        request: &'q Request<'a>,
        in_force: Guard<Arc<InForce>>,
    },
    /// A key against a limit that came with it.
    Limit {
        domain: &'q str,
        key: &'q str,
        limit: NamedLimit,
        cost: &'q Cost<'a>,
    },
}

impl Inner {
    /// Pairs a request with the policy in force.
    pub(super) fn asked_by_policy<'q, 'a>(&self, request: &'q Request<'a>) -> Asked<'q, 'a> {
        Asked::Request { request, in_force: self.in_force.load() }
    }

    /// Pairs a question with the policy in force, or with its own limit.
    pub(super) fn asked<'q, 'a>(&self, question: &'q Question<'a>) -> Asked<'q, 'a> {
        match question {
            Question::Request(request) => self.asked_by_policy(request),
            Question::AdHoc { domain, key, limit, cost } => Asked::limit(domain, key, limit, cost),
        }
    }

    /// Makes the plan of a question.
    pub(super) fn plan<'p, L: TakesLimit<'p>>(
        &self,
        asked: &'p Asked<'_, '_>,
        asking: Asking,
    ) -> Plan<L> {
        self.plan_by_rules(asked, &asked.rules(), asking)
    }

    /// Makes the plan of a question that matches these rules.
    #[inline]
    pub(super) fn plan_by_rules<'p, L: TakesLimit<'p>>(
        &self,
        asked: &'p Asked<'_, '_>,
        rules: &[Met<'p>],
        asking: Asking,
    ) -> Plan<L> {
        match asked {
            Asked::Request { request, .. } => Plan::of_rules(rules, request, &self.secret, asking),
            Asked::Limit { domain, key, limit, cost } => {
                let keys = self.secret.each().map(|secret| secret.ad_hoc_key_in(domain, key));
                let free = Cost::requests(0);
                Plan::ad_hoc(keys, limit, if asking == Asking::ToPeek { &free } else { cost })
            }
        }
    }

    /// Makes the plan that charges a question. One that charges permits opens a record, by which they are released.
    pub(super) fn plan_to_charge(&self, asked: &Asked<'_, '_>) -> Box<Plan> {
        let mut plan = Box::new(self.plan(asked, Asking::ToCharge));
        self.open_permits(&mut plan);
        plan
    }

    /// Has a plan that charges permits open a record.
    pub(super) fn open_permits<L: HoldsLimit>(&self, plan: &mut Plan<L>) {
        if let Some(hold_us) = plan.holds_slots_us() {
            self.open_held(plan, Opening::new(random_id(), 0, hold_us));
        }
    }

    /// Samples the subjects of a decision for `top`.
    pub(super) fn sample(&self, asked: &Asked<'_, '_>, tiers: &[Judged]) {
        match asked {
            Asked::Request { request, in_force } => {
                self.sample_request(request, tiers, &in_force.policy);
            }
            Asked::Limit { domain, key, limit, cost } => {
                let subject = || self.secret.ad_hoc_key_in(domain, key);
                let cost = cost.of_limit(limit.limit());
                self.metrics.watch_ad_hoc(key, subject, cost, tiers[0].verdict);
            }
        }
    }

    fn sample_request(&self, request: &Request<'_>, tiers: &[Judged], policy: &Policy) {
        if tiers.is_empty() {
            return;
        }
        let denies = |tier: &Judged| tier.decides() && tier.verdict != Verdict::Allowed;
        let allowed = || !tiers.iter().any(denies);
        self.metrics.watch(policy, request, &self.secret, tiers, allowed);
    }
}

impl<'q, 'a> Asked<'q, 'a> {
    /// Pairs a key with the limit that came with it.
    pub(super) fn limit(
        domain: &'q str,
        key: &'q str,
        limit: &Limit,
        cost: &'q Cost<'a>,
    ) -> Asked<'q, 'a> {
        Asked::Limit { domain, key, limit: NamedLimit::new(limit.clone(), 0), cost }
    }

    /// Returns the rules that a request matches; a limit that came with the question has none.
    #[inline]
    pub(super) fn rules(&self) -> SmallVec<[Met<'_>; 4]> {
        match self {
            Asked::Request { request, in_force } => in_force.policy.met(request),
            Asked::Limit { .. } => SmallVec::new(),
        }
    }

    /// Returns the charge of a question over one enforced limit, if its cost is within the capacity and comes back
    /// with time alone: a permit has a receipt.
    #[inline]
    pub(super) fn only_charge<'p>(
        &'p self,
        rules: &[Met<'p>],
        secret: &Secret,
    ) -> Option<AskTier<&'p NamedLimit>> {
        let (limit, cost, attributes) = match (self, rules) {
            (Asked::Limit { limit, cost, .. }, _) => (limit, cost.of_limit(limit.limit()), 1),
            (Asked::Request { request, .. }, [met]) => {
                let [limit] = met.limits else { return None };
                if met.rule.mode() != Mode::Enforce || met.rule.postpaid() {
                    return None;
                }
                // A rule has a few attributes.
                (limit, request.cost().of_limit(limit.limit()), met.rule.key().len() as u8)
            }
            (Asked::Request { .. }, _) => return None,
        };
        let numbers = limit.numbers()?;
        let is_in_bounds = (1..=numbers.capacity()).contains(&cost);
        if !is_in_bounds
            || limit.algorithm() == Algorithm::Concurrency
            || secret.previous().is_some()
        {
            return None;
        }
        let key = match (self, rules) {
            (Asked::Request { request, .. }, [met]) => met.rule.subject_key(request, secret),
            (Asked::Limit { domain, key, .. }, _) => secret.ad_hoc_key_in(domain, key),
            (Asked::Request { .. }, _) => return None,
        };
        Some(AskTier { cost, attributes, ..AskTier::new(key, limit) })
    }

    /// Returns the policy of the rules; `None` for a limit that came with the question.
    #[inline]
    pub(super) fn policy(&self) -> Option<&Policy> {
        match self {
            Asked::Request { in_force, .. } => Some(&in_force.policy),
            Asked::Limit { .. } => None,
        }
    }

    /// Returns the meters of the rules; `None` for a limit that came with the question.
    #[inline]
    pub(super) fn meters(&self) -> Option<&Meters> {
        match self {
            Asked::Request { in_force, .. } => Some(&in_force.meters),
            Asked::Limit { .. } => None,
        }
    }

    /// Returns where the names of its counters are found.
    pub(super) fn into_names(self) -> Names {
        match self {
            Asked::Request { in_force, .. } => Names::Policy(Arc::clone(&in_force.policy)),
            Asked::Limit { limit, .. } => Names::AdHoc(limit.into_limit()),
        }
    }

    /// Returns the names of a question that is asked again.
    pub(super) fn names(&self) -> Names {
        match self {
            Asked::Request { in_force, .. } => Names::Policy(Arc::clone(&in_force.policy)),
            Asked::Limit { limit, .. } => Names::AdHoc(limit.limit().clone()),
        }
    }
}
