//! Reservations: charges whose true cost is known afterwards, and permits that are held meanwhile.
//!
//! A reservation is charged as any decision is, all or none, and leaves a record beside its
//! counters. The record has what each counter was charged, a hash of the request, and the time
//! until which the reservation can be settled. The call that charges writes the record, and the
//! call that refunds closes it, so that a call whose reply was lost can be repeated. A client with
//! the [`Receipt`] can settle, cancel, release or renew the reservation through any instance of the
//! fleet.

use std::borrow::Cow;
use std::fmt;
use std::time::Duration;

use siphasher::sip128::SipHasher13;
use smallvec::SmallVec;

use crate::counter::PlannedCharge;
use crate::random::random;

mod ended;
mod error;
pub mod kept;
mod receipt;
pub mod record;

pub use ended::Ended;
use ended::{MARK_CANCELLED, MARK_RELEASED, MARK_SETTLED};
pub use error::{ReceiptError, ReservationError};
use kept::{RecordedCharge, RecordedCharges};
pub use receipt::Receipt;
pub use receipt::{Contents, Seal};

/// The true usage of a reservation, by unit. A unit that is not named was used as estimated.
///
/// ```
/// use spillgate::reservation::Usage;
/// let usage = Usage::of_unit("tokens", 512).and("bytes", 90_000);
/// assert_eq!(usage, Usage::of_unit("bytes", 90_000).and("tokens", 512));
/// assert_eq!(Usage::from(3), Usage::of_unit("requests", 3));
/// ```
#[derive(Clone, Debug, Default)]
pub struct Usage<'a>(Vec<(Cow<'a, str>, u64)>);

impl<'a> Usage<'a> {
    /// Makes the usage of one unit.
    pub fn of_unit(unit: impl Into<Cow<'a, str>>, amount: u64) -> Usage<'a> {
        Usage::default().and(unit, amount)
    }

    /// Adds the usage of another unit, or replaces that of a known one.
    pub fn and(mut self, unit: impl Into<Cow<'a, str>>, amount: u64) -> Usage<'a> {
        let unit = unit.into();
        match self.0.iter_mut().find(|(known, _)| *known == unit) {
            Some((_, known)) => *known = amount,
            None => self.0.push((unit, amount)),
        }
        self
    }

    /// Returns the usage with owned unit names.
    ///
    /// ```
    /// use spillgate::reservation::Usage;
    ///
    /// let unit = String::from("tokens");
    /// let usage: Usage<'static> = Usage::of_unit(unit.as_str(), 512).into_owned();
    /// assert_eq!(usage, Usage::of_unit("tokens", 512));
    /// ```
    pub fn into_owned(self) -> Usage<'static> {
        Usage(self.0.into_iter().map(|(unit, amount)| (unit.into_owned().into(), amount)).collect())
    }

    /// Returns the units that it names.
    ///
    /// ```
    /// use spillgate::reservation::Usage;
    ///
    /// let usage = Usage::of_unit("tokens", 512).and("bytes", 90_000);
    /// assert!(usage.units().eq(["tokens", "bytes"]));
    /// ```
    pub fn units(&self) -> impl Iterator<Item = &str> {
        self.0.iter().map(|(unit, _)| unit.as_ref())
    }

    fn of_counter(&self, counter: &RecordedCharge) -> Option<u64> {
        self.0.iter().find(|(unit, _)| kept::unit(unit) == counter.unit).map(|(_, amount)| *amount)
    }

    /// Returns a hash that does not depend on the order of the units.
    fn hash(&self) -> u64 {
        let each = self.0.iter().map(|(unit, amount)| {
            let words = [kept::unit(unit).to_le_bytes(), amount.to_le_bytes()];
            SipHasher13::new().hash(words.as_flattened()).h1
        });
        each.fold(0, u64::wrapping_add)
    }
}

impl PartialEq for Usage<'_> {
    fn eq(&self, other: &Usage<'_>) -> bool {
        self.0.len() == other.0.len() && self.0.iter().all(|part| other.0.contains(part))
    }
}

impl Eq for Usage<'_> {}

impl From<u64> for Usage<'_> {
    fn from(requests: u64) -> Self {
        Usage::of_unit(crate::limit::REQUESTS, requests)
    }
}

