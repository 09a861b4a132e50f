//! From a plan to what became of each of its counters, in memory or on a store.
//!
//! On a store: leases pay what they can, a remembered denial answers, and the store decides the rest. Only that
//! takes a future.

use std::mem;
use std::pin::Pin;

use super::Inner;
use crate::decision::{Judged, Tiers};
use crate::engine::{Engine, Memory};
use crate::plan::Plan;
use crate::reservation::{Noted, Opening};

#[cfg(feature = "redis")]
mod on_store;

#[cfg(feature = "redis")]
pub(super) use crate::fallback::ChargedHere;

/// What became of a plan.
pub(crate) struct Evaluated {
    pub(crate) tiers: Tiers,
    /// What this instance charged by itself to a reservation; it has no record yet.
    pub(super) charged_here: ChargedHere,
}

/// What becomes of a plan, at once or when the store has answered.
#[expect(clippy::large_enum_variant, reason = "a decision that is ready allocates nothing")]
pub(crate) enum Evaluation<'e> {
    Ready(Evaluated),
    #[cfg_attr(not(feature = "redis"), expect(dead_code, reason = "memory decides at once"))]
    OnStore(Pin<Box<dyn Future<Output = Evaluated> + Send + 'e>>),
}

/// Without a store this instance charges nothing in its place.
#[cfg(not(feature = "redis"))]
#[derive(Default)]
pub(super) struct ChargedHere {}

impl Inner {
    /// Decides a plan. Where it opens a record, `opening` is that record.
    pub(crate) fn evaluate<'e, 'p: 'e>(
        &'e self,
        mut plan: Plan<'p>,
        opening: Option<&'p Opening>,
    ) -> Evaluation<'e> {
        match &self.engine {
            Engine::Memory(memory) => Evaluation::Ready(evaluate_in(memory, &mut plan, opening)),
            #[cfg(feature = "redis")]
            Engine::Redis(redis) => self.evaluate_on(redis, plan, opening),
        }
    }

    /// Decides each of several plans by itself, in order, in as few calls to the store as it takes.
    pub(super) async fn evaluate_each<'p>(
        &self,
        plans: impl Iterator<Item = (Plan<'p>, Option<&'p Opening>)>,
    ) -> Vec<Evaluated> {
        #[cfg(feature = "redis")]
        if let Engine::Redis(redis) = &self.engine {
            return Box::pin(self.evaluate_each_on(redis, plans.collect())).await;
        }
        let mut each = Vec::with_capacity(plans.size_hint().0);
        for (plan, opening) in plans {
            each.push(self.evaluate(plan, opening).done().await);
        }
        each
    }
}

/// Decides a plan in memory, then makes the corrections that are due after the decision.
#[inline]
pub(super) fn evaluate_in(
    memory: &Memory,
    plan: &mut Plan<'_>,
    opening: Option<&Opening>,
) -> Evaluated {
    if plan.asks() {
        let (ask, mut answers) = plan.split();
        memory.decide_each(ask, |told| answers.take(told));
    }
    if !plan.dues.is_empty() || opening.is_some() {
        follow_up(memory, plan, opening);
    }
    Evaluated::from(mem::take(&mut plan.judged))
}

fn follow_up(memory: &Memory, plan: &mut Plan<'_>, opening: Option<&Opening>) {
    let noted = opening.map(Opening::noted).unwrap_or_default();
    let dues = mem::take(&mut plan.dues);
    for due in dues.iter().filter(|_| noted.charges_anew()) {
        if due.stands(&plan.judged) {
            let (_, told) = memory.change(&due.tier, due.change);
            due.done(&told, &mut plan.judged);
        }
    }
    deny_if_full(&mut plan.judged, &noted);
}

impl Evaluation<'_> {
    /// Waits for the store where it was asked.
    #[inline]
    pub(crate) async fn done(self) -> Evaluated {
        match self {
            Evaluation::Ready(evaluated) => evaluated,
            Evaluation::OnStore(waiting) => waiting.await,
        }
    }
}

impl From<Tiers> for Evaluated {
    fn from(tiers: Tiers) -> Evaluated {
        Evaluated { tiers, charged_here: ChargedHere::default() }
    }
}

/// Denies what the limits allow where there is no room for its record: without one nothing could settle or
/// release it.
pub(super) fn deny_if_full(tiers: &mut Tiers, noted: &Noted) {
    let deciding = |tier: &&mut Judged| tier.decides();
    if noted.full && tiers.iter_mut().filter(deciding).all(|tier| tier.waits_for_no_limit()) {
        tiers.iter_mut().filter(deciding).for_each(Judged::refuse_overloaded);
    }
}
