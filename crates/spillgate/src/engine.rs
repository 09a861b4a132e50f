//! The stores of counter state: memory, or Redis.
//!
//! An engine decides transactions. It knows nothing of rules, requests or APIs.

use std::sync::Arc;

use crate::counter::{Change, ChargeReply, PlannedCharge};
use crate::error::StoreError;
use crate::limit::NamedLimit;
use crate::plan::{Transaction, TransactionReply};
use crate::reservation::{Answer, Contents, EndResult, Ending, ReservationError};
use crate::subject::SubjectKey;

pub(crate) use spillgate_core::memory::Memory;
#[cfg(feature = "redis")]
pub(crate) use spillgate_redis::redis_store::{OwnPart, RedisStore};

#[cfg(not(feature = "redis"))]
mod no_store;
#[cfg(not(feature = "redis"))]
pub(crate) use no_store::RedisStore;

/// The engine of a limiter.
#[derive(Debug)]
pub(crate) enum Engine {
    /// State in this process.
    Memory(Box<Memory>),
    /// State in a store that several instances share.
    Redis(Arc<RedisStore>),
}

impl Engine {
    /// Returns whether state is in this process, so that decisions never wait.
    pub(crate) fn is_memory(&self) -> bool {
        self.memory().is_some()
    }

    pub(crate) fn memory(&self) -> Option<&Memory> {
        match self {
            Engine::Memory(memory) => Some(memory),
            Engine::Redis(_) => None,
        }
    }

    /// Returns the store that several instances share; `None` if state is in memory.
    pub(crate) fn store(&self) -> Option<&Arc<RedisStore>> {
        match self {
            Engine::Memory(_) => None,
            Engine::Redis(store) => Some(store),
        }
    }

    /// Reads the counters of a transaction that charges nothing.
    pub(crate) async fn read(
        &self,
        transaction: &Transaction,
    ) -> Result<TransactionReply, StoreError> {
        match self {
            Engine::Memory(memory) => Ok(memory.decide(transaction)),
            Engine::Redis(store) => store.read(transaction).await,
        }
    }

    /// Changes one counter without a decision. Returns the whole units refunded, and the counter's state afterwards.
    pub(crate) async fn change(
        &self,
        counter: &PlannedCharge,
        change: Change,
    ) -> Result<(u64, ChargeReply), StoreError> {
        match self {
            Engine::Memory(memory) => Ok(memory.change(counter, change)),
            Engine::Redis(store) => store.change(counter, change).await,
        }
    }

    /// Ends or renews a reservation.
    pub(crate) async fn end(
        &self,
        contents: &Contents,
        ending: &Ending<'_>,
    ) -> Result<EndResult, ReservationError> {
        match self {
            Engine::Memory(memory) => match memory.close(contents.id, ending, |_, _| {}) {
                Answer::EndResult(outcome) => Ok(outcome),
                Answer::EndedOtherwise => Err(ReservationError::EndedOtherwise),
            },
            Engine::Redis(store) => Box::pin(store.end(contents, ending)).await,
        }
    }

    /// Deletes all that these limits hold for a subject.
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
            Engine::Redis(store) => store.reset(key, limits).await,
        }
    }
}
