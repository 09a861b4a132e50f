//! Counter state in this process: shards of packed slots, bounded, swept as they are used.

use std::slice::from_ref;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::{Mutex, MutexGuard};
use smallvec::SmallVec;

use super::{
    COUNTERS_INLINE, Change, ChargeReply, PlannedCharge, RecordAction, Transaction,
    TransactionReply,
};
use crate::algorithm::{self, Intent, Reading, StepCounter};
use crate::counter::LimitHandle;
use crate::limit::NamedLimit;
use crate::subject::SubjectKey;
use crate::time::{Clock, CoarseTime};

mod records;
mod shard;
mod slot;

use records::Records;
pub use records::RecordsHeld;
#[cfg(feature = "redis")]
pub(crate) use records::{Corrected, Kept, subject_of, takes_permits};
use shard::{Place, Shard, Written};

/// The memory engine. All counters of one rule and subject live in one shard, so most decisions take
/// one lock.
#[derive(Debug)]
pub struct Memory {
    shards: Box<[Mutex<Shard>]>,
    /// Locked before any shard.
    records: Mutex<Records>,
    clock: Clock,
    evicted: AtomicU64,
    overflowed: AtomicU64,
}

/// What the memory engine has had to do for want of room.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Evictions {
    /// Live counters that were forgotten.
    pub live: u64,
    /// Decisions on a counter shared by all new subjects of a limit.
    pub overflowed: u64,
}

impl Memory {
    /// An engine of at most `max_keys` counters.
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

    /// Decides, all or none, over any number of limits. Takes the locks of all shards first and reads the
    /// clock then: a coarse one, which is exact enough for buckets in use, and else the exact one.
    pub fn decide<L: LimitHandle>(&self, transaction: &Transaction<L>) -> TransactionReply {
        let mut counters = SmallVec::new();
        let allowed = self.decide_each(transaction, |reply| counters.push(reply));
        TransactionReply { allowed, counters }
    }

    /// Decides as [`Memory::decide`] does; hands over what became of each counter, in order, and returns whether
    /// every enforced counter had room.
    #[inline]
    pub(crate) fn decide_each<L: LimitHandle>(
        &self,
        transaction: &Transaction<L>,
        answer: impl FnMut(ChargeReply),
    ) -> bool {
        if let RecordAction::Open(opening) = &transaction.record {
            let TransactionReply { allowed, counters } = self.open(transaction, opening);
            counters.into_iter().for_each(answer);
            return allowed;
        }
        self.decide_counters(&transaction.counters, transaction.intent, answer)
    }

    /// Decides over one counter, without lists.
    pub(crate) fn decide_one<L: LimitHandle>(
        &self,
        asked: &PlannedCharge<L>,
        intent: Intent,
    ) -> ChargeReply {
        let mut reply = None;
        self.decide_counters(from_ref(asked), intent, |one| reply = Some(one));
        reply.expect("each counter that is asked for is answered")
    }

    /// Takes the locks of all shards, then reads the clock: a coarse one, which is certain for buckets in use,
    /// and else the exact one. Hands over what became of each counter, in order, and returns whether every enforced
    /// counter had room.
    #[inline]
    fn decide_counters<L: LimitHandle>(
        &self,
        asked: &[PlannedCharge<L>],
        intent: Intent,
        mut answer: impl FnMut(ChargeReply),
    ) -> bool {
        let mut locked = self.lock(asked);
        let by_coarse = intent == Intent::Charge
            && locked.charge_in_place(asked, self.clock.coarse(), &mut answer);
        by_coarse || self.decide_by_exact_clock(asked, intent, &mut locked, &mut answer)
    }

