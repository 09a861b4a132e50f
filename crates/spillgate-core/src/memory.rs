//! Counter state in this process: shards of packed slots, bounded, and swept as they are used.

use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::{Mutex, MutexGuard};
use smallvec::SmallVec;

use crate::algorithm::{Intent, State, View};
use crate::counter::{COUNTERS_INLINE, Change, ChargeReply, LimitHandle, PlannedCharge};
use crate::limit::{NamedLimit, RecordName};
use crate::plan::{RecordAction, RecordReply, Transaction, TransactionReply};
use crate::random::random;
use crate::subject::SubjectKey;
use crate::time::Clock;

mod deciding;
mod records;
mod shard;
mod slot;

use deciding::Deciding;
use records::Records;
pub use records::RecordsHeld;
pub use records::{Corrected, Kept, subject_of, takes_permits};
use shard::{Name, Shard};

/// The memory engine. All counters of one rule and subject live in one shard, so a decision by one rule takes one lock.
#[derive(Debug)]
pub struct Memory {
    shards: Box<[Mutex<Shard>]>,
    /// Locked before any shard, in every function that takes both.
    records: Mutex<Records>,
    clock: Clock,
    random: [u64; 2],
    evicted: AtomicU64,
    overflowed: AtomicU64,
}

/// Effects of a full memory engine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Evictions {
    /// Live counters that were evicted.
    pub live: u64,
    /// Charges by an overflow counter that new subjects of a limit share, denied ones too.
    pub overflowed: u64,
}

impl Memory {
    /// Creates an engine of about `max_keys` counters, and 64 at least, beside overflow counters. Sliding logs may take 64 MB
    /// more; beyond that, a long one counts as several, by its bytes.
    pub fn new(max_keys: usize, clock: Clock) -> Memory {
        let each = max_keys.div_ceil(SHARDS).max(1);
        let shards = (0..SHARDS).map(|_| Mutex::new(Shard::new(each))).collect();
        Memory {
            shards,
            records: Mutex::default(),
            clock,
            random: [random(), random()],
            evicted: AtomicU64::new(0),
            overflowed: AtomicU64::new(0),
        }
    }

    /// Decides a transaction over any number of limits, all or none.
    pub fn decide<L: LimitHandle>(&self, transaction: &Transaction<L>) -> TransactionReply {
        let mut replies = SmallVec::new();
        let (allowed, record) = self.decide_into(transaction, |_, reply| replies.push(reply));
        TransactionReply { allowed, replies, record, is_resent: false }
    }

    /// Decides as [`Memory::decide`] does. Passes each charge with its reply to `answer`, in order, and returns whether the
    /// decision allows, with the result of opening a record.
    #[inline]
    pub fn decide_into<L: LimitHandle>(
        &self,
        transaction: &Transaction<L>,
        mut answer: impl FnMut(&PlannedCharge<L>, ChargeReply),
    ) -> (bool, RecordReply) {
        let charges = &transaction.charges[..];
        if let RecordAction::Open(opening) = &transaction.record {
            let reply = self.open(transaction, opening);
            charges.iter().zip(reply.replies).for_each(|(charge, one)| answer(charge, one));
            return (reply.allowed, reply.record);
        }
        let mut locked = self.lock(charges);
        let mut deciding = self.deciding(&mut locked, charges, transaction.intent);
        (deciding.decide(answer), RecordReply::None)
    }

    /// Begins a decision over counters whose shards are locked. The clock is read afterwards, so that two decisions on one
    /// counter see their times in the order of their charges.
    #[inline]
    fn deciding<'l, 'm, L>(
        &'m self,
        locked: &'l mut Locked<'m>,
        charges: &'l [PlannedCharge<L>],
        intent: Intent,
    ) -> Deciding<'l, 'm, L> {
        let now_us = self.clock.now_us();
        Deciding { memory: self, locked, charges, intent, now_us, needs_own: false }
    }

    /// Changes one counter without a decision. Returns the whole units refunded, and the counter's state afterwards.
    pub fn change<L: LimitHandle>(
        &self,
        asked: &PlannedCharge<L>,
        change: Change,
    ) -> (u64, ChargeReply) {
        let adds = matches!(change, Change::Force(_));
        let (returned, reply) =
            self.with_counter(asked, adds, |view, state, now_us| match change {
                Change::Force(cost) => {
                    view.force(state, cost, now_us);
                    Some(0)
                }
                Change::Refund(what) => view.refund(state, what, now_us),
            });
        (returned.unwrap_or(0), reply)
    }

