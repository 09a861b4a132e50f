//! Decides one transaction over counters at several locations: all enforced counters are charged, or none.
//!
//! No script spans two locations, so the transaction is cut into legs, one for each location. The legs are
//! evaluated one after another, narrowest subject first. If a leg denies, the legs before it are refunded. A
//! request that is denied therefore holds quota for a moment only at its own narrow subject. It cannot wear
//! down a counter that many subjects share. A transaction is never allowed if one of its legs denied.

use std::collections::BTreeMap;

use futures_util::future::join_all;
use smallvec::{SmallVec, smallvec};
use tokio::sync::Semaphore;

use super::engine::{Redis, Replies};
use super::fallback::StoreCall;
use crate::algorithm::Intent;
use crate::calls::program::reply_from;
use crate::connecting::topology::Location;
use crate::error::StoreError;
use crate::plan::{
    ChargeOutcome, ChargeOutcomes, RecordAction, RecordReply, Transaction, TransactionReply,
};
use crate::reservation::{Group, Noted, Opened};
use crate::time::Deadline;

mod in_flight;
mod legs;
mod provisional;

use in_flight::Answered;
use legs::{Leg, Legs};
use provisional::ProvisionalCharges;

/// What became of one transaction.
#[derive(Debug, Default)]
pub struct Outcomes {
    /// The outcome of each charge.
    pub charges: ChargeOutcomes,
    /// What became of the record that it opens; `None` if it opens none.
    pub noted: Option<Box<Noted>>,
}

