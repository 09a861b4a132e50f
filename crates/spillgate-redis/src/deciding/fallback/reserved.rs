//! Reservations that were charged by local shares during an outage. Their records are in this
//! process.

use smallvec::SmallVec;

use super::{Fallback, StoreCall};
use crate::algorithm::Refund;
use crate::counter::{Change, PlannedCharge};
use crate::limit::NamedLimit;
use crate::memory::{Corrected, Kept, RecordsHeld, subject_of};
use crate::plan::{ChargeOutcome, ChargeOutcomes, RecordAction, Transaction};
use crate::reservation::kept::RecordedCharge;
use crate::reservation::record::RecordedCost;
use crate::reservation::{Answer, EndResult, Ending, Group, Opened, Opening};

/// A reservation that was partly charged by local shares of this instance.
pub struct Alone {
    /// The answer to another reservation under its id.
    pub opened: Opened,
    /// The locations of its records on the store.
    pub elsewhere: SmallVec<[Group; 1]>,
}

/// The charges of a reservation to local shares, made because the store did not answer.
pub struct ChargedHere {
    subject: u128,
    counters: Vec<(RecordedCharge, RecordedCost)>,
}

impl Fallback {
    /// Returns the earlier reservation of that id, if local shares were charged for it.
    pub fn local_reservation(&self, transaction: &Transaction, opening: &Opening) -> Option<Alone> {
        let (opened, elsewhere) = self.memory.kept(transaction, opening)?;
        Some(Alone { opened, elsewhere })
    }

    /// Returns whether there is room for the record of a local charge. A decision without a record
    /// needs none.
    pub(crate) fn has_room(&self, transaction: &Transaction) -> bool {
        !matches!(transaction.record, RecordAction::Open(_)) || self.memory.has_room(transaction)
    }

    /// Returns the charges of a call that local shares made.
    pub fn charged_here(&self, call: &StoreCall<'_>, outcomes: &ChargeOutcomes) -> ChargedHere {
        let asked = call.transaction.charges.iter().zip(outcomes).zip(&call.outage.rules);
        let charged = asked.enumerate().filter_map(|(index, ((counter, outcome), rule))| {
            let ChargeOutcome::Fallback(reply, _) = outcome else { return None };
            let share = self.share_of(*rule, counter.params());
            let charged = RecordedCost { cost: counter.cost, charge: reply.charge };
            let mut recorded = RecordedCharge::by_share(counter, share);
            if !call.outage.uncharged.contains(&index) {
                // The store may have the charge and its record. Settling corrects it there.
                recorded.share_of = None;
            }
            Some((recorded, charged))
        });
        ChargedHere { subject: subject_of(&call.transaction.charges), counters: charged.collect() }
    }

    /// Keeps the record of local charges. Returns whether there were any.
    ///
    /// # Errors
    /// If another call under the same id was faster, refunds the charges. Returns what became of that call's
    /// reservation, if it was for another request or has ended.
    pub fn keep(
        &self,
        opening: &Opening,
        charged: ChargedHere,
        elsewhere: &[Group],
    ) -> Result<bool, Opened> {
        let ChargedHere { subject, counters } = charged;
        if counters.is_empty() {
            return Ok(false);
        }
        let (counters, charges) = counters.into_iter().unzip();
        let (body, lasting_us) = (opening.body, opening.lasting_us);
        let elsewhere = elsewhere.into();
        let kept = Kept { body, lasting_us, subject, counters, charges, elsewhere };
        if let Err((opened, twice)) = self.memory.keep(opening.id, kept) {
            for (counter, charged) in twice.counters.iter().zip(&twice.charges) {
                self.refund_here(counter, charged);
            }
            // The receipt of an equal request names the record that is kept.
            if opened != Opened::Repeated {
                return Err(opened);
            }
        }
        Ok(true)
    }

    /// Returns the counts of records that this process holds.
    pub fn records(&self) -> RecordsHeld {
        self.memory.records()
    }

    /// Ends or renews a reservation that was charged here. Refunded amounts are no longer deferred.
    /// Deferred charges stay as they are if the store may have the charge.
    ///
    /// A permit that the store has been charged for cannot be renewed: the store would end it all the same, and let
    /// another caller in.
    pub fn close(&self, id: u128, ending: &Ending<'_>) -> Answer {
        if matches!(ending, Ending::Renew { .. })
            && self.memory.counters_of(id).iter().any(|counter| self.is_permit_of_store(counter))
        {
            return Answer::EndResult(EndResult::Expired);
        }
        self.memory.close(id, ending, |counter, corrected| match corrected {
            Corrected::Refunded(amount) => self.lower_deferred(counter, amount),
            // Usage beyond the estimate is deferred to the store like any other local admission.
            Corrected::Forced(amount) => {
                if let (Some(limit), Some(share)) = (&counter.share_of, counter.limit.params()) {
                    let counter = PlannedCharge::new(counter.key, (**limit).clone());
                    self.deferred_charges.add(&counter, share, amount, true);
                }
            }
        })
    }

    fn is_permit_of_store(&self, counter: &RecordedCharge) -> bool {
        let limit = counter.share_of.as_ref().filter(|it| it.algorithm().counts_permits());
        let is_deferred = |limit: &NamedLimit| {
            self.deferred_charges.is_deferred(&PlannedCharge::new(counter.key, limit.clone()))
        };
        limit.is_some_and(|limit| !is_deferred(limit))
    }

    fn refund_here(&self, counter: &RecordedCharge, charged: &RecordedCost) {
        let Some(charge) = charged.charge else { return };
        let what = Refund::Unused { charge, unused: charge.amount };
        let (returned, _) = self.memory.change(&counter.planned(0), Change::Refund(what));
        self.lower_deferred(counter, returned);
    }

    /// Subtracts a refund from the deferred charge, if the refunded charge is a part of it. What the store has been
    /// charged for already is given back there.
    fn lower_deferred(&self, counter: &RecordedCharge, returned: u64) {
        if let Some(limit) = &counter.share_of {
            let counter = PlannedCharge::new(counter.key, (**limit).clone());
            let charged = self.deferred_charges.lower(&counter, returned);
            self.given_back.add(&counter, charged, self.clock.now_us());
        }
    }
}
