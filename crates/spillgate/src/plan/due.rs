//! What is done to a tier after the decision, whatever that was.

use crate::counter::{AskTier, Change, ToldTier};
use crate::decision::{Judged, Source, Tiers, Verdict};

/// A change to one tier that no verdict holds up.
#[derive(Debug)]
pub(crate) struct Due<L> {
    pub(crate) tier: AskTier<L>,
    pub(crate) change: Change,
}

impl<L> Due<L> {
    /// Whether it is still to be done: the decision has charged what had room if it allowed, and a
    /// store that did not answer is not asked again.
    pub(crate) fn stands(&self, tiers: &Tiers) -> bool {
        let tier = &tiers[usize::from(self.tier.place)];
        let decisive = |tier: &&Judged| !tier.shadow && !tier.advisory;
        let allowed = || tiers.iter().filter(decisive).all(|tier| tier.verdict == Verdict::Allowed);
        let is_done = matches!(self.change, Change::Force(_))
            && tier.verdict == Verdict::Allowed
            && allowed();
        !is_done && tier.source < Source::Fallback
    }

    /// Notes how the tier stands now that it was done.
    pub(crate) fn done(&self, told: &ToldTier, tiers: &mut Tiers) {
        let tier = &mut tiers[usize::from(self.tier.place)];
        tier.remaining = Some(told.reading.remaining).into();
        tier.reset_after_us = Some(told.reading.reset_after_us).into();
        if let Change::GiveBack(_) = self.change {
            let has_room = told.reading.remaining > 0;
            tier.verdict = if has_room { Verdict::Allowed } else { Verdict::Denied };
            let wait_us = if has_room { Some(0) } else { told.reading.retry_after_us };
            tier.retry_after_us = wait_us.into();
        }
    }
}