/// Decides transactions, each by itself.
///
/// Transactions that share one location go to it together and in order. The results are in the order of `calls`.
pub async fn decide(redis: &Redis, calls: &mut [StoreCall<'_>]) -> Vec<Outcomes> {
    let mut together: BTreeMap<Location, (Vec<usize>, Vec<Transaction>)> = BTreeMap::new();
    let mut apart = Vec::new();
    for (number, call) in calls.iter_mut().enumerate() {
        match redis.only_location(call.transaction) {
            None => apart.push((number, call)),
            Some(location) => {
                let (numbers, transactions) = together.entry(location).or_default();
                numbers.push(number);
                transactions.push(call.transaction.clone());
            }
        }
    }
    // The deadline of a call starts when it gets its permit, so a large batch does not time out in its own queue.
    let turns = &Semaphore::new(LOCATIONS_AT_ONCE);
    let together = together.into_iter().map(|(location, (numbers, transactions))| async move {
        let _turn = turns.acquire().await;
        (numbers, Asked::at(redis, location, &transactions).await)
    });
    let apart = apart.into_iter().map(|(number, call)| async move {
        let _turn = turns.acquire().await;
        (number, decide_one(redis, call).await)
    });
    let (together, apart) = tokio::join!(join_all(together), join_all(apart));
    // Only now, since a caller that leaves before all have answered gets no receipt of any.
    let mut all: Vec<Outcomes> = calls.iter().map(|_| Outcomes::default()).collect();
    for (numbers, asked) in together {
        for (number, reply) in numbers.iter().zip(asked.take(numbers.len())) {
            all[*number].take_whole(&mut calls[*number], reply);
        }
    }
    for (number, outcomes) in apart {
        all[number] = outcomes;
    }
    all
}

/// Decides one transaction: in one call if one location holds all counters, leg by leg otherwise.
pub async fn decide_one(redis: &Redis, call: &mut StoreCall<'_>) -> Outcomes {
    let deadline = redis.deadline();
    let mut outcomes = Outcomes::default();
    match redis.only_location(call.transaction) {
        Some(location) => {
            let reply = match ends_with_caller(call.transaction) {
                true => {
                    // Boxed for the same reason as the legs below.
                    Box::pin(in_flight::ask_one(redis, location, call.transaction, deadline)).await
                }
                false => redis.decide_one_at(location, call.transaction, deadline).await,
            };
            outcomes.take_whole(call, reply);
        }
        None => {
            outcomes.charges = smallvec![ChargeOutcome::NotAsked; call.transaction.charges.len()];
            let unanswered = SmallVec::new();
            let mut runner = LegRunner { redis, call, deadline, unanswered, outcomes };
            // Boxed, since a decision at one location would otherwise be as large as this future.
            Box::pin(runner.run()).await;
            outcomes = runner.outcomes;
        }
    }
    outcomes
}

impl Redis {
    /// Reads the counters of a transaction that charges nothing: it peeks, or all its costs are 0.
    pub async fn read(&self, transaction: &Transaction) -> Result<TransactionReply, StoreError> {
        match self.only_location(transaction) {
            Some(location) => self.decide_one_at(location, transaction, self.deadline()).await,
            None => read(self, transaction).await,
        }
    }
}

/// Reads the counters of a transaction that charges nothing, at all its locations at once.
async fn read(redis: &Redis, transaction: &Transaction) -> Result<TransactionReply, StoreError> {
    let deadline = redis.deadline();
    let mut replies: SmallVec<[_; 1]> = smallvec![None; transaction.charges.len()];
    let Legs { mut enforced, mut unenforced } = Legs::from_transaction(redis, transaction);
    enforced.append(&mut unenforced);
    let asked =
        enforced.iter().map(|leg| redis.decide_one_at(leg.location, &leg.transaction, deadline));
    let asked = join_all(asked).await;
    for (leg, reply) in enforced.iter().zip(asked) {
        // One leg without a reply fails the reading: some of the counters would look like all of them.
        for (index, reply) in leg.indices.iter().zip(reply?.replies) {
            replies[*index] = Some(reply);
        }
    }
    Ok(reply_from(transaction, replies.into_iter().flatten().collect()))
}

/// The replies of one location, or of a task that refunds them if the caller leaves.
enum Asked {
    Here(Replies),
    InTask(Answered),
}

impl Asked {
    async fn at(redis: &Redis, location: Location, transactions: &[Transaction]) -> Asked {
        if transactions.iter().any(ends_with_caller) {
            return Asked::InTask(in_flight::ask(redis, location, transactions, None).await);
        }
        Asked::Here(redis.decide_at(location, transactions, None).await)
    }

    fn take(self, count: usize) -> Replies {
        match self {
            Asked::Here(replies) => replies,
            Asked::InTask(answered) => answered.take(count),
        }
    }
}

impl Outcomes {
    /// Takes the reply to a whole transaction.
    fn take_whole(
        &mut self,
        call: &mut StoreCall<'_>,
        reply: Result<TransactionReply, StoreError>,
    ) {
        self.note_record(call.transaction, &reply);
        let all = || (0..call.transaction.charges.len()).collect::<SmallVec<[usize; 4]>>();
        self.charges = match reply {
            Ok(reply) => by_store(reply),
            Err(error) => call.outage.decide_without_store(call.transaction, &all(), error),
        };
        self.note_full(call);
    }

    /// Notes what became of the record of a transaction at one location.
    ///
    /// After an unknown result a record may exist: the receipt lists its location, and settling looks there.
    fn note_record(
        &mut self,
        transaction: &Transaction,
        reply: &Result<TransactionReply, StoreError>,
    ) {
        let RecordAction::Open(_) = transaction.record else { return };
        let noted = self.noted.get_or_insert_default();
        match reply {
            Ok(TransactionReply { record: RecordReply::Opened(opened), is_resent, .. }) => {
                noted.is_resent |= is_resent;
                // When the record was made, another policy may have divided the counters into other groups.
                noted.note(*opened, || match opened {
                    Opened::New => Group::new(&transaction.charges),
                    _ => Group::unread(&transaction.charges),
                });
            }
            Err(StoreError::Unknown(_) | StoreError::Overloaded { sent: true, .. }) => {
                noted.note(Opened::New, || Group::new(&transaction.charges));
            }
            _ => {}
        }
    }

    fn note_full(&mut self, call: &StoreCall<'_>) {
        if call.outage.is_full {
            self.noted.get_or_insert_default().full = true;
        }
    }
}

/// Returns whether a transaction opens a record that ends if its caller leaves: without the receipt, no other could end
/// it and release its permits. So a task asks for it.
fn ends_with_caller(transaction: &Transaction) -> bool {
    matches!(&transaction.record, RecordAction::Open(opening) if !opening.is_named)
}

fn by_store(reply: TransactionReply) -> ChargeOutcomes {
    reply.replies.into_iter().map(ChargeOutcome::Store).collect()
}

/// Evaluates legs: on their shards, or by the fallback if a shard fails.
struct LegRunner<'a, 'c, 'q> {
    redis: &'a Redis,
    call: &'c mut StoreCall<'q>,
    deadline: Deadline,
    /// Locations whose servers did not answer a leg, or have no connection.
    ///
    /// These servers get no further leg of this transaction: each one would wait for the timeout again.
    unanswered: SmallVec<[Location; 1]>,
    outcomes: Outcomes,
}

