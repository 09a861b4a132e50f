//! One decision over counters that live at several places: all or none, though no script spans them.
//!
//! The parts are asked one after another, the widest subject last, and a refusal refunds what the
//! parts before it were charged. So what is charged for a moment burdens the requester's own narrow
//! subject, never one that others share: somebody who is refused anyway cannot wear a shared counter
//! down. Nothing is ever admitted that one part refused.

use std::collections::BTreeMap;

use futures_util::future::join_all;
use futures_util::stream::{FuturesUnordered, StreamExt};
use parking_lot::Mutex;
use smallvec::{SmallVec, smallvec};
use tokio::sync::Semaphore;

use super::topology::Location;
use super::{Redis, StoreError};
use crate::algorithm::{Charge, Intent};
use crate::engine::{ChargeReply, PlannedCharge, RecordAction, Transaction, TransactionReply};
use crate::plan::{Cause, ChargeOutcome, ChargeOutcomes, Order};
use crate::time::Deadline;

mod in_flight;
mod legs;
mod old_owners;
mod provisional;

use legs::{Leg, Legs};
use old_owners::OldOwners;
use provisional::ProvisionalCharges;

/// Who decides for counters whose shard gives no answer.
pub(crate) trait ShardFallback: Sync {
    /// Why it might not.
    type Error: Send;

    /// Decides the counters of `ask`, which stand at `places` in the whole decision.
    fn decide(
        &self,
        transaction: &Transaction,
        indices: &[usize],
        error: StoreError,
    ) -> Result<ChargeOutcomes, Self::Error>;

    /// Takes back what that charged to the counter at a place; answers the counter as it is then.
    fn refund(
        &self,
        counter: &PlannedCharge,
        location: usize,
        charge: Charge,
    ) -> Option<ChargeReply>;
}

/// One decision to make.
pub(crate) struct StoreCall<'q, S> {
    pub(crate) transaction: &'q Transaction,
    pub(crate) order: Order,
    pub(crate) fallback: S,
}

/// Decides one.
pub(crate) async fn decide<S: ShardFallback>(
    redis: &Redis,
    call: &StoreCall<'_, S>,
) -> Result<ChargeOutcomes, S::Error> {
    let StoreCall { transaction, fallback, .. } = call;
    let deadline = redis.deadline();
    match redis.only_location(transaction) {
        Some(location) => {
            outcomes_of(redis.decide_one_at(location, transaction, deadline).await, call)
        }
        None => {
            let old_owners = OldOwners::of(redis, transaction);
            let unanswered = Mutex::default();
            let runner =
                LegRunner { redis, fallback, deadline, old_owners: &old_owners, unanswered };
            let outcomes = runner.decide(transaction, call.order).await?;
            old_owners.level(redis, transaction, &outcomes);
            Ok(old_owners.joined(outcomes))
        }
    }
}

