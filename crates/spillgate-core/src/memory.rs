//! Counter state in this process: shards of packed slots, bounded, and swept as they are used.

use std::slice::from_ref;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::{Mutex, MutexGuard};
use smallvec::SmallVec;

use crate::algorithm::{self, Intent, Reading, StepCounter};
use crate::counter::{COUNTERS_INLINE, Change, ChargeReply, LimitHandle, PlannedCharge};
use crate::limit::NamedLimit;
use crate::plan::{RecordAction, RecordReply, Transaction, TransactionReply};
use crate::subject::SubjectKey;
use crate::time::{Clock, CoarseTime};

mod records;
mod shard;
mod slot;

use records::Records;
pub use records::RecordsHeld;
pub use records::{Corrected, Kept, subject_of, takes_permits};
use shard::{Place, Shard, Written};

/// The memory engine. All counters of one rule and subject live in one shard, so a decision by one rule takes one lock.
#[derive(Debug)]
pub struct Memory {
    shards: Box<[Mutex<Shard>]>,
    /// Locked before any shard, in every function that takes both.
    records: Mutex<Records>,
    clock: Clock,
    evicted: AtomicU64,
    overflowed: AtomicU64,
}

/// Effects of a full memory engine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Evictions {
    /// Live counters that were evicted.
    pub live: u64,
    /// Decisions on the overflow counter that all new subjects of a limit share.
    pub overflowed: u64,
}

impl Memory {
    /// Creates an engine of at most `max_keys` counters. Sliding logs may take 64 MB beside them; beyond that, a long one
    /// counts as several, by its bytes.
    pub fn new(max_keys: usize, clock: Clock) -> Memory {
        let each = max_keys.div_ceil(SHARDS).max(1);
        let shards = (0..SHARDS).map(|_| Mutex::new(Shard::new(each))).collect();
        Memory {
            shards,
            records: Mutex::default(),
            clock,
            evicted: AtomicU64::new(0),
            overflowed: AtomicU64::new(0),
        }
    }

    /// Decides a transaction over any number of limits, all or none.
    ///
    /// Locks the shards of its counters first, then reads the clock, so that two decisions on one counter see their
    /// times in the order of their charges. The coarse clock suffices for token buckets in use; all else reads the
    /// exact clock.
    pub fn decide<L: LimitHandle>(&self, transaction: &Transaction<L>) -> TransactionReply {
        let mut replies = SmallVec::new();
        if let RecordAction::Open(opening) = &transaction.record {
            return self.open(transaction, opening);
        }
        let allowed =
            self.decide_charges(&transaction.charges, transaction.intent, |one| replies.push(one));
        TransactionReply { allowed, replies, record: RecordReply::None, is_resent: false }
    }

    /// Decides as [`Memory::decide`] does. Passes the reply for each counter to `answer`, in order, and
    /// returns the result of opening a record.
    #[inline]
    pub fn decide_into<L: LimitHandle>(
        &self,
        transaction: &Transaction<L>,
        answer: impl FnMut(ChargeReply),
    ) -> RecordReply {
        if let RecordAction::Open(opening) = &transaction.record {
            let reply = self.open(transaction, opening);
            reply.replies.into_iter().for_each(answer);
            return reply.record;
        }
        self.decide_charges(&transaction.charges, transaction.intent, answer);
        RecordReply::None
    }

    /// Decides over one counter, without allocating lists.
    pub fn decide_one<L: LimitHandle>(
        &self,
        asked: &PlannedCharge<L>,
        intent: Intent,
    ) -> ChargeReply {
        let mut reply = None;
        self.decide_charges(from_ref(asked), intent, |one| reply = Some(one));
        reply.expect("each planned counter has a reply")
    }

    /// Locks the shards of the counters, then reads the clock and decides.
    ///
    /// Passes the reply for each counter to `answer`, in order, and returns whether every enforced counter had room.
    #[inline]
    pub fn decide_charges<L: LimitHandle>(
        &self,
        asked: &[PlannedCharge<L>],
        intent: Intent,
        mut answer: impl FnMut(ChargeReply),
    ) -> bool {
        let mut locked = self.lock(asked);
        // The fast path: no state is unpacked into a list, and only the coarse clock is read.
        let by_coarse = intent == Intent::Charge
            && locked.charge_in_place(asked, self.clock.coarse(), &mut answer);
        by_coarse || self.decide_by_exact_clock(asked, intent, &mut locked, &mut answer)
    }

