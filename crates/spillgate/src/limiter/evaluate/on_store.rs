//! Evaluates a plan on a store: leases pay, the denial cache answers, the store decides the rest,
//! and corrections follow.

use std::mem;

use futures_util::future::join_all;

use super::super::Inner;
use super::super::leasing::Paid;
use super::{ChargedHere, Evaluated, Evaluation, deny_if_full};
use crate::counter::Change;
use crate::decision::CounterOutcome;
use crate::denial_cache::Sent;
use crate::engine::Redis;
use crate::fallback::StoreCall;
use crate::limit::NamedLimit;
use crate::plan::{ChargeOutcome, ChargeOutcomes, FollowUp, Plan, RecordAction};
use crate::policy::Policy;
use spillgate_redis::spread;

/// A plan after leases and the denial cache have been applied.
struct Prepared {
    plan: Box<Plan>,
    paid: Paid,
    /// The time before the call to the store, if the store must evaluate the plan.
    sent: Option<Sent>,
}

impl Inner {
    /// Evaluates a plan on a store. Complete at once if leases and remembered denials suffice.
    pub(in super::super) fn evaluate_on_store<'a>(
        &'a self,
        redis: &'a Redis,
        plan: Box<Plan>,
        policy: Option<&'a Policy>,
    ) -> Evaluation<'a> {
        let mut prepared = self.prepare(redis, plan, policy);
        let Some(sent) = prepared.sent else {
            return Evaluation::Complete(Some(self.conclude_unasked(prepared)));
        };
        Evaluation::OnStore(Box::pin(async move {
            // The call takes the deferred charges of its counters with it. If the caller leaves
            // before the answer, they count as charged, even if the call was not sent yet.
            let call = self.fallback.store_call(&mut prepared.plan, policy);
            let outcomes = spread::decide(redis, &call).await;
            let charged_here = self.note_answer(redis, &call, &outcomes, sent);
            drop(call);
            let mut evaluated = self.conclude(prepared, &outcomes, charged_here);
            self.correct(redis, &mut evaluated.plan).await;
            evaluated
        }))
    }

    /// Evaluates several plans in order, each by itself, with as few calls to the store as
    /// possible.
    pub(in super::super) async fn evaluate_each_on_store(
        &self,
        redis: &Redis,
        plans: Vec<(Box<Plan>, Option<&Policy>)>,
    ) -> Vec<Evaluated> {
        let mut each: Vec<(Prepared, Option<&Policy>)> = plans
            .into_iter()
            .map(|(plan, policy)| (self.prepare(redis, plan, policy), policy))
            .collect();
        let sent: Vec<Sent> = each.iter().filter_map(|(prepared, _)| prepared.sent).collect();
        let asking = each.iter_mut().filter(|(prepared, _)| prepared.sent.is_some());
        let calls: Vec<_> = asking
            .map(|(prepared, policy)| self.fallback.store_call(&mut prepared.plan, *policy))
            .collect();
        let outcomes = spread::decide_each(redis, &calls).await;
        let answers: Vec<_> = calls
            .iter()
            .zip(outcomes)
            .zip(sent)
            .map(|((call, outcomes), sent)| {
                let charged_here = self.note_answer(redis, call, &outcomes, sent);
                (outcomes, charged_here)
            })
            .collect();
        // `calls` borrows the plans that `conclude` consumes.
        drop(calls);
        // Only plans that were sent have an answer, in order, and perhaps corrections.
        let (mut answers, mut unasked) = (answers.into_iter(), Vec::new());
        let mut evaluated = Vec::with_capacity(each.len());
        for (prepared, _) in each {
            let answer = prepared.sent.and_then(|_| answers.next());
            unasked.push(answer.is_none());
            evaluated.push(match answer {
                Some((outcomes, charged_here)) => self.conclude(prepared, &outcomes, charged_here),
                None => self.conclude_unasked(prepared),
            });
        }
        let asked = evaluated.iter_mut().zip(unasked).filter(|(_, unasked)| !unasked);
        let mut asked: Vec<&mut Evaluated> = asked.map(|(evaluated, _)| evaluated).collect();
        for several in asked.chunks_mut(CORRECTED_AT_ONCE) {
            join_all(several.iter_mut().map(|one| self.correct(redis, &mut one.plan))).await;
        }
        evaluated
    }

    /// Applies leases and the denial cache to a plan.
    fn prepare(&self, redis: &Redis, mut plan: Box<Plan>, policy: Option<&Policy>) -> Prepared {
        let paid = self.pay(&mut plan, policy);
        if !plan.asks() {
            return Prepared { plan, paid, sent: None };
        }
        // Read before the call is sent, so that each denial expires early rather than late.
        let sent = self.denials.begin(redis);
        // A remembered denial must not answer for a reservation whose id the client chose: the id
        // may name a record that is open already. Nor may it answer for a plan with corrections,
        // since those are made on the store.
        let is_named = plan.opening.as_ref().is_some_and(|opening| opening.is_named);
        let may_be_denied = plan.follow_ups.is_empty() && !is_named;
        let is_denied = may_be_denied && self.denials.refuses(redis, &mut plan, sent);
        Prepared { plan, paid, sent: Some(sent).filter(|_| !is_denied) }
    }

    /// Stores the reply in the last known state and the denial cache. Returns the charges of a
    /// reservation that this instance made itself.
    fn note_answer(
        &self,
        redis: &Redis,
        call: &StoreCall<'_>,
        outcomes: &ChargeOutcomes,
        sent: Sent,
    ) -> Option<Box<ChargedHere>> {
        self.fallback.note_outcomes(call, outcomes);
        self.denials.note(redis, call.transaction, outcomes, sent);
        match call.transaction.record {
            RecordAction::Open(_) => Some(Box::new(self.fallback.charged_here(call, outcomes))),
            RecordAction::None | RecordAction::Close(_) => None,
        }
    }

    /// Fills in the counters, and puts leases back if the decision is denied.
    fn conclude(
        &self,
        prepared: Prepared,
        outcomes: &[ChargeOutcome],
        charged_here: Option<Box<ChargedHere>>,
    ) -> Evaluated {
        let Prepared { mut plan, paid, .. } = prepared;
        plan.take(outcomes);
        self.put_back_if_denied(paid, &plan.outcomes);
        Evaluated { plan, charged_here }
    }

    /// Concludes a plan without a call to the store. There are no corrections, since they are made
    /// on the store.
    fn conclude_unasked(&self, prepared: Prepared) -> Evaluated {
        let mut evaluated = self.conclude(prepared, &[], None);
        let plan = &mut *evaluated.plan;
        if let Some(opening) = &plan.opening {
            deny_if_full(&mut plan.outcomes, &opening.noted());
        }
        evaluated
    }

    /// Makes the corrections that follow a decision, and denies it if its reservation record had no
    /// room. That denial comes last, so that it sees the final outcome of each counter.
    async fn correct(&self, redis: &Redis, plan: &mut Plan) {
        let (follow_ups, noted) = (mem::take(&mut plan.follow_ups), plan.noted());
        // A repeated reservation was corrected the first time.
        if !follow_ups.is_empty() && noted.charges_anew() {
            // Boxed, since few decisions need corrections.
            Box::pin(self.follow_up(redis, follow_ups, &mut plan.outcomes)).await;
        }
        deny_if_full(&mut plan.outcomes, &noted);
    }

    async fn follow_up(
        &self,
        redis: &Redis,
        mut due: Vec<FollowUp<NamedLimit>>,
        counters: &mut [CounterOutcome],
    ) {
        due.retain(|follow_up| follow_up.stands(counters));
        // All at once, since each may wait as long as a decision.
        let changes = due.iter().map(|due| redis.change(&due.counter, due.change));
        for (follow_up, changed) in due.iter().zip(join_all(changes).await) {
            match changed {
                Ok((_, reply)) => {
                    // A refund may let waiting callers in, and leases grow again.
                    if matches!(follow_up.change, Change::Refund(_)) {
                        self.note_room();
                    }
                    follow_up.done(&reply, counters);
                }
                Err(_) => self.fallback.note_error(),
            }
        }
    }
}

/// Decisions of one batch that are corrected at once. A larger batch leaves connections and queues
/// to other callers.
const CORRECTED_AT_ONCE: usize = 64;
