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
use std::hash::{BuildHasher, RandomState};
use std::time::Duration;

use parking_lot::Mutex;
use siphasher::sip128::SipHasher13;
use smallvec::SmallVec;

#[cfg(feature = "redis")]
use crate::counter::PlannedCharge;
use crate::limit::Algorithm;

mod ended;
mod error;
pub(crate) mod kept;
mod receipt;
pub(crate) mod record;

pub use ended::Ended;
use ended::{MARK_CANCELLED, MARK_RELEASED, MARK_SETTLED};
pub use error::{ReceiptError, ReservationError};
use kept::{RecordedCharge, RecordedCharges};
pub use receipt::Receipt;
pub(crate) use receipt::{Contents, Seal};

/// The terms of a reservation: its duration and, optionally, its id.
///
/// ```
/// use std::time::Duration;
/// use spillgate::Reserve;
/// let by_job = Reserve::lasting(Duration::from_secs(30)).under("job-4711");
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reserve<'a> {
    lasting: Duration,
    name: Option<Cow<'a, str>>,
}

impl<'a> Reserve<'a> {
    /// Makes a reservation that can be settled for `lasting`, from 1 ms to 24 hours.
    ///
    /// After that it stays charged at its estimate. Permits end with their limit's `max_hold`,
    /// unless renewed.
    pub fn lasting(lasting: Duration) -> Reserve<'a> {
        Reserve { lasting, name: None }
    }

    /// Gives the reservation an id of your own, unique within its domain, so that you can repeat
    /// the call.
    ///
    /// A repeated call gets the same answer and charges nothing, while the reservation is open and
    /// its permits are held. Once it has ended, the call returns [`ReservationError::Ended`], and a
    /// new attempt needs a new id. Without an id, a reservation whose answer was lost cannot be
    /// settled.
    pub fn under(self, name: impl Into<Cow<'a, str>>) -> Reserve<'a> {
        Reserve { name: Some(name.into()), ..self }
    }

    pub(crate) fn name(&self) -> Option<&str> {
        self.name.as_deref()
    }

    pub(crate) fn lasting_us(&self) -> Result<u64, ReservationError> {
        lasting_us(self.lasting)
    }
}

/// A duration of one minute, without an id.
impl Default for Reserve<'_> {
    fn default() -> Self {
        Reserve::lasting(Duration::from_secs(60))
    }
}

/// The true usage of a reservation, by unit. A unit that is not named was used as estimated.
///
/// ```
/// use spillgate::Usage;
/// let usage = Usage::of("tokens", 512).and("bytes", 90_000);
/// assert_eq!(usage, Usage::of("bytes", 90_000).and("tokens", 512));
/// assert_eq!(Usage::from(3), Usage::of("requests", 3));
/// ```
#[derive(Clone, Debug, Default)]
pub struct Usage<'a>(Vec<(Cow<'a, str>, u64)>);

impl<'a> Usage<'a> {
    /// Makes the usage of one unit.
    pub fn of(unit: impl Into<Cow<'a, str>>, amount: u64) -> Usage<'a> {
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
    pub fn into_owned(self) -> Usage<'static> {
        Usage(self.0.into_iter().map(|(unit, amount)| (unit.into_owned().into(), amount)).collect())
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
        Usage::of(crate::limit::REQUESTS, requests)
    }
}

/// The result of settling, cancelling, releasing or renewing a reservation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Outcome {
    /// The receipt is not of this fleet, or its record is gone. Nothing was done.
    Unknown,
    /// The reservation has expired and stays charged at its estimate.
    Expired,
    /// The same call was made before. Nothing was done again.
    Repeated,
    /// The call was executed.
    Done,
}

