//! One primary: its connections, its queue, its guard, and the offset of its clock.

use std::sync::Arc;
use std::time::Duration;

use smallvec::SmallVec;

use super::failure::{Failure, NotHere};
use super::link::{Link, Redirect};
use super::offset::Offset;
use super::polls::Polls;
use super::server::Server;
use super::terms::CallTerms;
use super::wire::Held;
use crate::calls::guard::KnownGuard;
use crate::calls::program::{self, Call, Header, Reply, ReplyRange, Times};
use crate::error::StoreError;
use crate::jitter::jittered;
use crate::meter::{ErrorClass, ShardMeter};
use crate::plan::{Transaction, TransactionReply};
use crate::store::ShardStatus;
use crate::time::{Deadline, counter_ns, monotonic_us};

mod batch;

use batch::Admission;
pub(crate) use batch::Batches;
use batch::coalescer::BatchIndex;
pub(crate) use batch::coalescer::together;

/// A primary of the store.
#[derive(Debug)]
pub(crate) struct Shard {
    /// The node's name, or the address without credentials.
    pub(crate) name: String,
    pub(crate) link: Arc<Link>,
    pub(crate) guard: KnownGuard,
    offset: Offset,
    pub(crate) meter: Arc<ShardMeter>,
    batches: Batches,
    pub(crate) polls: Arc<Polls>,
}

/// The server for a call, and whether it needs ASKING.
#[derive(Clone, Debug)]
pub struct Route {
    pub(crate) shard: Arc<Shard>,
    pub(crate) redirect: Redirect,
}

impl Shard {
    /// Creates a shard. If it is silent for `timeout`, that is an outage.
    pub(crate) fn new(
        name: String,
        server: Server,
        connections: usize,
        timeout: Duration,
        batches: Batches,
    ) -> Shard {
        Shard {
            meter: Arc::new(ShardMeter::new(name.clone())),
            name,
            link: Link::new(server, connections, timeout),
            guard: KnownGuard::default(),
            offset: Offset::guessed(),
            batches,
            polls: Arc::default(),
        }
    }

    /// Has the server decide several transactions, in order, each by itself: in a call of their own, or in a batch. All
    /// their keys must belong to this shard.
    pub(crate) async fn submit(
        self: &Arc<Self>,
        transactions: &[Transaction],
        terms: &CallTerms<'_>,
    ) -> Result<Vec<Result<TransactionReply, StoreError>>, Failure> {
        match Batches::arrive(self, transactions, terms) {
            Some(Admission::SendNow(permit)) => {
                let (once, ranges) = once(transactions);
                let held: Held = Some(Box::new(permit));
                // Boxed, since a decision that queues would otherwise be as large as this future.
                let run = self.run(|header| Call::encode(header, &once), terms, held);
                let reply = Box::pin(run).await?;
                self.read(&reply, transactions, &ranges)
            }
            Some(Admission::Queued(pending)) => pending.read(transactions, terms.deadline).await,
            None => Err(self.count(Failure::unsent_in_time(
                "more work waits for this server than it can do in time",
            ))),
        }
    }

    /// Decodes the replies to transactions, and counts those that cannot be used.
    fn read(
        &self,
        reply: &Reply,
        transactions: &[Transaction],
        ranges: &[ReplyRange],
    ) -> Result<Vec<Result<TransactionReply, StoreError>>, Failure> {
        let replies = reply.read(transactions, ranges);
        let replies = replies.map_err(|error| self.count(Failure::bug(error)))?;
        replies
            .iter()
            .filter(|reply| reply.is_err())
            .for_each(|_| self.meter.fail(ErrorClass::Bug));
        Ok(replies)
    }

