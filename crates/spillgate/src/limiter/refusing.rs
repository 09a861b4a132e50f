//! What takes no plan where state is on a store. Refusals that are remembered are told at once, without a
//! future or an allocation: a crowd at a key that is used up asks for little else. And decisions over one tier
//! join those that wait for a call already, with a future that is small.

use std::slice::from_ref;
use std::sync::Arc;

use super::at_once::{charge_of, sole_charge};
use super::{AdHoc, InForce, Inner, Under};
use crate::algorithm::Numbers;
use crate::counter::{AskTier, ToldTier};
use crate::decision::{Decision, Judged, Names, Source, Verdict};
use crate::denial_cache::Sent;
use crate::engine::{Joined, Redis, Untold};
use crate::limit::NamedLimit;
use crate::metrics::Began;
use crate::plan::{Asking, Heard, Plan, hear};
use crate::request::Request;
use crate::subject::SubjectKey;

/// How a decision goes on.
pub(super) enum Way<T> {
    /// It is made already.
    Told(Decision),
    /// It left with others, or will; and whose tier it is.
    Joined(Alike, T),
    /// It takes a plan.
    Planned,
}

/// A decision over one tier that goes with others.
pub(super) struct Alike {
    joined: Joined,
    key: SubjectKey,
    mix: u128,
    numbers: Numbers,
    cost: u64,
    sent: Sent,
    began: Began,
}

/// A tier of a rule, before anybody judged it.
pub(super) type OfRule = (Arc<InForce>, Judged);

impl Inner {
    /// A request that meets one limit of one rule.
    pub(super) fn way_of(&self, redis: &Redis, request: &Request<'_>) -> Way<OfRule> {
        let Some((began, sent)) = self.begin_without_plan(redis) else { return Way::Planned };
        let in_force = self.in_force.load_full();
        let policy = &in_force.policy;
        let rules = policy.met(request);
        let Some(tier) = sole_charge(&rules, request, &self.secret) else { return Way::Planned };
        let unknown = Judged::unknown(&rules[0], 0);
        if let Some(judged) = self.refused_alone(&tier, &unknown, sent) {
            drop(rules);
            let allowed = || judged.verdict == Verdict::Allowed;
            self.metrics.watch(policy, request, &self.secret, from_ref(&judged), allowed);
            self.metrics.count_drawn(began, Some(&in_force.meters), &judged);
            return Way::Told(Decision::alone(judged, Names::Policy(Arc::clone(policy))));
        }
        if rules[0].rule.lease().is_some() {
            return Way::Planned;
        }
        let alike = self.join(redis, &tier, sent);
        drop(rules);
        alike.map_or(Way::Planned, |alike| Way::Joined(alike, (in_force, unknown)))
    }

    /// A limit that comes with its key.
    pub(super) async fn check_ad_hoc(&self, redis: &Redis, asked: AdHoc<'_, '_>) -> Decision {
        match self.way_of_limit(redis, &asked) {
            Way::Told(decision) => decision,
            Way::Joined(alike, ()) => Box::pin(self.limit_arrived(redis, asked, alike)).await,
            Way::Planned => Box::pin(self.check_limit_in(redis, asked)).await,
        }
    }

    fn way_of_limit(&self, redis: &Redis, asked: &AdHoc<'_, '_>) -> Way<()> {
        let Some((began, sent)) = self.begin_without_plan(redis) else { return Way::Planned };
        let AdHoc { domain, key: name, limit, cost } = *asked;
        let key = self.secret.ad_hoc_key_in(domain, name);
        let named = NamedLimit::new(limit.clone(), 0);
        let Some(tier) = charge_of(key, &named, cost, 1) else { return Way::Planned };
        if let Some(judged) = self.refused_alone(&tier, &Judged::ad_hoc(), sent) {
            self.metrics.watch_ad_hoc(name, key, tier.cost, judged.verdict);
            self.metrics.count_drawn(began, None, &judged);
            return Way::Told(Decision::alone(judged, Names::AdHoc(limit.clone())));
        }
        self.join(redis, &tier, sent).map_or(Way::Planned, |alike| Way::Joined(alike, ()))
    }

