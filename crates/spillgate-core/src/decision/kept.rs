//! The counters of a finished decision.

use super::{CounterOutcome, CounterOutcomes};
use crate::reservation::Receipt;

/// The counters of a decision. Most decisions have one and allocate nothing.
#[derive(Clone)]
pub(super) enum Kept {
    One(CounterOutcome),
    Several(Box<[CounterOutcome]>),
    /// A reservation that no rule matched: a receipt without counters.
    NothingReserved(Receipt),
}

impl Kept {
    pub(super) fn as_slice(&self) -> &[CounterOutcome] {
        match self {
            Kept::One(counter) => std::slice::from_ref(counter),
            Kept::Several(counters) => counters,
            Kept::NothingReserved(_) => &[],
        }
    }

    /// Stores the receipt with the first counter, or alone if there are no counters.
    pub(super) fn set_receipt(&mut self, receipt: Receipt) {
        let first = match self {
            Kept::One(counter) => Some(counter),
            Kept::Several(counters) => counters.first_mut(),
            Kept::NothingReserved(_) => None,
        };
        match first {
            Some(first) => first.set_receipt(receipt),
            None => *self = Kept::NothingReserved(receipt),
        }
    }

    pub(super) fn receipt(&self) -> Option<&Receipt> {
        match self {
            Kept::NothingReserved(receipt) => Some(receipt),
            Kept::One(_) | Kept::Several(_) => {
                self.as_slice().first().and_then(CounterOutcome::receipt)
            }
        }
    }
}

impl From<CounterOutcomes> for Kept {
    #[inline]
    fn from(mut counters: CounterOutcomes) -> Kept {
        if counters.len() == 1
            && let Some(one) = counters.pop()
        {
            return Kept::One(one);
        }
        Kept::Several(counters.into_boxed_slice())
    }
}
