//! Group commit: decisions that arrive while calls to a server are under way wait in a queue, and leave it together
//! in one call.
//!
//! No caller waits for a timer. If a call may begin, a decision is sent at once, by itself. When a call ends, the
//! decisions that wait leave the queue. Each is decided by itself, in the order of arrival, and has its own answer; equal
//! ones are sent as one ([`Coalescer`]). A caller that is dropped before the call is sent is not charged; one that is
//! dropped later is.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use smallvec::SmallVec;
use tokio::sync::oneshot;

use super::failure::Failure;
use super::link::Redirect;
use super::program::{self, Call, Reply};
use super::shard::Shard;
use super::{CallTerms, Caller};
use crate::engine::{StoreError, Transaction, TransactionReply};
use crate::time::Deadline;

pub(super) mod coalescer;
mod load;
mod queue;

use coalescer::{BatchIndex, Coalescer};
use load::{Given, Load, Sent, weight_of};
use queue::{Queue, Ticket, Turn};

/// The calls under way to one server, and who waits for them to end.
#[derive(Debug)]
pub(super) struct Batches {
    queue: Mutex<Queue<Waiting>>,
    load: Arc<Load>,
}

/// How a decision goes out.
pub(super) enum Admission {
    /// At once; others wait until this is dropped.
    SendNow(CallPermit),
    /// With others.
    Queued(PendingReply),
}

/// Where a caller waits for its own part of an answer.
pub(super) struct PendingReply {
    shard: Arc<Shard>,
    ticket: Ticket,
    answer: oneshot::Receiver<Result<CallerReply, Failure>>,
}

/// One who waits, with all that it takes to ask on its behalf.
#[derive(Debug)]
struct Waiting {
    transactions: Vec<Transaction>,
    caller: Arc<Caller>,
    deadline: Deadline,
    answer: oneshot::Sender<Result<CallerReply, Failure>>,
    given: Given,
}

/// Of a call's answer, the parts that are one caller's.
#[derive(Debug)]
pub(super) struct CallerReply {
    reply: Arc<Reply>,
    ranges: SmallVec<[program::ReplyRange; 1]>,
}

/// Those who leave together.
struct Batch {
    waiting: Vec<Waiting>,
    /// By who was first, and which of its asks.
    coalescer: Coalescer<(u32, u32)>,
    /// Of all asks of all who leave, in order.
    indices: Vec<BatchIndex>,
}

impl Batches {
    /// For a server that takes decisions of many subjects in one call.
    pub(super) fn new() -> Batches {
        Batches { queue: Mutex::new(Queue::new(PERMITS)), load: Load::new() }
    }

    /// For one that does not: nobody ever waits.
    pub(super) fn none() -> Batches {
        Batches { queue: Mutex::new(Queue::new(usize::MAX)), load: Load::new() }
    }

    /// How decisions go out that arrive now; nothing where they would not be answered in time, or too many wait.
    pub(super) fn arrive(
        shard: &Arc<Shard>,
        transactions: &[Transaction],
        terms: &CallTerms<'_>,
    ) -> Option<Admission> {
        let Batches { queue, load } = shard.batches();
        let given = load.take_on(weight_of(transactions), terms.deadline.left())?;
        let alone = |given| Admission::SendNow(CallPermit::new(shard, given));
        if queue.lock().begin() {
            return Some(alone(given));
        }
        let (sender, answer) = oneshot::channel();
        let transactions = transactions.to_vec();
        let (caller, deadline) = (Arc::clone(terms.caller), terms.deadline);
        let mut queue = queue.lock();
        // The last call may have ended meanwhile, and nobody would see to the queue.
        if queue.begin() {
            return Some(alone(given));
        }
        let waiting = Waiting { transactions, caller, deadline, answer: sender, given };
        let ticket = queue.join(waiting)?;
        Some(Admission::Queued(PendingReply { shard: Arc::clone(shard), ticket, answer }))
    }

    /// Those who leave next, in one call; nobody: the place has been given up. None goes along that asks
    /// a counter with other numbers than one before it, nor whoever goes by another clock.
    fn next(&self) -> Batch {
        let mut queue = self.queue.lock();
        let count = queue.will_leave();
        let (mut coalescer, mut indices) = (Coalescer::for_some(count), Vec::with_capacity(count));
        let now = Deadline::after(Duration::ZERO);
        let (waiting, gone) = queue.leave(|leaving: &[Waiting], waiting| {
            let find = |(waiter, transaction): (u32, u32)| match leaving.get(waiter as usize) {
                Some(leaving) => &leaving.transactions[transaction as usize],
                None => &waiting.transactions[transaction as usize],
            };
            if waiting.answer.is_closed() || waiting.deadline <= now {
                return Turn::IsGone;
            }
            let is_alike = |first: &Waiting| Arc::ptr_eq(&first.caller, &waiting.caller);
            if !leaving.first().is_none_or(is_alike) {
                return Turn::Stays;
            }
            // No more than can wait.
            let waiter = leaving.len() as u32;
            if let [transaction] = &waiting.transactions[..] {
                let index = coalescer.take_in_if_fits(transaction, (waiter, 0), find);
                indices.extend(index);
                return if index.is_some() { Turn::Goes } else { Turn::Stays };
            }
            if !coalescer.has_room_for(&waiting.transactions, find) {
                return Turn::Stays;
            }
            let transactions = waiting.transactions.iter().zip(0..);
            indices.extend(transactions.map(|(transaction, number)| {
                coalescer.take_in(transaction, (waiter, number), find)
            }));
            Turn::Goes
        });
        drop(queue);
        for waiting in gone {
            waiting.fail(Failure::unsent_in_time("the time of the caller was over"));
        }
        Batch { waiting, coalescer, indices }
    }