/// The result of settling, cancelling, releasing or renewing a reservation.
///
/// `Limiter::settle`, `cancel`, `release` and `renew` return it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum EndResult {
    /// The receipt is not of this fleet, or its record is gone. Nothing was done.
    Unknown,
    /// The reservation has expired and stays charged at its estimate.
    Expired,
    /// The same call was made before. Nothing was done again.
    Repeated,
    /// The call was executed.
    Done,
}

impl EndResult {
    /// Returns the result as every API spells it: `done`, `repeated`, `expired` or `unknown`.
    pub fn name(self) -> &'static str {
        match self {
            EndResult::Unknown => "unknown",
            EndResult::Expired => "expired",
            EndResult::Repeated => "repeated",
            EndResult::Done => "done",
        }
    }
}

impl fmt::Display for EndResult {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// An end of a reservation, or its renewal.
#[derive(Clone, Debug)]
pub enum Ending<'a> {
    /// Ends permits, and corrects other counters to their true usage.
    Settle(&'a Usage<'a>),
    /// Refunds everything.
    Cancel,
    /// Ends permits, and leaves other counters as estimated.
    Release,
    /// Holds permits and keeps the record for `for_us` from now.
    Renew {
        /// The time in µs.
        for_us: u64,
    },
    /// Refunds a provisional charge, and leaves no record.
    Undo,
}

impl Ending<'_> {
    /// Returns the amount that a counter is charged in the end, or `None` if its charge stays.
    pub fn actual(&self, counter: &RecordedCharge) -> Option<u64> {
        let is_permit = counter.limit.algorithm().counts_permits();
        match self {
            // Permits always come back in full.
            Ending::Settle(_) | Ending::Release if is_permit => Some(0),
            Ending::Settle(usage) => usage.of_counter(counter),
            Ending::Cancel => Some(0),
            Ending::Undo => Some(0),
            Ending::Release | Ending::Renew { .. } => None,
        }
    }

    /// Returns a number that identifies the ending. An equal ending is a repetition.
    pub fn mark(&self) -> u64 {
        match self {
            Ending::Settle(usage) => usage.hash() | MARK_SETTLED,
            Ending::Cancel => MARK_CANCELLED,
            Ending::Release => MARK_RELEASED,
            // A renewal or an undo leaves no mark in a record.
            Ending::Renew { .. } => 0,
            Ending::Undo => 0,
        }
    }
}

/// The reply of an engine to the end or renewal of a reservation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Answer {
    /// The result for the caller.
    EndResult(EndResult),
    /// The reservation has ended before in another way.
    EndedOtherwise,
}

/// A reservation that a decision opens a record for.
#[derive(Debug)]
pub struct Opening {
    /// The id of the reservation.
    pub id: u128,
    /// The hash of the request.
    pub body: u128,
    /// The time for which it can be settled, in µs.
    pub lasting_us: u64,
    /// Whether the client gave the id. Then another request may use the same.
    pub is_named: bool,
}

/// The results of opening a reservation's records.
#[derive(Clone, Debug, Default)]
pub struct Noted {
    /// The locations of the records.
    pub groups: SmallVec<[Group; 1]>,
    /// The tags of records that existed before this call.
    pub repeated: SmallVec<[u128; 1]>,
    /// The way in which some record has ended.
    pub ended: Option<Ended>,
    /// Whether some record is for another request.
    pub conflict: bool,
    /// Whether there was no room for a record.
    pub full: bool,
    /// Whether the call was sent a second time. A record that existed before may then be its own.
    pub is_resent: bool,
}

impl Noted {
    /// Returns whether this call charged the reservation for the first time.
    pub fn charges_anew(&self) -> bool {
        let is_first = self.repeated.is_empty() || self.is_resent;
        is_first && self.ended.is_none() && !self.conflict
    }

    /// Adds the result of opening one record; `group` makes its group if it is open.
    pub fn note(&mut self, opened: Opened, group: impl FnOnce() -> Group) {
        match opened {
            Opened::New | Opened::Repeated => {
                let group = group();
                if opened == Opened::Repeated {
                    self.repeated.push(group.tag);
                }
                // A call that is sent again may report the same location twice.
                if self.groups.iter().all(|known| known.tag != group.tag) {
                    self.groups.push(group);
                }
            }
            Opened::Ended(how) => {
                self.ended.get_or_insert(how);
            }
            Opened::Conflict => self.conflict = true,
            Opened::Full => self.full = true,
            Opened::Refused => {}
        }
    }

