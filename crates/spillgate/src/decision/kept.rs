//! The tiers of a decision as it keeps them: small, for a decision is moved more often than it is read.

use std::sync::Arc;

use super::{Judged, Source, Tiers, Verdict};
use crate::algorithm::Charge;
use crate::algorithm::token_bucket::Charged;
use crate::limit::Limit;
use crate::policy::LimitPlace;
use crate::reservation::Receipt;

/// The tiers of a decision. Most have one, and need no memory of their own.
#[derive(Clone)]
pub(super) enum Kept {
    One(KeptTier),
    Several(Box<[KeptTier]>),
    /// No rule matched, and a reservation was made all the same.
    NothingReserved(Receipt),
}

/// What [`Judged`] says, in less than half the room.
#[derive(Clone)]
pub(super) struct KeptTier {
    pub(super) rule: u32,
    pub(super) overridden: Known<u32>,
    /// A rule has 64 limits at most.
    pub(super) limit: u16,
    pub(super) shadow: bool,
    pub(super) advisory: bool,
    pub(super) verdict: Verdict,
    pub(super) source: Source,
    pub(super) overloaded: bool,
    pub(super) capacity: Known<u64>,
    pub(super) remaining: Known<u64>,
    pub(super) retry_after_us: Known<u64>,
    pub(super) reset_after_us: Known<u64>,
    rare: Option<Box<Rare>>,
}

/// What few decisions have.
#[derive(Clone, Default)]
struct Rare {
    /// Only receipts ask for it.
    charge: Option<Charge>,
    /// Only where a caller asked for less than the rule's limit.
    narrowed: Option<Arc<Limit>>,
    /// The whole decision's, with the first tier.
    receipt: Option<Receipt>,
}

/// A number that may be absent, in the room of one: what is counted here ends far below the largest,
/// which stands for none.
#[derive(Clone, Copy)]
pub(super) struct Known<T>(T);

impl Kept {
    pub(super) fn as_slice(&self) -> &[KeptTier] {
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
            Some(first) => first.rare.get_or_insert_default().receipt = Some(receipt),
            None => *self = Kept::NothingReserved(receipt),
        }
    }

    pub(super) fn receipt(&self) -> Option<&Receipt> {
        match self {
            Kept::NothingReserved(receipt) => Some(receipt),
            Kept::One(_) | Kept::Several(_) => self.as_slice().first().and_then(KeptTier::receipt),
        }
    }
}

impl From<Tiers> for Kept {
    fn from(mut tiers: Tiers) -> Kept {
        match tiers.pop() {
            Some(one) if tiers.is_empty() => Kept::One(one.into()),
            last => {
                tiers.extend(last);
                Kept::Several(tiers.into_iter().map(KeptTier::from).collect())
            }
        }
    }
}

impl From<Judged> for KeptTier {
    #[inline]
    fn from(judged: Judged) -> KeptTier {
        KeptTier {
            rule: judged.rule,
            overridden: judged.overridden.into(),
            limit: judged.limit as u16,
            shadow: judged.shadow,
            advisory: judged.advisory,
            verdict: judged.verdict,
            source: judged.source,
            overloaded: judged.overloaded,
            capacity: judged.capacity.into(),
            remaining: judged.remaining.into(),
            retry_after_us: judged.retry_after_us.into(),
            reset_after_us: judged.reset_after_us.into(),
            rare: match (judged.charge, judged.narrowed) {
                (None, None) => None,
                (charge, narrowed) => Some(Box::new(Rare { charge, narrowed, receipt: None })),
            },
        }
    }
}

impl KeptTier {
    /// A bucket that was charged.
    #[inline]
    pub(super) fn charged(place: LimitPlace, bucket: &Charged) -> KeptTier {
        let Charged { burst, reading } = *bucket;
        KeptTier {
            rule: place.rule,
            overridden: place.overridden.into(),
            limit: place.limit as u16,
            shadow: false,
            advisory: false,
            verdict: Verdict::Allowed,
            source: Source::Store,
            overloaded: false,
            capacity: Known(u64::from(burst)),
            remaining: Known(reading.remaining),
            retry_after_us: reading.retry_after_us.into(),
            reset_after_us: Known(reading.reset_after_us),
            rare: None,
        }
    }

    pub(super) fn charge(&self) -> Option<Charge> {
        self.rare.as_ref().and_then(|rare| rare.charge)
    }

    fn receipt(&self) -> Option<&Receipt> {
        self.rare.as_ref().and_then(|rare| rare.receipt.as_ref())
    }

    pub(super) fn narrowed(&self) -> Option<&Limit> {
        self.rare.as_ref().and_then(|rare| rare.narrowed.as_deref())
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
    pub(super) fn number(self) -> Option<u64> {
        Some(self.0).filter(|number| *number != u64::MAX)
    }
}

impl Known<u32> {
    pub(super) fn number(self) -> Option<u32> {
        Some(self.0).filter(|number| *number != u32::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::decision::Decision;

    #[test]
    fn a_decision_is_moved_in_eight_instructions_of_sixteen_bytes() {
        assert_eq!((size_of::<KeptTier>(), size_of::<Decision>()), (56, 128));
    }
}
