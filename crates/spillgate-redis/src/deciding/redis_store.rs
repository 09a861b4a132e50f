//! The shared store of a limiter: everything between a plan and its outcome while state is in Redis.
//!
//! Leases pay first, then a remembered denial answers, and the servers evaluate the rest. What they do not answer
//! is decided by the local fallback.

use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::Notify;

use super::denial_cache::DenialCache;
use super::engine::Redis;
use super::fallback::{Fallback, INSTANCES_UNKNOWN};
use super::lease::Leases;
use crate::counter::{Change, ChargeReply, PlannedCharge};
use crate::error::StoreError;
use crate::fleet::probe::StoreProbe;
use crate::limit::NamedLimit;
use crate::plan::{Transaction, TransactionReply};
use crate::store::InstanceMismatch;
use crate::subject::SubjectKey;
use crate::time::Clock;

mod denials;
mod evaluate;
mod history;
mod last_minute;
mod leasing;
mod record;
mod reserving;
mod upkeep;

use record::Fleet;
pub use record::Origin;

/// The store that the instances of a fleet share, as one instance uses it.
#[derive(Debug)]
pub struct RedisStore {
    /// The servers, which decide while they answer.
    pub servers: Redis,
    /// Decides while they do not.
    pub fallback: Fallback,
    /// The denials that are repeated without a call.
    pub denials: DenialCache,
    /// The tokens that are spent without a call.
    pub leases: Leases,
    fleet: Mutex<Fleet>,
    /// Notified when quota or a permit may have become free.
    room: Arc<Notify>,
}

/// The settings of this instance's own part.
#[derive(Clone, Debug)]
pub struct OwnPart {
    /// The most counters that local shares may have.
    pub max_keys: usize,
    /// The clock of local shares.
    pub clock: Clock,
    /// The setting `expected_instances`; 0 if unset.
    pub expected_instances: u32,
    /// Whether denials are remembered.
    pub remembers: bool,
    /// Notified when quota or a permit may have become free.
    pub room: Arc<Notify>,
}

impl RedisStore {
    /// Makes the store of one instance.
    pub fn new(servers: Redis, own: OwnPart) -> RedisStore {
        let OwnPart { max_keys, clock, expected_instances, remembers, room } = own;
        RedisStore {
            servers,
            fallback: Fallback::new(max_keys, clock, expected_instances),
            denials: DenialCache::new(remembers),
            leases: Leases::new(),
            fleet: Mutex::new(Fleet::new()),
            room,
        }
    }

    /// Reads the counters of a transaction that charges nothing.
    pub async fn read(&self, transaction: &Transaction) -> Result<TransactionReply, StoreError> {
        self.servers.read(transaction).await
    }

    /// Changes one counter without a decision. Returns the whole units refunded, and the counter's
    /// state afterwards.
    pub async fn change(
        &self,
        counter: &PlannedCharge,
        change: Change,
    ) -> Result<(u64, ChargeReply), StoreError> {
        self.servers.change(counter, change).await
    }

    /// Deletes all that these limits hold for a subject, the leases of this instance included.
    pub async fn reset(&self, key: SubjectKey, limits: &[NamedLimit]) -> Result<(), StoreError> {
        self.leases.end_of(key);
        self.servers.reset(key, limits).await
    }

    /// Drops remembered denials and wakes waiting callers, because quota or a permit may have become free.
    pub fn note_room(&self) {
        self.denials.end();
        self.room.notify_waiters();
    }

    /// Waits until a caller that polls the shard of a tag may send its next call.
    pub async fn poll_turn(&self, tag: u128) {
        self.servers.poll_turn(tag).await;
    }

    /// Returns how many live instances differ from this one, by the last beat.
    pub fn mismatch(&self) -> InstanceMismatch {
        self.fleet.lock().mismatch
    }

    /// Examines every shard, with `samples` timed calls.
    pub async fn probe(&self, samples: usize) -> StoreProbe {
        let expected = self.fallback.expected_instances();
        StoreProbe {
            shares: expected.unwrap_or(INSTANCES_UNKNOWN),
            share_is_guessed: expected.is_none(),
            mismatch: self.mismatch(),
            ..self.servers.member().probe(samples).await
        }
    }
}
