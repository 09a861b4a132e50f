//! Decisions where state is on a store: futures, which the limiter boxes.

use std::sync::OnceLock;

use smallvec::SmallVec;

use super::leasing::Paid;
use super::reserving::refuse_if_full;
use super::{AdHoc, Inner, Question, Under};
use crate::counter::Change;
use crate::decision::{Decision, Judged, Tiers};
use crate::denial_cache::Sent;
use crate::engine::{self, Redis, StandIn};
use crate::error::StoreError;
use crate::fallback::ChargedHere;
use crate::limit::NamedLimit;
use crate::plan::{Asking, AtRecord, Due, Heards, Plan};
use crate::request::Request;
use crate::reservation::{Opening, random_id};

impl Inner {
    pub(super) async fn check_in(
        &self,
        redis: &Redis,
        request: &Request<'_>,
        asking: Asking,
    ) -> Decision {
        let began = self.metrics.begin();
        let in_force = self.in_force.load_full();
        let opening;
        let mut plan = Plan::of_request(&in_force.policy, request, &self.secret, asking);
        if let Some(hold_us) = plan.holds_slots_us() {
            opening = Opening::new(random_id(), 0, hold_us);
            self.open_held(&mut plan, &opening);
            let under = Under::Policy(&in_force);
            let watch = |judged: &[Judged], _: &Under<'_>| {
                self.watch_request(request, judged, &in_force.policy);
            };
            return self.open_in(redis, plan, under, &opening, began, watch).await;
        }
        let judged = self.paid_or_in(redis, plan).await;
        self.metrics.end(began);
        self.decision_on(request, judged, &in_force, asking)
    }

    pub(super) async fn check_limit_in(&self, redis: &Redis, asked: AdHoc<'_, '_>) -> Decision {
        let began = self.metrics.begin();
        let AdHoc { domain, key, limit, cost } = asked;
        let named = NamedLimit::new(limit.clone(), 0);
        let subject = self.secret.ad_hoc_key_in(domain, key);
        let opening;
        let keys = self.secret.each().map(|secret| secret.ad_hoc_key_in(domain, key));
        let mut plan = Plan::ad_hoc(keys, &named, cost);
        if let Some(hold_us) = plan.holds_slots_us() {
            opening = Opening::new(random_id(), 0, hold_us);
            self.open_held(&mut plan, &opening);
            let under = Under::AdHoc(limit.clone());
            let watch = |judged: &[Judged], _: &Under<'_>| {
                self.metrics.watch_ad_hoc(key, subject, cost.of_limit(limit), judged[0].verdict);
            };
            return self.open_in(redis, plan, under, &opening, began, watch).await;
        }
        let judged = self.in_store(redis, plan).await;
        self.metrics.end(began);
        self.metrics.watch_ad_hoc(key, subject, cost.of_limit(limit), judged[0].verdict);
        self.decision(judged, Under::AdHoc(named.into_limit()))
    }

    pub(super) async fn decide_on(
        &self,
        redis: &Redis,
        questions: &[Question<'_>],
    ) -> Vec<Decision> {
        let in_force = self.in_force.load_full();
        // For those that take slots; others leave theirs empty.
        let openings: Vec<OnceLock<Opening>> = questions.iter().map(|_| OnceLock::new()).collect();
        let named: Vec<Option<NamedLimit>> = questions
            .iter()
            .map(|question| match question {
                Question::Request(_) => None,
                Question::AdHoc { limit, .. } => Some(NamedLimit::new(limit.clone(), 0)),
            })
            .collect();
        let secret = &self.secret;
        let mut plans: Vec<Plan<'_>> = questions
            .iter()
            .zip(&named)
            .map(|(question, named)| match (question, named) {
                (Question::AdHoc { domain, key, cost, .. }, Some(named)) => {
                    let keys = secret.each().map(|secret| secret.ad_hoc_key_in(domain, key));
                    Plan::ad_hoc(keys, named, cost)
                }
                (Question::Request(request), _) => {
                    Plan::of_request(&in_force.policy, request, secret, Asking::ToCharge)
                }
                (Question::AdHoc { .. }, None) => {
                    unreachable!("every ad hoc limit was named above")
                }
            })
            .collect();
        for (plan, opening) in plans.iter_mut().zip(&openings) {
            if let Some(hold_us) = plan.holds_slots_us() {
                let opening = opening.get_or_init(|| Opening::new(random_id(), 0, hold_us));
                self.open_held(plan, opening);
            }
        }
        let began = self.metrics.begin();
        let paid: Vec<Paid> = plans.iter_mut().map(|plan| self.pay(plan)).collect();
        let sent = self.denials.begin(redis);
        let mut refused: Vec<Option<Heards>> =
            plans.iter().map(|plan| self.refused_before(redis, plan, sent)).collect();
        let asking: Vec<_> = plans
            .iter_mut()
            .zip(&refused)
            .filter(|(plan, refused)| plan.asks() && refused.is_none())
            .map(|(plan, _)| self.fallback.question(plan))
            .collect();
        let heard = engine::decide_each(redis, &asking).await;
        let heard: Vec<Heards> = heard.into_iter().map(|Ok(heard)| heard).collect();
        self.metrics.end(began);
        let mut charged_here = Vec::with_capacity(asking.len());
        for (question, heard) in asking.iter().zip(&heard) {
            self.fallback.settle(question, heard);
            self.denials.note(redis, question.ask, heard, sent);
            charged_here.push(match question.ask.record {
                AtRecord::Open(_) => self.fallback.charged_here(question, heard),
                AtRecord::None | AtRecord::Close(_) => ChargedHere::default(),
            });
        }
        drop(asking);
        let mut heard = heard.into_iter().zip(charged_here);
        let mut decisions = Vec::with_capacity(plans.len());
        let plans = plans.into_iter().zip(questions).zip(&mut refused).zip(&openings).zip(paid);
        for ((((mut plan, question), refused), opening), paid) in plans {
            let dues = std::mem::take(&mut plan.dues);
            let mut charged_here = ChargedHere::default();
            let told = || {
                let (heard, charged) = heard.next()?;
                charged_here = charged;
                Some(heard)
            };
            let heard = refused.take().or_else(|| plan.asks().then(told).flatten());
            let mut judged = match heard {
                Some(heard) => plan.judged_from(&heard),
                None => plan.judged,
            };
            self.settle_paid(paid, &judged);
            self.settle_dues(redis, dues, &mut judged).await;
            if let Some(opening) = opening.get() {
                refuse_if_full(&mut judged, &opening.noted());
            }
            let under = match question {
                Question::Request(_) => Under::Policy(&in_force),
                Question::AdHoc { limit, .. } => Under::AdHoc(limit.clone()),
            };
            let decision = self.decision_of(question, judged, under);
            decisions.push(match opening.get() {
                Some(opening) => self.receipted(redis, decision, opening, charged_here),
                None => decision,
            });
        }
        decisions
    }

    /// What leases do not pay for is the store's to decide.
    pub(super) async fn paid_or_in(&self, redis: &Redis, mut plan: Plan<'_>) -> Tiers {
        let paid = self.pay(&mut plan);
        let judged = self.in_store(redis, plan).await;
        self.settle_paid(paid, &judged);
        judged
    }

    /// The one place where an outage becomes a decision.
    pub(super) async fn in_store(&self, redis: &Redis, mut plan: Plan<'_>) -> Tiers {
        if !plan.asks() {
            return plan.judged;
        }
        let sent = self.denials.begin(redis);
        let refused = self.refused_before(redis, &plan, sent);
        let dues = std::mem::take(&mut plan.dues);
        let heard = match refused {
            Some(refused) => refused,
            None => {
                let question = self.fallback.question(&mut plan);
                let Ok(heard) = engine::decide(redis, &question).await;
                self.fallback.settle(&question, &heard);
                self.denials.note(redis, question.ask, &heard, sent);
                heard
            }
        };
        let mut judged = plan.judged_from(&heard);
        self.settle_dues(redis, dues, &mut judged).await;
        judged
    }

    /// What a plan comes to that the store gave no answer to.
    pub(super) fn without_store(&self, mut plan: Plan<'_>, error: StoreError) -> Tiers {
        let question = self.fallback.question(&mut plan);
        let all: SmallVec<[usize; 4]> = (0..question.ask.tiers.len()).collect();
        let Ok(heard) = question.stand_in.decide(question.ask, &all, error);
        self.fallback.settle(&question, &heard);
        drop(question);
        plan.judged_from(&heard)
    }

    /// What is charged whatever the decision asks the store anyway.
    fn refused_before(&self, redis: &Redis, plan: &Plan<'_>, sent: Sent) -> Option<Heards> {
        if !plan.dues.is_empty() {
            return None;
        }
        self.denials.refuses(redis, &plan.ask, sent)
    }

    fn note_room_of(&self, due: &Due<'_>) {
        if matches!(due.change, Change::GiveBack(_)) {
            self.note_room();
        }
    }

    pub(super) async fn settle_dues(&self, redis: &Redis, dues: Vec<Due<'_>>, judged: &mut Tiers) {
        for due in dues {
            if !due.stands(judged) {
                continue;
            }
            match redis.change(&due.tier, due.change).await {
                Ok((_, told)) => {
                    self.note_room_of(&due);
                    due.done(&told, judged);
                }
                Err(_) => self.fallback.note_error(),
            }
        }
    }
}
