//! Counters of a plan that leases pay for, before the store is asked for the rest.

use super::Plan;
use crate::algorithm::Intent;
use crate::decision::{CounterOutcome, Source};
use crate::plan::RecordAction;

impl Plan {
    /// Whether any of it may be decided ahead: it charges, leaves no record, and nothing follows it. What is
    /// charged under two secrets has two counters for one; and shadow rules are judged where the others are.
    pub(crate) fn may_be_leased(&self) -> bool {
        self.transaction.intent == Intent::Charge
            && matches!(self.transaction.record, RecordAction::None)
            && self.follow_ups.is_empty()
            && !self.twofold
            && self.transaction.counters.iter().all(|counter| counter.group == 0)
            && self.counters.iter().all(|counter| counter.narrowed().is_none())
    }

    /// A lease pays for the counter asked at a position; it is asked no more.
    pub(crate) fn paid(&mut self, number: usize, remaining: u64) {
        let counter = self.transaction.counters.remove(number);
        self.counters[usize::from(counter.index)].pay(remaining);
    }
}

impl CounterOutcome {
    /// A lease has room for it.
    pub(crate) fn pay(&mut self, remaining: u64) {
        self.denied = None;
        self.source = Source::Lease;
        self.remaining = Some(remaining).into();
        self.retry_after_us = Some(0).into();
    }
}
