//! The outcomes of counters that a plan has charges for, filled in by the outcomes of these charges.

use super::{Cause, ChargeOutcome};
use crate::counter::PlannedCharge;
use crate::decision::{CounterOutcome, CounterOutcomes, Reason, Source};

/// The outcomes of a plan's counters. It receives the outcome of each charge of the plan, in order.
pub struct PendingOutcomes<'a, L> {
    pub(crate) outcomes: &'a mut CounterOutcomes,
    pub(crate) charges: &'a [PlannedCharge<L>],
    /// The index of the next charge.
    pub(crate) next: usize,
}

impl<L> PendingOutcomes<'_, L> {
    /// Passes the outcome of the next charge to its counter.
    #[inline(always)] // with `apply`: else the outcome is moved, and most callers have one kind of it
    pub fn take(&mut self, outcome: ChargeOutcome) {
        apply(outcome, &mut self.outcomes[usize::from(self.charges[self.next].index)]);
        self.next += 1;
    }
}

#[inline(always)] // with `take`
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
            counter.source = Some(Source::DenialCache);
            counter.denied = Some(Reason::LimitExceeded);
            counter.retry_after_us = retry_after_us.into();
            counter.remaining = remaining.into();
            counter.reset_after_us = reset_after_us.into();
        }
        // The numbers of these two stay unknown.
        ChargeOutcome::Refunded => counter.source = Some(Source::Store),
        ChargeOutcome::NotAsked => {}
    }
}

/// Applies a rule's `on_outage` to a counter. Its numbers are unknown then.
fn apply_outage_policy(counter: &mut CounterOutcome, passes: bool, cause: Cause) {
    counter.source = Some(Source::OutagePolicy);
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limit::{Limit, NamedLimit};
    use crate::subject::SubjectKey;

    /// The metrics counted a rule whose charge was refunded as if no source had been asked.
    #[test]
    fn a_refunded_charge_has_the_store_as_its_source_and_one_not_asked_has_none() {
        let key = SubjectKey { tag: 0, id: 0, rule: 0 };
        let charges = [PlannedCharge::new(key, NamedLimit::new(Limit::per_day(1), 0))];
        let source_of = |outcome| {
            let mut outcomes: CounterOutcomes = [CounterOutcome::inline()].into_iter().collect();
            let (outcomes, charges) = (&mut outcomes, &charges[..]);
            let mut pending = PendingOutcomes { outcomes, charges, next: 0 };
            pending.take(outcome);
            pending.outcomes[0].source
        };
        assert_eq!(source_of(ChargeOutcome::Refunded), Some(Source::Store));
        assert_eq!(source_of(ChargeOutcome::NotAsked), None);
    }
}
