//! Why a call about a reservation could not be answered.

use std::fmt;
use std::time::Duration;

use super::Ended;

/// Why a reservation could not be made, or nothing be said of one.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ReservationError {
    /// A reservation lasts from 1 ms to 24 hours.
    Lasting(Duration),
    /// The name is in use for another request.
    Conflict,
    /// The reservation under this id has ended: nothing is charged or allowed, and a new attempt needs a
    /// new id.
    Ended(Ended),
    /// It has ended before, and otherwise.
    EndedOtherwise,
    /// Its counters are on more shards or hash slots than a receipt can name.
    TooManyPlaces {
        /// At so many.
        places: usize,
    },
    /// Some of it is done, and some is out of reach: the same call can be made again.
    Retryable {
        /// What is out of reach.
        why: String,
    },
}

impl fmt::Display for ReservationError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ReservationError::Lasting(lasting) => write!(
                f,
                "a reservation cannot last {lasting:?}; choose from 1 ms to 24 h, and renew what takes longer"
            ),
            ReservationError::Conflict => f.write_str(
                "the id is in use for another request; choose another id, or repeat the request that was sent under it",
            ),
            ReservationError::Ended(how) => write!(
                f,
                "the reservation under this id has ended ({how}); make a new attempt under a new id"
            ),
            ReservationError::EndedOtherwise => f.write_str(
                "the reservation has ended before, and otherwise; nothing was done",
            ),
            ReservationError::TooManyPlaces { places } => write!(
                f,
                "the counters are on {places} shards or hash slots, and a receipt names at most {}; anchor the rules to one attribute",
                super::GROUPS_MAX
            ),
            ReservationError::Retryable { why } => {
                write!(f, "a part of the store is unavailable: {why}; repeat the same call")
            }
        }
    }
}

impl std::error::Error for ReservationError {}

/// Why a text is no receipt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReceiptError;

impl fmt::Display for ReceiptError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("this is no receipt; send one as it was given, letter by letter")
    }
}

impl std::error::Error for ReceiptError {}
