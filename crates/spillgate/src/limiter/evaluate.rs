//! From a plan to what became of each of its counters, in memory or on a store.
//!
//! On a store: leases pay what they can, a remembered denial answers, and the store decides the rest. Only that
//! takes a future.

use std::mem;
use std::sync::Arc;

use super::Inner;
use crate::counter::HoldsLimit;
use crate::decision::{Judged, Tiers};
use crate::engine::{Engine, Memory};
use crate::plan::Plan;
use crate::policy::Policy;
use crate::reservation::{Noted, Opening};

#[cfg(feature = "redis")]
mod on_store;

#[cfg(feature = "redis")]
pub(super) use crate::fallback::ChargedHere;

/// What became of a plan.
pub(crate) struct Evaluated {
    pub(crate) tiers: Tiers,
    /// The record that the plan was to open.
    pub(super) opening: Option<Arc<Opening>>,
    /// What this instance charged by itself to a reservation; it has no record yet.
    pub(super) charged_here: ChargedHere,
}

/// Without a store this instance charges nothing in its place.
#[cfg(not(feature = "redis"))]
#[derive(Default)]
pub(super) struct ChargedHere {}

impl Inner {
    /// Decides a plan. `policy` holds the rules of the plan's counters; a limit that came with the request has none.
    pub(crate) async fn evaluate(&self, mut plan: Box<Plan>, policy: Option<&Policy>) -> Evaluated {
        match &self.engine {
            Engine::Memory(memory) => {
                let _ = policy;
                evaluate_in(memory, &mut plan)
            }
            #[cfg(feature = "redis")]
            Engine::Redis(redis) => self.evaluate_on(redis, plan, policy).await,
        }
    }

    /// Decides each of several plans by itself, in order, in as few calls to the store as it takes.
    pub(super) async fn evaluate_each(
        &self,
        plans: Vec<(Box<Plan>, Option<&Policy>)>,
    ) -> Vec<Evaluated> {
        match &self.engine {
            Engine::Memory(memory) => {
                plans.into_iter().map(|(mut plan, _)| evaluate_in(memory, &mut plan)).collect()
            }
            #[cfg(feature = "redis")]
            Engine::Redis(redis) => Box::pin(self.evaluate_each_on(redis, plans)).await,
        }
    }
}

/// Decides a plan in memory, then makes the corrections that are due after the decision.
#[inline]
pub(super) fn evaluate_in<L: HoldsLimit>(memory: &Memory, plan: &mut Plan<L>) -> Evaluated {
    if plan.asks() {
        let (ask, mut answers) = plan.split();
        memory.decide_each(ask, |told| answers.take(told));
    }
    if !plan.dues.is_empty() || plan.opening.is_some() {
        follow_up(memory, plan);
    }
    let tiers = mem::take(&mut plan.judged);
    Evaluated { tiers, opening: plan.opening.take(), charged_here: ChargedHere::default() }
}

fn follow_up<L: HoldsLimit>(memory: &Memory, plan: &mut Plan<L>) {
    let noted = plan.noted();
    let dues = mem::take(&mut plan.dues);
    for due in dues.iter().filter(|_| noted.charges_anew()) {
        if due.stands(&plan.judged) {
            let (_, told) = memory.change(&due.tier, due.change);
            due.done(&told, &mut plan.judged);
        }
    }
    deny_if_full(&mut plan.judged, &noted);
}

/// Denies what the limits allow where there is no room for its record: without one nothing could settle or
/// release it.
pub(super) fn deny_if_full(tiers: &mut Tiers, noted: &Noted) {
    let deciding = |tier: &&mut Judged| tier.decides();
    if noted.full && tiers.iter_mut().filter(deciding).all(|tier| tier.waits_for_no_limit()) {
        tiers.iter_mut().filter(deciding).for_each(Judged::refuse_overloaded);
    }
}
