//! How a reservation ended.

use std::fmt;

/// How a reservation ended, as a second reservation under its id is answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Ended {
    /// It was settled.
    Settled,
    /// It was cancelled.
    Cancelled,
    /// It was released.
    Released,
    /// Its time passed before it was settled: it stays charged at its estimate.
    Expired,
    /// It is open, but a permit of it is held no longer: its limit's `max_hold` has passed, or the permit was
    /// reset or lost.
    PermitEnded,
}

impl Ended {
    /// Returns the word for it: `settled`, `cancelled`, `released`, `expired`, `permit-ended`.
    pub fn name(self) -> &'static str {
        match self {
            Ended::Settled => "settled",
            Ended::Cancelled => "cancelled",
            Ended::Released => "released",
            Ended::Expired => "expired",
            Ended::PermitEnded => "permit-ended",
        }
    }

    /// Returns how the ending of a mark ends a reservation. A record that no call has ended has mark 0.
    pub(crate) fn by_mark(mark: u64) -> Ended {
        match mark & MARK_KIND {
            MARK_CANCELLED => Ended::Cancelled,
            MARK_RELEASED => Ended::Released,
            MARK_SETTLED => Ended::Settled,
            _ => Ended::Expired,
        }
    }
}

impl fmt::Display for Ended {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The bits of a mark that say what kind of ending it is of; the others tell one settlement from another.
pub(super) const MARK_KIND: u64 = 3;
pub(super) const MARK_CANCELLED: u64 = 1;
pub(super) const MARK_RELEASED: u64 = 2;
pub(super) const MARK_SETTLED: u64 = 3;
