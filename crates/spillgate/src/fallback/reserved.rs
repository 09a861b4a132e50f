//! Reservations that were charged here while the store was out of reach: their records are in this process.

use smallvec::SmallVec;

use super::{Fallback, Outage};
use crate::algorithm::GiveBack;
use crate::counter::{AskTier, Change};
use crate::engine::Question;
#[cfg(feature = "metrics")]
use crate::engine::memory::RecordsHeld;
use crate::engine::memory::{Corrected, Kept, subject_of};
use crate::plan::{Ask, AtRecord, Heard, Heards};
use crate::reservation::kept::KeptTier;
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
    tiers: Vec<(KeptTier, Charged)>,
}

impl Fallback {
    /// What became of an earlier reservation of that id here, if some of it was charged here.
    pub(crate) fn alone(&self, ask: &Ask, opening: &Opening) -> Option<Alone> {
        let (opened, elsewhere) = self.memory.kept(ask, opening)?;
        Some(Alone { opened, elsewhere })
    }

    /// Whether the record of what is charged here finds room; a decision without one needs none.
    pub(super) fn has_room(&self, ask: &Ask) -> bool {
        !matches!(ask.record, AtRecord::Open(_)) || self.memory.has_room(ask)
    }

    pub(crate) fn charged_here(
        &self,
        question: &Question<'_, Outage<'_>>,
        heard: &Heards,
    ) -> ChargedHere {
        let asked = question.ask.tiers.iter().zip(heard).zip(&question.stand_in.rules);
        let charged = asked.filter_map(|((tier, heard), rule)| {
            let Heard::Fallback(told, _) = heard else { return None };
            let share = self.share_of(*rule, tier.numbers());
            let charged = Charged { cost: tier.cost, charge: told.charge };
            Some((KeptTier::by_share(tier, share), charged))
        });
        ChargedHere { subject: subject_of(&question.ask.tiers), tiers: charged.collect() }
    }

    /// Keeps the record of that; answers whether there is one.
    pub(crate) fn keep(&self, opening: &Opening, charged: ChargedHere, noted: &Noted) -> bool {
        let ChargedHere { subject, tiers } = charged;
        if tiers.is_empty() {
            return false;
        }
        let (tiers, charges) = tiers.into_iter().unzip();
        let (body, lasting_us) = (opening.body, opening.lasting_us);
        let elsewhere = noted.groups.clone();
        let kept = Kept { body, lasting_us, subject, tiers, charges, elsewhere };
        if let Err(twice) = self.memory.keep(opening.id, kept) {
            // Another call under the same id was faster: the reservation is charged once.
            for (tier, charged) in twice.tiers.iter().zip(&twice.charges) {
                self.give_back_here(tier, charged);
            }
        }
        true
    }

    /// The records of what was charged here.
    #[cfg(feature = "metrics")]
    pub(crate) fn records(&self) -> RecordsHeld {
        self.memory.records()
    }

    /// Ends or renews what was charged here; what comes back is owed no longer.
    pub(crate) fn close(&self, id: u128, ending: &Ending<'_>) -> Answer {
        self.memory.close(id, ending, |tier, corrected| match corrected {
            Corrected::GivenBack(amount) => self.debts.lower(&tier.asked(0), amount),
            Corrected::Forced(amount) => {
                if let (Some(limit), Some(share)) = (&tier.share_of, tier.limit.numbers()) {
                    self.debts.add(&AskTier::new(tier.key, (**limit).clone()), share, amount);
                }
            }
        })
    }

    fn give_back_here(&self, tier: &KeptTier, charged: &Charged) {
        let Some(charge) = charged.charge else { return };
        let what = GiveBack::Unused { charge, unused: charge.amount };
        let (returned, _) = self.memory.change(&tier.asked(0), Change::GiveBack(what));
        self.debts.lower(&tier.asked(0), returned);
    }
}
