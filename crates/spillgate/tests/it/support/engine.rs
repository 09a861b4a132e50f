//! One interface over both stores, for tests that run on each.

use std::sync::LazyLock;

use spillgate_core::algorithm::Intent;
use spillgate_core::counter::{Change, ChargeReply, PlannedCharge};
use spillgate_core::error::StoreError;
use spillgate_core::limit::{Limit, NamedLimit};
use spillgate_core::memory::Memory;
use spillgate_core::plan::{
    ChargeOutcome, ChargeOutcomes, Plan, RecordReply, Transaction, TransactionReply,
};
use spillgate_core::request::Cost;
use spillgate_core::subject::SubjectKey;
use spillgate_core::time::Clock;
use spillgate_redis::Redis;
use spillgate_redis::fallback::Fallback;
use spillgate_redis::spread::decide;

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
        let redis = match self {
            Engine::Memory(memory) => {
                return transactions.iter().map(|it| Ok(memory.decide(it))).collect();
            }
            Engine::Redis(redis) => redis,
        };
        let mut plans: Vec<Plan> = transactions.iter().map(plan_of).collect();
        let mut calls: Vec<_> =
            plans.iter_mut().map(|plan| FALLBACK.store_call(plan, None)).collect();
        let mut replies = Vec::with_capacity(calls.len());
        for (transaction, outcomes) in transactions.iter().zip(decide(redis, &mut calls).await) {
            replies.push(reply_in_full(redis, transaction, outcomes.charges).await);
        }
        replies
    }

    pub(crate) async fn decide_one(
        &self,
        transaction: &Transaction,
    ) -> Result<TransactionReply, StoreError> {
        match self {
            Engine::Memory(memory) => Ok(memory.decide(transaction)),
            Engine::Redis(redis) => {
                let mut plan = plan_of(transaction);
                let mut calls = [FALLBACK.store_call(&mut plan, None)];
                let outcomes = decide(redis, &mut calls).await.remove(0);
                reply_in_full(redis, transaction, outcomes.charges).await
            }
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

/// Returns a plan of inline limits with these charges.
fn plan_of(transaction: &Transaction) -> Plan {
    let limit = NamedLimit::new(Limit::per_second(1), 0);
    let key = SubjectKey { tag: 0, id: 0, rule: 0 };
    let mut plan = Plan::empty();
    plan.add_inline(key, &limit, &Cost::requests(0));
    plan.transaction = transaction.clone();
    plan
}

/// Returns a store reply for every counter of a transaction, or an error if the fallback decided one.
///
/// Legs after a denial were not evaluated, and refunded counters have no reply; this function peeks at both.
async fn reply_in_full(
    redis: &Redis,
    transaction: &Transaction,
    mut outcomes: ChargeOutcomes,
) -> Result<TransactionReply, StoreError> {
    let is_missing = |outcome: &ChargeOutcome| {
        matches!(outcome, ChargeOutcome::NotAsked | ChargeOutcome::Refunded)
    };
    if outcomes.iter().any(is_missing) {
        let look = Transaction { intent: Intent::Peek, ..transaction.clone() };
        let seen = redis.read(&look).await?;
        for (outcome, seen) in outcomes.iter_mut().zip(seen.replies) {
            if is_missing(outcome) {
                *outcome = ChargeOutcome::Store(seen);
            }
        }
    }
    let replies = outcomes.into_iter().map(|outcome| match outcome {
        ChargeOutcome::Store(reply) => Ok(reply),
        other => Err(StoreError::Unknown(format!("decided without the store: {other:?}").into())),
    });
    let mut reply = TransactionReply {
        allowed: true,
        replies: replies.collect::<Result<_, _>>()?,
        record: RecordReply::None,
        is_resent: false,
    };
    let mut counters = transaction.charges.iter().zip(&reply.replies);
    reply.allowed = counters.all(|(asked, counter)| asked.group > 0 || counter.fits);
    Ok(reply)
}

/// Shared by all tests: it holds nothing that a test reads.
static FALLBACK: LazyLock<Fallback> = LazyLock::new(|| Fallback::new(1_000, Clock::System, 1));
