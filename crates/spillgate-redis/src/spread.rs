//! Decides one transaction over counters at several locations: all enforced counters are charged, or none.
//!
//! No script spans two locations, so the transaction is cut into legs, one for each location. The legs are
//! evaluated one after another, narrowest subject first. If a leg denies, the legs before it are refunded. A
//! request that is denied therefore holds quota for a moment only at its own narrow subject. It cannot wear
//! down a counter that many subjects share. A transaction is never allowed if one of its legs denied.

use std::collections::BTreeMap;

use futures_util::future::join_all;
use futures_util::stream::{FuturesUnordered, StreamExt};
use parking_lot::Mutex;
use smallvec::{SmallVec, smallvec};
use tokio::sync::Semaphore;

use super::topology::Location;
use super::{Redis, StoreError};
use crate::algorithm::{Charge, Intent};
use crate::counter::{ChargeReply, PlannedCharge};
use crate::plan::{
    Cause, ChargeOutcome, ChargeOutcomes, Order, RecordAction, Transaction, TransactionReply,
};
use crate::time::Deadline;

mod in_flight;
mod legs;
mod old_owners;
mod provisional;

use legs::{Leg, Legs};
use old_owners::OldOwners;
use provisional::ProvisionalCharges;

/// Decides the counters of a shard that returned no usable reply.
pub trait ShardFallback: Sync {
    /// The error for a counter that the fallback does not decide.
    type Error: Send;

    /// Decides the counters of `transaction`.
    ///
    /// `indices` are the positions of these counters in the whole transaction.
    fn decide_without_store(
        &self,
        transaction: &Transaction,
        indices: &[usize],
        error: StoreError,
    ) -> Result<ChargeOutcomes, Self::Error>;

    /// Refunds a charge that the fallback made, and returns the counter's state afterwards.
    ///
    /// `index` is the position of the counter in the whole transaction.
    fn refund(&self, counter: &PlannedCharge, index: usize, charge: Charge) -> Option<ChargeReply>;
}

/// A transaction, the order of its legs, and the fallback for shards that fail.
pub struct StoreCall<'q, S> {
    /// The charges.
    pub transaction: &'q Transaction,
    /// The order of its legs.
    pub order: Order,
    /// Decides for shards that fail.
    pub fallback: S,
}

/// Decides one transaction: in one call if one location holds all counters, leg by leg otherwise.
pub async fn decide<S: ShardFallback>(
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
            // Boxed, since a decision at one location would otherwise be as large as this future.
            let outcomes = Box::pin(runner.run(transaction, call.order)).await?;
            old_owners.level(redis, transaction, &outcomes);
            Ok(old_owners.joined(outcomes))
        }
    }
}

/// Decides several transactions, each by itself.
///
/// Transactions that share one location go to it together and in order. The results are in the order of `calls`.
pub async fn decide_each<S: ShardFallback>(
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
    // The deadline of a call starts when it gets its permit, so a large batch does not time out in its own queue.
    let turns = &Semaphore::new(LOCATIONS_AT_ONCE);
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

/// Returns a store reply for every counter of a transaction.
///
/// Legs after a denial were not evaluated, and refunded counters have no reply; this function peeks at both.
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
    let replies = outcomes.iter().filter_map(|outcome| match outcome {
        ChargeOutcome::Store(counter) => Some(*counter),
        _ => None,
    });
    let replies: SmallVec<[ChargeReply; 1]> = replies.collect();
    let enforced = transaction.charges.iter().zip(&replies).filter(|(asked, _)| asked.group == 0);
    let allowed = enforced.fold(true, |all, (_, counter): (_, &ChargeReply)| all && counter.fits);
    Ok(TransactionReply { allowed, replies })
}

