//! Group commit: decisions that arrive while calls to a server are in flight wait in a queue, and leave it
//! together in one call.
//!
//! No caller waits for a timer. If a call permit is free, a decision is sent at once, by itself. When a call
//! ends, queued decisions leave, as many as make the calls under way equally long. Then the server and this
//! process work at the same time, and neither waits for the other.
//!
//! Each decision is evaluated by itself, in order of arrival, and gets its own reply. Equal decisions are sent
//! as one group ([`Coalescer`]). A caller that is dropped before its batch is sent is not charged; a caller that
//! is dropped later is.

use std::sync::Arc;

use parking_lot::Mutex;
use smallvec::SmallVec;
use tokio::sync::oneshot;

use super::Shard;
use crate::calls::program::{self, Call, Reply, Times};
use crate::connecting::failure::Failure;
use crate::connecting::link::Redirect;
use crate::connecting::terms::{CallSettings, CallTerms};
use crate::error::StoreError;
use crate::plan::{Transaction, TransactionReply};
use crate::time::Deadline;

pub mod coalescer;
mod load;
mod queue;

use coalescer::{BatchIndex, Coalescer};
use load::{Given, InCall, Load, weight_of};
use queue::{Queue, Ticket, Turn};

/// The queue of one server, and the load that the server has been given.
#[derive(Debug)]
pub(crate) struct Batches {
    queue: Mutex<Queue<Waiting>>,
    load: Arc<Load>,
}

/// How a decision is sent.
pub(crate) enum Admission {
    /// In a call of its own, now. Once both permits are taken, later decisions queue.
    SendNow(CallPermit),
    /// In the next batch.
    Queued(PendingReply),
}

/// A queued caller's handle: it yields the caller's own part of the batch's reply.
pub(crate) struct PendingReply {
    shard: Arc<Shard>,
    ticket: Ticket,
    answer: oneshot::Receiver<Result<CallerReply, Failure>>,
}

/// A queued caller, with all that a drain needs to send its transactions.
#[derive(Debug)]
struct Waiting {
    transactions: Vec<Transaction>,
    settings: Arc<CallSettings>,
    deadline: Deadline,
    answer: oneshot::Sender<Result<CallerReply, Failure>>,
    given: Given,
}

/// The parts of a batch's reply that belong to one caller.
#[derive(Debug)]
pub struct CallerReply {
    reply: Arc<Reply>,
    ranges: SmallVec<[program::ReplyRange; 1]>,
}

/// The callers that leave the queue in one call.
struct Batch {
    waiting: Vec<Waiting>,
    /// A group's first transaction is found by the caller's position in `waiting`, and the position among its
    /// transactions.
    coalescer: Coalescer<(u32, u32)>,
    /// For each transaction of each caller, in order: its group and its position in the group.
    indices: Vec<BatchIndex>,
}

impl Batches {
    /// Creates the queue of a server that evaluates many subjects in one call.
    pub(crate) fn new() -> Batches {
        Batches { queue: Mutex::new(Queue::new(PERMITS)), load: Load::new() }
    }

    /// Creates the queue of a server that evaluates one subject in each call, as in a Cluster: every decision
    /// is sent at once.
    pub(crate) fn unqueued() -> Batches {
        Batches { queue: Mutex::new(Queue::new(usize::MAX)), load: Load::new() }
    }

    /// Admits transactions that arrive now: sent at once, or queued.
    ///
    /// Returns `None` if the reply would come after the caller's deadline, or if the queue is full.
    pub(crate) fn arrive(
        shard: &Arc<Shard>,
        transactions: &[Transaction],
        terms: &CallTerms<'_>,
    ) -> Option<Admission> {
        let Batches { queue, load } = &shard.batches;
        // Counted before the queue is locked; dropping `given` on any way out takes it off again.
        let given = load.take_on(weight_of(transactions), terms.deadline.left())?;
        let alone = |given| Admission::SendNow(CallPermit::new(shard, given));
        if queue.lock().begin() {
            return Some(alone(given));
        }
        // Copying the transactions takes time, so the queue is not locked meanwhile.
        let (sender, answer) = oneshot::channel();
        let transactions = transactions.to_vec();
        let (settings, deadline) = (Arc::clone(terms.settings), terms.deadline);
        let mut queue = queue.lock();
        // The last call may have ended since the first check. Then no drain runs, and a queued caller would
        // wait forever.
        if queue.begin() {
            return Some(alone(given));
        }
        let waiting = Waiting { transactions, settings, deadline, answer: sender, given };
        // A full queue drops `waiting`, and with it the load and the channel.
        let ticket = queue.join(waiting)?;
        Some(Admission::Queued(PendingReply { shard: Arc::clone(shard), ticket, answer }))
    }

