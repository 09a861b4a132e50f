//! The outcome of each charge of a plan, and its source: the store, this instance alone, or the
//! rule's `on_outage`.

use smallvec::SmallVec;

use crate::counter::ChargeReply;
use crate::decision::{CounterOutcome, Reason, Source};

/// The outcome of one charge, and its source.
#[derive(Clone, Copy, Debug)]
pub enum ChargeOutcome {
    /// The store evaluated it: Redis, or memory if there is none.
    Store(ChargeReply),
    /// This instance evaluated it, by its local share of the limit.
    Fallback(ChargeReply, Cause),
    /// The rule's `on_outage` decided.
    OutagePolicy {
        /// Whether it allows.
        passes: bool,
        /// Why the store did not evaluate the charge.
        cause: Cause,
    },
    /// The denial cache holds an earlier denial that still applies. Unknown numbers are `None`.
    Remembered {
        /// The rest of the wait.
        retry_after_us: Option<u64>,
        /// The quota left.
        remaining: Option<u64>,
        /// The time until the counter is full again.
        reset_after_us: Option<u64>,
    },
    /// The store charged it, and the charge was refunded because another counter denied. The
    /// counter's state since then is unknown.
    Refunded,
    /// It was not evaluated, because another counter had denied already.
    NotAsked,
}

impl ChargeOutcome {
    /// Passes the outcome to its counter.
    #[inline]
    pub fn apply(self, counter: &mut CounterOutcome) {
        match self {
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
}

/// Why the store did not evaluate a charge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// The shard is out of reach.
    Outage,
    /// The shard works but did not answer in time.
    Overload,
}

/// The outcome of each charge, in the order of the transaction.
pub type ChargeOutcomes = SmallVec<[ChargeOutcome; 1]>;

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

    /// The metrics counted a rule whose charge was refunded as if no source had been asked.
    #[test]
    fn a_refunded_charge_has_the_store_as_its_source_and_one_not_asked_has_none() {
        let source_of = |outcome: ChargeOutcome| {
            let mut counter = CounterOutcome::inline();
            outcome.apply(&mut counter);
            counter.source
        };
        assert_eq!(source_of(ChargeOutcome::Refunded), Some(Source::Store));
        assert_eq!(source_of(ChargeOutcome::NotAsked), None);
    }
}