fn outcomes_of<S: ShardFallback>(
    reply: Result<TransactionReply, StoreError>,
    call: &StoreCall<'_, S>,
) -> Result<ChargeOutcomes, S::Error> {
    match reply {
        Ok(reply) => Ok(reply.replies.into_iter().map(ChargeOutcome::Store).collect()),
        Err(error) => {
            let all: SmallVec<[usize; 4]> = (0..call.transaction.charges.len()).collect();
            call.fallback.decide_without_store(call.transaction, &all, error)
        }
    }
}

impl<'q> StoreCall<'q, NoFallback> {
    pub(super) fn without_fallback(transaction: &'q Transaction) -> Self {
        StoreCall { transaction, order: Order::OneByOne, fallback: NoFallback }
    }
}

/// A fallback that decides nothing: it returns the store's error.
pub(super) struct NoFallback;

impl ShardFallback for NoFallback {
    type Error = StoreError;

    fn decide_without_store(
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

/// Evaluates legs: on their shards, or by the fallback if a shard fails.
struct LegRunner<'a, S> {
    redis: &'a Redis,
    fallback: &'a S,
    deadline: Deadline,
    old_owners: &'a OldOwners,
    /// Locations that returned no reply within the deadline.
    ///
    /// Their servers get no further leg of this transaction: each one would wait for the timeout again.
    unanswered: Mutex<SmallVec<[Location; 1]>>,
}

/// Whether a leg's charges may be refunded later.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Charging {
    /// The charge stays, whatever the other legs return. Legs that charge nothing use this too.
    ForGood,
    /// The charge stays only if all legs allow, and the caller waits until then.
    UntilAllAgree,
}

