//! Reservations: charges whose true cost is known afterwards, and slots that are held meanwhile.
//!
//! A reservation is charged as any decision is, all or none, and leaves a record beside what it charged:
//! what each counter was charged, what the reservation was for, and until when it can be settled. The
//! record is written by the call that charges and closed by the call that refunds, so that a call
//! whose answer was lost can be made again. Who holds the [`Receipt`] can settle, cancel, release or
//! renew it, in any process of the fleet.

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

/// How a reservation is made: for how long, and under which name.
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
    /// One that can be settled for so long: 1 ms to 24 hours. After that it stays charged as it was
    /// estimated. Permits end with their limit's `max_hold` all the same, unless renewed.
    pub fn lasting(lasting: Duration) -> Reserve<'a> {
        Reserve { lasting, name: None }
    }

    /// Names the reservation by an id of the caller's own, another for each reservation of a domain.
    ///
    /// The same call again is answered as before and charged nothing, while the reservation is open and
    /// its permits are held. Once it has ended, the call is refused ([`ReservationError::Ended`]), and a
    /// new attempt needs a new id. Without an id, a lost answer is a lost reservation.
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

/// A minute, and no name.
impl Default for Reserve<'_> {
    fn default() -> Self {
        Reserve::lasting(Duration::from_secs(60))
    }
}

/// What was really used of what was reserved, by unit. A unit that is not named was used as reserved.
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
    /// So much of one unit.
    pub fn of(unit: impl Into<Cow<'a, str>>, amount: u64) -> Usage<'a> {
        Usage::default().and(unit, amount)
    }

    /// And so much of another.
    pub fn and(mut self, unit: impl Into<Cow<'a, str>>, amount: u64) -> Usage<'a> {
        let unit = unit.into();
        match self.0.iter_mut().find(|(known, _)| *known == unit) {
            Some((_, known)) => *known = amount,
            None => self.0.push((unit, amount)),
        }
        self
    }

    /// As one that borrows nothing.
    pub fn into_owned(self) -> Usage<'static> {
        Usage(self.0.into_iter().map(|(unit, amount)| (unit.into_owned().into(), amount)).collect())
    }

    fn of_counter(&self, counter: &RecordedCharge) -> Option<u64> {
        self.0.iter().find(|(unit, _)| kept::unit(unit) == counter.unit).map(|(_, amount)| *amount)
    }

    /// The same however it was put together.
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

/// What became of a call about a reservation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Outcome {
    /// Nobody knows of it any more, or nobody of this fleet ever did: nothing was done.
    Unknown,
    /// Too late: it stays charged as it was estimated.
    Expired,
    /// The same call was made before, and nothing was done again.
    Repeated,
    /// It was done.
    Done,
}

impl Outcome {
    /// The word for it: `done`, `repeated`, `expired`, `unknown`.
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

/// What a reservation is ended with, or renewed.
#[derive(Clone, Debug)]
pub(crate) enum Ending<'a> {
    /// Slots end; what was used of the rest is known.
    Settle(&'a Usage<'a>),
    /// It never happened.
    Cancel,
    /// Slots end; the rest was used as estimated.
    Release,
    /// Slots are held and the record lasts for so long from now.
    Renew { for_us: u64 },
    /// It was provisional, and leaves no record.
    #[cfg(feature = "redis")]
    Undo,
}

impl Ending<'_> {
    /// What a counter is charged in the end; nothing where that stays as it is.
    pub(crate) fn actual(&self, counter: &RecordedCharge) -> Option<u64> {
        let is_slot = counter.limit.algorithm() == Algorithm::Concurrency;
        match self {
            Ending::Settle(_) | Ending::Release if is_slot => Some(0),
            Ending::Settle(usage) => usage.of_counter(counter),
            Ending::Cancel => Some(0),
            #[cfg(feature = "redis")]
            Ending::Undo => Some(0),
            Ending::Release | Ending::Renew { .. } => None,
        }
    }

    /// What tells one ending from another: the same again is a repetition.
    pub(crate) fn mark(&self) -> u64 {
        match self {
            Ending::Settle(usage) => usage.hash() | MARK_SETTLED,
            Ending::Cancel => MARK_CANCELLED,
            Ending::Release => MARK_RELEASED,
            Ending::Renew { .. } => 0,
            #[cfg(feature = "redis")]
            Ending::Undo => 0,
        }
    }
}

/// What an engine answers to the end or renewal of a reservation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Answer {
    Outcome(Outcome),
    /// It ended before, and otherwise.
    EndedOtherwise,
}

