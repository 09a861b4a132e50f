//! Decides requests: binds, plans and evaluates each, and makes the decision of its outcomes. Each answered
//! request is counted and sampled once.

use std::mem;

use super::Inner;
use super::bound::BoundRequest;
use super::evaluate::evaluate_in_memory;
use super::in_force::Held;
use crate::counter::LimitHandle;
use crate::decision::{self, CounterOutcome, Decision, Summary};
use crate::engine::Memory;
use crate::engine::RedisStore;
use crate::limit::NamedLimit;
use crate::metrics::{Began, Meters};
use crate::plan::{Evaluated, Plan, PlanMode};
use crate::request::Request;
use crate::reservation::Contents;

impl Inner {
    /// Evaluates and answers one request.
    pub async fn decide(&self, request: &Request<'_>) -> Decision {
        let began = self.metrics.begin();
        let bound = self.bind(request);
        let plan = self.plan_to_charge(&bound);
        let evaluated = self.evaluate(plan, bound.policy(), None).await;
        self.metrics.end(began);
        self.answer(&bound, evaluated)
    }

    /// Evaluates and answers one request in memory, without a future.
    #[inline]
    pub fn decide_in_memory(&self, memory: &Memory, request: &Request<'_>) -> Decision {
        let began = self.metrics.begin();
        if let Some((key, limit)) = request.inline_limit() {
            return self.decide_bound(memory, &BoundRequest::inline(request, key, limit), began);
        }
        self.expire_if_unwatched();
        self.in_force.with_copy(|in_force| {
            let bound = BoundRequest::by_policy(request, Held::Copy(in_force));
            self.decide_bound(memory, &bound, began)
        })
    }

    /// Evaluates and answers one bound request in memory.
    #[inline]
    fn decide_bound(
        &self,
        memory: &Memory,
        bound: &BoundRequest<'_, '_>,
        began: Began,
    ) -> Decision {
        // Such a plan has limits of its own. Others only refer to those of the policy.
        if !bound.is_plain() {
            let mut plan = self.plan_to_charge(bound);
            self.evaluate_noting_room(memory, &mut plan);
            self.metrics.end(began);
            let receipt = plan.receipt();
            return self.answer_plan(bound, &mut plan, receipt);
        }
        let mut plan: Plan<&NamedLimit> = Plan::empty();
        self.add_counters(&mut plan, bound, PlanMode::Charge);
        self.open_permits(&mut plan);
        evaluate_in_memory(memory, &mut plan);
        self.metrics.end(began);
        let receipt = plan.receipt();
        self.answer_plan(bound, &mut plan, receipt)
    }

    /// Evaluates and answers several requests on a store in order, each by itself.
    pub async fn decide_each(
        &self,
        store: &RedisStore,
        all: Vec<BoundRequest<'_, '_>>,
    ) -> Vec<Decision> {
        let began = self.metrics.begin();
        let plans = all.iter().map(|bound| (self.plan_to_charge(bound), bound.policy()));
        let evaluated = store.evaluate(plans).await;
        self.metrics.end(began);
        let each = all.iter().zip(evaluated);
        each.map(|(bound, evaluated)| self.answer(bound, evaluated)).collect()
    }

    /// Answers one request without charging it. It is not counted.
    pub async fn look(&self, bound: BoundRequest<'_, '_>) -> Decision {
        let plan = self.plan(&bound, PlanMode::Peek);
        let evaluated = self.evaluate(plan, bound.policy(), None).await;
        decision::from_counters(evaluated.plan.outcomes, bound.names())
    }

    /// Makes the decision on a request, with a receipt if it charged permits or opened a
    /// reservation.
    #[inline]
    pub fn answer(&self, bound: &BoundRequest<'_, '_>, evaluated: Evaluated) -> Decision {
        let Evaluated { mut plan, receipt } = evaluated;
        self.answer_plan(bound, &mut plan, receipt)
    }

    /// Makes the decision on an evaluated plan.
    #[inline]
    fn answer_plan<L: LimitHandle>(
        &self,
        bound: &BoundRequest<'_, '_>,
        plan: &mut Plan<L>,
        receipt: Option<Box<Contents>>,
    ) -> Decision {
        let counters = mem::take(&mut plan.outcomes);
        let meters = bound.in_force().map(|in_force| &in_force.meters);
        let summary = self.count(&counters, meters);
        // A repeated reservation was sampled when it was charged.
        if plan.charges_anew() {
            self.sample(bound.request(), bound.policy(), &counters, summary.allows());
        }
        let receipt = receipt.map(|contents| self.receipts.receipt(*contents));
        decision::from_parts(summary, counters, bound.names(), receipt)
    }

    /// Counts a decision, and returns what its counters say.
    #[inline]
    pub fn count(&self, counters: &[CounterOutcome], meters: Option<&Meters>) -> Summary {
        let summary = Summary::new(counters);
        self.metrics.count(counters, meters, summary.allows());
        self.counts.count(summary, counters.is_empty());
        summary
    }
}