    /// Loads the state of each counter, decides at the exact instant, and stores it.
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
            let shard = locked.of(asked.key);
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
        for ((asked, counter), place) in asked.iter().zip(&mut counters).zip(places) {
            answer(ChargeReply::from_step(counter));
            locked.of(asked.key).put(place, counter);
        }
        allowed
    }

    /// Changes one counter without a decision; answers the whole units that came back.
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

    /// Does something with a counter's state, and stores what became of it.
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

    /// Forgets what these limits hold for a subject.
    pub fn reset(&self, key: SubjectKey, limits: &[NamedLimit]) {
        let mut shard = self.shards[shard_of(key)].lock();
        for limit in limits {
            shard.forget(key.id ^ limit.mix());
        }
    }

    /// How many counters are held.
    pub fn len(&self) -> usize {
        self.shards.iter().map(|shard| shard.lock().len()).sum()
    }

    /// Whether none is held.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The bytes that the shards' tables hold.
    pub fn bytes(&self) -> usize {
        self.shards.iter().map(|shard| shard.lock().bytes()).sum()
    }

    /// What had to go for want of room.
    pub fn evictions(&self) -> Evictions {
        Evictions {
            live: self.evicted.load(Ordering::Relaxed),
            overflowed: self.overflowed.load(Ordering::Relaxed),
        }
    }

    /// Where a counter's state is or will be. A new subject finds room, or shares the limit's
    /// overflow counter with all others that found none.
    fn place<L: LimitHandle>(
        &self,
        shard: &mut Shard,
        asked: &PlannedCharge<L>,
        now_us: u64,
    ) -> Place {
        let mix = asked.limit().mix();
        let place = shard.find(asked.key.id ^ mix);
        if place.is_known() || asked.cost == 0 || shard.make_room(now_us, &self.evicted) {
            return place;
        }
        self.overflowed.fetch_add(1, Ordering::Relaxed);
        shard.find(asked.key.rule ^ mix)
    }

    /// Locks every shard that the counters live in, in one order for all callers.
    #[inline]
    fn lock<L>(&self, counters: &[PlannedCharge<L>]) -> Locked<'_> {
        let first = counters.first().map_or(0, |counter| shard_of(counter.key));
        if counters.iter().all(|counter| shard_of(counter.key) == first) {
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

/// The shards of one decision.
enum Locked<'m> {
    One(MutexGuard<'m, Shard>),
    Several(Vec<(usize, MutexGuard<'m, Shard>)>),
}

impl Locked<'_> {
    #[inline]
    fn of(&mut self, key: SubjectKey) -> &mut Shard {
        match self {
            Locked::One(shard) => shard,
            Locked::Several(shards) => {
                let number = shard_of(key);
                let place = shards.iter().position(|(locked, _)| *locked == number);
                &mut shards[place.expect("every counter's shard was locked before")].1
            }
        }
    }

    /// Charges every counter where it lies, if all are enforced buckets and the coarse clock is certain. Returns
    /// whether it did; else nothing is changed or answered.
    #[inline]
    fn charge_in_place<L: LimitHandle>(
        &mut self,
        asked: &[PlannedCharge<L>],
        now: CoarseTime,
        answer: &mut impl FnMut(ChargeReply),
    ) -> bool {
        let reply = |reading| ChargeReply { fits: true, reading, charge: None };
        // One needs no list of what to undo.
        if let [asked] = asked {
            let charged = self.of(asked.key).charge(asked, now);
            charged.map(|(reading, _)| answer(reply(reading))).is_some()
        } else {
            let mut readings: SmallVec<[Reading; COUNTERS_INLINE]> = SmallVec::new();
            let mut before: SmallVec<[Written; COUNTERS_INLINE]> = SmallVec::new();
            for one in asked {
                let Some((reading, written)) = self.of(one.key).charge(one, now) else { break };
                readings.push(reading);
                before.push(written);
            }
            if before.len() < asked.len() {
                let written = asked.iter().zip(before);
                written.for_each(|(one, written)| self.of(one.key).undo(written));
                return false;
            }
            readings.into_iter().for_each(|reading| answer(reply(reading)));
            true
        }
    }
}

#[inline]
fn shard_of(key: SubjectKey) -> usize {
    (key.id >> 64) as usize % SHARDS
}

/// More than cores, so that they seldom meet; few enough to keep each shard's table dense.
const SHARDS: usize = 64;
