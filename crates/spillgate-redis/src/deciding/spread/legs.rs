//! Cuts a transaction into legs, one for each location, and orders them.

use std::cmp::Reverse;

use smallvec::SmallVec;

use super::{ChargeOutcome, ChargeOutcomes};
use crate::algorithm::Intent;
use crate::connecting::topology::Location;
use crate::counter::PlannedCharge;
use crate::deciding::engine::Redis;
use crate::plan::{RecordAction, Transaction};

/// The counters of a transaction at one location.
pub struct Leg {
    pub(crate) location: Location,
    pub(crate) transaction: Transaction,
    /// For each counter, its index in the whole transaction.
    pub(crate) indices: SmallVec<[usize; 4]>,
}

/// The legs of a transaction.
pub struct Legs {
    /// Narrowest subject first.
    pub(crate) enforced: Vec<Leg>,
    /// The legs of shadow rules and post-paid limits, whose denial prevents no other charge.
    pub(crate) unenforced: Vec<Leg>,
}

impl Legs {
    pub fn from_transaction(redis: &Redis, transaction: &Transaction) -> Legs {
        let mut legs = Legs { enforced: Vec::new(), unenforced: Vec::new() };
        for (number, counter) in transaction.charges.iter().enumerate() {
            legs.add(transaction, counter, redis.topology.location(counter.key.tag), number);
        }
        legs.enforced.sort_by_key(Leg::width);
        legs
    }

    fn add(
        &mut self,
        whole: &Transaction,
        counter: &PlannedCharge,
        location: Location,
        index: usize,
    ) {
        let of_kind = if counter.group == 0 { &mut self.enforced } else { &mut self.unenforced };
        // Each location with enforced counters gets a record of its own, under the same id. A shadow rule at another
        // location than all of them is in no record: ending the reservation leaves its estimate as it is.
        let record = if counter.group == 0 { whole.record.clone() } else { RecordAction::None };
        let known = of_kind.iter().position(|leg| leg.location == location);
        let leg = known.unwrap_or_else(|| {
            let transaction =
                Transaction { intent: whole.intent, record, charges: SmallVec::new() };
            of_kind.push(Leg { location, transaction, indices: SmallVec::new() });
            of_kind.len() - 1
        });
        of_kind[leg].transaction.charges.push(counter.clone());
        of_kind[leg].indices.push(index);
    }
}

impl Leg {
    /// Requests a receipt for each charge, so that the charge can be refunded.
    pub fn ask_for_receipts(&mut self, redis: &Redis) {
        if self.transaction.intent == Intent::Charge {
            self.transaction.intent = Intent::Reserve { nonce: redis.settings.nonces.next() };
        }
    }

    /// Returns a sort key: the width of the widest counter that the leg charges.
    ///
    /// Fewer key attributes mean a wider subject. Of two rules with the same number of attributes, the later
    /// one in the policy counts as wider. A leg that charges nothing has `None`, and sorts first.
    fn width(&self) -> Option<(Reverse<u8>, usize)> {
        let charged = self
            .transaction
            .charges
            .iter()
            .zip(&self.indices)
            .filter(|(counter, _)| counter.cost > 0);
        charged.map(|(counter, index)| (Reverse(counter.attributes), *index)).max()
    }

    /// Moves the unenforced counters of this location into this leg.
    ///
    /// The script evaluates shadow groups in the same call, after the enforced counters have allowed.
    pub fn take_along(&mut self, unenforced: &mut Vec<Leg>) {
        if let Some(here) = unenforced.iter().position(|leg| leg.location == self.location) {
            let leg = unenforced.swap_remove(here);
            self.transaction.charges.extend(leg.transaction.charges);
            self.indices.extend(leg.indices);
        }
    }

    /// Returns whether no enforced counter of the leg denied.
    pub fn passes(&self, outcomes: &ChargeOutcomes) -> bool {
        self.indices.iter().zip(&self.transaction.charges).all(|(index, counter)| {
            counter.group > 0
                || match outcomes[*index] {
                    ChargeOutcome::Store(reply) | ChargeOutcome::Fallback(reply, _) => reply.fits,
                    ChargeOutcome::OutagePolicy { passes, .. } => passes,
                    ChargeOutcome::Remembered { .. } => false,
                    ChargeOutcome::Refunded | ChargeOutcome::NotAsked => true,
                }
        })
    }
}