    /// The server is silent: releases all who wait here for a call to it. Nothing of theirs was sent.
    pub(super) fn release(&self) {
        let released = self.queue.lock().release();
        for waiting in released {
            waiting.fail(Failure::NotSent("the server answers none of the calls before".into()));
        }
    }
}

impl PendingReply {
    /// What became of `asks`, for which this seat was taken.
    pub(super) async fn read(
        mut self,
        transactions: &[Transaction],
        deadline: Deadline,
    ) -> Result<Vec<Result<TransactionReply, StoreError>>, Failure> {
        let CallerReply { reply, ranges } = self.outcomes_of(deadline).await?;
        reply.read(transactions, &ranges).map_err(Failure::bug)
    }

    /// What the caller is told, once.
    async fn outcomes_of(&mut self, deadline: Deadline) -> Result<CallerReply, Failure> {
        match deadline.bound(&mut self.answer).await {
            Some(Ok(outcomes)) => outcomes,
            Some(Err(_)) => self.leave("the call was given up"),
            None => self.leave("no answer in time"),
        }
    }

    /// Whether the decisions were sent is what matters. Once it is known, they are not sent any more.
    fn leave(&mut self, why: &str) -> Result<CallerReply, Failure> {
        let queue = self.shard.batches().queue.lock();
        let sent = queue.has_left(self.ticket);
        self.answer.close();
        drop(queue);
        // It may have come just now.
        if let Ok(outcomes) = self.answer.try_recv() {
            return outcomes;
        }
        Err(self.shard.count(match sent {
            true => Failure::too_late(why),
            false => Failure::unsent_in_time(format!("{why}: other calls were under way")),
        }))
    }
}

/// A place among the calls under way to a server. Given up, it goes to those who wait. It goes with the call, and is given
/// up when that is answered, whether the caller is there or not.
pub(super) struct CallPermit {
    shard: Arc<Shard>,
    _given: Given,
    _sent: Sent,
}

impl CallPermit {
    fn new(shard: &Arc<Shard>, given: Given) -> CallPermit {
        let sent = shard.batches().load.send(given.weight_us());
        CallPermit { shard: Arc::clone(shard), _given: given, _sent: sent }
    }
}

impl Drop for CallPermit {
    fn drop(&mut self) {
        if !self.shard.batches().queue.lock().end() {
            return;
        }
        let drain = Drain { shard: Arc::clone(&self.shard), has_permit: true };
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            runtime.spawn(drain.send_all());
        }
    }
}

/// Sends those that gather, over a place of its own, until nobody waits. Cut off, it gives them up.
struct Drain {
    shard: Arc<Shard>,
    has_permit: bool,
}

impl Drain {
    async fn send_all(mut self) {
        loop {
            let batch = self.shard.batches().next();
            if batch.waiting.is_empty() {
                self.has_permit = false;
                return;
            }
            send_batch(&self.shard, batch).await;
            // Whoever was told asks again at once, more often than not: those leave together.
            tokio::task::yield_now().await;
        }
    }
}

impl Drop for Drain {
    fn drop(&mut self) {
        if self.has_permit {
            let given_up = self.shard.batches().queue.lock().abandon();
            for waiting in given_up {
                let why = "the runtime that was to send it ended".into();
                waiting.fail(Failure::NotSent(why));
            }
        }
    }
}

/// One call for all of a batch, until its answer comes or the server is found silent: its callers may leave before.
async fn send_batch(shard: &Shard, batch: Batch) {
    let Batch { waiting, coalescer, indices } = batch;
    let Some(first) = waiting.first() else { return };
    let deadline = Deadline::none();
    let terms = CallTerms { caller: &first.caller, deadline, redirect: Redirect::None };
    let weight_us = waiting.iter().map(|waiting| waiting.given.weight_us()).sum();
    let sent = shard.batches().load.send(weight_us);
    let first = |(waiter, transaction): (u32, u32)| {
        &waiting[waiter as usize].transactions[transaction as usize]
    };
    let build = |header| {
        let mut call = Call::new(header);
        coalescer.iter().for_each(|group| call.coalesced(first(group.first), group.times));
        call
    };
    let answer = shard.run(build, &terms).await.map(Arc::new);
    drop(sent);
    let mut next = program::ReplyRanges::new();
    let of_groups: Vec<program::ReplyRange> =
        coalescer.iter().map(|group| next.next(first(group.first), group.times)).collect();
    let mut indices = indices.into_iter();
    for waiting in waiting {
        let ranges = indices.by_ref().take(waiting.transactions.len());
        let ranges = ranges.map(|index| of_groups[index.group as usize].at(index.index)).collect();
        match &answer {
            Ok(reply) => waiting.tell(reply, ranges),
            Err(failure) => waiting.fail(failure.clone()),
        }
    }
}

impl Waiting {
    /// Hands the reply on. A caller that has left was charged, and gets no answer.
    fn tell(self, reply: &Arc<Reply>, ranges: SmallVec<[program::ReplyRange; 1]>) {
        let _ = self.answer.send(Ok(CallerReply { reply: Arc::clone(reply), ranges }));
    }

    fn fail(self, failure: Failure) {
        let _ = self.answer.send(Err(failure));
    }
}

/// Calls under way to one server at once: while it works on one, the next is on its way. One to four were
/// equally fast; with more, calls are smaller than they need be.
const PERMITS: usize = 2;
