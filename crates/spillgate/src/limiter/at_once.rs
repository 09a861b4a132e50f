//! Decisions in memory: there is nothing to wait for, and a check is one plain call.
//!
//! Most are over buckets in steady use. Those take neither a plan nor a list of rules: what is read of a
//! bucket becomes the decision. Whatever is not so goes the long way, from the beginning: nothing was
//! changed by then.

use std::slice::from_ref;
use std::sync::Arc;

use smallvec::SmallVec;

#[cfg(feature = "tower")]
use super::Limiter;
use super::{Inner, Question};
use crate::algorithm::Intent;
use crate::algorithm::token_bucket::Charged;
use crate::counter::TIERS_INLINE;
use crate::decision::{Decision, Judged, Names, Source, Tiers, Verdict};
#[cfg(feature = "tower")]
use crate::engine::Engine;
use crate::engine::Memory;
use crate::engine::memory::{SteadyOf, TierName};
use crate::limit::{Algorithm, Limit, NamedLimit, mix_of_position};
use crate::metrics::Began;
use crate::plan::{Alone, Asking, AtRecord, Plan};
use crate::policy::{LimitPlace, Policy};
use crate::request::{Cost, Request};
use crate::reservation::{Opening, random_id};
use crate::subject::SubjectKey;

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
        let policy = self.policy.load_full();
        if asking == Asking::ToCharge
            && let Some(met) = policy.sole(request)
        {
            let key = met.rule.subject_key(request, &self.secret);
            let first = LimitPlace { rule: met.rule_index, overridden: met.overridden, limit: 0 };
            if let [limit] = met.limits {
                if let Some(charged) = charged_bucket(memory, key, limit, request.cost()) {
                    self.metrics.watch_steady(&policy, request, &self.secret, first);
                    self.metrics.end_steady_of(began, &policy, first.rule, charged.is_near());
                    return Decision::charged(first, &charged, Names::Policy(policy));
                }
            } else if let Some(charged) = charged_buckets(memory, key, met.limits, request.cost()) {
                self.metrics.watch_steady(&policy, request, &self.secret, first);
                let is_near = charged.iter().any(Charged::is_near);
                self.metrics.end_steady_of(began, &policy, first.rule, is_near);
                return Decision::charged_several(first, &charged, Names::Policy(policy));
            }
        }
        self.check_by(memory, policy, request, asking, began)
    }

    /// A key against a limit that comes with it.
    #[inline]
    pub(super) fn check_limit_now(
        &self,
        memory: &Memory,
        name: &str,
        key: SubjectKey,
        limit: &Limit,
        cost: &Cost<'_>,
    ) -> Decision {
        let began = self.metrics.begin();
        let Some(numbers) = limit.as_plain_bucket() else {
            return self.check_limit_closely(memory, name, key, limit, cost, began);
        };
        let (tier, requests) = (TierName::of(key, AD_HOC_BUCKET), cost.requests_alone());
        let Some(reading) = memory.charge_steady(tier, numbers, requests, SteadyOf::AdHoc) else {
            return self.check_limit_closely(memory, name, key, limit, cost, began);
        };
        let charged = Charged { burst: numbers.burst, reading };
        self.metrics.watch_ad_hoc(name, key, requests, Verdict::Allowed);
        self.metrics.end_steady(began, charged.is_near());
        let names = Names::AdHoc(Limit::plain_bucket(*numbers));
        Decision::charged(LimitPlace::default(), &charged, names)
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

    fn check_by(
        &self,
        memory: &Memory,
        policy: Arc<Policy>,
        request: &Request<'_>,
        asking: Asking,
        began: Began,
    ) -> Decision {
        let rules = policy.met(request);
        if let Some(tier) = Alone::of_rules(&rules, request, &self.secret, asking) {
            let judged = self.judged_now(memory, &tier, Judged::unknown(&rules[0], 0));
            drop(rules);
            if asking == Asking::ToCharge {
                let (allowed, judged) = (judged.verdict == Verdict::Allowed, from_ref(&judged));
                self.metrics.watch(&policy, request, &self.secret, judged, allowed);
            }
            self.metrics.count_alone(began, Some(&policy), &judged);
            return Decision::alone(judged, Names::Policy(policy));
        }
        let opening;
        let plan = Plan::of_rules(&rules, request, &self.secret, asking);
        if let Some(hold_us) = plan.holds_slots_us() {
            opening = Opening::new(random_id(), 0, hold_us);
            let names = Names::Policy(Arc::clone(&policy));
            let watch = |judged: &[Judged], _: &Names| self.watch_request(request, judged, &policy);
            return self.hold_now(memory, plan, names, &opening, began, watch);
        }
        let judged = in_memory(memory, plan);
        drop(rules);
        self.metrics.end(began);
        self.decision_on(request, judged, policy, asking)
    }

    #[inline(never)]
    fn check_limit_closely(
        &self,
        memory: &Memory,
        name: &str,
        key: SubjectKey,
        limit: &Limit,
        cost: &Cost<'_>,
        began: Began,
    ) -> Decision {
        if let Some(tier) = Alone::ad_hoc(key, limit, cost) {
            let judged = self.judged_now(memory, &tier, Judged::ad_hoc());
            self.metrics.watch_ad_hoc(name, key, tier.cost, judged.verdict);
            self.metrics.count_alone(began, None, &judged);
            return Decision::alone(judged, Names::AdHoc(limit.clone()));
        }
        let named = NamedLimit::new(limit.clone(), 0);
        let opening;
        let plan = Plan::ad_hoc([key], &named, cost);
        if let Some(hold_us) = plan.holds_slots_us() {
            opening = Opening::new(random_id(), 0, hold_us);
            let names = Names::AdHoc(limit.clone());
            let watch = |judged: &[Judged], _: &Names| {
                self.metrics.watch_ad_hoc(name, key, cost.of_limit(limit), judged[0].verdict);
            };
            return self.hold_now(memory, plan, names, &opening, began, watch);
        }
        let judged = in_memory(memory, plan);
        self.metrics.end(began);
        self.metrics.watch_ad_hoc(name, key, cost.of_limit(limit), judged[0].verdict);
        self.decision(judged, Names::AdHoc(named.into_limit()))
    }

    #[inline(always)] // else its two callers move what it makes once more
    fn judged_now(&self, memory: &Memory, tier: &Alone<'_>, unknown: Judged) -> Judged {
        let told = memory.decide_tier(
            TierName::of(tier.key, tier.mix),
            tier.numbers,
            tier.cost,
            Intent::Charge,
        );
        self.counters.count_alone(told.fits);
        tier.judged_by(&told, unknown)
    }
}

