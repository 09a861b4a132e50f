//! Decisions where state is on a store: futures, which the limiter boxes.

use std::sync::Arc;

use super::{Inner, Question};
use crate::decision::{Decision, Names, Tiers};
use crate::denial_cache::Sent;
use crate::engine::{self, Change, Heards, Redis};
use crate::limit::{Limit, NamedLimit};
use crate::plan::{Asking, Due, Plan};
use crate::policy::Policy;
use crate::request::{Cost, Request};

impl Inner {
    pub(super) async fn check_in(
        &self,
        redis: &Redis,
        request: &Request<'_>,
        asking: Asking,
    ) -> Decision {
        let began = self.metrics.begin();
        let policy = self.policy.load_full();
        let plan = Plan::of_request(&policy, request, &self.secret, asking);
        let judged = self.in_store(redis, plan).await;
        self.metrics.end(began);
        self.decision_on(request, judged, policy, asking)
    }

    pub(super) async fn check_limit_in(
        &self,
        redis: &Redis,
        key: &str,
        limit: &Limit,
        cost: Cost<'_>,
    ) -> Decision {
        let began = self.metrics.begin();
        let named = NamedLimit::new(limit.clone(), 0);
        let subject = self.secret.ad_hoc_key(key);
        let keys = self.secret.each().map(|secret| secret.ad_hoc_key(key));
        let plan = Plan::ad_hoc(keys, &named, &cost);
        let judged = self.in_store(redis, plan).await;
        self.metrics.end(began);
        self.metrics.watch_ad_hoc(key, subject, cost.of_limit(limit), &judged[0]);
        self.decision(judged, Names::AdHoc(named.into_limit()))
    }

    pub(super) async fn decide_on(
        &self,
        redis: &Redis,
        questions: &[Question<'_>],
    ) -> Vec<Decision> {
        let policy = self.policy.load_full();
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
                    Plan::of_request(&policy, request, secret, Asking::ToCharge)
                }
                (Question::AdHoc { .. }, None) => {
                    unreachable!("every ad hoc limit was named above")
                }
            })
            .collect();
        let began = self.metrics.begin();
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
        self.metrics.end(began);
        for (question, heard) in asking.iter().zip(&heard) {
            if let Ok(heard) = heard {
                self.fallback.settle(question, heard);
                self.denials.note(redis, question.ask, heard, sent);
            }
        }
        drop(asking);
        let mut heard = heard.into_iter();
        let mut decisions = Vec::with_capacity(plans.len());
        for ((mut plan, question), refused) in plans.into_iter().zip(questions).zip(&mut refused) {
            let dues = std::mem::take(&mut plan.dues);
            let told = || heard.next().map(|Ok(heard)| heard);
            let heard = refused.take().or_else(|| plan.asks().then(told).flatten());
            let mut judged = match heard {
                Some(heard) => plan.judged_from(&heard),
                None => plan.judged,
            };
            self.settle(redis, dues, &mut judged).await;
            decisions.push(self.decision_of(question, judged, &policy));
        }
        decisions
    }

    fn decision_of(
        &self,
        question: &Question<'_>,
        judged: Tiers,
        policy: &Arc<Policy>,
    ) -> Decision {
        match question {
            Question::Request(request) => {
                self.decision_on(request, judged, Arc::clone(policy), Asking::ToCharge)
            }
            Question::AdHoc { domain, key, limit, cost } => {
                let subject = self.secret.ad_hoc_key_in(domain, key);
                self.metrics.watch_ad_hoc(key, subject, cost.of_limit(limit), &judged[0]);
                self.decision(judged, Names::AdHoc(limit.clone()))
            }
        }
    }

    /// The one place where an outage becomes a decision.
    pub(crate) async fn in_store(&self, redis: &Redis, mut plan: Plan<'_>) -> Tiers {
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
        self.settle(redis, dues, &mut judged).await;
        judged
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

    async fn settle(&self, redis: &Redis, dues: Vec<Due<'_>>, judged: &mut Tiers) {
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
