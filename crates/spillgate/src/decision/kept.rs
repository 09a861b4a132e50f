//! The counters of a decision as it keeps them.

use super::{Judged, Tiers};
use crate::reservation::Receipt;

/// The counters of a decision. Most have one, and need no memory of their own.
#[derive(Clone)]
pub(super) enum Kept {
    One(Judged),
    Several(Box<[Judged]>),
    /// No rule matched, and a reservation was made all the same.
    NothingReserved(Receipt),
}

impl Kept {
    pub(super) fn as_slice(&self) -> &[Judged] {
        match self {
            Kept::One(tier) => std::slice::from_ref(tier),
            Kept::Several(tiers) => tiers,
            Kept::NothingReserved(_) => &[],
        }
    }

    /// Keeps it with the first tier, or alone where there is none.
    pub(super) fn set_receipt(&mut self, receipt: Receipt) {
        let first = match self {
            Kept::One(tier) => Some(tier),
            Kept::Several(tiers) => tiers.first_mut(),
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
            Kept::One(_) | Kept::Several(_) => self.as_slice().first().and_then(Judged::receipt),
        }
    }
}

impl From<Tiers> for Kept {
    #[inline]
    fn from(mut tiers: Tiers) -> Kept {
        if tiers.len() == 1
            && let Some(one) = tiers.pop()
        {
            return Kept::One(one);
        }
        Kept::Several(tiers.into_boxed_slice())
    }
}