    /// Takes the next batch out of a shard's queue. An empty batch means that the permit has been returned.
    ///
    /// The batch ends before a counter that it already has under other parameters: the script loads each counter
    /// once, under one set of parameters.
    fn next(shard: &Shard) -> Batch {
        let Batches { queue, load } = &shard.batches;
        let mut queue = queue.lock();
        let count = queue.will_leave();
        let (share_us, mut taken_us) = (load.share_us(PERMITS as u64), 0);
        let (mut coalescer, mut indices) = (Coalescer::for_some(count), Vec::with_capacity(count));
        let (waiting, gone) = queue.leave(|leaving: &[Waiting], waiting| {
            // The caller at hand is not in `leaving` yet, hence the second arm.
            let find = |(waiter, transaction): (u32, u32)| match leaving.get(waiter as usize) {
                Some(leaving) => &leaving.transactions[transaction as usize],
                None => &waiting.transactions[transaction as usize],
            };
            if waiting.answer.is_closed() || waiting.deadline.has_passed() {
                return Turn::IsGone;
            }
            // The batch has its share of all work given. The other calls take the rest, so that each lasts about as
            // long.
            if taken_us >= share_us {
                return Turn::Stays;
            }
            // Fits: a queue holds fewer than 2^32 callers.
            let waiter = leaving.len() as u32;
            if let [transaction] = &waiting.transactions[..] {
                let index = coalescer.take_in_if_fits(transaction, (waiter, 0), find);
                indices.extend(index);
                taken_us += waiting.given.weight_us();
                return if index.is_some() { Turn::Goes } else { Turn::Stays };
            }
            // The transactions of one caller leave in one call, since the caller gets one reply.
            if !coalescer.has_room_for(&waiting.transactions, find) {
                return Turn::Stays;
            }
            let transactions = waiting.transactions.iter().zip(0..);
            indices.extend(transactions.map(|(transaction, number)| {
                coalescer.take_in(transaction, (waiter, number), find)
            }));
            taken_us += waiting.given.weight_us();
            Turn::Goes
        });
        drop(queue);
        for waiting in gone {
            let late = Failure::unsent_in_time("the caller's deadline had passed");
            let class = late.class();
            // A caller that has given up counts itself, and a dropped one is not counted.
            if waiting.answer.send(Err(late)).is_ok() {
                shard.meter.fail(class);
            }
        }
        Batch { waiting, coalescer, indices }
    }

    /// Fails every queued caller: the server is silent or not connected. Their transactions were never sent.
    pub(crate) fn release(&self) {
        let released = self.queue.lock().release();
        for waiting in released {
            waiting.fail(Failure::NotSent("the server did not answer an earlier call".into()));
        }
    }
}

impl PendingReply {
    /// Waits for the reply to `transactions`, which were queued under this handle.
    pub(crate) async fn read(
        mut self,
        transactions: &[Transaction],
        deadline: Deadline,
    ) -> Result<Vec<Result<TransactionReply, StoreError>>, Failure> {
        let CallerReply { reply, ranges } = match deadline.bound(&mut self.answer).await {
            Some(Ok(answer)) => answer,
            Some(Err(_)) => self.leave("the batch was abandoned"),
            None => self.leave("no answer in time"),
        }?;
        self.shard.read(&reply, transactions, &ranges)
    }

    /// Leaves the queue, or fails if the batch was sent already.
    ///
    /// The lock makes the answer certain. If the ticket still waits, closing the channel ensures that no
    /// batch takes it. If it has left, the call may be executed at any time.
    fn leave(&mut self, why: &str) -> Result<CallerReply, Failure> {
        let queue = self.shard.batches.queue.lock();
        let sent = queue.has_left(self.ticket);
        self.answer.close();
        drop(queue);
        // The reply may have arrived between the timeout and the lock.
        if let Ok(outcomes) = self.answer.try_recv() {
            return outcomes;
        }
        Err(self.shard.count(match sent {
            true => Failure::too_late(why),
            false => Failure::unsent_in_time(format!("{why}: it waited behind other calls")),
        }))
    }
}

/// The right to have one call to the server in flight.
///
/// It moves with the call, and is dropped when the server has replied, even if the caller is gone by then. If
/// callers wait, dropping it passes the right to a drain.
pub(crate) struct CallPermit {
    shard: Arc<Shard>,
    _given: Given,
    _in_call: InCall,
}

impl CallPermit {
    fn new(shard: &Arc<Shard>, given: Given) -> CallPermit {
        let sent = shard.batches.load.send(given.weight_us());
        CallPermit { shard: Arc::clone(shard), _given: given, _in_call: sent }
    }
}

