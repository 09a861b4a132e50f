//! The stores of counter state: memory, or Redis.
//!
//! An engine decides transactions. It knows nothing of rules, requests or APIs.

use crate::error::StoreError;
use crate::limit::NamedLimit;
use crate::probe::StoreProbe;
use crate::subject::SubjectKey;

pub mod memory;
#[cfg(feature = "redis")]
pub mod redis;

#[cfg(feature = "redis")]
pub use crate::counter::AS_CHARGED;
pub(crate) use crate::counter::COUNTERS_INLINE;
pub use crate::counter::{Change, ChargeReply, PlannedCharge};
pub use crate::plan::{RecordAction, Transaction, TransactionReply};
pub use memory::Memory;
#[cfg(feature = "redis")]
pub(crate) use memory::takes_permits;
#[cfg(feature = "redis")]
pub use redis::Redis;
#[cfg(feature = "redis")]
pub(crate) use redis::jitter::jittered;
#[cfg(feature = "redis")]
pub(crate) use redis::spread::{ShardFallback, StoreCall, decide, decide_each};

/// The engine of a limiter.
#[derive(Debug)]
pub enum Engine {
    /// State in this process.
    Memory(Memory),
    /// State in a store that several instances share.
    #[cfg(feature = "redis")]
    Redis(Redis),
}

impl Engine {
    /// Decides several transactions, in order, each by itself.
    pub async fn decide(
        &self,
        transactions: &[Transaction],
    ) -> Vec<Result<TransactionReply, StoreError>> {
        match self {
            Engine::Memory(memory) => {
                transactions.iter().map(|transaction| Ok(memory.decide(transaction))).collect()
            }
            #[cfg(feature = "redis")]
            Engine::Redis(redis) => redis.decide(transactions).await,
        }
    }

    /// Decides one transaction.
    pub async fn decide_one(
        &self,
        transaction: &Transaction,
    ) -> Result<TransactionReply, StoreError> {
        match self {
            Engine::Memory(memory) => Ok(memory.decide(transaction)),
            #[cfg(feature = "redis")]
            Engine::Redis(redis) => redis.decide_one(transaction).await,
        }
    }

    /// Changes one counter without a decision. Returns the whole units refunded, and the counter's state afterwards.
    pub async fn change(
        &self,
        counter: &PlannedCharge,
        change: Change,
    ) -> Result<(u64, ChargeReply), StoreError> {
        match self {
            Engine::Memory(memory) => Ok(memory.change(counter, change)),
            #[cfg(feature = "redis")]
            Engine::Redis(redis) => redis.change(counter, change).await,
        }
    }

    /// Examines every server of the store; memory has none.
    pub async fn probe(&self, samples: usize) -> StoreProbe {
        match self {
            Engine::Memory(_) => StoreProbe::default(),
            #[cfg(feature = "redis")]
            Engine::Redis(redis) => redis.probe(samples).await,
        }
    }

    /// Deletes all that these limits hold for a subject.
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
