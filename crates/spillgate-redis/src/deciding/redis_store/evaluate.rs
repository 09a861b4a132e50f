//! Evaluates plans: leases pay, the denial cache answers, the servers decide the rest, and corrections follow.

use std::mem;
use std::time::Duration;

use futures_util::future::{Either, join_all, ready};

use super::RedisStore;
use super::leasing::Paid;
use super::reserving::is_degraded;
use crate::counter::Change;
use crate::deciding::denial_cache::Sent;
use crate::deciding::fallback::{ChargedHere, StoreCall};
use crate::deciding::spread::{self, Outcomes};
use crate::decision::CounterOutcomes;
use crate::plan::{ChargeOutcomes, Evaluated, Plan, RecordAction};
use crate::policy::Policy;
use crate::reservation::{GROUPS_MAX, Group};

/// A plan after leases and the denial cache have been applied.
struct Prepared<'p> {
    plan: Box<Plan>,
    policy: Option<&'p Policy>,
    paid: Paid,
    /// The time before the call to the store, if the store must evaluate the plan.
    sent: Option<Sent>,
}

impl RedisStore {
    /// Evaluates plans in order, each by itself, with as few calls to the servers as possible. Each comes with the policy
    /// that holds the rules of its counters, `None` for an inline limit.
    pub async fn evaluate<'p>(
        &self,
        plans: impl IntoIterator<Item = (Box<Plan>, Option<&'p Policy>)>,
    ) -> Vec<Evaluated> {
        let plans = plans.into_iter();
        let mut prepared: Vec<Prepared<'p>> =
            plans.map(|(plan, policy)| self.prepare(plan, policy)).collect();
        if prepared.iter().all(|prepared| prepared.sent.is_none()) {
            return prepared.into_iter().map(|prepared| self.conclude_unasked(prepared)).collect();
        }
        let sent: Vec<Sent> = prepared.iter().filter_map(|prepared| prepared.sent).collect();
        // A call takes the deferred charges of its counters with it. If the caller leaves
        // before the answer, they count as charged, even if the call was not sent yet.
        let asking = prepared.iter_mut().filter(|prepared| prepared.sent.is_some());
        let mut calls: Vec<StoreCall<'_>> = asking
            .map(|prepared| self.fallback.store_call(&mut prepared.plan, prepared.policy))
            .collect();
        let outcomes = spread::decide(&self.servers, &mut calls).await;
        let answers = calls.iter_mut().zip(outcomes).zip(sent);
        let answers = answers.map(|((call, outcomes), sent)| {
            let charged_here = self.note_answer(call, &outcomes.charges, sent);
            (outcomes, charged_here)
        });
        let mut answers = answers.collect::<Vec<_>>().into_iter();
        drop(calls);
        let mut concluded = Vec::with_capacity(prepared.len());
        for prepared in prepared {
            // Only plans that were sent have an answer, in order, and perhaps corrections.
            let answer = prepared.sent.and_then(|_| answers.next());
            concluded.push(match answer {
                Some((outcomes, charged_here)) => {
                    (self.conclude(prepared, outcomes), Some(charged_here))
                }
                None => (self.conclude(prepared, Outcomes::default()), None),
            });
        }
        let asked = concluded.iter_mut().filter(|(_, asked)| asked.is_some());
        let corrected = asked.filter(|(plan, _)| !plan.follow_ups.is_empty());
        let mut corrected: Vec<&mut Box<Plan>> = corrected.map(|(plan, _)| plan).collect();
        for several in corrected.chunks_mut(CORRECTED_AT_ONCE) {
            join_all(several.iter_mut().map(|plan| self.correct(plan))).await;
        }
        let each = concluded.into_iter();
        each.map(|(plan, charged_here)| self.evaluated(plan, charged_here.flatten())).collect()
    }

