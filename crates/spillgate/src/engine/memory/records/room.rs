//! The room of the records: so many bytes in all, and at most a hundredth of them for one subject.

use std::collections::{BTreeMap, BTreeSet};

use smallvec::SmallVec;

use super::RecordsHeld;
use crate::algorithm::Charge;
use crate::counter::LimitHandle;
use crate::engine::{PlannedCharge, Transaction};
use crate::limit::NamedLimit;
use crate::reservation::kept::{RecordedCharge, RecordedCharges};
use crate::reservation::record::{Charged, Record};
use crate::reservation::{Group, REMEMBERED_US};

/// Records by the id of their reservation, and their bytes.
#[derive(Debug, Default)]
pub(in super::super) struct Records {
    by_id: BTreeMap<u128, Box<Held>>,
    open: Order,
    ended: Order,
    of_subject: BTreeMap<u128, u64>,
    bytes: u64,
}

/// One record.
#[derive(Debug)]
pub(super) struct Held {
    pub(super) record: Record,
    pub(super) counters: RecordedCharges,
    /// Where else the reservation has records: on a store that was out of reach in part.
    pub(super) elsewhere: SmallVec<[Group; 1]>,
    /// Whose room it takes.
    pub(super) subject: u128,
}

/// Records by when they may be forgotten, of all subjects and of each.
#[derive(Debug, Default)]
struct Order {
    of_all: BTreeSet<(u64, u128)>,
    of_each: BTreeSet<(u128, u64, u128)>,
}

impl Records {
    pub(super) fn get(&self, id: u128) -> Option<&Held> {
        self.by_id.get(&id).map(|held| &**held)
    }

    pub(super) fn put(&mut self, id: u128, held: Box<Held>) {
        let (bytes, forget_us) = (held.bytes(), held.record.forget_us());
        self.bytes += bytes;
        *self.of_subject.entry(held.subject).or_default() += bytes;
        self.order(&held).add(held.subject, forget_us, id);
        self.by_id.insert(id, held);
    }

    pub(super) fn remove(&mut self, id: u128) -> Option<Box<Held>> {
        let held = self.by_id.remove(&id)?;
        let bytes = held.bytes();
        self.bytes -= bytes;
        if let Some(of_subject) = self.of_subject.get_mut(&held.subject) {
            *of_subject -= bytes;
            if *of_subject == 0 {
                self.of_subject.remove(&held.subject);
            }
        }
        self.order(&held).remove(held.subject, held.record.forget_us(), id);
        Some(held)
    }

    /// Changes a record, and counts and orders it anew.
    pub(super) fn change(&mut self, id: u128, change: impl FnOnce(&mut Held)) {
        if let Some(mut held) = self.remove(id) {
            change(&mut held);
            self.put(id, held);
        }
    }

    /// Forgets a few records whose time is over: more than one call adds.
    pub(super) fn forget_gone(&mut self, now_us: u64) {
        for _ in 0..SWEEP {
            let gone = [&self.open, &self.ended].map(|order| order.first(now_us));
            for id in gone.into_iter().flatten() {
                self.remove(id);
            }
        }
    }

    /// Whether so many more bytes of a subject find room, if need be in place of records that only answer
    /// late and repeated calls: first those that have ended, then those that have expired.
    pub(super) fn make_room(&mut self, subject: u128, bytes: u64, now_us: u64) -> bool {
        let of_subject = |records: &Records| records.of_subject.get(&subject).copied();
        while of_subject(self).unwrap_or_default() + bytes > SUBJECT_BYTES_MAX {
            let ended = self.ended.first_of(subject, u64::MAX);
            let Some(id) = ended.or_else(|| self.open.first_of(subject, expired_by(now_us))) else {
                return false;
            };
            self.remove(id);
        }
        while self.bytes + bytes > BYTES_MAX {
            let ended = self.ended.first(u64::MAX);
            let Some(id) = ended.or_else(|| self.open.first(expired_by(now_us))) else {
                return false;
            };
            self.remove(id);
        }
        true
    }

    pub(super) fn held(&self) -> RecordsHeld {
        let [open, ended] = [&self.open, &self.ended].map(|order| order.of_all.len() as u64);
        RecordsHeld { open, ended, bytes: self.bytes }
    }

    fn order(&mut self, held: &Held) -> &mut Order {
        if held.record.is_open() { &mut self.open } else { &mut self.ended }
    }
}

impl Order {
    fn add(&mut self, subject: u128, forget_us: u64, id: u128) {
        self.of_all.insert((forget_us, id));
        self.of_each.insert((subject, forget_us, id));
    }

    fn remove(&mut self, subject: u128, forget_us: u64, id: u128) {
        self.of_all.remove(&(forget_us, id));
        self.of_each.remove(&(subject, forget_us, id));
    }

    /// The record to be forgotten first, if that is at an instant or before.
    fn first(&self, until_us: u64) -> Option<u128> {
        self.of_all.first().filter(|(forget_us, _)| *forget_us <= until_us).map(|(_, id)| *id)
    }

    /// The same of one subject's.
    fn first_of(&self, subject: u128, until_us: u64) -> Option<u128> {
        let until = (subject, until_us, u128::MAX);
        self.of_each.range((subject, 0, 0)..=until).next().map(|(_, _, id)| *id)
    }
}