/// A reservation that a decision opens a record for.
#[derive(Debug)]
pub struct Opening {
    pub(crate) id: u128,
    /// The hash of what it is for.
    pub(crate) body: u128,
    pub(crate) lasting_us: u64,
    /// Whether the caller gave the id, so that another request may come with it.
    pub(crate) is_named: bool,
    noted: Mutex<Noted>,
}

/// What was heard of a reservation's records.
#[derive(Clone, Debug, Default)]
pub(crate) struct Noted {
    /// Where records are.
    pub(crate) groups: SmallVec<[Group; 1]>,
    /// The tags of those records that were there before this call.
    pub(crate) repeated: SmallVec<[u128; 1]>,
    /// How some record has ended.
    pub(crate) ended: Option<Ended>,
    /// Some record has another body.
    pub(crate) conflict: bool,
    /// There is no room for another record.
    pub(crate) full: bool,
    /// The call was sent a second time, so a record that was there before may be its own.
    pub(crate) is_resent: bool,
}

impl Noted {
    /// Whether what the call charged is charged for the first time: no record was there before it.
    pub(crate) fn charges_anew(&self) -> bool {
        let is_first = self.repeated.is_empty() || self.is_resent;
        is_first && self.ended.is_none() && !self.conflict
    }
}

/// What one call charged: the counters that one record is about.
#[derive(Clone, Debug)]
pub(crate) struct Group {
    /// Where the record is: with the first of the counters.
    pub(crate) tag: u128,
    /// Nothing where only the record knows.
    pub(crate) counters: Option<RecordedCharges>,
}

/// What became of a record that was to be opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Opened {
    /// It is there now.
    New,
    /// It was there before.
    Repeated,
    /// It was there before, and has ended.
    Ended(Ended),
    /// One for something else was.
    Conflict,
    /// Some counter had no room.
    Refused,
    /// Nobody has room for it.
    Full,
}

#[cfg(feature = "redis")]
impl Group {
    /// What one call charges.
    pub(crate) fn of(counters: &[PlannedCharge]) -> Group {
        Group {
            tag: counters.first().map_or(0, |counter| counter.key.tag),
            counters: Some(counters.iter().map(RecordedCharge::of).collect()),
        }
    }

    /// The same of a record that another call made: only the record knows its counters.
    pub(crate) fn unread(counters: &[PlannedCharge]) -> Group {
        Group { counters: None, ..Group::of(counters) }
    }
}

impl Opening {
    pub(crate) fn new(id: u128, body: u128, lasting_us: u64) -> Opening {
        Opening { id, body, lasting_us, is_named: false, noted: Mutex::default() }
    }

    /// The same under an id that the caller gave.
    pub(crate) fn named(self) -> Opening {
        Opening { is_named: true, ..self }
    }

    /// Notes that no record finds room.
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

/// How a record is to end, or to be renewed, and what was heard of that.
#[cfg(feature = "redis")]
#[derive(Debug)]
pub struct Closing {
    pub(crate) id: u128,
    pub(crate) how: Closes,
    /// As [`Ending::mark`].
    pub(crate) mark: u64,
    answer: Mutex<Option<Closed>>,
}

/// What is done with a record beside correcting its counters.
#[cfg(feature = "redis")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Closes {
    /// It is marked as ended.
    Ends,
    /// It goes.
    Undoes,
    /// It and the slots last for so long from now.
    Renews { for_us: u64 },
    /// Nothing: whether it is open and all slots are held is all that is asked.
    Looks,
}

/// What a store answers to that.
#[cfg(feature = "redis")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Closed {
    Answered(Answer),
    /// The record is about other counters than the caller took it to be.
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

/// A name that nobody else draws.
pub(crate) fn random_id() -> u128 {
    let random = || u128::from(RandomState::new().hash_one(()));
    random() << 64 | random()
}

/// How long a reservation can be settled.
pub(crate) fn lasting_us(lasting: Duration) -> Result<u64, ReservationError> {
    match u64::try_from(lasting.as_micros()) {
        Ok(us @ LASTING_MIN_US..=LASTING_MAX_US) => Ok(us),
        _ => Err(ReservationError::Lasting(lasting)),
    }
}

const LASTING_MIN_US: u64 = 1_000;
/// 24 hours: a record that is not settled takes room for as long, and longer jobs renew.
const LASTING_MAX_US: u64 = 86_400 * 1_000_000;
/// How long a record is remembered after its end, so that a late or repeated call is told so.
pub(crate) const REMEMBERED_US: u64 = 3_600 * 1_000_000;
/// Places that one reservation may be charged at: a receipt names each.
pub(crate) const GROUPS_MAX: usize = 16;