impl Outcome {
    /// Returns the result as every API spells it: `done`, `repeated`, `expired` or `unknown`.
    pub fn name(self) -> &'static str {
        match self {
            Outcome::Unknown => "unknown",
            Outcome::Expired => "expired",
            Outcome::Repeated => "repeated",
            Outcome::Done => "done",
        }
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// An end of a reservation, or its renewal.
#[derive(Clone, Debug)]
pub(crate) enum Ending<'a> {
    /// Ends permits, and corrects other counters to their true usage.
    Settle(&'a Usage<'a>),
    /// Refunds everything.
    Cancel,
    /// Ends permits, and leaves other counters as estimated.
    Release,
    /// Holds permits and keeps the record for `for_us` from now.
    Renew { for_us: u64 },
    /// Refunds a provisional charge, and leaves no record.
    #[cfg(feature = "redis")]
    Undo,
}

impl Ending<'_> {
    /// Returns the amount that a counter is charged in the end, or `None` if its charge stays.
    pub(crate) fn actual(&self, counter: &RecordedCharge) -> Option<u64> {
        let is_slot = counter.limit.algorithm() == Algorithm::Concurrency;
        match self {
            // Permits always come back in full.
            Ending::Settle(_) | Ending::Release if is_slot => Some(0),
            Ending::Settle(usage) => usage.of_counter(counter),
            Ending::Cancel => Some(0),
            #[cfg(feature = "redis")]
            Ending::Undo => Some(0),
            Ending::Release | Ending::Renew { .. } => None,
        }
    }

    /// Returns a number that identifies the ending. An equal ending is a repetition.
    pub(crate) fn mark(&self) -> u64 {
        match self {
            Ending::Settle(usage) => usage.hash() | MARK_SETTLED,
            Ending::Cancel => MARK_CANCELLED,
            Ending::Release => MARK_RELEASED,
            // A renewal or an undo leaves no mark in a record.
            Ending::Renew { .. } => 0,
            #[cfg(feature = "redis")]
            Ending::Undo => 0,
        }
    }
}

/// The reply of an engine to the end or renewal of a reservation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Answer {
    Outcome(Outcome),
    /// The reservation has ended before in another way.
    EndedOtherwise,
}

/// A reservation that a decision opens a record for.
#[derive(Debug)]
pub struct Opening {
    pub(crate) id: u128,
    /// The hash of the request.
    pub(crate) body: u128,
    pub(crate) lasting_us: u64,
    /// Whether the client gave the id. Then another request may use the same.
    pub(crate) is_named: bool,
    noted: Mutex<Noted>,
}

/// The results of opening a reservation's records.
#[derive(Clone, Debug, Default)]
pub(crate) struct Noted {
    /// The locations of the records.
    pub(crate) groups: SmallVec<[Group; 1]>,
    /// The tags of records that existed before this call.
    pub(crate) repeated: SmallVec<[u128; 1]>,
    /// The way in which some record has ended.
    pub(crate) ended: Option<Ended>,
    /// Whether some record is for another request.
    pub(crate) conflict: bool,
    /// Whether there was no room for a record.
    pub(crate) full: bool,
    /// Whether the call was sent a second time. A record that existed before may then be its own.
    pub(crate) is_resent: bool,
}

impl Noted {
    /// Returns whether this call charged the reservation for the first time.
    pub(crate) fn charges_anew(&self) -> bool {
        let is_first = self.repeated.is_empty() || self.is_resent;
        is_first && self.ended.is_none() && !self.conflict
    }
}

/// The counters of one record, charged by one call.
#[derive(Clone, Debug)]
pub(crate) struct Group {
    /// The tag of the record's location. It is that of its first counter.
    pub(crate) tag: u128,
    /// `None` if only the record has them.
    pub(crate) counters: Option<RecordedCharges>,
}

/// The result of opening a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Opened {
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

#[cfg(feature = "redis")]
impl Group {
    /// Returns the group of the counters that one call charges.
    pub(crate) fn of(counters: &[PlannedCharge]) -> Group {
        Group {
            tag: counters.first().map_or(0, |counter| counter.key.tag),
            counters: Some(counters.iter().map(RecordedCharge::of).collect()),
        }
    }

    /// Returns the group of a record that another call made. Only the record has its counters.
    pub(crate) fn unread(counters: &[PlannedCharge]) -> Group {
        Group { counters: None, ..Group::of(counters) }
    }
}

impl Opening {
    pub(crate) fn new(id: u128, body: u128, lasting_us: u64) -> Opening {
        Opening { id, body, lasting_us, is_named: false, noted: Mutex::default() }
    }

