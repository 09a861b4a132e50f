//! The outcome of one counter. It is kept small, because a decision is moved more often than it is
//! read.

use std::sync::Arc;

use super::{Reason, Source};
use crate::counter::ChargeReply;
use crate::limit::Limit;
use crate::policy::{Matched, Mode};

/// The outcome of one counter. Its names are still in the policy.
#[derive(Clone, Debug)]
pub struct CounterOutcome {
    /// The index of its rule in the policy; none for an inline limit.
    pub rule: Known<u32>,
    /// The override in force, if any.
    pub overridden: Known<u32>,
    /// The position of the limit in its rule, which has at most 64.
    pub limit: u16,
    /// Whether its rule is a shadow rule, which takes no part in the decision.
    pub shadow: bool,
    /// Whether the counter takes no part in the decision, because it is post-paid or only refunded
    /// to.
    pub advisory: bool,
    /// The reason why the counter denies; `None` if it allows.
    pub denied: Option<Reason>,
    /// The part of Spillgate that evaluated it. `None` if none did: the limit blocks or is
    /// unlimited, or another counter had denied before.
    pub source: Option<Source>,
    /// Whether the store works but could not answer in time. The source is the local fallback or
    /// the outage policy then.
    pub overloaded: bool,
    /// The capacity of the limit.
    pub capacity: Known<u64>,
    /// The largest cost that it would allow now.
    pub remaining: Known<u64>,
    /// The time until it would allow the cost.
    pub retry_after_us: Known<u64>,
    /// The time until it is full again.
    pub reset_after_us: Known<u64>,
    /// The limit in force if the request brought it: one that it asked for, or an inline limit beside
    /// other counters.
    pub brought: Option<Arc<Limit>>,
}

/// A number that may be absent, in the space of one number. The largest value stands for none: no
/// real value comes near it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Known<T>(T);

impl CounterOutcome {
    /// Returns the outcome of a counter of a matched rule before it is evaluated.
    #[inline]
    pub fn unknown(matched: &Matched<'_>, position: usize) -> CounterOutcome {
        CounterOutcome {
            rule: Some(matched.rule_index).into(),
            overridden: matched.overridden.into(),
            limit: position as u16,
            shadow: matched.rule.mode() == Mode::Shadow,
            ..CounterOutcome::inline()
        }
    }

    /// Takes over a reply of the store or of the local fallback. A denial that was certain before
    /// the call stays.
    #[inline]
    pub fn take(&mut self, reply: &ChargeReply, source: Source) {
        self.source = Some(source);
        self.remaining = Some(reply.reading.remaining).into();
        self.reset_after_us = Some(reply.reading.reset_after_us).into();
        if self.allows() {
            self.denied = (!reply.fits).then_some(Reason::LimitExceeded);
            self.retry_after_us = reply.reading.retry_after_us.into();
        }
    }

    /// Returns the outcome of an inline limit's counter before it is evaluated.
    #[inline]
    pub fn inline() -> CounterOutcome {
        CounterOutcome {
            rule: None.into(),
            overridden: None.into(),
            limit: 0,
            shadow: false,
            advisory: false,
            denied: None,
            source: None,
            overloaded: false,
            capacity: None.into(),
            remaining: None.into(),
            retry_after_us: None.into(),
            reset_after_us: None.into(),
            brought: None,
        }
    }

    /// Returns whether the counter has room for its cost.
    #[inline]
    pub fn allows(&self) -> bool {
        self.denied.is_none()
    }

    /// Returns whether the counter takes part in the decision.
    pub fn decides(&self) -> bool {
        !self.shadow && !self.advisory
    }

    /// Returns whether the counter denies the decision.
    #[inline]
    pub fn denies(&self) -> bool {
        self.decides() && !self.allows()
    }

    /// Returns whether no limit denies the counter: it is allowed, or an outage policy denies it.
    pub fn waits_for_no_limit(&self) -> bool {
        matches!(self.denied, None | Some(Reason::StoreUnavailable | Reason::Overloaded))
    }

    /// Denies the counter because there is no room for its reservation record.
    pub fn refuse_overloaded(&mut self) {
        self.denied = Some(Reason::Overloaded);
        self.source = Some(Source::OutagePolicy);
        self.overloaded = true;
        self.retry_after_us = None.into();
    }

    /// Allows the counter because an earlier call has already charged it. The quota left now does
    /// not matter.
    pub fn admit(&mut self) {
        self.denied = None;
        self.retry_after_us = Some(0).into();
    }

    /// Returns the limit in force if the request brought it: one that it asked for, or an inline
    /// limit beside other counters.
    pub fn brought(&self) -> Option<&Limit> {
        self.brought.as_deref()
    }
}

macro_rules! known {
    ($number:ident) => {
        impl From<Option<$number>> for Known<$number> {
            #[inline]
            fn from(number: Option<$number>) -> Known<$number> {
                Known(number.unwrap_or($number::MAX))
            }
        }

        impl Known<$number> {
            /// Returns the number, if there is one.
            #[inline]
            pub fn number(self) -> Option<$number> {
                Some(self.0).filter(|number| *number != $number::MAX)
            }
        }
    };
}

known!(u32);
known!(u64);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::decision::Decision;

    #[test]
    fn a_decision_is_moved_in_nine_instructions_of_sixteen_bytes() {
        assert_eq!((size_of::<CounterOutcome>(), size_of::<Decision>()), (56, 136));
    }
}
