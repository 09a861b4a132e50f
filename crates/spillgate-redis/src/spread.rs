//! Decides one transaction over counters at several locations: all enforced counters are charged, or none.
//!
//! No script spans two locations, so the transaction is cut into legs, one for each location. The legs are
//! evaluated one after another, narrowest subject first. If a leg denies, the legs before it are refunded. A
//! request that is denied therefore holds quota for a moment only at its own narrow subject. It cannot wear
//! down a counter that many subjects share. A transaction is never allowed if one of its legs denied.

use std::collections::BTreeMap;

use futures_util::future::join_all;
use parking_lot::Mutex;
use smallvec::{SmallVec, smallvec};
use tokio::sync::Semaphore;

use super::topology::Location;
use super::{Redis, StoreError};
use crate::algorithm::Intent;
use crate::fallback::{Outage, StoreCall};
use crate::plan::{ChargeOutcome, ChargeOutcomes, RecordAction, Transaction, TransactionReply};
use crate::program::reply_from;
use crate::time::Deadline;

mod in_flight;
mod legs;
mod provisional;

use legs::{Leg, Legs};
use provisional::ProvisionalCharges;

/// Decides one transaction: in one call if one location holds all counters, leg by leg otherwise.
pub async fn decide(redis: &Redis, call: &StoreCall<'_>) -> ChargeOutcomes {
    let StoreCall { transaction, outage, .. } = call;
    let deadline = redis.deadline();
    match redis.only_location(transaction) {
        Some(location) => {
            let reply = if ends_with_caller(transaction) {
                Box::pin(in_flight::ask(redis, location, transaction, deadline)).await
            } else {
                redis.decide_one_at(location, transaction, deadline).await
            };
            outcomes_of(reply, call)
        }
        None => {
            let runner = LegRunner { redis, outage, deadline, unanswered: Mutex::default() };
            // Boxed, since a decision at one location would otherwise be as large as this future.
            Box::pin(runner.run(transaction)).await
        }
    }
}

/// Decides several transactions, each by itself.
///
/// Transactions that share one location go to it together and in order. The results are in the order of `calls`.
pub async fn decide_each(redis: &Redis, calls: &[StoreCall<'_>]) -> Vec<ChargeOutcomes> {
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
        let replies = if transactions.iter().any(ends_with_caller) {
            in_flight::ask_each(redis, location, &transactions).await
        } else {
            redis.decide_at(location, &transactions).await
        };
        let outcomes = |(number, reply)| (number, outcomes_of(reply, &calls[number]));
        numbers.into_iter().zip(replies).map(outcomes).collect::<Vec<_>>()
    });
    let alone = alone.into_iter().map(|number| async move {
        let _turn = turns.acquire().await;
        (number, decide(redis, &calls[number]).await)
    });
    let (together, alone) = tokio::join!(join_all(together), join_all(alone));
    let mut all: Vec<_> = together.into_iter().flatten().chain(alone).collect();
    all.sort_unstable_by_key(|(number, _)| *number);
    all.into_iter().map(|(_, outcomes)| outcomes).collect()
}

/// Reads the counters of a transaction that charges nothing, at all its locations at once.
pub(super) async fn read(
    redis: &Redis,
    transaction: &Transaction,
) -> Result<TransactionReply, StoreError> {
    let deadline = redis.deadline();
    let mut outcomes = smallvec![ChargeOutcome::NotAsked; transaction.charges.len()];
    let Legs { mut enforced, mut unenforced } = Legs::of(redis, transaction);
    enforced.append(&mut unenforced);
    let replies =
        enforced.iter().map(|leg| redis.decide_one_at(leg.location, &leg.transaction, deadline));
    let replies = join_all(replies).await;
    for (leg, reply) in enforced.iter().zip(replies) {
        note(leg, by_store(reply?), &mut outcomes);
    }
    let replies = outcomes.into_iter().filter_map(|outcome| match outcome {
        ChargeOutcome::Store(reply) => Some(reply),
        _ => None,
    });
    Ok(reply_from(transaction, replies.collect()))
}

/// Returns whether a transaction opens a record that ends if its caller leaves: without the receipt, no other could end
/// it and release its permits.
fn ends_with_caller(transaction: &Transaction) -> bool {
    matches!(&transaction.record, RecordAction::Open(opening) if !opening.is_named)
}

fn outcomes_of(
    reply: Result<TransactionReply, StoreError>,
    call: &StoreCall<'_>,
) -> ChargeOutcomes {
    match reply {
        Ok(reply) => by_store(reply),
        Err(error) => {
            let all: SmallVec<[usize; 4]> = (0..call.transaction.charges.len()).collect();
            call.outage.decide_without_store(call.transaction, &all, error)
        }
    }
}

fn by_store(reply: TransactionReply) -> ChargeOutcomes {
    reply.replies.into_iter().map(ChargeOutcome::Store).collect()
}