    /// Marks the id as given by the client.
    pub(crate) fn named(self) -> Opening {
        Opening { is_named: true, ..self }
    }

    /// Notes that a record had no room.
    pub(crate) fn note_full(&self) {
        self.noted.lock().full = true;
    }

    /// Notes that the call is sent a second time.
    #[cfg(feature = "redis")]
    pub(crate) fn note_resent(&self) {
        self.noted.lock().is_resent = true;
    }

    pub(crate) fn note(&self, opened: Opened, group: impl FnOnce() -> Group) {
        let mut noted = self.noted.lock();
        match opened {
            Opened::New | Opened::Repeated => {
                let group = group();
                if opened == Opened::Repeated {
                    noted.repeated.push(group.tag);
                }
                // A call that is sent again may report the same location twice.
                if noted.groups.iter().all(|known| known.tag != group.tag) {
                    noted.groups.push(group);
                }
            }
            Opened::Ended(how) => {
                noted.ended.get_or_insert(how);
            }
            Opened::Conflict => noted.conflict = true,
            Opened::Full => noted.full = true,
            Opened::Refused => {}
        }
    }

    pub(crate) fn noted(&self) -> Noted {
        self.noted.lock().clone()
    }
}

/// An end or renewal of a record, and the store's reply to it.
#[cfg(feature = "redis")]
#[derive(Debug)]
pub struct Closing {
    pub(crate) id: u128,
    pub(crate) how: Closes,
    /// The value of [`Ending::mark`].
    pub(crate) mark: u64,
    answer: Mutex<Option<Closed>>,
}

/// The change to a record, beside the correction of its counters.
#[cfg(feature = "redis")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Closes {
    /// Marks it as ended.
    Ends,
    /// Removes it.
    Undoes,
    /// Extends it and its permits to `for_us` from now.
    Renews { for_us: u64 },
    /// Changes nothing. The reply shows whether the record is open and all its permits are held.
    Looks,
}

/// The store's reply to the end or renewal of a record.
#[cfg(feature = "redis")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Closed {
    Answered(Answer),
    /// The record has other counters than the caller assumed.
    OtherTiers,
}

#[cfg(feature = "redis")]
impl Closing {
    pub(crate) fn new(id: u128, how: Closes, mark: u64) -> Closing {
        Closing { id, how, mark, answer: Mutex::default() }
    }

    pub(crate) fn of(id: u128, ending: &Ending<'_>) -> Closing {
        let how = match ending {
            Ending::Renew { for_us } => Closes::Renews { for_us: *for_us },
            Ending::Undo => Closes::Undoes,
            Ending::Settle(_) | Ending::Cancel | Ending::Release => Closes::Ends,
        };
        Closing::new(id, how, ending.mark())
    }

    pub(crate) fn note(&self, closed: Closed) {
        *self.answer.lock() = Some(closed);
    }

    pub(crate) fn noted(&self) -> Option<Closed> {
        *self.answer.lock()
    }
}

/// Returns a random id that is unique in practice.
pub(crate) fn random_id() -> u128 {
    let random = || u128::from(RandomState::new().hash_one(()));
    random() << 64 | random()
}

/// Returns the duration in µs if it is within the bounds.
pub(crate) fn lasting_us(lasting: Duration) -> Result<u64, ReservationError> {
    match u64::try_from(lasting.as_micros()) {
        Ok(us @ LASTING_MIN_US..=LASTING_MAX_US) => Ok(us),
        _ => Err(ReservationError::Lasting(lasting)),
    }
}

const LASTING_MIN_US: u64 = 1_000;
/// 24 hours. A record takes room until it is settled; longer jobs renew it.
const LASTING_MAX_US: u64 = 86_400 * 1_000_000;
/// The time for which an ended record is kept, so that late or repeated calls get the right answer.
pub(crate) const REMEMBERED_US: u64 = 3_600 * 1_000_000;
/// The most locations of one reservation. A receipt names each.
pub(crate) const GROUPS_MAX: usize = 16;