/// Decides each of several by itself: those that live at one place together, in order.
pub(crate) async fn decide_each<S: ShardFallback>(
    redis: &Redis,
    calls: &[StoreCall<'_, S>],
) -> Vec<Result<ChargeOutcomes, S::Error>> {
    let mut together: BTreeMap<Location, (Vec<usize>, Vec<Transaction>)> = BTreeMap::new();
    let mut alone = Vec::new();
    for (number, StoreCall { transaction, .. }) in calls.iter().enumerate() {
        match redis.only_location(transaction) {
            None => alone.push(number),
            Some(location) => {
                let (numbers, transactions) = together.entry(location).or_default();
                numbers.push(number);
                transactions.push((*transaction).clone());
            }
        }
    }
    // A call's wait begins with its turn.
    let turns = &Semaphore::new(PLACES_AT_ONCE);
    let together = together.into_iter().map(|(location, (numbers, transactions))| async move {
        let _turn = turns.acquire().await;
        let reply = redis.decide_at(location, &transactions).await;
        let outcomes = |(number, reply)| (number, outcomes_of(reply, &calls[number]));
        numbers.into_iter().zip(reply).map(outcomes).collect::<Vec<_>>()
    });
    let alone = alone.into_iter().map(|number| async move {
        let _turn = turns.acquire().await;
        (number, decide(redis, &calls[number]).await)
    });
    let (together, alone) = tokio::join!(join_all(together), join_all(alone));
    let mut all: Vec<_> = together.into_iter().flatten().chain(alone).collect();
    all.sort_unstable_by_key(|(number, _)| *number);
    all.into_iter().map(|(_, outcome)| outcome).collect()
}

/// What was told of every counter, by its own shard: those that a refusal left unasked are looked at.
pub(super) async fn reply_in_full(
    redis: &Redis,
    transaction: &Transaction,
    mut outcomes: ChargeOutcomes,
) -> Result<TransactionReply, StoreError> {
    let is_missing = |outcome: &ChargeOutcome| {
        matches!(outcome, ChargeOutcome::NotAsked | ChargeOutcome::Refunded)
    };
    if outcomes.iter().any(is_missing) {
        let look = Transaction { intent: Intent::Peek, ..transaction.clone() };
        let seen = decide(redis, &StoreCall::without_fallback(&look)).await?;
        for (outcome, seen) in outcomes.iter_mut().zip(seen) {
            if is_missing(outcome) {
                *outcome = seen;
            }
        }
    }
    let counters = outcomes.iter().filter_map(|outcome| match outcome {
        ChargeOutcome::Store(counter) => Some(*counter),
        _ => None,
    });
    let counters: SmallVec<[ChargeReply; 1]> = counters.collect();
    let enforced = transaction.counters.iter().zip(&counters).filter(|(asked, _)| asked.group == 0);
    let allowed = enforced.fold(true, |all, (_, counter): (_, &ChargeReply)| all && counter.fits);
    Ok(TransactionReply { allowed, counters })
}

fn outcomes_of<S: ShardFallback>(
    reply: Result<TransactionReply, StoreError>,
    call: &StoreCall<'_, S>,
) -> Result<ChargeOutcomes, S::Error> {
    match reply {
        Ok(reply) => Ok(reply.counters.into_iter().map(ChargeOutcome::Store).collect()),
        Err(error) => {
            let all: SmallVec<[usize; 4]> = (0..call.transaction.counters.len()).collect();
            call.fallback.decide(call.transaction, &all, error)
        }
    }
}

impl<'q> StoreCall<'q, NoFallback> {
    pub(super) fn without_fallback(transaction: &'q Transaction) -> Self {
        StoreCall { transaction, order: Order::OneByOne, fallback: NoFallback }
    }
}

/// Without anybody to stand in, an error is an error.
pub(super) struct NoFallback;

impl ShardFallback for NoFallback {
    type Error = StoreError;

    fn decide(
        &self,
        _: &Transaction,
        _: &[usize],
        error: StoreError,
    ) -> Result<ChargeOutcomes, StoreError> {
        Err(error)
    }

    fn refund(&self, _: &PlannedCharge, _: usize, _: Charge) -> Option<ChargeReply> {
        None
    }
}

/// Asks parts, of shards or of who stands in for them.
struct LegRunner<'a, S> {
    redis: &'a Redis,
    fallback: &'a S,
    deadline: Deadline,
    old_owners: &'a OldOwners,
    /// The places that gave no answer. Their servers are not asked again: the decision would wait for the time-out
    /// once for each of its parts.
    unanswered: Mutex<SmallVec<[Location; 1]>>,
}

/// Whether what a part charges stays charged.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Charging {
    /// Whatever becomes of the rest, or it charges nothing.
    ForGood,
    /// Only if all parts agree and the caller is still there.
    UntilAllAgree,
}