impl Drop for CallPermit {
    fn drop(&mut self) {
        if !self.shard.batches.queue.lock().end() {
            return;
        }
        // `end` has kept the permit for the queued callers: the drain uses it, or returns it.
        let drain = Drain { shard: Arc::clone(&self.shard), has_permit: true };
        // Without a runtime the drain is dropped here. That returns the permit and fails the queued callers, which
        // would wait forever otherwise.
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            runtime.spawn(drain.send_all());
        }
    }
}

/// A task that sends batch after batch under one permit until the queue is empty.
///
/// If the runtime stops the task, it abandons the permit and fails the queued callers.
struct Drain {
    shard: Arc<Shard>,
    has_permit: bool,
}

impl Drain {
    async fn send_all(mut self) {
        loop {
            let batch = Batches::next(&self.shard);
            // `next` has returned the permit under the queue's lock, so the drop must not return it again.
            if batch.waiting.is_empty() {
                self.has_permit = false;
                return;
            }
            send_batch(&self.shard, batch).await;
            // Callers that just got a reply often send the next decision at once. Yielding lets them join the
            // next batch.
            tokio::task::yield_now().await;
        }
    }
}

impl Drop for Drain {
    fn drop(&mut self) {
        if self.has_permit {
            let given_up = self.shard.batches.queue.lock().abandon();
            for waiting in given_up {
                let why = "the async runtime stopped before it was sent".into();
                waiting.fail(Failure::NotSent(why));
            }
        }
    }
}

/// Sends a batch in one call, and hands each caller its part of the reply.
///
/// The call has no deadline: it lasts until the reply comes or the connection is found silent. Callers have
/// deadlines of their own.
async fn send_batch(shard: &Shard, batch: Batch) {
    let Batch { waiting, coalescer, indices } = batch;
    let Some(first) = waiting.first() else { return };
    let deadline = Deadline::none();
    let terms = CallTerms { settings: &first.settings, deadline, redirect: Redirect::None };
    // The callers keep their own weights until they are answered. This one measures the call as a whole.
    let weight_us = waiting.iter().map(|waiting| waiting.given.weight_us()).sum();
    let sent = shard.batches.load.send(weight_us);
    let first = |(waiter, transaction): (u32, u32)| {
        &waiting[waiter as usize].transactions[transaction as usize]
    };
    let once: Vec<Times<'_>> =
        coalescer.iter().map(|group| (first(group.first), group.times)).collect();
    let answer = shard.run(|header| Call::encode(header, &once), &terms, None).await.map(Arc::new);
    // Measured here: handing out the replies is not the server's time.
    drop(sent);
    // Each group has one range of the reply. A transaction's range is found by its position in the group.
    let of_groups = program::reply_ranges(&once);
    let mut indices = indices.into_iter();
    for waiting in waiting {
        let ranges = indices.by_ref().take(waiting.transactions.len());
        let range = |index: BatchIndex| of_groups[index.coalesced as usize].at(index.position);
        let ranges = ranges.map(range).collect();
        match &answer {
            Ok(reply) => waiting.deliver(reply, ranges),
            Err(failure) => waiting.fail(failure.clone()),
        }
    }
}

impl Waiting {
    /// Hands the reply to the caller. A dropped caller was charged, and misses its reply.
    fn deliver(self, reply: &Arc<Reply>, ranges: SmallVec<[program::ReplyRange; 1]>) {
        let _ = self.answer.send(Ok(CallerReply { reply: Arc::clone(reply), ranges }));
    }

    fn fail(self, failure: Failure) {
        let _ = self.answer.send(Err(failure));
    }
}

/// Calls in flight to one server at once: while the server executes one, the next is on its way. One to four
/// calls measured equally fast, and fewer calls make larger batches.
const PERMITS: usize = 2;

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::deciding::engine::Redis;

    /// Only a caller that noticed its deadline before the queue did was counted.
    #[tokio::test]
    async fn counts_a_caller_that_the_queue_finds_late() {
        let redis = Redis::connect("redis://127.0.0.1:1", Duration::from_secs(1)).await.unwrap();
        let route = redis.topology.route(redis.topology.location(0)).unwrap();
        let arrive =
            |deadline| Batches::arrive(&route.shard, &[], &redis.terms(&route, deadline)).unwrap();
        let permits: Vec<Admission> = (0..PERMITS).map(|_| arrive(Deadline::none())).collect();
        let [late, dropped] = [(); 2].map(|()| match arrive(Deadline::after(Duration::ZERO)) {
            Admission::Queued(pending) => pending,
            Admission::SendNow(_) => panic!("all permits are taken"),
        });
        drop(dropped);
        drop(permits);
        // It waits for longer than its deadline, so the queue finds it first.
        let reply = late.read(&[], Deadline::none()).await;
        assert!(matches!(reply, Err(Failure::Overloaded { sent: false, .. })));
        let errors: Vec<_> = route.shard.meter.errors().collect();
        assert_eq!(errors, [("overloaded", 1)]);
    }
}
