//! Tiers of a plan that leases pay for, before the store is asked for the rest.

use super::Plan;
use crate::algorithm::Intent;
use crate::counter::AskTier;
use crate::decision::{Judged, Source, Verdict};
use crate::plan::AtRecord;
use crate::policy::Rule;

impl<'p> Plan<'p> {
    /// Whether any of it may be decided ahead: it charges, leaves no record, and nothing follows it. What is
    /// charged under two secrets has two tiers for one; and shadow rules are judged where the others are.
    pub(crate) fn may_be_leased(&self) -> bool {
        self.ask.intent == Intent::Charge
            && matches!(self.ask.record, AtRecord::None)
            && self.dues.is_empty()
            && !self.twofold
            && self.ask.tiers.iter().all(|tier| tier.group == 0)
            && self.judged.iter().all(|tier| tier.narrowed().is_none())
    }

    /// The tier that is asked at a place among those asked, and its rule.
    pub(crate) fn asked_tier(&self, number: usize) -> Option<(&AskTier<'p>, Option<&'p Rule>)> {
        Some((self.ask.tiers.get(number)?, self.asked[number].1))
    }

    /// That tier is paid for, and asked no more.
    pub(crate) fn paid(&mut self, number: usize, remaining: u64) {
        let (place, _) = self.asked.remove(number);
        self.ask.tiers.remove(number);
        self.judged[place].pay(remaining);
    }
}

impl Judged {
    /// A lease has room for it.
    pub(crate) fn pay(&mut self, remaining: u64) {
        self.verdict = Verdict::Allowed;
        self.source = Source::Lease;
        self.remaining = Some(remaining).into();
        self.retry_after_us = Some(0).into();
    }
}
