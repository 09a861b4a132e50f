//! Runs a leg, or a decision that opens a record, in a task of its own. If the caller is gone, the task still receives the reply, and refunds the leg's
//! charges, or undoes the record that it opened, but for a named reservation. The last of several legs requests no
//! receipts: without a record its charge stays, like that of a decision on one server.

use std::sync::Arc;

use tokio::sync::oneshot;

use super::super::topology::Location;
use super::super::{Redis, StoreError};
use crate::algorithm::Charge;
use crate::counter::PlannedCharge;
use crate::plan::{RecordAction, Transaction, TransactionReply};
use crate::reservation::kept::RecordedCharge;
use crate::time::Deadline;

/// The reply to a leg on its way to the caller. If it is dropped unread, the charges with a receipt are refunded.
struct Answered {
    redis: Redis,
    location: Location,
    transaction: Arc<Transaction>,
    reply: Option<Result<TransactionReply, StoreError>>,
}

/// Evaluates a leg, or a decision at one location. If this future is dropped before it completes, its charges with a
/// receipt are refunded, or its record is undone.
pub(super) async fn ask(
    redis: &Redis,
    location: Location,
    transaction: &Transaction,
    deadline: Deadline,
) -> Result<TransactionReply, StoreError> {
    let (sender, answer) = oneshot::channel();
    let mut answered = Answered {
        redis: redis.clone(),
        location,
        transaction: Arc::new(transaction.clone()),
        reply: None,
    };
    tokio::spawn(async move {
        let Answered { redis, location, transaction, .. } = &answered;
        let reply = redis.decide_one_at(*location, transaction, deadline).await;
        answered.reply = Some(reply);
        // If the receiver is gone, `send` fails and drops the reply, which starts the refund.
        let _ = sender.send(answered);
    });
    let given_up = || StoreError::Unknown("the async runtime stopped before the reply came".into());
    let mut answered = answer.await.map_err(|_| given_up())?;
    answered.reply.take().ok_or_else(given_up)?
}

impl Drop for Answered {
    fn drop(&mut self) {
        let Some(Ok(reply)) = self.reply.take() else { return };
        let Ok(runtime) = tokio::runtime::Handle::try_current() else { return };
        // A leg that denied has charged nothing.
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
        // A caller may send a named reservation again and must find it then, so its record stays.
        if !opening.is_named {
            let counters: Vec<RecordedCharge> =
                transaction.charges.iter().map(RecordedCharge::of).collect();
            redis.undo(location, opening.id, &counters).await;
        }
        return;
    }
    let enforced =
        transaction.charges.iter().zip(&reply.replies).filter(|(counter, _)| counter.group == 0);
    let charges: Vec<(PlannedCharge, Charge)> =
        enforced.filter_map(|(counter, reply)| Some((counter.clone(), reply.charge?))).collect();
    if !charges.is_empty() {
        redis.refund(location, &charges).await;
    }
}
