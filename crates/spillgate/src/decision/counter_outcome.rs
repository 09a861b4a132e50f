//! One counter of a decision as it was judged. It is small, for a decision is moved more often than it is read.

use std::sync::Arc;

use super::{Reason, Source};
use crate::algorithm::Charge;
use crate::counter::ChargeReply;
use crate::limit::Limit;
use crate::policy::{Matched, Mode};
use crate::reservation::Receipt;

/// One counter as it was judged, its names still in the policy.
#[derive(Clone, Debug)]
pub(crate) struct CounterOutcome {
    pub(crate) rule: u32,
    pub(crate) overridden: Known<u32>,
    /// A rule has 64 limits at most.
    pub(crate) limit: u16,
    pub(crate) shadow: bool,
    /// Post-paid, or refunded to: no part in the verdict.
    pub(crate) advisory: bool,
    /// Why the counter denies; `None` if it allows.
    pub(crate) denied: Option<Reason>,
    pub(crate) source: Source,
    /// Whether the store works and could not answer in time, where the source is the outage policy.
    pub(crate) overloaded: bool,
    pub(crate) capacity: Known<u64>,
    pub(crate) remaining: Known<u64>,
    pub(crate) retry_after_us: Known<u64>,
    pub(crate) reset_after_us: Known<u64>,
    pub(crate) rare: Option<Box<Rare>>,
}

/// What few decisions have.
#[derive(Clone, Debug, Default)]
pub(crate) struct Rare {
    /// Only receipts ask for it.
    charge: Option<Charge>,
    /// The limit in force where the caller asked for one below the rule's.
    narrowed: Option<Arc<Limit>>,
    /// The receipt of the whole decision, kept with the first counter.
    receipt: Option<Receipt>,
}

/// A number that may be absent, in the room of one: what is counted here ends far below the largest,
/// which stands for none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Known<T>(T);

impl CounterOutcome {
    /// A counter of a rule that was met, before it is judged.
    #[inline]
    pub(crate) fn unknown(matched: &Matched<'_>, position: usize) -> CounterOutcome {
        CounterOutcome {
            rule: matched.rule_index,
            overridden: matched.overridden.into(),
            limit: position as u16,
            shadow: matched.rule.mode() == Mode::Shadow,
            ..CounterOutcome::inline()
        }
    }

    /// Takes over what a store, or this instance in its place, decided. A denial that was certain before stays.
    #[inline]
    pub(crate) fn take(&mut self, reply: &ChargeReply, source: Source) {
        self.source = source;
        self.remaining = Some(reply.reading.remaining).into();
        self.reset_after_us = Some(reply.reading.reset_after_us).into();
        self.set_charge(reply.charge);
        if self.allows() {
            self.denied = (!reply.fits).then_some(Reason::LimitExceeded);
            self.retry_after_us = reply.reading.retry_after_us.into();
        }
    }

    /// The one counter of a limit that came with the request, before it is judged.
    #[inline]
    pub(crate) fn inline() -> CounterOutcome {
        CounterOutcome {
            rule: 0,
            overridden: None.into(),
            limit: 0,
            shadow: false,
            advisory: false,
            denied: None,
            source: Source::Store,
            overloaded: false,
            capacity: None.into(),
            remaining: None.into(),
            retry_after_us: None.into(),
            reset_after_us: None.into(),
            rare: None,
        }
    }

    /// Returns whether the counter has room for its cost.
    #[inline]
    pub(crate) fn allows(&self) -> bool {
        self.denied.is_none()
    }

    /// Returns whether the counter has a part in the decision.
    pub(crate) fn decides(&self) -> bool {
        !self.shadow && !self.advisory
    }

    /// Whether no limit denies it: it is allowed, or an outage policy denies it.
    pub(crate) fn waits_for_no_limit(&self) -> bool {
        matches!(self.denied, None | Some(Reason::StoreUnavailable | Reason::Overloaded))
    }

    /// Denies it because there is no room for a record of it.
    pub(crate) fn refuse_overloaded(&mut self) {
        self.denied = Some(Reason::Overloaded);
        self.source = Source::OutagePolicy;
        self.overloaded = true;
        self.retry_after_us = None.into();
    }

    /// It was admitted before, however it stands now.
    #[cfg(feature = "redis")]
    pub(crate) fn admit(&mut self) {
        self.denied = None;
        self.retry_after_us = Some(0).into();
    }

    /// What a receipt needs to give the charge back.
    pub(super) fn charge(&self) -> Option<Charge> {
        self.rare.as_ref().and_then(|rare| rare.charge)
    }

    #[inline]
    pub(crate) fn set_charge(&mut self, charge: Option<Charge>) {
        if charge.is_some() {
            self.rare.get_or_insert_default().charge = charge;
        }
    }

    /// The limit in force where the caller asked for one below the rule's.
    pub(crate) fn narrowed(&self) -> Option<&Limit> {
        self.rare.as_ref().and_then(|rare| rare.narrowed.as_deref())
    }

    pub(crate) fn set_narrowed(&mut self, limit: Arc<Limit>) {
        self.rare.get_or_insert_default().narrowed = Some(limit);
    }

    pub(super) fn receipt(&self) -> Option<&Receipt> {
        self.rare.as_ref().and_then(|rare| rare.receipt.as_ref())
    }

    pub(super) fn set_receipt(&mut self, receipt: Receipt) {
        self.rare.get_or_insert_default().receipt = Some(receipt);
    }
}

impl From<Option<u64>> for Known<u64> {
    #[inline]
    fn from(number: Option<u64>) -> Known<u64> {
        Known(number.unwrap_or(u64::MAX))
    }
}

impl From<Option<u32>> for Known<u32> {
    #[inline]
    fn from(number: Option<u32>) -> Known<u32> {
        Known(number.unwrap_or(u32::MAX))
    }
}

impl Known<u64> {
    #[inline]
    pub(crate) fn number(self) -> Option<u64> {
        Some(self.0).filter(|number| *number != u64::MAX)
    }
}

impl Known<u32> {
    #[inline]
    pub(crate) fn number(self) -> Option<u32> {
        Some(self.0).filter(|number| *number != u32::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::decision::Decision;

    #[test]
    fn a_decision_is_moved_in_eight_instructions_of_sixteen_bytes() {
        assert_eq!((size_of::<CounterOutcome>(), size_of::<Decision>()), (56, 128));
    }
}
