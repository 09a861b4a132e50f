//! Reservations that were charged here while the store was out of reach: their records are in this process.

use smallvec::SmallVec;

use super::{Fallback, Outage};
use crate::algorithm::Refund;
use crate::counter::{Change, PlannedCharge};
use crate::engine::StoreCall;
#[cfg(feature = "metrics")]
use crate::engine::memory::RecordsHeld;
use crate::engine::memory::{Corrected, Kept, subject_of};
use crate::plan::{ChargeOutcome, ChargeOutcomes, RecordAction, Transaction};
use crate::reservation::kept::RecordedCharge;
use crate::reservation::record::Charged;
use crate::reservation::{Answer, Ending, Group, Noted, Opened, Opening};

/// A reservation of which part was charged by this process alone.
pub(crate) struct Alone {
    /// What a reservation under its id is answered.
    pub(crate) opened: Opened,
    /// Where the store has records of it.
    pub(crate) elsewhere: SmallVec<[Group; 1]>,
}

/// What a reservation was charged here, for want of a store that answers.
#[derive(Default)]
pub(crate) struct ChargedHere {
    subject: u128,
    counters: Vec<(RecordedCharge, Charged)>,
}

impl Fallback {
    /// What became of an earlier reservation of that id here, if some of it was charged here.
    pub(crate) fn alone(&self, transaction: &Transaction, opening: &Opening) -> Option<Alone> {
        let (opened, elsewhere) = self.memory.kept(transaction, opening)?;
        Some(Alone { opened, elsewhere })
    }

    /// Whether the record of what is charged here finds room; a decision without one needs none.
    pub(super) fn has_room(&self, transaction: &Transaction) -> bool {
        !matches!(transaction.record, RecordAction::Open(_)) || self.memory.has_room(transaction)
    }

    pub(crate) fn charged_here(
        &self,
        call: &StoreCall<'_, Outage<'_>>,
        outcomes: &ChargeOutcomes,
    ) -> ChargedHere {
        let asked = call.transaction.counters.iter().zip(outcomes).zip(&call.fallback.rules);
        let charged = asked.filter_map(|((counter, outcome), rule)| {
            let ChargeOutcome::Fallback(reply, _) = outcome else { return None };
            let share = self.share_of(*rule, counter.params());
            let charged = Charged { cost: counter.cost, charge: reply.charge };
            Some((RecordedCharge::by_share(counter, share), charged))
        });
        ChargedHere { subject: subject_of(&call.transaction.counters), counters: charged.collect() }
    }

    /// Keeps the record of that; answers whether there is one.
    pub(crate) fn keep(&self, opening: &Opening, charged: ChargedHere, noted: &Noted) -> bool {
        let ChargedHere { subject, counters } = charged;
        if counters.is_empty() {
            return false;
        }
        let (counters, charges) = counters.into_iter().unzip();
        let (body, lasting_us) = (opening.body, opening.lasting_us);
        let elsewhere = noted.groups.clone();
        let kept = Kept { body, lasting_us, subject, counters, charges, elsewhere };
        if let Err(twice) = self.memory.keep(opening.id, kept) {
            // Another call under the same id was faster: the reservation is charged once.
            for (counter, charged) in twice.counters.iter().zip(&twice.charges) {
                self.give_back_here(counter, charged);
            }
        }
        true
    }

    /// The records of what was charged here.
    #[cfg(feature = "metrics")]
    pub(crate) fn records(&self) -> RecordsHeld {
        self.memory.records()
    }

    /// Ends or renews what was charged here; what comes back is deferred no longer.
    pub(crate) fn close(&self, id: u128, ending: &Ending<'_>) -> Answer {
        self.memory.close(id, ending, |counter, corrected| match corrected {
            Corrected::Refunded(amount) => self.deferred_charges.lower(&counter.asked(0), amount),
            Corrected::Forced(amount) => {
                if let (Some(limit), Some(share)) = (&counter.share_of, counter.limit.params()) {
                    self.deferred_charges.add(
                        &PlannedCharge::new(counter.key, (**limit).clone()),
                        share,
                        amount,
                    );
                }
            }
        })
    }

    fn give_back_here(&self, counter: &RecordedCharge, charged: &Charged) {
        let Some(charge) = charged.charge else { return };
        let what = Refund::Unused { charge, unused: charge.amount };
        let (returned, _) = self.memory.change(&counter.asked(0), Change::Refund(what));
        self.deferred_charges.lower(&counter.asked(0), returned);
    }
}
