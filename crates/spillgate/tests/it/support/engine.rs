//! One interface over both stores, for tests that run on each.

use spillgate_core::counter::{Change, ChargeReply, PlannedCharge};
use spillgate_core::error::StoreError;
use spillgate_core::limit::NamedLimit;
use spillgate_core::memory::Memory;
use spillgate_core::plan::{Transaction, TransactionReply};
use spillgate_core::subject::SubjectKey;
use spillgate_redis::Redis;

/// A store of counters.
#[derive(Debug)]
pub(crate) enum Engine {
    Memory(Memory),
    Redis(Redis),
}

impl Engine {
    pub(crate) async fn decide(
        &self,
        transactions: &[Transaction],
    ) -> Vec<Result<TransactionReply, StoreError>> {
        match self {
            Engine::Memory(memory) => {
                transactions.iter().map(|transaction| Ok(memory.decide(transaction))).collect()
            }
            Engine::Redis(redis) => redis.decide(transactions).await,
        }
    }

    pub(crate) async fn decide_one(
        &self,
        transaction: &Transaction,
    ) -> Result<TransactionReply, StoreError> {
        match self {
            Engine::Memory(memory) => Ok(memory.decide(transaction)),
            Engine::Redis(redis) => redis.decide_one(transaction).await,
        }
    }

    pub(crate) async fn change(
        &self,
        counter: &PlannedCharge,
        change: Change,
    ) -> Result<(u64, ChargeReply), StoreError> {
        match self {
            Engine::Memory(memory) => Ok(memory.change(counter, change)),
            Engine::Redis(redis) => redis.change(counter, change).await,
        }
    }

    pub(crate) async fn reset(
        &self,
        key: SubjectKey,
        limits: &[NamedLimit],
    ) -> Result<(), StoreError> {
        match self {
            Engine::Memory(memory) => {
                memory.reset(key, limits);
                Ok(())
            }
            Engine::Redis(redis) => redis.reset(key, limits).await,
        }
    }
}
