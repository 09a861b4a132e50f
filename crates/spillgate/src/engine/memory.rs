//! Tier state in this process: shards of packed slots, bounded, swept as they are used.

use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::{Mutex, MutexGuard};
use smallvec::SmallVec;

use super::{Ask, AskTier, AtRecord, Change, TIERS_INLINE, Told, ToldTier};
use crate::algorithm::token_bucket::{self, Charged};
use crate::algorithm::{self, Intent, Numbers, Reading, Tier};
use crate::limit::NamedLimit;
use crate::subject::SubjectKey;
use crate::time::Clock;

mod records;
mod shard;
mod slot;

use records::Records;
pub use records::RecordsHeld;
#[cfg(feature = "redis")]
pub(crate) use records::{Corrected, Kept, subject_of, takes_permits};
use shard::{Place, Shard};

/// The memory engine. All tiers of one rule and subject live in one shard, so most decisions take
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
    /// Live tiers that were forgotten.
    pub live: u64,
    /// Decisions on a tier shared by all new subjects of a limit.
    pub overflowed: u64,
}

/// Charges of buckets in steady use, which are counted where they are made: under the lock that is held
/// anyway, and not by a locked instruction of their own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SteadyOf {
    /// Of limits that came with the question.
    AdHoc,
    /// Of rules.
    Rule,
}

/// Where a tier's state goes, and under which key.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TierName {
    shard: usize,
    key: u128,
    /// The key of those that find no room.
    overflow: u128,
}

impl Memory {
    /// An engine of at most `keys_max` tiers.
    pub fn new(keys_max: usize, clock: Clock) -> Memory {
        let each = keys_max.div_ceil(SHARDS).max(1);
        let shards = (0..SHARDS).map(|_| Mutex::new(Shard::new(each))).collect();
        Memory {
            shards,
            records: Mutex::default(),
            clock,
            evicted: AtomicU64::new(0),
            overflowed: AtomicU64::new(0),
        }
    }

