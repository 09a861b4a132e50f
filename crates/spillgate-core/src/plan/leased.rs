//! Pays for counters of a plan with leases, before the store evaluates the rest.

use super::Plan;
use crate::algorithm::Intent;
use crate::decision::{CounterOutcome, Source};
use crate::plan::RecordAction;

impl Plan {
    /// Returns whether leases may pay for any counter of the plan. They may if the plan charges,
    /// opens no record and has no follow-ups. Shadow rules must be absent, since the store
    /// evaluates those with the enforced ones.
    pub fn may_be_leased(&self) -> bool {
        self.transaction.intent == Intent::Charge
            && matches!(self.transaction.record, RecordAction::None)
            && self.follow_ups.is_empty()
            && self.transaction.charges.iter().all(|counter| counter.group == 0)
            && self.outcomes.iter().all(|counter| counter.brought().is_none())
    }

    /// Marks charge `number` as paid by a lease and removes it from the transaction.
    pub fn paid(&mut self, number: usize, remaining: u64) {
        let counter = self.transaction.charges.remove(number);
        self.outcomes[usize::from(counter.index)].pay(remaining);
    }
}

impl CounterOutcome {
    /// Allows the counter, paid by a lease that has `remaining` tokens left.
    pub fn pay(&mut self, remaining: u64) {
        self.denied = None;
        self.source = Some(Source::Lease);
        self.remaining = Some(remaining).into();
        self.retry_after_us = Some(0).into();
    }
}