    /// Runs a call. If its calendar windows did not contain the store's time, builds it again with the time learned.
    ///
    /// Keeps `held` until the reply comes, even if the caller is dropped before.
    pub(crate) async fn run<'a>(
        &self,
        build: impl Fn(Header) -> Call<'a>,
        terms: &CallTerms<'_>,
        mut held: Held,
    ) -> Result<Reply, Failure> {
        for _ in 0..CALENDAR_TRIES {
            let guard = self.guard.expected(terms.settings.on_state_loss);
            // A failed try has recorded the store's clock, so the next header has a better estimate.
            let call = build(self.header(terms)).guarded(guard);
            let (began_ns, sent_us) = (counter_ns(), monotonic_us());
            let reply = self.link.run(&call, terms.redirect, terms.deadline, held.take()).await;
            if reply.as_ref().err().is_none_or(Failure::was_sent) {
                self.meter.end(began_ns);
            }
            if let Err(failure) = &reply {
                self.meter.fail(failure.class());
            }
            let is_away = match &reply {
                Err(Failure::Silent(_)) => true,
                Err(Failure::NotSent(_)) => !self.link.is_connected(),
                _ => false,
            };
            if is_away {
                // Queued callers would wait for the same silent server or missing connection, so they fail now.
                self.batches.release();
            }
            let reply = reply?;
            if terms.settings.given_clock.is_none() {
                self.note_clock(reply.now_us(), sent_us, monotonic_us());
            }
            if reply.guarded_otherwise() {
                let why = format!("the guard of {} has changed", self.name);
                return Err(Failure::NotHere(NotHere::Guarded, why.into()));
            }
            if !reply.outside() {
                return Ok(reply);
            }
        }
        Err(Failure::Unfit("the store's clock is outside the calendar windows of the call".into()))
    }

    /// Counts a call that was given up before it was sent.
    pub(crate) fn count(&self, failure: Failure) -> Failure {
        self.meter.fail(failure.class());
        failure
    }

    /// Returns the shard's status as this instance sees it.
    pub(crate) fn status(&self) -> ShardStatus {
        ShardStatus {
            name: self.name.clone(),
            asked: !self.link.is_tripped(),
            trouble: self.link.trouble(),
            clock_steps: self.offset.steps(),
            degraded: !self.link.is_connected() || self.link.is_tripped(),
            clock_ahead_us: self.offset.ahead_us(),
        }
    }

    fn header(&self, terms: &CallTerms<'_>) -> Header {
        let (given_us, estimate_us) = match &terms.settings.given_clock {
            None => (0, self.offset.now_us()),
            Some(clock) => {
                let now_us = clock.now_us();
                (now_us, now_us)
            }
        };
        Header { given_us, estimate_us, nonce: terms.settings.nonces.next() }
    }

    fn note_clock(&self, store_us: u64, sent_us: u64, answered_us: u64) {
        if let Some(forward_us) = self.offset.note(store_us, sent_us, answered_us) {
            tracing::warn!(
                target: "spillgate",
                shard = self.name,
                forward_ms = forward_us / 1_000,
                "the store's clock was set: a step forward admits at most one fresh quota"
            );
        }
    }
}

/// Waits a short random time, for a temporary condition of a server to pass.
pub async fn pause(deadline: Deadline) {
    let _ = deadline.bound(tokio::time::sleep(jittered(LATER))).await;
}

/// Groups the transactions of one caller.
///
/// Returns each distinct transaction with its count, and for each input its range in the reply.
fn once(transactions: &[Transaction]) -> (SmallVec<[Times<'_>; 1]>, SmallVec<[ReplyRange; 1]>) {
    if let [one] = transactions {
        let once = [(one, 1)];
        return (once.into_iter().collect(), program::reply_ranges(&once));
    }
    let (coalescer, indices) = together(transactions);
    let once = coalescer.iter().map(|group| (&transactions[group.first], group.times));
    let once: SmallVec<[_; 1]> = once.collect();
    let ranges = program::reply_ranges(&once);
    let range = |index: &BatchIndex| ranges[index.coalesced as usize].at(index.position);
    (once, indices.iter().map(range).collect())
}

/// The longest pause before a retry. Two of them, with the calls between, fit a deadline of 25 ms.
pub const LATER: Duration = Duration::from_millis(8);
/// Three tries: the first learns the store's clock, the second uses it, the third may cross a window's border.
const CALENDAR_TRIES: usize = 3;
