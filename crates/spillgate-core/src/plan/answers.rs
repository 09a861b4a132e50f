//! The outcomes of a plan's charges, on their way into the outcomes of its counters.

use super::{Cause, ChargeOutcome};
use crate::counter::PlannedCharge;
use crate::decision::{CounterOutcome, CounterOutcomes, Reason, Source};

/// Receives the outcome of each charge of a plan, in order.
pub struct Answers<'a, L> {
    pub(super) counters: &'a mut CounterOutcomes,
    pub(super) asked: &'a [PlannedCharge<L>],
    /// The outcomes so far, if each counter has a charge under both secrets.
    pub(super) twins: Option<Vec<ChargeOutcome>>,
    pub(super) number: usize,
}

impl<L> Answers<'_, L> {
    /// Passes the outcome of the next charge to its counter. Of two charges of one counter, the
    /// stricter outcome counts.
    #[inline]
    pub fn take(&mut self, outcome: ChargeOutcome) {
        let index = self.asked[self.number].index;
        let mut stricter = Some(outcome);
        if let Some(twins) = &mut self.twins {
            let first = self.asked[..twins.len()].iter().position(|other| other.index == index);
            stricter = first.map(|first| twins[first].and(outcome));
            twins.push(outcome);
        }
        if let Some(outcome) = stricter {
            apply(outcome, &mut self.counters[usize::from(index)]);
        }
        self.number += 1;
    }
}

#[inline]
fn apply(outcome: ChargeOutcome, counter: &mut CounterOutcome) {
    match outcome {
        ChargeOutcome::Store(reply) => counter.take(&reply, Source::Store),
        ChargeOutcome::Fallback(reply, cause) => {
            counter.take(&reply, Source::Fallback);
            counter.overloaded = cause == Cause::Overload;
        }
        ChargeOutcome::OutagePolicy { passes, cause } => {
            apply_outage_policy(counter, passes, cause);
        }
        ChargeOutcome::Remembered { retry_after_us, remaining, reset_after_us } => {
            counter.source = Source::DenialCache;
            counter.denied = Some(Reason::LimitExceeded);
            counter.retry_after_us = retry_after_us.into();
            counter.remaining = remaining.into();
            counter.reset_after_us = reset_after_us.into();
        }
        // Its numbers stay unknown.
        ChargeOutcome::Refunded | ChargeOutcome::NotAsked => {}
    }
}

/// Applies a rule's `on_outage` to a counter. Its numbers are unknown then.
fn apply_outage_policy(counter: &mut CounterOutcome, passes: bool, cause: Cause) {
    counter.source = Source::OutagePolicy;
    counter.overloaded = cause == Cause::Overload;
    // A denial that was certain before the call stays.
    if counter.allows() {
        let reason = match cause {
            Cause::Outage => Reason::StoreUnavailable,
            Cause::Overload => Reason::Overloaded,
        };
        counter.denied = Some(reason).filter(|_| !passes);
        counter.retry_after_us = Some(0).filter(|_| passes).into();
    }
}