/// The bucket of one limit, if it is in steady use and was charged.
#[inline]
fn charged_bucket(
    memory: &Memory,
    key: SubjectKey,
    limit: &NamedLimit,
    cost: &Cost<'_>,
) -> Option<Charged> {
    let numbers = limit.bucket()?;
    let cost = cost.of_limit(limit.limit());
    let tier = TierName::of(key, limit.mix());
    let reading = memory.charge_steady(tier, numbers, cost, SteadyOf::Rule)?;
    Some(Charged { burst: numbers.burst, reading })
}

/// Those of several limits, all or none.
fn charged_buckets(
    memory: &Memory,
    key: SubjectKey,
    limits: &[NamedLimit],
    cost: &Cost<'_>,
) -> Option<SmallVec<[Charged; TIERS_INLINE]>> {
    let tiers = limits.iter().map(|limit| {
        let tier = TierName::of(key, limit.mix());
        Some((tier, limit.bucket()?, cost.of_limit(limit.limit())))
    });
    memory.charge_all_steady(key, tiers)
}

pub(super) fn in_memory(memory: &Memory, mut plan: Plan<'_>) -> Tiers {
    if !plan.asks() {
        return plan.judged;
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

/// What the bucket of a limit without a name is told from a subject's other tiers by.
const AD_HOC_BUCKET: u128 = mix_of_position(0, Algorithm::TokenBucket);
