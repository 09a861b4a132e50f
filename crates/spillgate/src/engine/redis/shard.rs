//! One primary: its connections, its clock, and the one place where what is asked meets it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use ::redis::{Cmd, Value};
use smallvec::SmallVec;

use super::batch::coalescer::together;
use super::batch::{Admission, Batches};
use super::failure::{Failure, NotHere};
use super::guard::KnownGuard;
use super::link::Link;
use super::offset::Offset;
use super::polls::Polls;
use super::program::{self, Call, Header, Reply, ReplyRange, Times};
use super::server::Server;
use super::wire::Held;
use super::{CallTerms, StoreClock, topology};
use crate::engine::{StoreError, Transaction, TransactionReply};
use crate::metrics::ShardMeter;
use crate::store::ShardStatus;
use crate::time::{Deadline, monotonic_us};

/// One primary of the store.
#[derive(Debug)]
pub(super) struct Shard {
    /// As people know it: a node's name, or an address without credentials.
    name: String,
    link: Link,
    pub(super) guard: KnownGuard,
    offset: Offset,
    /// When that clock was last looked at by a command of its own, on ours; 0 if never.
    sampled_us: AtomicU64,
    meter: Arc<ShardMeter>,
    batches: Batches,
    polls: Polls,
}

impl Shard {
    /// A primary whose silence for `timeout` is an outage.
    pub(super) fn new(
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
            sampled_us: AtomicU64::new(0),
            batches,
            polls: Polls::default(),
        }
    }

    /// Decides each of `asks`, in order, each by itself. All their keys are this shard's.
    pub(super) async fn decide(
        self: &Arc<Self>,
        transactions: &[Transaction],
        terms: &CallTerms<'_>,
    ) -> Result<Vec<Result<TransactionReply, StoreError>>, Failure> {
        match Batches::arrive(self, transactions, terms) {
            Some(Admission::SendNow(permit)) => {
                let (once, ranges) = once(transactions);
                let held: Held = Some(Box::new(permit));
                let reply = self.run_holding(|header| Call::of(header, &once), terms, held).await?;
                reply.read(transactions, &ranges).map_err(Failure::bug)
            }
            Some(Admission::Queued(seat)) => seat.read(transactions, terms.deadline).await,
            None => Err(self.count(Failure::unsent_in_time("too many decisions wait"))),
        }
    }

    /// Waits for the turn of a caller that asks time and again.
    pub(super) async fn poll_turn(&self) {
        self.polls.turn().await;
    }

    /// Runs a call; one whose calendar did not hold the store's time is built once more with it.
    pub(super) async fn run<'a>(
        &self,
        build: impl Fn(Header) -> Call<'a>,
        terms: &CallTerms<'_>,
    ) -> Result<Reply, Failure> {
        self.run_holding(build, terms, None).await
    }

    /// The same, holding something until the answer comes, whether the caller is still there or not.
    async fn run_holding<'a>(
        &self,
        build: impl Fn(Header) -> Call<'a>,
        terms: &CallTerms<'_>,
        mut held: Held,
    ) -> Result<Reply, Failure> {
        for _ in 0..CALENDAR_TRIES {
            let guard = terms.caller.terms.on(&self.guard, topology::GUARD)?;
            let call = build(self.header(terms)?).guarded(guard);
            let (began, sent_us) = (self.meter.begin(), monotonic_us());
            let reply = self.link.run(&call, terms.redirect, terms.deadline, held.take()).await;
            self.meter.end(began, || reply.as_ref().err().map(Failure::class));
            if matches!(reply, Err(Failure::Silent(_))) {
                self.batches.release();
            }
            let reply = reply?;
            if matches!(terms.caller.clock, StoreClock::Store) {
                self.note_clock(reply.now_us(), sent_us, monotonic_us());
            }
            if reply.guarded_otherwise() {
                let why = format!("{} is not as this process knew it", self.name);
                return Err(Failure::NotHere(NotHere::Guarded, why));
            }
            if !reply.outside() {
                return Ok(reply);
            }
        }
        Err(Failure::Unfit("the store's clock is in no window that was sent".into()))
    }

    /// Counts a call that was given up.
    pub(super) fn count(&self, failure: Failure) -> Failure {
        self.meter.end(self.meter.begin(), || Some(failure.class()));
        failure
    }

    /// Sends any one command.
    pub(super) async fn command(
        &self,
        command: &Cmd,
        deadline: Deadline,
    ) -> Result<Value, Failure> {
        self.link.command(command, deadline).await
    }

    pub(super) fn batches(&self) -> &Batches {
        &self.batches
    }

    pub(super) fn name(&self) -> &str {
        &self.name
    }

    #[cfg(feature = "metrics")]
    pub(super) fn meter(&self) -> Arc<ShardMeter> {
        Arc::clone(&self.meter)
    }

    pub(super) fn link(&self) -> &Link {
        &self.link
    }

    /// As this process sees it.
    pub(super) fn status(&self) -> ShardStatus {
        ShardStatus {
            name: self.name.clone(),
            asked: !self.link.is_tripped(),
            trouble: self.link.trouble().or_else(|| self.guard.refusal()),
            clock_steps: self.offset.steps(),
            degraded: !self.link.is_connected()
                || self.link.is_tripped()
                || self.guard.refusal().is_some(),
            clock_ahead_us: self.offset.ahead_us(),
        }
    }

    /// Looks at the clock by a plain command, for scripts that may not.
    pub(super) async fn sample_clock(&self, deadline: Deadline) {
        let sent_us = monotonic_us();
        let answer = self.link.command(&::redis::cmd("TIME"), deadline).await;
        let Some(store_us) = answer.ok().and_then(time_of) else { return };
        let answered_us = monotonic_us();
        self.note_clock(store_us, sent_us, answered_us);
        self.offset.set(store_us, sent_us, answered_us);
        self.sampled_us.store(answered_us, Ordering::Relaxed);
    }

    fn header(&self, terms: &CallTerms<'_>) -> Result<Header, Failure> {
        let estimate_us = || self.offset.now_us();
        let (given_us, estimate_us) = match &terms.caller.clock {
            StoreClock::Store => (0, estimate_us()),
            StoreClock::Client => {
                let sampled_us = self.sampled_us.load(Ordering::Relaxed);
                if sampled_us == 0 || monotonic_us() - sampled_us > SAMPLE_HOLDS_US {
                    let why = format!("the clock of {} has not been read recently", self.name);
                    return Err(Failure::NotSent(why));
                }
                (estimate_us(), estimate_us())
            }
            StoreClock::Given(clock) => {
                let now_us = clock.now_us();
                (now_us, now_us)
            }
        };
        Ok(Header { given_us, estimate_us, nonce: terms.caller.nonces.next() })
    }

    fn note_clock(&self, store_us: u64, sent_us: u64, answered_us: u64) {
        if let Some(forward_us) = self.offset.note(store_us, sent_us, answered_us) {
            tracing::warn!(
                target: "spillgate",
                shard = self.name,
                forward_ms = forward_us / 1_000,
                "the store's clock was set: a step forward is one fresh allowance at most"
            );
        }
    }
}

