//! Decisions in memory: there is nothing to wait for, and a check is one plain call.

use std::slice::from_ref;
use std::sync::Arc;

#[cfg(feature = "tower")]
use super::Limiter;
use super::{Inner, Question, Under};
use crate::algorithm::Intent;
use crate::counter::AskTier;
use crate::decision::{Decision, Judged, Names, Source, Tiers, Verdict};
#[cfg(feature = "tower")]
use crate::engine::Engine;
use crate::engine::Memory;
use crate::engine::memory::Tally;
use crate::limit::{Algorithm, Limit, NamedLimit};
use crate::plan::{Asking, AtRecord, Plan, hear};
use crate::policy::{Met, Mode};
use crate::request::{Cost, Request};
use crate::reservation::{Opening, random_id};
use crate::subject::{Secret, SubjectKey};

#[cfg(feature = "tower")]
impl Limiter {
    /// [`Limiter::check`] without a future; nothing where a store is to be asked.
    pub(crate) fn check_in_memory(&self, request: &Request<'_>) -> Option<Decision> {
        match &self.inner.engine {
            Engine::Memory(memory) => Some(self.inner.check_now(memory, request, Asking::ToCharge)),
            #[cfg(feature = "redis")]
            Engine::Redis(_) => None,
        }
    }
}

impl Inner {
    /// A request, by the policy.
    pub(super) fn check_now(
        &self,
        memory: &Memory,
        request: &Request<'_>,
        asking: Asking,
    ) -> Decision {
        let began = self.metrics.begin();
        let in_force = self.in_force.load();
        let policy = &in_force.policy;
        let rules = policy.met(request);
        if asking == Asking::ToCharge
            && let Some(charge) = sole_charge(&rules, request, &self.secret)
        {
            let judged =
                Inner::judge_sole(memory, &charge, Tally::Rule, Judged::unknown(&rules[0], 0));
            let allowed = || judged.verdict == Verdict::Allowed;
            self.metrics.watch(policy, request, &self.secret, from_ref(&judged), allowed);
            self.metrics.count_alone(began, Some(&in_force.meters), &judged);
            return Decision::alone(judged, Names::Policy(Arc::clone(policy)));
        }
        let mut plan = Plan::of_rules(&rules, request, &self.secret, asking);
        if let Some(hold_us) = plan.holds_slots_us() {
            let opening = Opening::new(random_id(), 0, hold_us);
            let under = Under::Policy(&in_force);
            let watch = |judged: &[Judged], _: &Under<'_>| {
                self.watch_request(request, judged, policy);
            };
            return self.hold_now(memory, plan, under, &opening, began, watch);
        }
        let judged = in_memory(memory, &mut plan);
        drop(plan);
        self.metrics.end(began);
        self.decision_on(request, judged, &in_force, asking)
    }

    /// A key against a limit that comes with it.
    pub(super) fn check_limit_now(
        &self,
        memory: &Memory,
        name: &str,
        key: SubjectKey,
        limit: &Limit,
        cost: &Cost<'_>,
    ) -> Decision {
        let began = self.metrics.begin();
        let named = NamedLimit::new(limit.clone(), 0);
        if let Some(charge) = charge_of(key, &named, cost, 1) {
            let judged = Inner::judge_sole(memory, &charge, Tally::AdHoc, Judged::ad_hoc());
            self.metrics.watch_ad_hoc(name, key, charge.cost, judged.verdict);
            self.metrics.end_tallied(began, &judged);
            return Decision::alone(judged, Names::AdHoc(named.into_limit()));
        }
        let mut plan = Plan::ad_hoc([key], &named, cost);
        let cost = cost.of_limit(limit);
        if let Some(hold_us) = plan.holds_slots_us() {
            let opening = Opening::new(random_id(), 0, hold_us);
            let under = Under::AdHoc(limit.clone());
            let watch = |judged: &[Judged], _: &Under<'_>| {
                self.metrics.watch_ad_hoc(name, key, cost, judged[0].verdict);
            };
            return self.hold_now(memory, plan, under, &opening, began, watch);
        }
        let judged = in_memory(memory, &mut plan);
        drop(plan);
        self.metrics.end(began);
        self.metrics.watch_ad_hoc(name, key, cost, judged[0].verdict);
        self.decision(judged, Under::AdHoc(named.into_limit()))
    }

    /// Judges a decision over one limit, which takes no plan.
    #[inline]
    fn judge_sole(
        memory: &Memory,
        charge: &AskTier<'_>,
        tally: Tally,
        mut judged: Judged,
    ) -> Judged {
        let told = memory.decide_one(charge, Intent::Charge, Some(tally));
        hear(&mut judged, &told, Source::Store);
        judged.capacity = Some(charge.numbers.capacity()).into();
        judged
    }

    pub(super) fn decide_now(&self, memory: &Memory, question: &Question<'_>) -> Decision {
        match question {
            Question::Request(request) => self.check_now(memory, request, Asking::ToCharge),
            Question::AdHoc { domain, key, limit, cost } => {
                let subject = self.secret.ad_hoc_key_in(domain, key);
                self.check_limit_now(memory, key, subject, limit, cost)
            }
        }
    }
}

/// Decides a plan by the memory store, then makes the changes that follow the decision.
pub(super) fn in_memory(memory: &Memory, plan: &mut Plan<'_>) -> Tiers {
    if !plan.asks() {
        return std::mem::take(&mut plan.judged);
    }
    let dues = std::mem::take(&mut plan.dues);
    let told = memory.decide(&plan.ask);
    let charges_anew = match plan.ask.record {
        AtRecord::Open(opening) => opening.noted().charges_anew(),
        _ => true,
    };
    let mut judged = plan.judged_by(&told, Source::Store);
    for due in dues.into_iter().filter(|_| charges_anew) {
        if due.stands(&judged) {
            let (_, told) = memory.change(&due.tier, due.change);
            due.done(&told, &mut judged);
        }
    }
    judged
}

/// The charge of a request that meets one limit of one enforced rule, if that is all that there is to do.
#[inline]
pub(super) fn sole_charge<'l>(
    rules: &[Met<'l>],
    request: &Request<'_>,
    secret: &Secret,
) -> Option<AskTier<'l>> {
    let [met] = rules else { return None };
    let [limit] = met.limits else { return None };
    if met.rule.mode() != Mode::Enforce || met.rule.postpaid() {
        return None;
    }
    charge_of(
        met.rule.subject_key(request, secret),
        limit,
        request.cost(),
        met.rule.key().len() as u8,
    )
}

/// The charge of an enforced limit, where its cost is within the capacity and comes back with time alone: a
/// permit has a receipt.
#[inline]
pub(super) fn charge_of<'l>(
    key: SubjectKey,
    limit: &'l NamedLimit,
    cost: &Cost<'_>,
    attributes: u8,
) -> Option<AskTier<'l>> {
    let (numbers, cost) = (limit.numbers()?, cost.of_limit(limit.limit()));
    let is_in_bounds = (1..=numbers.capacity()).contains(&cost);
    let fits = is_in_bounds && limit.algorithm() != Algorithm::Concurrency;
    fits.then_some(AskTier { key, limit, numbers, cost, group: 0, attributes, owed: 0 })
}
