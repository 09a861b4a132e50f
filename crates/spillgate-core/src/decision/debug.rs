//! Debug output of a decision, by its public methods instead of its fields.

use std::fmt;

use super::{Decision, LimitDecision};

impl fmt::Debug for Decision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("Decision");
        shown.field("allowed", &self.allowed()).field("source", &self.source());
        if let Some(reason) = self.reason() {
            shown.field("reason", &reason);
        }
        if let Some(receipt) = self.receipt() {
            shown.field("receipt", receipt);
        }
        shown.field("limits", &self.limits().collect::<Vec<_>>()).finish()
    }
}

impl fmt::Debug for LimitDecision<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("LimitDecision");
        shown
            .field("rule", &self.rule())
            .field("limit", &self.limit())
            .field("definition", &format_args!("{}", self.definition()))
            .field("reason", &self.reason())
            .field("source", &self.source())
            .field("capacity", &self.capacity())
            .field("remaining", &self.remaining())
            .field("retry_after", &self.retry_after())
            .field("reset_after", &self.reset_after());
        // Shown only if set, since few decisions have them.
        for (name, holds) in [("shadow", self.shadow()), ("advisory", self.advisory())] {
            if holds {
                shown.field(name, &holds);
            }
        }
        shown.finish()
    }
}