    /// Returns an error if the id belongs to another reservation, or if this one has ended.
    pub fn check(&self) -> Result<(), ReservationError> {
        match self {
            Noted { conflict: true, .. } => Err(ReservationError::Conflict),
            Noted { ended: Some(how), .. } => Err(ReservationError::Ended(*how)),
            _ => Ok(()),
        }
    }
}

/// The counters of one record, charged by one call.
#[derive(Clone, Debug)]
pub struct Group {
    /// The tag of the record's location. It is that of its first counter.
    pub tag: u128,
    /// `None` if only the record has them.
    pub counters: Option<RecordedCharges>,
}

/// The result of opening a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Opened {
    /// The record is new.
    New,
    /// The record existed before and is open.
    Repeated,
    /// The record existed before and has ended.
    Ended(Ended),
    /// A record under the same id is for another request.
    Conflict,
    /// Some counter had no room.
    Refused,
    /// There was no room for the record.
    Full,
}

impl Group {
    /// Returns the group of the counters that one call charges.
    pub fn new(counters: &[PlannedCharge]) -> Group {
        Group {
            tag: counters.first().map_or(0, |counter| counter.key.tag),
            counters: Some(counters.iter().map(RecordedCharge::new).collect()),
        }
    }

    /// Returns the group of a record that another call made. Only the record has its counters.
    pub fn unread(counters: &[PlannedCharge]) -> Group {
        Group { counters: None, ..Group::new(counters) }
    }
}

impl Opening {
    /// Creates a reservation under an id of our own making.
    pub fn new(id: u128, body: u128, lasting_us: u64) -> Opening {
        Opening { id, body, lasting_us, is_named: false }
    }

    /// Marks the id as given by the client.
    pub fn named(self) -> Opening {
        Opening { is_named: true, ..self }
    }
}

/// An end or renewal of a record.
#[derive(Debug)]
pub struct Closing {
    /// The id of the reservation.
    pub id: u128,
    /// The change to make.
    pub how: Closes,
    /// The value of [`Ending::mark`].
    pub mark: u64,
}

/// The change to a record, beside the correction of its counters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Closes {
    /// Marks it as ended.
    Ends,
    /// Removes it.
    Undoes,
    /// Extends it and its permits to `for_us` from now.
    Renews {
        /// The time in µs.
        for_us: u64,
    },
    /// Changes nothing. The reply shows whether the record is open and all its permits are held.
    Looks,
}

/// The store's reply to the end or renewal of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Closed {
    /// The record was found.
    Answered(Answer),
    /// The record has other counters than the caller assumed.
    OtherCounters,
}

impl Closing {
    /// Creates the change that an ending makes to a record.
    pub fn from_ending(id: u128, ending: &Ending<'_>) -> Closing {
        let how = match ending {
            Ending::Renew { for_us } => Closes::Renews { for_us: *for_us },
            Ending::Undo => Closes::Undoes,
            Ending::Settle(_) | Ending::Cancel | Ending::Release => Closes::Ends,
        };
        Closing { id, how, mark: ending.mark() }
    }
}

/// Returns a random id that is unique in practice.
pub fn random_id() -> u128 {
    u128::from(random()) << 64 | u128::from(random())
}

/// Returns the duration in µs if it is within the bounds.
pub fn lasting_us(lasting: Duration) -> Result<u64, ReservationError> {
    match u64::try_from(lasting.as_micros()) {
        Ok(us @ LASTING_MIN_US..=LASTING_MAX_US) => Ok(us),
        _ => Err(ReservationError::Lasting(lasting)),
    }
}

const LASTING_MIN_US: u64 = 1_000;
/// 24 hours. A record takes room until it is settled; longer jobs renew it.
const LASTING_MAX_US: u64 = 86_400 * 1_000_000;
/// The time for which an ended record is kept, so that late or repeated calls get the right answer.
pub const REMEMBERED_US: u64 = 3_600 * 1_000_000;
/// The most locations of one reservation. A receipt names each.
pub const GROUPS_MAX: usize = 16;
