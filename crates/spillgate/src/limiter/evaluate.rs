//! Evaluates a plan, in memory or on a store.
//!
//! On a store, leases pay first, then a remembered denial answers, and the store evaluates the
//! rest. Only a call to the store needs a future.

use std::mem;
use std::pin::Pin;
use std::task::{Context, Poll};

use super::Inner;
use crate::counter::{Change, LimitHandle};
use crate::decision::CounterOutcome;
use crate::engine::{Engine, Memory};
use crate::plan::{ChargeOutcome, FollowUp, Plan};
use crate::policy::Policy;
use crate::reservation::Noted;

#[cfg(feature = "redis")]
mod on_store;

#[cfg(feature = "redis")]
pub(super) use crate::fallback::ChargedHere;

/// A plan with the final outcomes of its counters.
pub(crate) struct Evaluated {
    pub(crate) plan: Box<Plan>,
    /// The charges of a reservation that this instance made itself during an outage. They have no
    /// record on the store yet.
    pub(super) charged_here: Option<Box<ChargedHere>>,
}

/// The evaluation of a plan: complete, or a future that calls the store. The future is boxed, since
/// that of a check in memory would otherwise be as large.
#[must_use = "the plan is charged already, or its call to the store is never made"]
pub(crate) enum Evaluation<'a> {
    /// The result, until it has been read.
    Complete(Option<Evaluated>),
    #[cfg_attr(not(feature = "redis"), expect(dead_code, reason = "memory needs no future"))]
    OnStore(Pin<Box<dyn Future<Output = Evaluated> + Send + 'a>>),
}

impl Future for Evaluation<'_> {
    type Output = Evaluated;

    #[inline]
    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Evaluated> {
        match &mut *self {
            Evaluation::Complete(evaluated) => {
                Poll::Ready(evaluated.take().expect("a future is not polled after its end"))
            }
            Evaluation::OnStore(evaluated) => evaluated.as_mut().poll(context),
        }
    }
}

/// The charges of a reservation during an outage: none, since there is no store.
#[cfg(not(feature = "redis"))]
pub(super) struct ChargedHere {}

impl Inner {
    /// Evaluates a plan. `policy` holds the rules of the plan's counters and is `None` for an
    /// inline limit. Memory, leases and the denial cache are used at once, not at the first poll.
    pub(crate) fn evaluate<'a>(
        &'a self,
        mut plan: Box<Plan>,
        policy: Option<&'a Policy>,
    ) -> Evaluation<'a> {
        match &self.engine {
            Engine::Memory(memory) => {
                self.evaluate_noting_room(memory, &mut plan);
                Evaluation::Complete(Some(Evaluated { plan, charged_here: None }))
            }
            #[cfg(feature = "redis")]
            Engine::Redis(redis) => self.evaluate_on_store(redis, plan, policy),
        }
    }

    /// Evaluates a plan in memory, and lets waiting callers try again if it refunds.
    pub(super) fn evaluate_noting_room(&self, memory: &Memory, plan: &mut Plan) {
        let is_refund = |follow_up: &FollowUp<_>| matches!(follow_up.change, Change::Refund(_));
        let refunds = plan.follow_ups.iter().any(is_refund);
        evaluate_in_memory(memory, plan);
        if refunds {
            self.note_room();
        }
    }
}

/// Evaluates a plan in memory, then makes the corrections that follow the decision.
#[inline]
pub(super) fn evaluate_in_memory<L: LimitHandle>(memory: &Memory, plan: &mut Plan<L>) {
    if plan.asks() {
        let (transaction, mut pending) = plan.split();
        memory.decide_into(transaction, |reply| pending.take(ChargeOutcome::Store(reply)));
    }
    if !plan.follow_ups.is_empty() || plan.opening.is_some() {
        follow_up(memory, plan);
    }
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
pub(super) fn deny_if_full(counters: &mut [CounterOutcome], noted: &Noted) {
    let deciding = |counter: &&mut CounterOutcome| counter.decides();
    if noted.full
        && counters.iter_mut().filter(deciding).all(|counter| counter.waits_for_no_limit())
    {
        counters.iter_mut().filter(deciding).for_each(CounterOutcome::refuse_overloaded);
    }
}
