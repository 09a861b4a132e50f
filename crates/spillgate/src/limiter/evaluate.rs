//! Evaluates a plan, in memory or on a store.
//!
//! On a store, leases pay first, then a remembered denial answers, and the store evaluates the
//! rest. Only a call to the store needs a future.

use std::mem;
use std::sync::Arc;

use super::Inner;
use crate::counter::{Change, LimitHandle};
use crate::decision::{CounterOutcome, CounterOutcomes};
use crate::engine::{Engine, Memory};
use crate::plan::{ChargeOutcome, FollowUp, Plan};
use crate::policy::Policy;
use crate::reservation::{Noted, Opening};

#[cfg(feature = "redis")]
mod on_store;

#[cfg(feature = "redis")]
pub(super) use crate::fallback::ChargedHere;

/// The result of evaluating a plan.
pub(crate) struct Evaluated {
    pub(crate) counters: CounterOutcomes,
    /// The record that the plan opens.
    pub(super) opening: Option<Arc<Opening>>,
    /// The charges of a reservation that this instance made itself during an outage. They have no
    /// record on the store yet.
    pub(super) charged_here: ChargedHere,
}

/// The charges of a reservation during an outage: none, since there is no store.
#[cfg(not(feature = "redis"))]
#[derive(Default)]
pub(super) struct ChargedHere {}

impl Inner {
    /// Evaluates a plan. `policy` holds the rules of the plan's counters and is `None` for an
    /// inline limit.
    pub(crate) async fn evaluate(&self, mut plan: Box<Plan>, policy: Option<&Policy>) -> Evaluated {
        match &self.engine {
            Engine::Memory(memory) => self.evaluate_noting_room(memory, &mut plan),
            #[cfg(feature = "redis")]
            Engine::Redis(redis) => self.evaluate_on(redis, plan, policy).await,
        }
    }

    /// Evaluates a plan in memory, and lets waiting callers try again if it refunds.
    pub(super) fn evaluate_noting_room(&self, memory: &Memory, plan: &mut Plan) -> Evaluated {
        let is_refund = |follow_up: &FollowUp<_>| matches!(follow_up.change, Change::Refund(_));
        let refunds = plan.follow_ups.iter().any(is_refund);
        let evaluated = evaluate_in(memory, plan);
        if refunds {
            self.note_room();
        }
        evaluated
    }
}

/// Evaluates a plan in memory, then makes the corrections that follow the decision.
#[inline]
pub(super) fn evaluate_in<L: LimitHandle>(memory: &Memory, plan: &mut Plan<L>) -> Evaluated {
    if plan.asks() {
        let (transaction, mut answers) = plan.split();
        memory.decide_each(transaction, |reply| answers.take(ChargeOutcome::Store(reply)));
    }
    if !plan.follow_ups.is_empty() || plan.opening.is_some() {
        follow_up(memory, plan);
    }
    let counters = mem::take(&mut plan.outcomes);
    Evaluated { counters, opening: plan.opening.take(), charged_here: ChargedHere::default() }
}

fn follow_up<L: LimitHandle>(memory: &Memory, plan: &mut Plan<L>) {
    let noted = plan.noted();
    let follow_ups = mem::take(&mut plan.follow_ups);
    // A repeated reservation was corrected the first time.
    for follow_up in follow_ups.iter().filter(|_| noted.charges_anew()) {
        if follow_up.stands(&plan.outcomes) {
            let (_, reply) = memory.change(&follow_up.counter, follow_up.change);
            follow_up.done(&reply, &mut plan.outcomes);
        }
    }
    deny_if_full(&mut plan.outcomes, &noted);
}

/// Denies an allowed decision whose reservation record had no room. Without a record nothing could
/// settle or release the charge.
pub(super) fn deny_if_full(counters: &mut CounterOutcomes, noted: &Noted) {
    let deciding = |counter: &&mut CounterOutcome| counter.decides();
    if noted.full
        && counters.iter_mut().filter(deciding).all(|counter| counter.waits_for_no_limit())
    {
        counters.iter_mut().filter(deciding).for_each(CounterOutcome::refuse_overloaded);
    }
}