impl<S: ShardFallback> LegRunner<'_, S> {
    /// Decides a transaction leg by leg.
    async fn run(
        &self,
        transaction: &Transaction,
        order: Order,
    ) -> Result<ChargeOutcomes, S::Error> {
        let mut outcomes = smallvec![ChargeOutcome::NotAsked; self.old_owners.count()];
        let Legs { mut enforced, mut advisory } =
            Legs::of(self.redis, transaction, self.old_owners);
        // An opening counts as a charge even at cost 0: its record may be charged when the reservation ends.
        let opens = matches!(transaction.record, RecordAction::Open(_));
        let charges = transaction.intent != Intent::Peek
            && (opens || transaction.charges.iter().any(|counter| counter.cost > 0));
        if !charges {
            // Nothing to refund, so the order does not matter: all legs run at once.
            enforced.append(&mut advisory);
            self.all_at_once(&enforced, &mut outcomes, None).await?;
            return Ok(outcomes);
        }
        let mut provisional = ProvisionalCharges::new(self.redis, self.fallback, self.old_owners);
        let allowed = match order {
            Order::OneByOne => {
                if let Some((last, earlier)) = enforced.split_last_mut() {
                    // The last leg needs no receipt: if it denies, it charged nothing, and if it allows, all did.
                    earlier.iter_mut().for_each(|leg| leg.ask_for_receipts(self.redis));
                    last.take_along(&mut advisory);
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
        // From here on nothing is refunded, even if an advisory leg fails.
        provisional.keep();
        if let RecordAction::Open(opening) = &transaction.record
            && !opening.noted().charges_anew()
        {
            // An id that was opened before has been charged already; the others only estimate.
            advisory.iter_mut().for_each(|leg| leg.transaction.intent = Intent::Peek);
        }
        self.all_at_once(&advisory, &mut outcomes, None).await?;
        Ok(outcomes)
    }

    /// Evaluates legs until one denies, and returns whether all allowed.
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

    /// Evaluates all legs concurrently, and records each reply as it arrives.
    ///
    /// Recording at once matters: if the caller is dropped while other legs run, the charges known so far are
    /// refunded. Replies are recorded even if another leg failed; the last error is returned.
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
            // During a ring change two legs may charge the same counter at both owners. In sequence, the fallback for
            // the second owner sees whether the first was charged, and then defers no second charge.
            for leg in legs {
                let reply = self.ask(leg, outcomes, charging).await;
                note_reply(leg, reply, outcomes);
            }
        }
        failed
    }

    /// Evaluates one leg, by the fallback if its shard fails. `before` holds the outcomes of the earlier legs.
    async fn ask(
        &self,
        leg: &Leg,
        before: &ChargeOutcomes,
        charging: Charging,
    ) -> Result<ChargeOutcomes, S::Error> {
        let reply = match charging {
            _ if self.is_unanswered(leg.location) => {
                let why = "the server did not answer an earlier leg of this decision";
                Err(StoreError::NotExecuted(why.into()))
            }
            Charging::UntilAllAgree => in_flight::ask(self.redis, leg, self.deadline).await,
            Charging::ForGood => {
                self.redis.decide_one_at(leg.location, &leg.transaction, self.deadline).await
            }
        };
        // Only a call that may have been sent has waited for the timeout. A tripped breaker fails without waiting.
        if let Err(StoreError::Unknown(_)) = reply {
            self.unanswered.lock().push(leg.location);
        }
        match reply {
            Ok(reply) => Ok(reply.replies.into_iter().map(ChargeOutcome::Store).collect()),
            Err(error) if self.old_owners.is_none() => {
                self.fallback.decide_without_store(&leg.transaction, &leg.indices, error)
            }
            Err(error) => self.decide_without_owner(leg, before, error),
        }
    }

    fn is_unanswered(&self, location: Location) -> bool {
        let unanswered = self.unanswered.lock();
        unanswered.iter().any(|other| self.redis.are_on_one_server(location, *other))
    }

    /// Decides a leg of a ring change whose server failed.
    ///
    /// - If the old owner is known to be gone, its copies pass: the new owners decide alone.
    /// - All other counters go to the fallback.
    /// - An admission becomes a deferred charge only if neither owner knows of it. If the other owner was
    ///   charged, may have been charged or will be, that owner counts the charge for as long as it matters.
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
        // The fallback decides in two groups because the error differs. Counters that the other owner knows
        // of get an error "may have been executed", so their admission is not deferred.
        for is_known in [false, true] {
            let here = |at: &usize| {
                let known = self.old_owners.is_known_elsewhere(leg.indices[*at], before);
                known == is_known && !(gone && is_old(at))
            };
            let here: SmallVec<[usize; 4]> = all.clone().filter(here).collect();
            if here.is_empty() {
                continue;
            }
            let charges = here.iter().map(|at| leg.transaction.charges[*at].clone()).collect();
            let transaction =
                Transaction { intent: leg.transaction.intent, record: RecordAction::None, charges };
            let indices: SmallVec<[usize; 4]> =
                here.iter().map(|at| self.old_owners.counter_of(leg.indices[*at])).collect();
            let why = if is_known { as_charged(&error) } else { error.clone() };
            for (at, reply) in
                here.iter().zip(self.fallback.decide_without_store(&transaction, &indices, why)?)
            {
                outcomes[*at] = reply;
            }
        }
        // An uncertain charge at the old owner: the later leg of the new owner must not defer the same charge.
        if !error.is_uncharged() {
            let old = all.filter(is_old).map(|at| self.old_owners.counter_of(leg.indices[at]));
            old.for_each(|number| self.old_owners.note_doubt(number));
        }
        Ok(outcomes)
    }
}

/// Returns the error as if the call may have been executed.
fn as_charged(error: &StoreError) -> StoreError {
    match error {
        StoreError::Overloaded { admits_itself, why, .. } => {
            StoreError::Overloaded { sent: true, admits_itself: *admits_itself, why: why.clone() }
        }
        error => StoreError::Unknown(error.to_string()),
    }
}

fn note(leg: &Leg, reply: ChargeOutcomes, outcomes: &mut ChargeOutcomes) {
    for (index, reply) in leg.indices.iter().zip(reply) {
        outcomes[*index] = reply;
    }
}

/// Locations that one batch calls concurrently. A larger batch leaves connections and queues to other callers.
const LOCATIONS_AT_ONCE: usize = 64;
