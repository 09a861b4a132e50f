//! Runs a leg, or decisions that open a record, in a task of its own. If the caller is gone, the task still receives
//! the reply, and refunds the leg's charges, or undoes the records that it opened, but for named reservations. The last
//! of several legs requests no receipts: without a record its charge stays, like that of a decision on one server.

use std::mem;
use std::slice::from_ref;
use std::sync::Arc;

use tokio::sync::oneshot;

use crate::algorithm::Charge;
use crate::connecting::topology::Location;
use crate::counter::PlannedCharge;
use crate::deciding::engine::{Redis, Replies};
use crate::error::StoreError;
use crate::plan::{RecordAction, Transaction, TransactionReply};
use crate::reservation::kept::RecordedCharge;
use crate::time::Deadline;

/// The replies to transactions on their way to the caller. If they are dropped before they are taken, the charges with a
/// receipt are refunded, and the records undone.
pub struct Answered(Option<Made>);

struct Made {
    redis: Redis,
    location: Location,
    transactions: Arc<[Transaction]>,
    replies: Replies,
}

/// Evaluates transactions at one location. If this future is dropped before it completes, or its result before it is
/// taken, their charges with a receipt are refunded, or their records are undone.
pub async fn ask(
    redis: &Redis,
    location: Location,
    transactions: &[Transaction],
    deadline: Option<Deadline>,
) -> Answered {
    let (sender, answer) = oneshot::channel();
    let (redis, transactions): (Redis, Arc<[Transaction]>) = (redis.clone(), transactions.into());
    tokio::spawn(async move {
        let replies = redis.decide_at(location, &transactions, deadline).await;
        let made = Made { redis, location, transactions, replies };
        // If the receiver is gone, `send` fails and drops the replies, which starts the refund.
        let _ = sender.send(Answered(Some(made)));
    });
    answer.await.unwrap_or(Answered(None))
}

/// Evaluates one transaction as [`ask`] does, and takes its reply.
pub async fn ask_one(
    redis: &Redis,
    location: Location,
    transaction: &Transaction,
    deadline: Deadline,
) -> Result<TransactionReply, StoreError> {
    let asked = ask(redis, location, from_ref(transaction), Some(deadline)).await;
    asked.take(1).remove(0)
}

impl Answered {
    /// Returns the replies to `count` transactions, whose charges stay from here on.
    pub fn take(mut self, count: usize) -> Replies {
        let mut replies = self.0.take().map(|mut made| mem::take(&mut made.replies));
        let replies = replies.take().unwrap_or_default();
        let given_up = || StoreError::Unknown("the async runtime stopped before the reply".into());
        let missing = count.saturating_sub(replies.len());
        replies.into_iter().chain((0..missing).map(|_| Err(given_up()))).collect()
    }
}

impl Drop for Answered {
    fn drop(&mut self) {
        let Some(Made { redis, location, transactions, replies }) = self.0.take() else { return };
        // A leg that denied has charged nothing.
        if !replies.iter().flatten().any(|reply| reply.allowed) {
            return;
        }
        let Ok(runtime) = tokio::runtime::Handle::try_current() else { return };
        runtime.spawn(async move {
            for (transaction, reply) in transactions.iter().zip(&replies) {
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
                transaction.charges.iter().map(RecordedCharge::new).collect();
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