impl Held {
    /// What was charged to each counter that has been.
    pub(super) fn charges(&self) -> impl Iterator<Item = (PlannedCharge<&NamedLimit>, Charge)> {
        let counters = self.counters.iter().enumerate();
        counters.filter_map(|(place, counter)| Some((counter.asked(0), self.record.charge(place)?)))
    }

    fn bytes(&self) -> u64 {
        let counters = self.counters.iter().map(|counter| &counter.limit);
        let elsewhere = self.elsewhere.len() * size_of::<Group>();
        bytes_of(counters) + elsewhere as u64
    }
}

/// The bytes that the record of a decision takes while it is open.
pub(super) fn bytes_of_open<L: LimitHandle>(transaction: &Transaction<L>) -> u64 {
    bytes_of(transaction.counters.iter().map(PlannedCharge::limit))
}

/// The bytes of a record of so many counters; one that has ended keeps none.
fn bytes_of<'l>(limits: impl Iterator<Item = &'l NamedLimit>) -> u64 {
    let counter = |limit: &NamedLimit| {
        size_of::<RecordedCharge>() + size_of::<Charged>() + limit.heap_bytes()
    };
    (RECORD_BYTES + limits.map(counter).sum::<usize>()) as u64
}

/// The last instant at which a record that has expired by now may be forgotten.
fn expired_by(now_us: u64) -> u64 {
    now_us.saturating_add(REMEMBERED_US)
}

/// All records of a process: a quarter of a gigabyte, some 350,000 of one counter. More would coalesced batch out what
/// the process is for; a service that holds more open shares a store.
const BYTES_MAX: u64 = 256 << 20;
/// Subjects that must join to fill the room, at least: one alone keeps no other from a reservation.
const SUBJECTS_TO_FILL: u64 = 100;
const SUBJECT_BYTES_MAX: u64 = BYTES_MAX / SUBJECTS_TO_FILL;
/// Records that go with each call.
const SWEEP: usize = 2;
/// A record without its counters: itself, its two lists, and its places in the trees.
const RECORD_BYTES: usize = size_of::<Held>() + 3 * ALLOCATION_BYTES + TREES_BYTES;
/// What the allocator takes for itself, and the counts of a shared list.
const ALLOCATION_BYTES: usize = 16;
/// One entry of each tree that a record is in. A node of eleven is about half full, so each takes twice its
/// size.
const TREES_BYTES: usize = 2
    * (size_of::<(u128, Box<Held>)>()
        + size_of::<(u64, u128)>()
        + size_of::<(u128, u64, u128)>()
        + size_of::<(u128, u64)>());

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limit::Limit;
    use crate::reservation::Ending;

    fn held(subject: u128, now_us: u64) -> Box<Held> {
        let limit = NamedLimit::new(Limit::per_second(9), 0);
        let key = crate::subject::SubjectKey { tag: subject, id: subject, rule: 0 };
        let counter = RecordedCharge { key, limit, share_of: None, unit: 0 };
        let charges = [Charged { cost: 0, charge: None }];
        let record = Record::new(7, 1_000_000, charges, now_us);
        Box::new(Held { record, counters: [counter].into(), elsewhere: SmallVec::new(), subject })
    }

    fn fill(records: &mut Records, subject: u128, now_us: u64) -> u64 {
        let bytes = held(subject, now_us).bytes();
        let mut added = 0;
        while records.make_room(subject, bytes, now_us) {
            records.put(u128::from(added) | subject << 64, held(subject, now_us));
            added += 1;
        }
        added
    }

    #[test]
    fn one_subject_fills_a_hundredth_of_the_room_and_all_together_no_more_than_the_room() {
        let mut records = Records::default();
        let first = fill(&mut records, 1, 0);
        assert!(records.bytes <= SUBJECT_BYTES_MAX && first > 3_000, "{first} records");
        for subject in 2..=110 {
            fill(&mut records, subject, 0);
            assert!(records.bytes <= BYTES_MAX);
        }
        println!("{first} of one subject, {:?} of 110", records.held());
        assert!(records.bytes > BYTES_MAX / 100 * 99);
        for subject in 1..=110 {
            for number in 0..first {
                records.remove(u128::from(number) | subject << 64);
            }
        }
        assert_eq!((records.bytes, records.of_subject.len()), (0, 0));
        assert_eq!(records.held(), RecordsHeld::default());
    }

    #[test]
    fn records_that_have_ended_or_expired_give_way_and_open_ones_do_not() {
        let mut records = Records::default();
        let first = fill(&mut records, 1, 0);
        let bytes = held(1, 0).bytes();
        records.change(1 << 64 | 5, |held| {
            held.record.end(&Ending::Cancel);
            held.counters = RecordedCharges::default();
        });
        let counter = size_of::<RecordedCharge>() as u64;
        assert!(records.make_room(1, counter, 0), "an end frees the counters");
        assert!(records.get(1 << 64 | 5).is_some());
        assert!(records.make_room(1, bytes, 0), "then the record itself");
        assert!(records.get(1 << 64 | 5).is_none());
        records.put(1 << 64 | 5, held(1, 500_000));
        assert!(!records.make_room(1, bytes, 999_999));
        assert!(records.make_room(1, bytes, 1_000_000), "all but one have expired");
        assert_eq!(records.held().open, first - 1);
        assert!(records.get(1 << 64 | 5).is_some());
    }
}