    /// Loads the state of each counter, decides at the exact instant, and stores the new state.
    #[inline(never)]
    fn decide_by_exact_clock<L: LimitHandle>(
        &self,
        asked: &[PlannedCharge<L>],
        intent: Intent,
        locked: &mut Locked<'_>,
        answer: &mut impl FnMut(ChargeReply),
    ) -> bool {
        let now_us = self.clock.now_us();
        let mut places: SmallVec<[Place; COUNTERS_INLINE]> = SmallVec::new();
        let mut counters: SmallVec<[StepCounter<'_>; COUNTERS_INLINE]> = SmallVec::new();
        for asked in asked {
            let shard = locked.shard(asked.key);
            let place = self.place(shard, asked, now_us);
            counters.push(StepCounter::new(
                asked.params(),
                asked.cost,
                asked.group,
                shard.take(&place),
            ));
            places.push(place);
        }
        let allowed = algorithm::step(&mut counters, intent, now_us);
        // Denied counters are written back too: their large states were moved out by `take`.
        for ((asked, counter), place) in asked.iter().zip(&mut counters).zip(places) {
            answer(ChargeReply::from_step(counter));
            locked.shard(asked.key).put(place, counter);
        }
        allowed
    }

    /// Changes one counter without a decision. Returns the whole units refunded, and the counter's state afterwards.
    pub fn change<L: LimitHandle>(
        &self,
        asked: &PlannedCharge<L>,
        change: Change,
    ) -> (u64, ChargeReply) {
        self.with_counter(asked, |counter, now_us| match change {
            Change::Force(cost) => {
                counter.cost = cost;
                algorithm::force(std::slice::from_mut(counter), now_us);
                0
            }
            Change::Refund(what) => algorithm::refund(counter, what, now_us),
        })
    }

    /// Calls `act` with a counter's state, and stores the new state.
    fn with_counter<L: LimitHandle, T>(
        &self,
        asked: &PlannedCharge<L>,
        act: impl FnOnce(&mut StepCounter<'_>, u64) -> T,
    ) -> (T, ChargeReply) {
        let mut shard = self.shards[shard_of(asked.key)].lock();
        let now_us = self.clock.now_us();
        let place = self.place(&mut shard, asked, now_us);
        let mut counter = StepCounter::new(asked.params(), asked.cost, 0, shard.take(&place));
        let done = act(&mut counter, now_us);
        shard.put(place, &mut counter);
        (done, ChargeReply::from_step(&counter))
    }

    /// Deletes the state of these limits for a subject.
    pub fn reset(&self, key: SubjectKey, limits: &[NamedLimit]) {
        let mut shard = self.shards[shard_of(key)].lock();
        for limit in limits {
            shard.forget(key.id ^ limit.mix());
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

    /// Returns the place of a counter's state in its shard.
    ///
    /// A new subject gets a place if the shard makes room. Otherwise it shares the limit's overflow counter
    /// with all others that found no room.
    fn place<L: LimitHandle>(
        &self,
        shard: &mut Shard,
        asked: &PlannedCharge<L>,
        now_us: u64,
    ) -> Place {
        self.own_place(shard, asked, now_us).unwrap_or_else(|| {
            self.overflowed.fetch_add(1, Ordering::Relaxed);
            shard.find(asked.key.rule ^ asked.limit().mix())
        })
    }

    /// Returns the place of the subject's own counter, if it has one or the shard makes room.
    fn own_place<L: LimitHandle>(
        &self,
        shard: &mut Shard,
        asked: &PlannedCharge<L>,
        now_us: u64,
    ) -> Option<Place> {
        if shard.is_over() && asked.cost > 0 {
            shard.make_room(now_us, &self.evicted);
        }
        let place = shard.find(asked.name());
        // Charges of 0 store nothing, so they never evict another counter.
        let has_room =
            place.is_known() || asked.cost == 0 || shard.make_room(now_us, &self.evicted);
        has_room.then_some(place)
    }

    /// Locks every shard that holds one of the counters, in ascending order, so that no two callers deadlock.
    #[inline]
    fn lock<L>(&self, counters: &[PlannedCharge<L>]) -> Locked<'_> {
        let first = counters.first().map_or(0, |counter| shard_of(counter.key));
        if counters.iter().all(|counter| shard_of(counter.key) == first) {
            return Locked::One(self.shards[first].lock());
        }
        self.lock_several(counters)
    }

    #[cold] // decisions by one rule, the usual ones, are 5 % faster with this
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
    Several(Vec<(usize, MutexGuard<'m, Shard>)>),
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

    /// Charges every counter inside its slot, if all are enforced buckets in use and the coarse clock is certain.
    ///
    /// Returns whether it did. If not, every slot is restored, and `answer` was not called.
    #[inline]
    fn charge_in_place<L: LimitHandle>(
        &mut self,
        asked: &[PlannedCharge<L>],
        now: CoarseTime,
        answer: &mut impl FnMut(ChargeReply),
    ) -> bool {
        let reply = |reading| ChargeReply { fits: true, reading, charge: None };
        // A single counter needs no undo list.
        if let [asked] = asked {
            let charged = self.shard(asked.key).charge(asked, now);
            charged.map(|(reading, _)| answer(reply(reading))).is_some()
        } else {
            let mut readings: SmallVec<[Reading; COUNTERS_INLINE]> = SmallVec::new();
            let mut before: SmallVec<[Written; COUNTERS_INLINE]> = SmallVec::new();
            for one in asked {
                let Some((reading, written)) = self.shard(one.key).charge(one, now) else { break };
                readings.push(reading);
                before.push(written);
            }
            // One counter needs the exact clock, so the whole transaction starts again. A transaction has
            // each counter once, so the order of undoing does not matter.
            if before.len() < asked.len() {
                let written = asked.iter().zip(before);
                written.for_each(|(one, written)| self.shard(one.key).undo(written));
                return false;
            }
            readings.into_iter().for_each(|reading| answer(reply(reading)));
            true
        }
    }
}

fn shard_of(key: SubjectKey) -> usize {
    (key.id >> 64) as usize % SHARDS
}

/// More shards than cores, so that threads seldom contend; few enough to keep each table dense.
const SHARDS: usize = 64;
