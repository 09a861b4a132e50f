//! Tiers of a plan that leases pay for, before the store is asked for the rest.

use super::Plan;
use crate::algorithm::Intent;
use crate::decision::{Judged, Source, Verdict};
use crate::plan::AtRecord;

impl Plan {
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

    /// A lease pays for the tier asked at a position; it is asked no more.
    pub(crate) fn paid(&mut self, number: usize, remaining: u64) {
        let tier = self.ask.tiers.remove(number);
        self.judged[usize::from(tier.place)].pay(remaining);
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
