//! Runs a leg, or decisions that open a record, in a task of its own. If the caller is gone, the task still receives the reply, and refunds the leg's
//! charges, or undoes the records that it opened, but for named reservations. The last of several legs requests no
//! receipts: without a record its charge stays, like that of a decision on one server.

use std::mem;
use std::sync::Arc;

use tokio::sync::oneshot;

use super::super::topology::Location;
use super::super::{Redis, StoreError};
use crate::algorithm::Charge;
use crate::counter::PlannedCharge;
use crate::plan::{RecordAction, Transaction, TransactionReply};
use crate::reservation::kept::RecordedCharge;
use crate::time::Deadline;

type Reply = Result<TransactionReply, StoreError>;

/// The replies to transactions on their way to the caller. If they are dropped unread, the charges with a receipt are
/// refunded.
struct Answered {
    redis: Redis,
    location: Location,
    transactions: Arc<[Transaction]>,
    replies: Vec<Reply>,
}

/// Evaluates a leg, or a decision at one location. If this future is dropped before it completes, its charges with a
/// receipt are refunded, or its record is undone.
pub(super) async fn ask(
    redis: &Redis,
    location: Location,
    transaction: &Transaction,
    deadline: Deadline,
) -> Reply {
    let mut replies =
        answered(redis, location, std::slice::from_ref(transaction), Some(deadline)).await;
    replies.pop().unwrap_or_else(given_up)
}

/// Evaluates several decisions at one location, like [`ask`].
pub(super) async fn ask_each(
    redis: &Redis,
    location: Location,
    transactions: &[Transaction],
) -> Vec<Reply> {
    let mut replies = answered(redis, location, transactions, None).await;
    replies.resize_with(transactions.len(), given_up);
    replies
}

/// `deadline` is that of a single transaction. Returns nothing if the runtime stopped.
async fn answered(
    redis: &Redis,
    location: Location,
    transactions: &[Transaction],
    deadline: Option<Deadline>,
) -> Vec<Reply> {
    let (sender, answer) = oneshot::channel();
    let redis = redis.clone();
    let mut answered =
        Answered { redis, location, transactions: transactions.into(), replies: Vec::new() };
    tokio::spawn(async move {
        let Answered { redis, transactions, .. } = &answered;
        let replies = match (&transactions[..], deadline) {
            ([one], Some(deadline)) => vec![redis.decide_one_at(location, one, deadline).await],
            (several, _) => redis.decide_at(location, several).await,
        };
        answered.replies = replies;
        // If the receiver is gone, `send` fails and drops the replies, which starts the refund.
        let _ = sender.send(answered);
    });
    answer.await.map(|mut answered| mem::take(&mut answered.replies)).unwrap_or_default()
}

fn given_up() -> Reply {
    Err(StoreError::Unknown("the async runtime stopped before the reply came".into()))
}

impl Drop for Answered {
    fn drop(&mut self) {
        let replies = mem::take(&mut self.replies);
        // A leg that denied has charged nothing.
        if !replies.iter().flatten().any(|reply| reply.allowed) {
            return;
        }
        let Ok(runtime) = tokio::runtime::Handle::try_current() else { return };
        let (redis, location) = (self.redis.clone(), self.location);
        let transactions = Arc::clone(&self.transactions);
        runtime.spawn(async move {
            for (transaction, reply) in transactions.iter().zip(replies.iter().map(Result::as_ref))
            {
                if let Ok(reply) = reply
                    && reply.allowed
                {
                    refund(&redis, location, transaction, reply).await;
                }
            }
        });
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
