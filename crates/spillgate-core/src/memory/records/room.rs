//! The room for records: a number of bytes in all, and at most a hundredth of it for one subject.

use std::collections::{BTreeMap, BTreeSet};

use smallvec::SmallVec;

use super::RecordsHeld;
use crate::algorithm::Charge;
use crate::counter::{LimitHandle, PlannedCharge};
use crate::limit::NamedLimit;
use crate::plan::Transaction;
use crate::reservation::kept::{RecordedCharge, RecordedCharges};
use crate::reservation::record::{Record, RecordedCost};
use crate::reservation::{Group, REMEMBERED_US};

/// Records by the id of their reservation, with their total bytes.
#[derive(Debug, Default)]
pub struct Records {
    by_id: BTreeMap<u128, Box<Held>>,
    open: Order,
    ended: Order,
    of_subject: BTreeMap<u128, u64>,
    bytes: u64,
}

/// A record in memory.
#[derive(Debug)]
pub struct Held {
    pub(crate) record: Record,
    pub(crate) counters: RecordedCharges,
    /// Groups of the reservation with records elsewhere: on the shards of the store that worked.
    pub(crate) elsewhere: SmallVec<[Group; 1]>,
    /// The subject that the record's bytes count for.
    pub(crate) subject: u128,
}

/// Records in the order in which they may be deleted: of all subjects, and of each.
#[derive(Debug, Default)]
struct Order {
    of_all: BTreeSet<(u64, u128)>,
    of_each: BTreeSet<(u128, u64, u128)>,
}

impl Records {
    pub fn get(&self, id: u128) -> Option<&Held> {
        self.by_id.get(&id).map(|held| &**held)
    }

    pub fn put(&mut self, id: u128, held: Box<Held>) {
        let (bytes, forget_us) = (held.bytes(), held.record.forget_us);
        self.bytes += bytes;
        *self.of_subject.entry(held.subject).or_default() += bytes;
        self.order(&held).add(held.subject, forget_us, id);
        self.by_id.insert(id, held);
    }

    pub fn remove(&mut self, id: u128) -> Option<Box<Held>> {
        let held = self.by_id.remove(&id)?;
        let bytes = held.bytes();
        self.bytes -= bytes;
        if let Some(of_subject) = self.of_subject.get_mut(&held.subject) {
            *of_subject -= bytes;
            if *of_subject == 0 {
                self.of_subject.remove(&held.subject);
            }
        }
        self.order(&held).remove(held.subject, held.record.forget_us, id);
        Some(held)
    }

    /// Changes a record, and updates its bytes and its order.
    pub fn change(&mut self, id: u128, change: impl FnOnce(&mut Held)) {
        if let Some(mut held) = self.remove(id) {
            change(&mut held);
            self.put(id, held);
        }
    }

    /// Deletes a few records whose time has passed, more in each call than a call adds.
    pub fn forget_gone(&mut self, now_us: u64) {
        for _ in 0..SWEEP {
            let gone = [&self.open, &self.ended].map(|order| order.first(now_us));
            for id in gone.into_iter().flatten() {
                self.remove(id);
            }
        }
    }

    /// Returns whether `bytes` more of a subject find room.
    ///
    /// If needed, deletes records that only serve late or repeated calls: first ended ones, then expired ones.
    pub fn make_room(&mut self, subject: u128, bytes: u64, now_us: u64) -> bool {
        let of_subject = |records: &Records| records.of_subject.get(&subject).copied();
        // The subject's own bound comes first: it evicts only records of the same subject.
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

    pub fn held(&self) -> RecordsHeld {
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

    /// Returns the first record in order, if it may be deleted at `until_us`.
    fn first(&self, until_us: u64) -> Option<u128> {
        self.of_all.first().filter(|(forget_us, _)| *forget_us <= until_us).map(|(_, id)| *id)
    }

    /// Returns a subject's first record in order, if it may be deleted at `until_us`.
    fn first_of(&self, subject: u128, until_us: u64) -> Option<u128> {
        let until = (subject, until_us, u128::MAX);
        self.of_each.range((subject, 0, 0)..=until).next().map(|(_, _, id)| *id)
    }
}

impl Held {
    /// Returns each counter that was charged, and its charge.
    pub fn charges(&self) -> impl Iterator<Item = (PlannedCharge<&NamedLimit>, Charge)> {
        let counters = self.counters.iter().enumerate();
        counters
            .filter_map(|(place, counter)| Some((counter.planned(0), self.record.charge(place)?)))
    }

    fn bytes(&self) -> u64 {
        let counters = self.counters.iter().map(|counter| &counter.limit);
        let elsewhere = self.elsewhere.len() * size_of::<Group>();
        bytes_of(counters) + elsewhere as u64
    }
}

/// Returns the bytes of a transaction's record while it is open.
pub fn bytes_of_open<L: LimitHandle>(transaction: &Transaction<L>) -> u64 {
    bytes_of(transaction.charges.iter().map(PlannedCharge::limit))
}

/// Returns the bytes of a record with counters of these limits. An ended record has none.
fn bytes_of<'l>(limits: impl Iterator<Item = &'l NamedLimit>) -> u64 {
    let counter = |limit: &NamedLimit| {
        size_of::<RecordedCharge>() + size_of::<RecordedCost>() + limit.heap_bytes()
    };
    (RECORD_BYTES + limits.map(counter).sum::<usize>()) as u64
}

/// Returns the latest deletion time of records that have expired by now.
fn expired_by(now_us: u64) -> u64 {
    now_us.saturating_add(REMEMBERED_US)
}

/// Bytes of all records of a process: a quarter of a gigabyte, some 350,000 records of one counter.
///
/// A service that holds more reservations open should use a store.
const BYTES_MAX: u64 = 256 << 20;
/// The fewest subjects that can fill the room together, so that one alone does not lock out the others.
const SUBJECTS_TO_FILL: u64 = 100;
const SUBJECT_BYTES_MAX: u64 = BYTES_MAX / SUBJECTS_TO_FILL;
/// Records of each order that one call deletes.
const SWEEP: usize = 2;
/// Bytes of a record without counters: the record, its two lists, and its entries in the trees.
const RECORD_BYTES: usize = size_of::<Held>() + 3 * ALLOCATION_BYTES + TREES_BYTES;
/// Bytes that the allocator adds, and the reference counts of a shared list.
const ALLOCATION_BYTES: usize = 16;
/// Bytes of one entry in each tree that a record is in. A B-tree node of eleven is about half full, so an
/// entry takes twice its size.
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
        let counter = RecordedCharge { key, limit, share_of: None, unit: 0, is_enforced: true };
        let charges = [RecordedCost { cost: 0, charge: None }];
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
    fn one_subject_fills_a_hundredth_of_the_room_at_most() {
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
    fn evicts_ended_and_expired_records_and_keeps_open_ones() {
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
