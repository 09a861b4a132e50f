//! A part of a decision in a task of its own. A caller may leave while the part is in flight: the task still gets the
//! answer, and refunds what the part charged.

use std::sync::Arc;

use tokio::sync::oneshot;

use super::super::topology::Location;
use super::super::{Redis, StoreError};
use super::Leg;
use crate::algorithm::Charge;
use crate::engine::{PlannedCharge, RecordAction, Transaction, TransactionReply};
use crate::reservation::kept::RecordedCharge;
use crate::time::Deadline;

/// The answer to a part. Dropped before its caller has it, what it charged is refunded.
struct Answered {
    redis: Redis,
    location: Location,
    transaction: Arc<Transaction>,
    reply: Option<Result<TransactionReply, StoreError>>,
}

/// Decides a part; what it charges is refunded where this future is dropped before its end.
pub(super) async fn ask(
    redis: &Redis,
    leg: &Leg,
    deadline: Deadline,
) -> Result<TransactionReply, StoreError> {
    let (sender, answer) = oneshot::channel();
    let mut answered = Answered {
        redis: redis.clone(),
        location: leg.location,
        transaction: Arc::new(leg.transaction.clone()),
        reply: None,
    };
    tokio::spawn(async move {
        let Answered { redis, location, transaction, .. } = &answered;
        let reply = redis.decide_one_at(*location, transaction, deadline).await;
        answered.reply = Some(reply);
        // Where the caller has left, this drops the answer.
        let _ = sender.send(answered);
    });
    let given_up = || StoreError::Unknown("the runtime that was to ask ended".into());
    let mut answered = answer.await.map_err(|_| given_up())?;
    answered.reply.take().ok_or_else(given_up)?
}

impl Drop for Answered {
    fn drop(&mut self) {
        let Some(Ok(reply)) = self.reply.take() else { return };
        let Ok(runtime) = tokio::runtime::Handle::try_current() else { return };
        if !reply.allowed {
            return;
        }
        let (redis, location) = (self.redis.clone(), self.location);
        let transaction = Arc::clone(&self.transaction);
        runtime.spawn(async move { refund(&redis, location, &transaction, &reply).await });
    }
}

async fn refund(
    redis: &Redis,
    location: Location,
    transaction: &Transaction,
    reply: &TransactionReply,
) {
    if let RecordAction::Open(opening) = &transaction.record {
        // A caller that sends a named reservation again finds it, so it stays.
        if !opening.is_named {
            let counters: Vec<RecordedCharge> =
                transaction.counters.iter().map(RecordedCharge::of).collect();
            redis.undo(location, opening.id, &counters).await;
        }
        return;
    }
    let enforced =
        transaction.counters.iter().zip(&reply.counters).filter(|(counter, _)| counter.group == 0);
    let charges: Vec<(PlannedCharge, Charge)> =
        enforced.filter_map(|(counter, reply)| Some((counter.clone(), reply.charge?))).collect();
    if !charges.is_empty() {
        redis.refund(location, &charges).await;
    }
}
