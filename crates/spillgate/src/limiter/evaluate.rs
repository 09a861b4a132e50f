//! Evaluates a plan: in memory, or on the store that several instances share.

use std::mem;
use std::time::Duration;

use super::Inner;
use crate::counter::{Change, LimitHandle};
use crate::decision::Source;
use crate::engine::{Engine, Memory};
use crate::plan::{Evaluated, FollowUp, Plan, RecordReply};
use crate::policy::Policy;
use crate::reservation::Group;

impl Inner {
    /// Evaluates a plan. `policy` holds the rules of the plan's counters and is `None` for an inline limit. The caller waits
    /// at most `within` for the store, if that is given.
    pub async fn evaluate(
        &self,
        mut plan: Box<Plan>,
        policy: Option<&Policy>,
        within: Option<Duration>,
    ) -> Evaluated {
        match &self.engine {
            Engine::Memory(memory) => {
                self.evaluate_noting_room(memory, &mut plan);
                let receipt = plan.receipt();
                Evaluated { plan, receipt }
            }
            Engine::Redis(store) => store.evaluate_one(plan, policy, within).await,
        }
    }

    /// Evaluates a plan in memory, and lets waiting callers try again if it refunds.
    pub fn evaluate_noting_room(&self, memory: &Memory, plan: &mut Plan) {
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
pub fn evaluate_in_memory<L: LimitHandle>(memory: &Memory, plan: &mut Plan<L>) {
    if plan.asks() {
        let counters = &mut plan.outcomes[..];
        let (_, record) = memory.decide_into(&plan.transaction, |asked, reply| {
            counters[usize::from(asked.index)].take(&reply, Source::Store);
        });
        if let RecordReply::Opened(opened) = record {
            let tag = plan.transaction.charges.first().map_or(0, |counter| counter.key.tag);
            let group = || Group { tag, counters: None };
            plan.noted.get_or_insert_default().note(opened, group);
        }
    }
    if !plan.follow_ups.is_empty() || plan.opening.is_some() {
        follow_up(memory, plan);
    }
}

fn follow_up<L: LimitHandle>(memory: &Memory, plan: &mut Plan<L>) {
    let follow_ups = mem::take(&mut plan.follow_ups);
    let charges_anew = plan.charges_anew();
    // Without room for its record, the decision charged nothing.
    let is_full = plan.noted.as_ref().is_some_and(|noted| noted.full);
    // A repeated reservation was corrected the first time.
    for follow_up in follow_ups.iter().filter(|_| charges_anew) {
        if is_full || follow_up.stands(&plan.outcomes) {
            let (_, reply) = memory.change(&follow_up.counter, follow_up.change);
            follow_up.done(&reply, &mut plan.outcomes);
        }
    }
    plan.deny_if_full();
}