impl<S: ShardFallback> LegRunner<'_, S> {
    async fn decide(
        &self,
        transaction: &Transaction,
        order: Order,
    ) -> Result<ChargeOutcomes, S::Error> {
        let mut outcomes = smallvec![ChargeOutcome::NotAsked; self.old_owners.count()];
        let Legs { mut enforced, mut shadows } = Legs::of(self.redis, transaction, self.old_owners);
        // What is only looked at may be charged when a reservation ends, so that has a record too.
        let opens = matches!(transaction.record, RecordAction::Open(_));
        let charges = transaction.intent != Intent::Peek
            && (opens || transaction.counters.iter().any(|counter| counter.cost > 0));
        if !charges {
            enforced.append(&mut shadows);
            self.all_at_once(&enforced, &mut outcomes, None).await?;
            return Ok(outcomes);
        }
        let mut provisional = ProvisionalCharges::new(self.redis, self.fallback, self.old_owners);
        let allowed = match order {
            Order::OneByOne => {
                if let Some((last, earlier)) = enforced.split_last_mut() {
                    earlier.iter_mut().for_each(|leg| leg.ask_for_receipts(self.redis));
                    last.take_along(&mut shadows);
                }
                self.one_by_one(&enforced, &mut outcomes, &mut provisional).await?
            }
            Order::AtOnce => {
                enforced.iter_mut().for_each(|leg| leg.ask_for_receipts(self.redis));
                self.all_at_once(&enforced, &mut outcomes, Some(&mut provisional)).await?;
                enforced.iter().all(|leg| leg.passes(&outcomes))
            }
        };
        if !allowed {
            provisional.refund(self.deadline, &mut outcomes).await;
            return Ok(outcomes);
        }
        provisional.keep();
        if let RecordAction::Open(opening) = &transaction.record
            && !opening.noted().charges_anew()
        {
            shadows.iter_mut().for_each(|leg| leg.transaction.intent = Intent::Peek);
        }
        self.all_at_once(&shadows, &mut outcomes, None).await?;
        Ok(outcomes)
    }

    /// Until one refuses; answers whether none did.
    async fn one_by_one(
        &self,
        legs: &[Leg],
        outcomes: &mut ChargeOutcomes,
        provisional: &mut ProvisionalCharges<'_, S>,
    ) -> Result<bool, S::Error> {
        for leg in legs {
            note(leg, self.ask(leg, outcomes, Charging::UntilAllAgree).await?, outcomes);
            if !leg.passes(outcomes) {
                return Ok(false);
            }
            provisional.note(leg, outcomes);
        }
        Ok(true)
    }

    /// Notes what was heard, also where one of them failed, and each charge as soon as it is known: a caller
    /// who leaves while others are still asked gets it back.
    async fn all_at_once(
        &self,
        legs: &[Leg],
        outcomes: &mut ChargeOutcomes,
        mut provisional: Option<&mut ProvisionalCharges<'_, S>>,
    ) -> Result<(), S::Error> {
        let mut failed = Ok(());
        let charging = match provisional {
            Some(_) => Charging::UntilAllAgree,
            None => Charging::ForGood,
        };
        let mut note_reply = |leg, reply, outcomes: &mut ChargeOutcomes| {
            match reply {
                Ok(reply) => note(leg, reply, outcomes),
                Err(error) => failed = Err(error),
            }
            if let Some(provisional) = &mut provisional {
                provisional.note(leg, outcomes);
            }
        };
        if self.old_owners.is_none() {
            let before = outcomes.clone();
            let ask = async |leg| (leg, self.ask(leg, &before, charging).await);
            let mut asked: FuturesUnordered<_> = legs.iter().map(ask).collect();
            while let Some((leg, reply)) = asked.next().await {
                note_reply(leg, reply, outcomes);
            }
        } else {
            // What the second of two owners does not execute is nobody's deferred charge if the first one did.
            for leg in legs {
                let reply = self.ask(leg, outcomes, charging).await;
                note_reply(leg, reply, outcomes);
            }
        }
        failed
    }

    /// Asks a part, with what was heard of the parts before it.
    async fn ask(
        &self,
        leg: &Leg,
        before: &ChargeOutcomes,
        charging: Charging,
    ) -> Result<ChargeOutcomes, S::Error> {
        let reply = match charging {
            _ if self.is_unanswered(leg.location) => {
                let why = "its server gave no answer to an earlier part of the decision";
                Err(StoreError::NotExecuted(why.into()))
            }
            Charging::UntilAllAgree => in_flight::ask(self.redis, leg, self.deadline).await,
            Charging::ForGood => {
                self.redis.decide_one_at(leg.location, &leg.transaction, self.deadline).await
            }
        };
        if let Err(StoreError::Unknown(_)) = reply {
            self.unanswered.lock().push(leg.location);
        }
        match reply {
            Ok(reply) => Ok(reply.counters.into_iter().map(ChargeOutcome::Store).collect()),
            Err(error) if self.old_owners.is_none() => {
                self.fallback.decide(&leg.transaction, &leg.indices, error)
            }
            Err(error) => self.decide_without_owner(leg, before, error),
        }
    }

    fn is_unanswered(&self, location: Location) -> bool {
        let unanswered = self.unanswered.lock();
        unanswered.iter().any(|other| self.redis.are_on_one_server(location, *other))
    }

    /// A server that is gone leaves what it was the old owner of to the new ones alone. For the rest
    /// somebody stands in; whatever one owner did not execute is nobody's deferred charge where the other has
    /// been charged, may have been, or will be: that one knows of it for as long as it counts.
    fn decide_without_owner(
        &self,
        leg: &Leg,
        before: &ChargeOutcomes,
        error: StoreError,
    ) -> Result<ChargeOutcomes, S::Error> {
        let is_old = |at: &usize| self.old_owners.is_old(leg.indices[*at]);
        let all = 0..leg.indices.len();
        let gone = all.clone().any(|at| is_old(&at)) && self.redis.gives_up(leg.location);
        let given_up = ChargeOutcome::OutagePolicy { passes: true, cause: Cause::Outage };
        let mut outcomes: ChargeOutcomes = smallvec![given_up; leg.indices.len()];
        for is_known in [false, true] {
            let here = |at: &usize| {
                let known = is_old(at) || self.old_owners.is_known(leg.indices[*at], before);
                known == is_known && !(gone && is_old(at))
            };
            let here: SmallVec<[usize; 4]> = all.clone().filter(here).collect();
            if here.is_empty() {
                continue;
            }
            let counters = here.iter().map(|at| leg.transaction.counters[*at].clone()).collect();
            let transaction = Transaction {
                intent: leg.transaction.intent,
                record: RecordAction::None,
                counters,
            };
            let indices: SmallVec<[usize; 4]> =
                here.iter().map(|at| self.old_owners.counter_of(leg.indices[*at])).collect();
            let why = if is_known { as_charged(&error) } else { error.clone() };
            for (at, reply) in here.iter().zip(self.fallback.decide(&transaction, &indices, why)?) {
                outcomes[*at] = reply;
            }
        }
        if !error.is_uncharged() {
            let old = all.filter(is_old).map(|at| self.old_owners.counter_of(leg.indices[at]));
            old.for_each(|number| self.old_owners.note_doubt(number));
        }
        Ok(outcomes)
    }
}

/// The same error, of a call that may have been executed.
fn as_charged(error: &StoreError) -> StoreError {
    match error {
        StoreError::Overloaded { admits_itself, why, .. } => {
            StoreError::Overloaded { sent: true, admits_itself: *admits_itself, why: why.clone() }
        }
        error => StoreError::Unknown(error.to_string()),
    }
}

fn note(leg: &Leg, reply: ChargeOutcomes, outcomes: &mut ChargeOutcomes) {
    for (location, reply) in leg.indices.iter().zip(reply) {
        outcomes[*location] = reply;
    }
}

/// Of one batch, as many places are asked at once: the rest of a large one leaves room for other callers.
const PLACES_AT_ONCE: usize = 64;
