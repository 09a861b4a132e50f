//! The ways in which a reservation ends.

use std::fmt;

use super::{Answer, EndResult, Ending};

/// The way in which a reservation ended. A later call with its id gets this answer.
///
/// `Limiter::reserve` returns it in `ReservationError::Ended`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Ended {
    /// It was settled.
    Settled,
    /// It was cancelled.
    Cancelled,
    /// It was released.
    Released,
    /// Its time passed before it was settled. It stays charged at its estimate.
    Expired,
    /// It is open, but one of its permits is no longer held: the limit's `max_hold` passed, or the
    /// permit was reset or lost.
    PermitEnded,
}

impl Ended {
    /// Returns the word that every API uses: `settled`, `cancelled`, `released`, `expired` or
    /// `permit-ended`.
    pub fn name(self) -> &'static str {
        match self {
            Ended::Settled => "settled",
            Ended::Cancelled => "cancelled",
            Ended::Released => "released",
            Ended::Expired => "expired",
            Ended::PermitEnded => "permit-ended",
        }
    }

    /// Returns the way of ending that a mark stands for. A record that expired has mark 0.
    #[doc(hidden)]
    pub fn by_mark(mark: u64) -> Ended {
        match mark & MARK_KIND {
            MARK_CANCELLED => Ended::Cancelled,
            MARK_RELEASED => Ended::Released,
            MARK_SETTLED => Ended::Settled,
            _ => Ended::Expired,
        }
    }
}

impl Ending<'_> {
    /// Joins the answers of two locations into the answer of the reservation.
    ///
    /// The larger one counts. But a permit that is lost at either location makes a renewal expire:
    /// a location without permits renews its record all the same. A location where the record is
    /// unknown does not count.
    pub fn join(&self, one: Answer, other: Answer) -> Answer {
        let expired = Answer::EndResult(EndResult::Expired);
        match self {
            Ending::Renew { .. } if one == expired || other == expired => expired,
            _ => one.max(other),
        }
    }
}

impl fmt::Display for Ended {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The bits of a mark for the way of ending. The other bits tell one settlement from another.
pub const MARK_KIND: u64 = 3;
pub const MARK_CANCELLED: u64 = 1;
pub const MARK_RELEASED: u64 = 2;
pub const MARK_SETTLED: u64 = 3;
