//! Records the charges of a leg-by-leg decision, and refunds them unless all legs allow.

use std::collections::BTreeMap;

use futures_util::future::join_all;
use tokio::task::JoinHandle;

use super::{ChargeOutcome, ChargeOutcomes, Leg, Outcomes};
use crate::algorithm::{Charge, LimitParams};
use crate::connecting::topology::Location;
use crate::counter::{ChargeReply, PlannedCharge};
use crate::deciding::engine::Redis;
use crate::deciding::fallback::{Fallback, Outage};
use crate::plan::{Cause, RecordAction};
use crate::reservation::kept::RecordedCharge;
use crate::time::Deadline;

/// Charges made before all legs have allowed.
///
/// Dropping this refunds them in the background, so a caller that is dropped between two legs leaves no charge.
pub struct ProvisionalCharges<'a> {
    redis: &'a Redis,
    fallback: &'a Fallback,
    charges: Vec<ProvisionalCharge>,
    /// Records of reservations that were opened: location, id, and the counters of the record.
    records: Vec<(Location, u128, Vec<RecordedCharge>)>,
}

/// One charge, with all that its refund needs.
struct ProvisionalCharge {
    location: Location,
    /// The index of its outcome.
    number: usize,
    counter: PlannedCharge,
    charge: Charge,
    /// The local share that made it, and why; `None` if the store did.
    local: Option<(LimitParams, Cause)>,
}

impl<'a> ProvisionalCharges<'a> {
    pub fn new(redis: &'a Redis, fallback: &'a Fallback) -> ProvisionalCharges<'a> {
        ProvisionalCharges { redis, fallback, charges: Vec::new(), records: Vec::new() }
    }

    /// Records the charges of a leg.
    pub fn note(&mut self, leg: &Leg, outcomes: &Outcomes, outage: &Outage<'_>) {
        let Outcomes { charges: outcomes, noted } = outcomes;
        let by_store =
            leg.indices.iter().any(|number| matches!(outcomes[*number], ChargeOutcome::Store(_)));
        if let RecordAction::Open(opening) = &leg.transaction.record
            && by_store
        {
            // A record that existed before this call belongs to an earlier call, so it is not undone. After a
            // resend the earlier call is our own, unless the caller has named it: then it may be one that the caller
            // repeats.
            let tag = leg.transaction.charges.first().map_or(0, |counter| counter.key.tag);
            let was_there = noted.as_ref().is_some_and(|noted| {
                noted.repeated.contains(&tag) && (opening.is_named || !noted.is_resent)
            });
            if was_there || !leg.passes(outcomes) {
                return;
            }
            // Undoing the record refunds every charge of the leg, so no single charges are recorded.
            let counters = leg.transaction.charges.iter().map(RecordedCharge::new).collect();
            self.records.push((leg.location, opening.id, counters));
            return;
        }
        for (number, counter) in leg.indices.iter().zip(&leg.transaction.charges) {
            let (reply, local) = match &outcomes[*number] {
                ChargeOutcome::Store(reply) => (reply, None),
                ChargeOutcome::Fallback(reply, cause) => {
                    (reply, Some((outage.share_of(*number, counter), *cause)))
                }
                _ => continue,
            };
            if let (Some(charge), 0) = (reply.charge, counter.group) {
                self.charges.push(ProvisionalCharge {
                    location: leg.location,
                    number: *number,
                    counter: counter.clone(),
                    charge,
                    local,
                });
            }
        }
    }

    /// Keeps all charges: every leg has allowed.
    pub fn keep(mut self) {
        // The drop at the end of this function refunds what is still listed.
        self.charges.clear();
        self.records.clear();
    }

    /// Refunds all charges, and waits for the refunds until the deadline.
    ///
    /// Refunds that take longer continue in the background. `outcomes` then shows the counters after the
    /// refund, or [`ChargeOutcome::Refunded`] where no reply came in time.
    pub async fn refund(
        mut self,
        outage: &mut Outage<'_>,
        deadline: Deadline,
        outcomes: &mut ChargeOutcomes,
    ) {
        for charged in &self.charges {
            outcomes[charged.number] = ChargeOutcome::Refunded;
            // A refunded admission of a local share must not be charged to the store later.
            outage.forget(charged.number);
        }
        if !self.records.is_empty() {
            // The reply to an undone record does not contain the state of its counters.
            for outcome in outcomes.iter_mut().filter(|outcome| admits(outcome)) {
                *outcome = ChargeOutcome::Refunded;
            }
        }
        let (here, at_store) = self.begin_refund();
        here.into_iter().for_each(|(number, outcome)| outcomes[number] = outcome);
        let Some(at_store) = at_store else { return };
        let Some(Ok(returned)) = deadline.bound(at_store).await else { return };
        returned.into_iter().for_each(|(number, outcome)| outcomes[number] = outcome);
    }

    fn begin_refund(&mut self) -> (Vec<Returned>, Option<JoinHandle<Vec<Returned>>>) {
        let mut here = Vec::new();
        let mut at_store: BTreeMap<Location, Vec<ProvisionalCharge>> = BTreeMap::new();
        for charged in self.charges.drain(..) {
            if let Some((share, cause)) = charged.local {
                let reply = self.fallback.refund_share(&charged.counter, share, charged.charge);
                here.push((charged.number, ChargeOutcome::Fallback(admitted(reply), cause)));
            } else {
                at_store.entry(charged.location).or_default().push(charged);
            }
        }
        let records = std::mem::take(&mut self.records);
        // `take` and `drain` leave nothing behind, so the drop after an explicit refund refunds nothing
        // twice.
        // Without a runtime, as when the process ends, nothing can be sent: the charges stay.
        let runtime = tokio::runtime::Handle::try_current();
        let nothing = at_store.is_empty() && records.is_empty();
        let Some(runtime) = runtime.ok().filter(|_| !nothing) else {
            return (here, None);
        };
        // In a task, so that the refunds go on if the caller's deadline passes or the caller is gone.
        let redis = self.redis.clone();
        let returning = runtime.spawn(async move {
            let undone =
                records.iter().map(|(location, id, counters)| redis.undo(*location, *id, counters));
            join_all(undone).await;
            let each =
                at_store.iter().map(|(location, charged)| return_at(&redis, *location, charged));
            join_all(each).await.into_iter().flatten().collect()
        });
        (here, Some(returning))
    }
}

fn admits(outcome: &ChargeOutcome) -> bool {
    matches!(outcome, ChargeOutcome::Store(reply) if reply.fits)
}

/// The outcome's index, and the outcome with the state of the counter after the refund.
type Returned = (usize, ChargeOutcome);

async fn return_at(
    redis: &Redis,
    location: Location,
    charged: &[ProvisionalCharge],
) -> Vec<Returned> {
    let charges: Vec<_> =
        charged.iter().map(|charged| (charged.counter.clone(), charged.charge)).collect();
    let replies = redis.refund(location, &charges).await;
    let outcomes = replies.into_iter().map(|reply| ChargeOutcome::Store(admitted(reply)));
    charged.iter().map(|charged| charged.number).zip(outcomes).collect()
}

/// Marks a refunded counter as one that had room: another leg caused the denial.
fn admitted(mut reply: ChargeReply) -> ChargeReply {
    reply.fits = true;
    reply.reading.retry_after_us = Some(0);
    reply
}

impl Drop for ProvisionalCharges<'_> {
    fn drop(&mut self) {
        self.begin_refund();
    }
}
