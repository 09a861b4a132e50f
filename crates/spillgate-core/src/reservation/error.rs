//! Errors of calls about reservations.

use std::fmt;
use std::time::Duration;

use super::Ended;

/// The reason why a call about a reservation failed.
///
/// `Limiter::reserve`, `settle`, `cancel`, `release` and `renew` return it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ReservationError {
    /// The duration is not from 1 ms to 24 hours.
    Lasting(Duration),
    /// The id is in use for another request.
    Conflict,
    /// The reservation under this id has ended. Nothing is charged or allowed, and a new attempt
    /// needs a new id.
    Ended(Ended),
    /// The reservation has ended before in another way. Nothing was done.
    EndedOtherwise,
    /// The counters are at more locations than a receipt can name.
    TooManyLocations {
        /// The number of locations.
        locations: usize,
    },
    /// Some shard is out of reach; the others are done. Repeat the same call.
    Retryable {
        /// The error of that shard.
        why: String,
    },
}

impl fmt::Display for ReservationError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ReservationError::Lasting(lasting) => {
                let ms = lasting.as_millis();
                let remedy = match ms {
                    0 => "give the longest time that the job may take",
                    _ => "renew a reservation that needs longer",
                };
                write!(f, "the duration must be from 1 ms to 24 h, got {ms} ms; {remedy}")
            }
            ReservationError::Conflict => f.write_str(
                "the id is in use for another request; choose another id, or repeat the request that was sent under it",
            ),
            ReservationError::Ended(how) => write!(
                f,
                "the reservation under this id has ended ({how}); make a new attempt under a new id"
            ),
            ReservationError::EndedOtherwise => f.write_str(
                "the reservation has already ended in another way or with another cost; the first ending counts, and nothing was done",
            ),
            ReservationError::TooManyLocations { locations } => write!(
                f,
                "the counters are on {locations} shards or hash slots, and a receipt names at most {}; anchor the rules to one attribute",
                super::GROUPS_MAX
            ),
            ReservationError::Retryable { why } => {
                write!(f, "a part of the store is unavailable: {why}; repeat the same call")
            }
        }
    }
}

impl std::error::Error for ReservationError {}

/// The error that a text is not a receipt.
///
/// `Receipt` returns it when it is parsed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReceiptError;

impl fmt::Display for ReceiptError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("this is not a receipt; send one exactly as it was returned")
    }
}

impl std::error::Error for ReceiptError {}