    /// What became of a request that went with others.
    #[allow(clippy::manual_async_fn, reason = "a function would keep what it is given twice")]
    pub(super) fn arrived(
        &self,
        redis: &Redis,
        request: &Request<'_>,
        mut alike: Alike,
        of: OfRule,
    ) -> impl Future<Output = Decision> {
        async move {
            let judged = match alike.joined.told().await {
                Ok(told) => self.heard_alone(&alike, &told, of.1.clone()),
                Err(Untold::AskAgain(left)) => {
                    let redis = redis.left_with(left);
                    let again = self.check_in(&redis, request, Asking::ToCharge);
                    return Box::pin(again).await;
                }
                Err(Untold::Never(error)) => {
                    let in_force = of.0;
                    let policy = &in_force.policy;
                    let plan = Plan::of_request(policy, request, &self.secret, Asking::ToCharge);
                    let judged = self.without_store(plan, error);
                    self.metrics.end(alike.began);
                    return self.decision_on(request, judged, &in_force, Asking::ToCharge);
                }
            };
            let in_force = of.0;
            let policy = &in_force.policy;
            let allowed = || judged.verdict == Verdict::Allowed;
            self.metrics.watch(policy, request, &self.secret, from_ref(&judged), allowed);
            self.metrics.count_alone(alike.began, Some(&in_force.meters), &judged);
            Decision::alone(judged, Names::Policy(Arc::clone(policy)))
        }
    }

    /// The same for a limit that came with its key.
    #[allow(clippy::manual_async_fn, reason = "a function would keep what it is given twice")]
    fn limit_arrived(
        &self,
        redis: &Redis,
        asked: AdHoc<'_, '_>,
        mut alike: Alike,
    ) -> impl Future<Output = Decision> {
        async move {
            let AdHoc { key: name, limit, cost, .. } = asked;
            let judged = match alike.joined.told().await {
                Ok(told) => self.heard_alone(&alike, &told, Judged::ad_hoc()),
                Err(Untold::AskAgain(left)) => {
                    let redis = redis.left_with(left);
                    return Box::pin(self.check_limit_in(&redis, asked)).await;
                }
                Err(Untold::Never(error)) => {
                    let named = NamedLimit::new(limit.clone(), 0);
                    let plan = Plan::ad_hoc([alike.key], &named, cost);
                    let judged = self.without_store(plan, error);
                    self.metrics.end(alike.began);
                    self.metrics.watch_ad_hoc(name, alike.key, alike.cost, judged[0].verdict);
                    return self.decision(judged, Under::AdHoc(limit.clone()));
                }
            };
            self.metrics.watch_ad_hoc(name, alike.key, alike.cost, judged.verdict);
            self.metrics.count_alone(alike.began, None, &judged);
            Decision::alone(judged, Names::AdHoc(limit.clone()))
        }
    }

    /// Nothing where a tier may be in two places.
    fn begin_without_plan(&self, redis: &Redis) -> Option<(Began, Sent)> {
        if self.secret.previous().is_some() || !redis.keeps_tiers_at_one_place() {
            return None;
        }
        let began = self.metrics.begin_drawn();
        Some((began, self.denials.begin(redis)))
    }

    fn refused_alone(&self, tier: &AskTier<'_>, unknown: &Judged, sent: Sent) -> Option<Judged> {
        let heard = self.denials.refuses_alone(tier, sent)?;
        let Heard::Refused { retry_after_us, remaining, reset_after_us } = heard else {
            return None;
        };
        self.counters.count_alone(false);
        Some(Judged {
            source: Source::DenialCache,
            verdict: Verdict::Denied,
            capacity: Some(tier.numbers.capacity()).into(),
            remaining: remaining.into(),
            retry_after_us: retry_after_us.into(),
            reset_after_us: reset_after_us.into(),
            ..unknown.clone()
        })
    }

    /// Joins others, unless there is more to do than to charge a tier.
    fn join(&self, redis: &Redis, tier: &AskTier<'_>, sent: Sent) -> Option<Alike> {
        if !self.fallback.is_owed_nothing() {
            return None;
        }
        let began = self.metrics.begin();
        let AskTier { key, limit, numbers, cost, .. } = *tier;
        let (joined, mix, numbers) = (redis.join(tier)?, limit.mix(), numbers.clone());
        Some(Alike { joined, key, mix, numbers, cost, sent, began })
    }

    fn heard_alone(&self, alike: &Alike, told: &ToldTier, mut judged: Judged) -> Judged {
        let Alike { key, mix, numbers, cost, sent, .. } = alike;
        let name = key.id ^ mix;
        self.fallback.note_said(name, &told.reading);
        self.denials.note_alone(name, numbers, *cost, told, *sent);
        self.counters.count_alone(told.fits);
        hear(&mut judged, told, Source::Store);
        judged.capacity = Some(numbers.capacity()).into();
        judged
    }
}