impl LegRunner<'_, '_, '_> {
    /// Decides the transaction leg by leg.
    async fn run(&mut self) {
        let transaction = self.call.transaction;
        let Legs { mut enforced, mut unenforced } = Legs::from_transaction(self.redis, transaction);
        // An opening counts as a charge even at cost 0: its record may be charged when the reservation ends.
        let opens = matches!(transaction.record, RecordAction::Open(_));
        let charges = transaction.intent != Intent::Peek
            && (opens || transaction.charges.iter().any(|counter| counter.cost > 0));
        if !charges {
            // Nothing to refund, so the order does not matter: all legs run at once.
            enforced.append(&mut unenforced);
            return self.all_at_once(&enforced).await;
        }
        if let Some((last, earlier)) = enforced.split_last_mut() {
            // The last leg needs no receipt: if it denies, it charged nothing, and if it allows, all did.
            earlier.iter_mut().for_each(|leg| leg.ask_for_receipts(self.redis));
            last.take_along(&mut unenforced);
        }
        let mut provisional = ProvisionalCharges::new(self.redis, self.call.outage.fallback);
        for leg in &enforced {
            // One after another, so that a wide counter is charged only for requests that all narrower ones have
            // allowed.
            self.one(leg).await;
            if !leg.passes(&self.outcomes.charges) {
                // The leg that denied has charged nothing. Those before it have, and are refunded.
                let deadline = self.leg_deadline();
                provisional
                    .refund(&mut self.call.outage, deadline, &mut self.outcomes.charges)
                    .await;
                return;
            }
            provisional.note(leg, &self.outcomes, &self.call.outage);
        }
        if !self.outcomes.noted.as_ref().is_none_or(|noted| noted.charges_anew()) {
            // An id that was opened before has been charged already; the others only estimate.
            unenforced.iter_mut().for_each(|leg| leg.transaction.intent = Intent::Peek);
        }
        // A caller that leaves meanwhile gets no receipt, so until then its charges are provisional.
        self.all_at_once(&unenforced).await;
        provisional.keep();
    }

    /// Evaluates one leg whose charges stay only if all legs allow, and the caller waits until then.
    async fn one(&mut self, leg: &Leg) {
        if self.is_unanswered(leg.location) {
            return self.take(leg, unanswered());
        }
        let deadline = self.leg_deadline();
        let reply = in_flight::ask_one(self.redis, leg.location, &leg.transaction, deadline).await;
        self.take(leg, reply);
    }

    /// Evaluates all legs concurrently. What they charge is never refunded.
    async fn all_at_once(&mut self, legs: &[Leg]) {
        let deadline = self.leg_deadline();
        let ask = async |leg: &Leg| match self.is_unanswered(leg.location) {
            true => unanswered(),
            false => self.redis.decide_one_at(leg.location, &leg.transaction, deadline).await,
        };
        let replies = join_all(legs.iter().map(ask)).await;
        for (leg, reply) in legs.iter().zip(replies) {
            self.take(leg, reply);
        }
    }

    /// Takes the reply to a leg. The fallback decides if its shard fails.
    fn take(&mut self, leg: &Leg, reply: Result<TransactionReply, StoreError>) {
        // The server was silent, or no connection is left: the next leg would probably wait in vain.
        if let Err(error) = &reply
            && (matches!(error, StoreError::Unknown(_)) || self.redis.is_disconnected(leg.location))
        {
            self.unanswered.push(leg.location);
        }
        self.outcomes.note_record(&leg.transaction, &reply);
        let outage = &mut self.call.outage;
        let outcomes = match reply {
            Ok(reply) => by_store(reply),
            Err(error) => outage.decide_without_store(&leg.transaction, &leg.indices, error),
        };
        for (index, outcome) in leg.indices.iter().zip(outcomes) {
            self.outcomes.charges[*index] = outcome;
        }
        self.outcomes.note_full(self.call);
    }

    /// Returns the deadline of a leg that begins now: the decision's. After a server did not answer, it is late enough to
    /// notice another one's silence, which else would be taken for overload.
    fn leg_deadline(&self) -> Deadline {
        let patience = &self.redis.patience;
        match self.unanswered.is_empty() || patience.admits_itself {
            true => self.deadline,
            false => Deadline::after(patience.of_each_leg).max(self.deadline),
        }
    }

    fn is_unanswered(&self, location: Location) -> bool {
        self.unanswered.iter().any(|other| self.redis.are_on_one_server(location, *other))
    }
}