    /// Evaluates one plan, at once if leases or a remembered denial answer. Not as a batch of one, since a batch's lists would
    /// cost a tenth of the decisions at hot keys.
    ///
    /// A caller that waits at most `within` for the servers admits by itself afterwards.
    pub fn evaluate_one<'a>(
        &'a self,
        plan: Box<Plan>,
        policy: Option<&'a Policy>,
        within: Option<Duration>,
    ) -> impl Future<Output = Evaluated> + Send {
        let mut prepared = self.prepare(plan, policy);
        let Some(sent) = prepared.sent else {
            return Either::Left(ready(self.conclude_unasked(prepared)));
        };
        // Boxed, since the future of a check that asks no server would otherwise be as large.
        Either::Right(Box::pin(async move {
            let hurried = within.map(|within| self.servers.within(within));
            let servers = hurried.as_ref().unwrap_or(&self.servers);
            let mut call = self.fallback.store_call(&mut prepared.plan, policy);
            let outcomes = spread::decide_one(servers, &mut call).await;
            let charged_here = self.note_answer(&mut call, &outcomes.charges, sent);
            // It borrows the plan that `conclude` consumes.
            drop(call);
            let mut plan = self.conclude(prepared, outcomes);
            if !plan.follow_ups.is_empty() {
                Box::pin(self.correct(&mut plan)).await;
            }
            self.evaluated(plan, charged_here)
        }))
    }

    /// Returns the denial that this instance would repeat for the store, if there is one.
    pub fn remembered(&self, mut plan: Box<Plan>) -> Option<CounterOutcomes> {
        if !plan.asks() || !plan.follow_ups.is_empty() {
            return None;
        }
        let sent = self.denials.begin(&self.servers);
        let refused = self.denials.would_refuse(&self.servers, &mut plan, sent);
        refused.then_some(plan.outcomes)
    }

    /// Applies leases and the denial cache to a plan.
    fn prepare<'p>(&self, mut plan: Box<Plan>, policy: Option<&'p Policy>) -> Prepared<'p> {
        // If no receipt can name all locations, the check only peeks and is denied: nothing could release the permits.
        if plan.opening.is_some() && self.servers.locations(&plan.transaction) > GROUPS_MAX {
            plan.noted.get_or_insert_default().full = true;
            plan.look();
        }
        // Leases come first: a counter that a lease pays for is not sent, whatever the store would say about it.
        let paid = self.pay(&mut plan, policy);
        if !plan.asks() {
            return Prepared { plan, policy, paid, sent: None };
        }
        // Read before the call is sent, so that each denial expires early rather than late.
        let sent = self.denials.begin(&self.servers);
        // A remembered denial must not answer for a reservation whose id the client chose: the id
        // may name a record that is open already. Nor may it answer for a plan with corrections,
        // since those are made on the store.
        let is_named = plan.opening.as_ref().is_some_and(|opening| opening.is_named);
        let may_be_denied = plan.follow_ups.is_empty() && !is_named;
        let is_denied = may_be_denied && self.denials.refuses(&self.servers, &mut plan, sent);
        Prepared { plan, policy, paid, sent: Some(sent).filter(|_| !is_denied) }
    }

    /// Stores the reply in the last known state and the denial cache. Returns the charges of a
    /// reservation that this instance made itself.
    fn note_answer(
        &self,
        call: &mut StoreCall<'_>,
        outcomes: &ChargeOutcomes,
        sent: Sent,
    ) -> Option<Box<ChargedHere>> {
        self.fallback.note_outcomes(call, outcomes);
        self.denials.note(&self.servers, call.transaction, outcomes, sent);
        match call.transaction.record {
            RecordAction::Open(_) => Some(Box::new(self.fallback.charged_here(call, outcomes))),
            RecordAction::None | RecordAction::Close(_) => None,
        }
    }

    /// Fills in the counters, and puts leases back if the decision is denied.
    fn conclude(&self, prepared: Prepared<'_>, outcomes: Outcomes) -> Box<Plan> {
        let Prepared { mut plan, paid, .. } = prepared;
        plan.take(&outcomes.charges);
        plan.noted = outcomes.noted.or(plan.noted);
        self.put_back_if_denied(paid, &plan.outcomes);
        plan
    }

    /// Concludes a plan without a call to the store. There are no corrections, since they are made
    /// on the store.
    fn conclude_unasked(&self, prepared: Prepared<'_>) -> Evaluated {
        let plan = self.conclude(prepared, Outcomes::default());
        self.evaluated(plan, None)
    }

    /// Keeps the record of charges that this instance made itself if the decision allows, and undoes a record that may
    /// be on a server all the same if it denies.
    fn evaluated(&self, mut plan: Box<Plan>, charged_here: Option<Box<ChargedHere>>) -> Evaluated {
        // Last, so that it sees the final outcome of each counter.
        plan.deny_if_full();
        let mut receipt = plan.receipt();
        match (&plan.opening, &mut receipt, charged_here) {
            (Some(opening), Some(contents), Some(charged)) => {
                match self.fallback.keep(opening, *charged, &contents.groups) {
                    Ok(kept) => contents.node = kept.then_some(self.servers.instance_id),
                    Err(opened) => {
                        let group = || Group { tag: 0, counters: None };
                        plan.noted.get_or_insert_default().note(opened, group);
                    }
                }
            }
            (Some(_), None, _) if plan.outcomes.iter().any(is_degraded) => {
                self.undo_in_doubt(&plan);
            }
            _ => {}
        }
        Evaluated { plan, receipt }
    }

    /// Makes the corrections that follow a decision.
    async fn correct(&self, plan: &mut Plan) {
        let mut due = mem::take(&mut plan.follow_ups);
        // A repeated reservation was corrected the first time.
        if !plan.charges_anew() {
            return;
        }
        let counters = &mut plan.outcomes;
        due.retain(|follow_up| follow_up.stands(counters));
        // All at once, since each may wait as long as a decision.
        let changes = due.iter().map(|due| self.servers.change(&due.counter, due.change));
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
