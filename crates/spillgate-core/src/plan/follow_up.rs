//! Corrections of counters after the decision.

use crate::counter::{Change, ChargeReply, PlannedCharge};
use crate::decision::{CounterOutcome, Reason, Source};

/// A change to one counter that is made whether the decision allows or denies, unless the decision
/// has made it already.
#[derive(Debug)]
pub struct FollowUp<L> {
    /// The counter to change.
    pub counter: PlannedCharge<L>,
    /// The change.
    pub change: Change,
}

impl<L> FollowUp<L> {
    /// Returns whether the change must still be made. A forced charge is done if the decision
    /// allowed and the counter had room. A counter that a local share or `on_outage` decided gets
    /// none: its store would not answer now either.
    pub fn stands(&self, counters: &[CounterOutcome]) -> bool {
        let counter = &counters[usize::from(self.counter.index)];
        let allowed = || !counters.iter().any(CounterOutcome::denies);
        let is_done = matches!(self.change, Change::Force(_)) && counter.allows() && allowed();
        let is_degraded = matches!(counter.source, Some(Source::Fallback | Source::OutagePolicy));
        !is_done && !is_degraded
    }

    /// Updates the counter's outcome with the store's reply to the change. A denied charge keeps its
    /// outcome: a refund beside it makes room for the next call only.
    pub fn done(&self, reply: &ChargeReply, counters: &mut [CounterOutcome]) {
        let counter = &mut counters[usize::from(self.counter.index)];
        if !counter.advisory && !counter.allows() {
            return;
        }
        counter.source = Some(Source::Store);
        counter.remaining = Some(reply.reading.remaining).into();
        counter.reset_after_us = Some(reply.reading.reset_after_us).into();
        if matches!(self.change, Change::Refund(_)) && counter.advisory {
            let has_room = reply.reading.remaining > 0;
            counter.denied = Some(Reason::LimitExceeded).filter(|_| !has_room);
            let wait_us = if has_room { Some(0) } else { reply.reading.retry_after_us };
            counter.retry_after_us = wait_us.into();
        }
    }
}
