//! What the server counts besides its limiter.

use std::sync::atomic::{AtomicU64, Ordering};

/// Policy files that were read again.
#[derive(Default)]
pub(crate) struct Reloads {
    applied: AtomicU64,
    refused: AtomicU64,
}

impl Reloads {
    pub(crate) fn count_applied(&self) {
        self.applied.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn count_refused(&self) {
        self.refused.fetch_add(1, Ordering::Relaxed);
    }

    /// As the limiter's own metrics are written.
    pub(crate) fn text(&self) -> String {
        let applied = self.applied.load(Ordering::Relaxed);
        let refused = self.refused.load(Ordering::Relaxed);
        format!(
            "# HELP spillgate_reloads_total Policy files that were read again.\n\
             # TYPE spillgate_reloads_total counter\n\
             spillgate_reloads_total{{result=\"applied\"}} {applied}\n\
             spillgate_reloads_total{{result=\"refused\"}} {refused}\n"
        )
    }
}