fn unanswered() -> Result<TransactionReply, StoreError> {
    let why = "the server did not answer an earlier leg, or has no connection";
    Err(StoreError::NotExecuted(why.into()))
}

/// Locations that one batch calls concurrently. A larger batch leaves connections and queues to other callers.
const LOCATIONS_AT_ONCE: usize = 64;

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, TcpListener};
    use std::time::Duration;

    use spillgate_core::request::Cost;

    use super::*;
    use crate::counter::PlannedCharge;
    use crate::deciding::fallback::Fallback;
    use crate::limit::{Limit, NamedLimit};
    use crate::plan::{Cause, Plan};
    use crate::store::{Ring, Store, StoreOptions};
    use crate::subject::SubjectKey;
    use crate::time::Clock;

    /// Every leg waited for the connection again, until the circuit breaker opened.
    #[tokio::test(start_paused = true)]
    async fn legs_on_a_server_without_a_connection_wait_for_it_once() {
        // They accept connections, and never answer.
        let silent =
            ["a", "b"].map(|name| (name, TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap()));
        let ring = silent.iter().fold(Ring::new(), |ring, (name, server)| {
            ring.node(*name, format!("redis://{}", server.local_addr().unwrap()))
        });
        let redis = Redis::open(&Store::Ring(ring), &StoreOptions::new(WAIT)).await.unwrap();
        let other = |tag: &u128| redis.topology.location(*tag) != redis.topology.location(0);
        let other = (1..).find(other).unwrap();
        let limit = NamedLimit::new(Limit::per_day(1_000), 0);
        let charge = |tag, id, group| {
            let key = SubjectKey { tag, id, rule: 1 };
            PlannedCharge { cost: 1, group, ..PlannedCharge::new(key, limit.clone()) }
        };
        // A shadow rule on the server of an earlier enforced one has a leg of its own, after all enforced legs.
        let charges = [charge(0, 1, 0), charge(other, 2, 0), charge(0, 3, 1), charge(other, 4, 1)];
        let key = SubjectKey { tag: 0, id: 0, rule: 0 };
        let mut plan: Plan = Plan::empty();
        plan.add_inline(key, &limit, &Cost::requests(0));
        plan.transaction.charges = charges.into_iter().collect();
        let fallback = Fallback::new(1_000, Clock::System, 1);
        let mut calls = [fallback.store_call(&mut plan, None)];
        let soon = tokio::time::Instant::now() + WAIT * 5 / 2;
        let outcomes = decide(&redis, &mut calls).await.remove(0).charges;
        assert!(tokio::time::Instant::now() < soon, "a leg waited again");
        let is_local = |outcome: &ChargeOutcome| match outcome {
            ChargeOutcome::Fallback(reply, Cause::Outage) => reply.fits,
            _ => false,
        };
        assert!(outcomes.len() == 4 && outcomes.iter().all(is_local), "{outcomes:?}");
    }

    /// Two of them fit into the time of a decision.
    const WAIT: Duration = Duration::from_millis(100);
}