    /// Calls `act` with a counter and its state, and stores the new state if it returns something. `adds` says whether it
    /// may use a counter that is not stored yet.
    fn with_counter<L: LimitHandle, T>(
        &self,
        asked: &PlannedCharge<L>,
        adds: bool,
        act: impl FnOnce(&mut View<'_>, &mut Option<State>, u64) -> Option<T>,
    ) -> (Option<T>, ChargeReply) {
        let mut shard = self.shards[shard_of(asked.key)].lock();
        let (now_us, mut name) = (self.clock.now_us(), self.name(asked.key.id, asked.limit()));
        if adds && !shard.find(name).0.is_known() && !shard.has_room(1, now_us, |_| false) {
            self.overflowed.fetch_add(1, Ordering::Relaxed);
            name = self.overflow_name(asked);
        }
        let act = |view: &mut View<'_>, state: &mut Option<State>| act(view, state, now_us);
        let (done, reading) = shard.change(name, asked.params(), 1, now_us, act);
        if shard.is_over() {
            shard.evict(now_us, |kept| kept == name, &self.evicted);
        }
        (done, ChargeReply { fits: true, reading, charge: None })
    }

    /// Deletes the state of these limits for a subject.
    pub fn reset(&self, key: SubjectKey, limits: &[NamedLimit]) {
        let mut shard = self.shards[shard_of(key)].lock();
        for limit in limits {
            shard.forget(self.name(key.id, limit));
        }
    }

    /// Returns the number of counters.
    pub fn len(&self) -> usize {
        self.shards.iter().map(|shard| shard.lock().len()).sum()
    }

    /// Returns whether the engine holds no counter.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the bytes of the shards' tables.
    pub fn bytes(&self) -> usize {
        self.shards.iter().map(|shard| shard.lock().bytes()).sum()
    }

    /// Returns the effects of running out of room.
    pub fn evictions(&self) -> Evictions {
        Evictions {
            live: self.evicted.load(Ordering::Relaxed),
            overflowed: self.overflowed.load(Ordering::Relaxed),
        }
    }

    /// Returns the name of a limit's counter for a subject.
    ///
    /// The limits of a subject without names of their own differ only in bits by which no table finds a place, so that
    /// they lie side by side. Others are spread: a request may bring limits of any number of periods.
    #[inline]
    fn name(&self, id: u128, limit: &NamedLimit) -> Name {
        match limit.record() {
            RecordName::Position(position) => self.hash(id) ^ bits_of(position, limit),
            RecordName::Given(_) => self.hash(id ^ limit.mix()),
        }
    }

    /// Returns the name of the counter that all subjects of a shard and limit share that found no room. Limits that requests
    /// bring beside a rule's may have any number of periods: those within a factor of two share it, so that there are few.
    fn overflow_name<L: LimitHandle>(&self, asked: &PlannedCharge<L>) -> Name {
        let limit = asked.limit();
        let periods = 1 + u128::from(limit.limit().period().leading_zeros());
        self.hash(asked.key.rule ^ periods) ^ bits_of(limit.position(), limit)
    }

    /// Returns a hash by random bits of this process, so that no client can aim two subjects at one counter. The secret of
    /// the ids does not suffice for that, since all fleets share it unless it is set.
    #[inline]
    fn hash(&self, id: u128) -> u64 {
        let [low, high] = [id as u64 ^ self.random[0], (id >> 64) as u64 ^ self.random[1]];
        let product = u128::from(low) * u128::from(high);
        product as u64 ^ (product >> 64) as u64
    }

    /// Locks every shard that holds one of the counters, in ascending order, so that no two callers deadlock.
    #[inline]
    fn lock<L>(&self, counters: &[PlannedCharge<L>]) -> Locked<'_> {
        let (first, others) = match counters {
            [first, others @ ..] => (shard_of(first.key), others),
            [] => (0, counters),
        };
        if others.iter().all(|other| shard_of(other.key) == first) {
            return Locked::One(self.shards[first].lock());
        }
        self.lock_several(counters)
    }

    #[cold]
    fn lock_several<L>(&self, counters: &[PlannedCharge<L>]) -> Locked<'_> {
        let mut numbers: SmallVec<[usize; COUNTERS_INLINE]> =
            counters.iter().map(|counter| shard_of(counter.key)).collect();
        numbers.sort_unstable();
        numbers.dedup();
        let lock = |number: usize| (number, self.shards[number].lock());
        Locked::Several(numbers.into_iter().map(lock).collect())
    }
}

/// The locked shards of one decision.
enum Locked<'m> {
    One(MutexGuard<'m, Shard>),
    Several(SmallVec<[(usize, MutexGuard<'m, Shard>); COUNTERS_INLINE]>),
}

impl Locked<'_> {
    #[inline]
    fn shard(&mut self, key: SubjectKey) -> &mut Shard {
        match self {
            Locked::One(shard) => shard,
            Locked::Several(shards) => {
                let number = shard_of(key);
                let place = shards.iter().position(|(locked, _)| *locked == number);
                &mut shards[place.expect("every counter's shard was locked before")].1
            }
        }
    }
}

/// Returns bits that differ for the positions and algorithms of a rule's limits: the highest of a name.
#[inline]
fn bits_of(position: u8, limit: &NamedLimit) -> u64 {
    (u64::from(position) << 3 | limit.algorithm() as u64) << 55
}

fn shard_of(key: SubjectKey) -> usize {
    (key.id >> 64) as usize % SHARDS
}

/// More shards than cores, so that threads seldom contend; few enough to keep each table dense.
const SHARDS: usize = 64;
