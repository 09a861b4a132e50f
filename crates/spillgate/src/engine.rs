//! Where tier state lives: memory or Redis. An engine decides; it knows nothing of rules, requests
//! or doors.

use std::cmp::Reverse;

use smallvec::SmallVec;

use crate::algorithm::{Charge, GiveBack, Intent, Numbers, Reading};
use crate::error::StoreError;
use crate::limit::NamedLimit;
use crate::probe::StoreProbe;
#[cfg(feature = "redis")]
use crate::reservation::Closing;
use crate::reservation::Opening;
use crate::subject::SubjectKey;

pub mod memory;
#[cfg(feature = "redis")]
pub mod redis;

pub use memory::Memory;
#[cfg(feature = "redis")]
pub(crate) use memory::takes_permits;
#[cfg(feature = "redis")]
pub use redis::Redis;
#[cfg(feature = "redis")]
pub(crate) use redis::jitter::jittered;
#[cfg(feature = "redis")]
pub(crate) use redis::spread::{
    Cause, Heard, Heards, Order, Question, StandIn, decide, decide_each,
};
#[cfg(feature = "redis")]
pub(crate) use redis::{Joined, Untold};

/// One decision to make: tiers grouped by rule, the enforced ones (group 0) first.
#[derive(Clone, Debug)]
pub struct Ask<'a> {
    /// What to do where there is room.
    pub intent: Intent,
    /// What is done with a reservation's record in the same call.
    pub record: AtRecord<'a>,
    /// No two with the same key and limit.
    pub tiers: SmallVec<[AskTier<'a>; TIERS_INLINE]>,
}

/// What a call does with the record of a reservation, which lies beside the first of its tiers.
#[derive(Clone, Copy, Debug, Default)]
pub enum AtRecord<'a> {
    /// There is none.
    #[default]
    None,
    /// Opens it, if the decision allows; where one is open already, nothing is charged.
    Open(&'a Opening),
    /// Ends or renews it: no decision is made, and each tier is corrected to the cost that is asked
    /// for, or left as it is ([`AS_CHARGED`]).
    #[cfg(feature = "redis")]
    Close(&'a Closing),
}

#[cfg(feature = "redis")]
impl AtRecord<'_> {
    /// Notes that the call is sent a second time, so that a record which is there may be its own.
    fn note_resent(&self) {
        if let AtRecord::Open(opening) = self {
            opening.note_resent();
        }
    }
}

/// One tier of a decision, and what it is to be charged.
#[derive(Clone, Copy, Debug)]
pub struct AskTier<'a> {
    /// Whose state.
    pub key: SubjectKey,
    /// Under which name.
    pub limit: &'a NamedLimit,
    /// With which numbers.
    pub numbers: &'a Numbers,
    /// At most the capacity; 0 peeks.
    pub cost: u64,
    /// 0 is enforced; each other number is a shadow rule.
    pub group: u16,
    /// How many attributes its subject goes by: the fewer, the more requests share it.
    pub attributes: u8,
    /// What was admitted while the store was out of reach and is charged now by force, before
    /// anything else. In memory nothing is ever owed.
    pub owed: u64,
}

impl<'a> AskTier<'a> {
    /// A tier by itself, of which nothing is asked.
    pub(crate) fn of(key: SubjectKey, limit: &'a NamedLimit, numbers: &'a Numbers) -> AskTier<'a> {
        AskTier { key, limit, numbers, cost: 0, group: 0, attributes: 0, owed: 0 }
    }
}

/// What became of a decision.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Told {
    /// Whether every enforced tier had room.
    pub allowed: bool,
    /// As asked, in order.
    pub tiers: SmallVec<[ToldTier; TIERS_INLINE]>,
}

impl Told {
    /// It was admitted before, however things stand now.
    fn admit(&mut self) {
        self.allowed = true;
        for tier in &mut self.tiers {
            tier.fits = true;
            tier.reading.retry_after_us = Some(0);
        }
    }
}

/// What became of one tier.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ToldTier {
    /// Whether the cost had room.
    pub fits: bool,
    /// The numbers for people.
    pub reading: Reading,
    /// The receipt's part.
    pub charge: Option<Charge>,
}

impl ToldTier {
    /// What is kept in two places holds by the one that is tighter: by its refusal, its wait, its rest.
    pub(crate) fn tightness(&self) -> (bool, u64, Reverse<u64>) {
        // A wait that nobody knows is the longest.
        let wait_us = self.reading.retry_after_us.unwrap_or(u64::MAX);
        (!self.fits, wait_us, Reverse(self.reading.remaining))
    }
}

/// Something done to one tier that is no decision.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// Charge so much, room or not.
    Force(u64),
    /// Give back.
    GiveBack(GiveBack),
}

/// The engine of a limiter.
#[derive(Debug)]
pub enum Engine {
    /// In this process.
    Memory(Memory),
    /// In a store that other processes share.
    #[cfg(feature = "redis")]
    Redis(Redis),
}

impl Engine {
    /// Decides each of `asks`, in order, each by itself.
    pub async fn decide(&self, asks: &[Ask<'_>]) -> Vec<Result<Told, StoreError>> {
        match self {
            Engine::Memory(memory) => asks.iter().map(|ask| Ok(memory.decide(ask))).collect(),
            #[cfg(feature = "redis")]
            Engine::Redis(redis) => redis.decide(asks).await,
        }
    }

    /// Decides one.
    pub async fn decide_one(&self, ask: &Ask<'_>) -> Result<Told, StoreError> {
        match self {
            Engine::Memory(memory) => Ok(memory.decide(ask)),
            #[cfg(feature = "redis")]
            Engine::Redis(redis) => redis.decide_one(ask).await,
        }
    }

    /// Changes one tier; answers the whole units that came back, and the tier as it is then.
    pub async fn change(
        &self,
        tier: &AskTier<'_>,
        change: Change,
    ) -> Result<(u64, ToldTier), StoreError> {
        match self {
            Engine::Memory(memory) => Ok(memory.change(tier, change)),
            #[cfg(feature = "redis")]
            Engine::Redis(redis) => redis.change(tier, change).await,
        }
    }

    /// How often a bucket in memory was charged in steady use.
    pub(crate) fn steady(&self, whose: memory::SteadyOf) -> u64 {
        match self {
            Engine::Memory(memory) => memory.steady(whose),
            #[cfg(feature = "redis")]
            Engine::Redis(_) => 0,
        }
    }

    /// Looks at every server; in memory there is none.
    pub async fn probe(&self, samples: usize) -> StoreProbe {
        match self {
            Engine::Memory(_) => StoreProbe::default(),
            #[cfg(feature = "redis")]
            Engine::Redis(redis) => redis.probe(samples).await,
        }
    }

    /// Forgets all that these limits hold for a subject.
    pub async fn reset(&self, key: SubjectKey, limits: &[NamedLimit]) -> Result<(), StoreError> {
        match self {
            Engine::Memory(memory) => {
                memory.reset(key, limits);
                Ok(())
            }
            #[cfg(feature = "redis")]
            Engine::Redis(redis) => redis.reset(key, limits).await,
        }
    }
}

/// Leaves a tier as it was charged when a reservation ends.
#[cfg(feature = "redis")]
pub const AS_CHARGED: u64 = 1 << 41;
/// As many tiers as most decisions over several have: they are decided without allocating.
pub(crate) const TIERS_INLINE: usize = 4;