/// Decisions that one caller asks for together, each once with how often it is asked for, and where each
/// of them all is told of.
fn once(transactions: &[Transaction]) -> (SmallVec<[Times<'_>; 1]>, SmallVec<[ReplyRange; 1]>) {
    if let [one] = transactions {
        let once = [(one, 1)];
        return (once.into_iter().collect(), program::reply_ranges(&once));
    }
    let (coalescer, indices) = together(transactions);
    let once = coalescer.iter().map(|group| (&transactions[group.first], group.times));
    let once: SmallVec<[_; 1]> = once.collect();
    let ranges = program::reply_ranges(&once);
    let ranges = indices.iter().map(|index| ranges[index.group as usize].at(index.index)).collect();
    (once, ranges)
}

/// What TIME answers: seconds, and microseconds.
fn time_of(answer: Value) -> Option<u64> {
    let Value::Array(parts) = answer else { return None };
    let number = |part: &Value| match part {
        Value::BulkString(digits) => std::str::from_utf8(digits).ok()?.parse::<u64>().ok(),
        _ => None,
    };
    Some(number(parts.first()?)? * 1_000_000 + number(parts.get(1)?)?)
}

/// The first shows the store's clock, the second uses it, the third crosses a border.
const CALENDAR_TRIES: usize = 3;
/// Clocks drift by less than a millisecond in that time.
const SAMPLE_HOLDS_US: u64 = 10_000_000;