/// Evaluates legs: on their shards, or by the fallback if a shard fails.
struct LegRunner<'a, 'q> {
    redis: &'a Redis,
    outage: &'a Outage<'q>,
    deadline: Deadline,
    /// Locations whose servers did not answer a leg, or have no connection.
    ///
    /// These servers get no further leg of this transaction: each one would wait for the timeout again.
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

impl LegRunner<'_, '_> {
    /// Decides a transaction leg by leg.
    async fn run(&self, transaction: &Transaction) -> ChargeOutcomes {
        let mut outcomes = smallvec![ChargeOutcome::NotAsked; transaction.charges.len()];
        let Legs { mut enforced, mut unenforced } = Legs::of(self.redis, transaction);
        // An opening counts as a charge even at cost 0: its record may be charged when the reservation ends.
        let opens = matches!(transaction.record, RecordAction::Open(_));
        let charges = transaction.intent != Intent::Peek
            && (opens || transaction.charges.iter().any(|counter| counter.cost > 0));
        if !charges {
            // Nothing to refund, so the order does not matter: all legs run at once.
            enforced.append(&mut unenforced);
            self.all_at_once(&enforced, &mut outcomes).await;
            return outcomes;
        }
        let mut provisional = ProvisionalCharges::new(self.redis, self.outage);
        if let Some((last, earlier)) = enforced.split_last_mut() {
            // The last leg needs no receipt: if it denies, it charged nothing, and if it allows, all did.
            earlier.iter_mut().for_each(|leg| leg.ask_for_receipts(self.redis));
            last.take_along(&mut unenforced);
        }
        if !self.one_by_one(&enforced, &mut outcomes, &mut provisional).await {
            provisional.refund(self.leg_deadline(), &mut outcomes).await;
            return outcomes;
        }
        // From here on nothing is refunded, even if an unenforced leg fails.
        provisional.keep();
        if let RecordAction::Open(opening) = &transaction.record
            && !opening.noted().charges_anew()
        {
            // An id that was opened before has been charged already; the others only estimate.
            unenforced.iter_mut().for_each(|leg| leg.transaction.intent = Intent::Peek);
        }
        self.all_at_once(&unenforced, &mut outcomes).await;
        outcomes
    }

    /// Evaluates legs until one denies, and returns whether all allowed.
    async fn one_by_one(
        &self,
        legs: &[Leg],
        outcomes: &mut ChargeOutcomes,
        provisional: &mut ProvisionalCharges<'_, '_>,
    ) -> bool {
        for leg in legs {
            note(leg, self.ask(leg, Charging::UntilAllAgree).await, outcomes);
            if !leg.passes(outcomes) {
                return false;
            }
            provisional.note(leg, outcomes);
        }
        true
    }

    /// Evaluates all legs concurrently. What they charge is never refunded.
    async fn all_at_once(&self, legs: &[Leg], outcomes: &mut ChargeOutcomes) {
        let replies = legs.iter().map(|leg| self.ask(leg, Charging::ForGood));
        for (leg, reply) in legs.iter().zip(join_all(replies).await) {
            note(leg, reply, outcomes);
        }
    }

    /// Evaluates one leg, by the fallback if its shard fails.
    async fn ask(&self, leg: &Leg, charging: Charging) -> ChargeOutcomes {
        let reply = match charging {
            _ if self.is_unanswered(leg.location) => {
                let why = "the server did not answer an earlier leg, or has no connection";
                Err(StoreError::NotExecuted(why.into()))
            }
            Charging::UntilAllAgree => {
                let deadline = self.leg_deadline();
                in_flight::ask(self.redis, leg.location, &leg.transaction, deadline).await
            }
            Charging::ForGood => {
                let deadline = self.leg_deadline();
                self.redis.decide_one_at(leg.location, &leg.transaction, deadline).await
            }
        };
        // The server was silent, or no connection is left: the next leg would probably wait in vain.
        if let Err(error) = &reply
            && (matches!(error, StoreError::Unknown(_)) || self.redis.is_disconnected(leg.location))
        {
            self.unanswered.lock().push(leg.location);
        }
        match reply {
            Ok(reply) => by_store(reply),
            Err(error) => self.outage.decide_without_store(&leg.transaction, &leg.indices, error),
        }
    }

    /// Returns the deadline of a leg that begins now: the decision's. After a server did not answer, it is late enough to
    /// notice another one's silence, which else would be taken for overload.
    fn leg_deadline(&self) -> Deadline {
        let patience = &self.redis.patience;
        match self.unanswered.lock().is_empty() || patience.admits_itself {
            true => self.deadline,
            false => Deadline::after(patience.of_each_leg).max(self.deadline),
        }
    }

    fn is_unanswered(&self, location: Location) -> bool {
        let unanswered = self.unanswered.lock();
        unanswered.iter().any(|other| self.redis.are_on_one_server(location, *other))
    }
}

fn note(leg: &Leg, reply: ChargeOutcomes, outcomes: &mut ChargeOutcomes) {
    for (index, reply) in leg.indices.iter().zip(reply) {
        outcomes[*index] = reply;
    }
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
    use crate::fallback::Fallback;
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
        let mut plan: Plan = Plan::inline(key, &limit, &Cost::requests(0));
        plan.transaction.charges = charges.into_iter().collect();
        let fallback = Fallback::new(1_000, Clock::System, 1);
        let call = fallback.store_call(&mut plan, None);
        let soon = tokio::time::Instant::now() + WAIT * 5 / 2;
        let outcomes = decide(&redis, &call).await;
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