    /// Decides, all or none.
    pub fn decide(&self, ask: &Ask<'_>) -> Told {
        if let AtRecord::Open(opening) = ask.record {
            return self.open(ask, opening);
        }
        if let [tier] = ask.tiers.as_slice() {
            let told = self.decide_one(tier, ask.intent);
            return Told {
                allowed: told.fits || tier.group > 0,
                tiers: SmallVec::from_iter([told]),
            };
        }
        if ask.intent == Intent::Charge
            && let Some(tiers) = self.charge_all_asked(&ask.tiers)
        {
            return Told { allowed: true, tiers };
        }
        let now_us = self.clock.now_us();
        let mut locked = self.lock(&ask.tiers);
        let mut places: SmallVec<[Place; TIERS_INLINE]> = SmallVec::new();
        let mut tiers: SmallVec<[Tier<'_>; TIERS_INLINE]> = SmallVec::new();
        for tier in &ask.tiers {
            let shard = locked.of(tier.key);
            let name = TierName::of(tier.key, tier.limit.mix());
            let place = self.place(shard, name, tier.cost, now_us);
            tiers.push(Tier::new(tier.numbers, tier.cost, tier.group, shard.take(&place)));
            places.push(place);
        }
        let allowed = algorithm::step(&mut tiers, ask.intent, now_us);
        let mut told = Told { allowed, tiers: SmallVec::new() };
        for ((asked, tier), place) in ask.tiers.iter().zip(tiers).zip(places) {
            told.tiers.push(ToldTier::of(&tier));
            locked.of(asked.key).put(place, tier.state, tier.changed, tier.reading.remaining == 0);
        }
        told
    }

    /// Charges a bucket in steady use; nothing where it takes a closer look, and nothing is changed then.
    #[inline]
    pub(crate) fn charge_steady(
        &self,
        name: TierName,
        numbers: &token_bucket::Numbers,
        cost: u64,
        whose: SteadyOf,
    ) -> Option<Reading> {
        let lately = self.clock.lately();
        let mut shard = self.shards[name.shard].lock();
        let reading = shard.charge_steady(name.key, numbers, cost, lately)?;
        shard.steady[whose as usize] += 1;
        Some(reading)
    }

    /// The same of several buckets of one rule and subject, all or none.
    #[inline]
    pub(crate) fn charge_all_steady<'n>(
        &self,
        key: SubjectKey,
        tiers: impl Iterator<Item = Option<(TierName, &'n token_bucket::Numbers, u64)>>,
    ) -> Option<SmallVec<[Charged; TIERS_INLINE]>> {
        let lately = self.clock.lately();
        let mut shard = self.shards[shard_of(key)].lock();
        let charged = shard.charge_all_steady(tiers, lately)?;
        shard.steady[SteadyOf::Rule as usize] += 1;
        Some(charged)
    }

    /// Decides over one tier.
    pub fn decide_one(&self, asked: &AskTier<'_>, intent: Intent) -> ToldTier {
        let name = TierName::of(asked.key, asked.limit.mix());
        if let (Intent::Charge, Numbers::TokenBucket(numbers)) = (intent, asked.numbers) {
            let lately = self.clock.lately();
            let mut shard = self.shards[name.shard].lock();
            if let Some(reading) = shard.charge_steady(name.key, numbers, asked.cost, lately) {
                return ToldTier { fits: true, reading, charge: None };
            }
        }
        self.decide_tier(name, asked.numbers, asked.cost, intent)
    }

    /// The same by the tier's name, looking closely.
    pub(crate) fn decide_tier(
        &self,
        name: TierName,
        numbers: &Numbers,
        cost: u64,
        intent: Intent,
    ) -> ToldTier {
        let shard = &mut *self.shards[name.shard].lock();
        let now_us = self.clock.now_us();
        let place = self.place(shard, name, cost, now_us);
        let mut tier = Tier::new(numbers, cost, 0, shard.take(&place));
        algorithm::step_one(&mut tier, intent, now_us);
        let told = ToldTier::of(&tier);
        shard.put(place, tier.state, tier.changed, tier.reading.remaining == 0);
        told
    }

    /// Charges buckets in steady use, all of them enforced and in one shard, or changes nothing.
    fn charge_all_asked(
        &self,
        tiers: &[AskTier<'_>],
    ) -> Option<SmallVec<[ToldTier; TIERS_INLINE]>> {
        let shard = shard_of(tiers.first()?.key);
        if tiers.iter().any(|tier| tier.group > 0 || shard_of(tier.key) != shard) {
            return None;
        }
        let named = tiers.iter().map(|tier| {
            let Numbers::TokenBucket(numbers) = tier.numbers else { return None };
            Some((TierName::of(tier.key, tier.limit.mix()), numbers, tier.cost))
        });
        let lately = self.clock.lately();
        let charged = self.shards[shard].lock().charge_all_steady(named, lately)?;
        let told =
            |charged: Charged| ToldTier { fits: true, reading: charged.reading, charge: None };
        Some(charged.into_iter().map(told).collect())
    }

    /// Changes one tier without a decision; answers the whole units that came back.
    pub fn change(&self, asked: &AskTier<'_>, change: Change) -> (u64, ToldTier) {
        self.with_tier(asked, |tier, now_us| match change {
            Change::Force(cost) => {
                tier.cost = cost;
                algorithm::force(std::slice::from_mut(tier), now_us);
                0
            }
            Change::GiveBack(what) => algorithm::give_back(tier, what, now_us),
        })
    }

    /// Does something with a tier's state, and stores what became of it.
    fn with_tier<T>(
        &self,
        asked: &AskTier<'_>,
        act: impl FnOnce(&mut Tier<'_>, u64) -> T,
    ) -> (T, ToldTier) {
        let now_us = self.clock.now_us();
        let name = TierName::of(asked.key, asked.limit.mix());
        let mut shard = self.shards[name.shard].lock();
        let place = self.place(&mut shard, name, asked.cost, now_us);
        let mut tier = Tier::new(asked.numbers, asked.cost, 0, shard.take(&place));
        let done = act(&mut tier, now_us);
        let told = ToldTier::of(&tier);
        shard.put(place, tier.state, tier.changed, tier.reading.remaining == 0);
        (done, told)
    }

    /// Forgets what these limits hold for a subject.
    pub fn reset(&self, key: SubjectKey, limits: &[NamedLimit]) {
        let mut shard = self.shards[shard_of(key)].lock();
        for limit in limits {
            shard.forget(TierName::of(key, limit.mix()).key);
        }
    }

    /// How many tiers are held.
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

    /// How often a bucket was charged in steady use.
    pub(crate) fn steady(&self, whose: SteadyOf) -> u64 {
        self.shards.iter().map(|shard| shard.lock().steady[whose as usize]).sum()
    }

    /// Where a tier's state is or will be. A new subject finds room, or shares the limit's
    /// overflow tier with all others that found none.
    fn place(&self, shard: &mut Shard, name: TierName, cost: u64, now_us: u64) -> Place {
        let place = shard.find(name.key);
        if place.is_known() || cost == 0 || shard.make_room(now_us, &self.evicted) {
            return place;
        }
        self.overflowed.fetch_add(1, Ordering::Relaxed);
        shard.find(name.overflow)
    }

    /// Locks every shard that the tiers live in, in one order for all callers.
    fn lock(&self, tiers: &[AskTier<'_>]) -> Locked<'_> {
        let mut numbers: SmallVec<[usize; 4]> =
            tiers.iter().map(|tier| shard_of(tier.key)).collect();
        numbers.sort_unstable();
        numbers.dedup();
        Locked(numbers.into_iter().map(|number| (number, self.shards[number].lock())).collect())
    }
}

/// The shards of one decision.
struct Locked<'m>(SmallVec<[(usize, MutexGuard<'m, Shard>); 4]>);

impl Locked<'_> {
    fn of(&mut self, key: SubjectKey) -> &mut Shard {
        let number = shard_of(key);
        let place = self.0.iter().position(|(locked, _)| *locked == number);
        &mut self.0[place.expect("every tier's shard was locked before")].1
    }
}

impl ToldTier {
    fn of(tier: &Tier<'_>) -> ToldTier {
        ToldTier { fits: tier.fits, reading: tier.reading, charge: tier.charge }
    }
}

impl TierName {
    #[inline]
    pub(crate) fn of(key: SubjectKey, mix: u128) -> TierName {
        TierName { shard: shard_of(key), key: key.id ^ mix, overflow: key.rule ^ mix }
    }
}

#[inline]
fn shard_of(key: SubjectKey) -> usize {
    (key.id >> 64) as usize % SHARDS
}

/// More than cores, so that they seldom meet; few enough to keep each shard's table dense.
const SHARDS: usize = 64;
