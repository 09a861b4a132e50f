//! Evaluates a plan on a store: leases pay, the denial cache answers, the store decides the rest,
//! and corrections follow.

use std::mem;

use futures_util::future::join_all;

use super::super::Inner;
use super::super::leasing::Paid;
use super::{ChargedHere, Evaluated, deny_if_full};
use crate::counter::Change;
use crate::denial_cache::Sent;
use crate::engine::Redis;
use crate::fallback::StoreCall;
use crate::limit::NamedLimit;
use crate::plan::{ChargeOutcomes, FollowUp, Plan, RecordAction};
use crate::policy::Policy;
use crate::reservation::Noted;
use spillgate_redis::spread;

/// A plan after leases and the denial cache have been applied.
struct Prepared {
    plan: Box<Plan>,
    paid: Paid,
    /// The time before the call to the store, if the store must evaluate the plan.
    sent: Option<Sent>,
}

/// An answered plan before the corrections that follow the decision.
struct Concluded {
    evaluated: Evaluated,
    noted: Noted,
    follow_ups: Vec<FollowUp<NamedLimit>>,
}

/// The outcomes of all charges, with the reservation's charges that this instance made itself.
type StoreOutcomes = (ChargeOutcomes, ChargedHere);

impl Inner {
    /// Evaluates a plan on a store. Does not wait if leases and remembered denials suffice.
    pub(in super::super) async fn evaluate_on(
        &self,
        redis: &Redis,
        plan: Box<Plan>,
        policy: Option<&Policy>,
    ) -> Evaluated {
        let mut prepared = self.prepare(redis, plan, policy);
        let Some(sent) = prepared.sent else { return self.conclude_unasked(prepared) };
        // Boxed, since the future of a check in memory would otherwise be as large as this one. A
        // block, since an async function would hold its arguments twice.
        Box::pin(async move {
            // The call takes the deferred charges of its counters with it. A caller that leaves
            // before the answer leaves them with it: they count as charged.
            let call = self.fallback.store_call(&mut prepared.plan, policy);
            let outcomes = spread::decide(redis, &call).await;
            let answer = self.note_answer(redis, &call, outcomes, sent);
            drop(call);
            let concluded = self.conclude(prepared, answer);
            self.corrected(redis, concluded).await
        })
        .await
    }

    /// Evaluates several plans in order, each by itself, with as few calls to the store as
    /// possible.
    pub(in super::super) async fn evaluate_each_on(
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
        let answers: Vec<StoreOutcomes> = calls
            .iter()
            .zip(outcomes)
            .zip(sent)
            .map(|((call, outcomes), sent)| self.note_answer(redis, call, outcomes, sent))
            .collect();
        // `calls` borrows the plans that `conclude` consumes.
        drop(calls);
        // Only plans that were sent have an answer, in order.
        let mut answers = answers.into_iter();
        let mut evaluated = Vec::with_capacity(each.len());
        for (prepared, _) in each {
            let answer = prepared.sent.and_then(|_| answers.next());
            evaluated.push(match answer {
                Some(answer) => self.corrected(redis, self.conclude(prepared, answer)).await,
                None => self.conclude_unasked(prepared),
            });
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

    /// Stores the reply in the last known state and the denial cache. Returns it with the charges
    /// that this instance made itself.
    fn note_answer(
        &self,
        redis: &Redis,
        call: &StoreCall<'_>,
        outcomes: ChargeOutcomes,
        sent: Sent,
    ) -> StoreOutcomes {
        self.fallback.note_outcomes(call, &outcomes);
        self.denials.note(redis, call.transaction, &outcomes, sent);
        let charged_here = match call.transaction.record {
            RecordAction::Open(_) => self.fallback.charged_here(call, &outcomes),
            RecordAction::None | RecordAction::Close(_) => ChargedHere::default(),
        };
        (outcomes, charged_here)
    }

    /// Fills in the counters, and puts leases back if the decision is denied.
    fn conclude(&self, prepared: Prepared, answer: StoreOutcomes) -> Concluded {
        let (Prepared { mut plan, paid, .. }, (outcomes, charged_here)) = (prepared, answer);
        let (mut follow_ups, noted) = (mem::take(&mut plan.follow_ups), plan.noted());
        plan.take(&outcomes);
        let (counters, opening) = (mem::take(&mut plan.outcomes), plan.opening.take());
        self.put_back_if_denied(paid, &counters);
        if !noted.charges_anew() {
            follow_ups.clear();
        }
        Concluded { evaluated: Evaluated { counters, opening, charged_here }, noted, follow_ups }
    }

    /// Concludes a plan without a call to the store. There are no corrections, since they are made
    /// on the store.
    fn conclude_unasked(&self, prepared: Prepared) -> Evaluated {
        self.conclude(prepared, StoreOutcomes::default()).evaluated_if_recorded()
    }

    /// Makes the corrections that follow a decision.
    async fn corrected(&self, redis: &Redis, mut concluded: Concluded) -> Evaluated {
        if !concluded.follow_ups.is_empty() {
            // Boxed, since few decisions need corrections.
            Box::pin(self.correct(redis, &mut concluded)).await;
        }
        concluded.evaluated_if_recorded()
    }

    async fn correct(&self, redis: &Redis, concluded: &mut Concluded) {
        let counters = &mut concluded.evaluated.counters;
        let mut due = mem::take(&mut concluded.follow_ups);
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

impl Concluded {
    /// Returns the result, denied if its reservation record had no room. That denial comes last, so
    /// that it sees the final outcome of each counter.
    fn evaluated_if_recorded(mut self) -> Evaluated {
        deny_if_full(&mut self.evaluated.counters, &self.noted);
        self.evaluated
    }
}
