//! Decisions where state is on a store: futures, which the limiter boxes.

use std::sync::Arc;

use super::{Inner, Question};
use crate::decision::{Decision, Names, Tiers};
use crate::engine::{self, Redis};
use crate::limit::{Limit, NamedLimit};
use crate::plan::{Asking, Due, Plan};
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
        self.decision(judged, Names::Policy(policy))
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
        let plan = Plan::ad_hoc(self.secret.ad_hoc_key(key), &named, &cost);
        let judged = self.in_store(redis, plan).await;
        self.metrics.end(began);
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
        let (mut plans, names): (Vec<Plan<'_>>, Vec<Names>) = questions
            .iter()
            .zip(&named)
            .map(|(question, named)| match (question, named) {
                (Question::AdHoc { domain, key, limit, cost }, Some(named)) => {
                    let key = secret.ad_hoc_key_in(domain, key);
                    (Plan::ad_hoc(key, named, cost), Names::AdHoc(limit.clone()))
                }
                (Question::Request(request), _) => {
                    let plan = Plan::of_request(&policy, request, secret, Asking::ToCharge);
                    (plan, Names::Policy(Arc::clone(&policy)))
                }
                (Question::AdHoc { .. }, None) => {
                    unreachable!("every ad hoc limit was named above")
                }
            })
            .unzip();
        let asking: Vec<_> = plans
            .iter_mut()
            .filter(|plan| plan.asks())
            .map(|plan| self.fallback.question(plan))
            .collect();
        let began = self.metrics.begin();
        let heard = engine::decide_each(redis, &asking).await;
        self.metrics.end(began);
        for (question, heard) in asking.iter().zip(&heard) {
            if let Ok(heard) = heard {
                self.fallback.settle(question, heard);
            }
        }
        drop(asking);
        let mut heard = heard.into_iter();
        let mut decisions = Vec::with_capacity(plans.len());
        for (mut plan, names) in plans.into_iter().zip(names) {
            let dues = std::mem::take(&mut plan.dues);
            let mut judged = match plan.asks().then(|| heard.next()).flatten() {
                Some(Ok(heard)) => plan.judged_from(&heard),
                None => plan.judged,
            };
            self.settle(redis, dues, &mut judged).await;
            decisions.push(self.decision(judged, names));
        }
        decisions
    }

    /// The one place where an outage becomes a decision.
    pub(super) async fn in_store(&self, redis: &Redis, mut plan: Plan<'_>) -> Tiers {
        if !plan.asks() {
            return plan.judged;
        }
        let dues = std::mem::take(&mut plan.dues);
        let question = self.fallback.question(&mut plan);
        let Ok(heard) = engine::decide(redis, &question).await;
        self.fallback.settle(&question, &heard);
        drop(question);
        let mut judged = plan.judged_from(&heard);
        self.settle(redis, dues, &mut judged).await;
        judged
    }

    async fn settle(&self, redis: &Redis, dues: Vec<Due<'_>>, judged: &mut Tiers) {
        for due in dues {
            if !due.stands(judged) {
                continue;
            }
            match redis.change(&due.tier, due.change).await {
                Ok((_, told)) => due.done(&told, judged),
                Err(_) => self.fallback.note_error(),
            }
        }
    }
}
