//! Metrics of the server, beside those of its limiter.

use std::collections::BTreeSet;
use std::fmt::Write;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use spillgate::InstanceMismatch;

use crate::doctor::{self, Finding, Level};

/// Counts policy files that were read again.
#[derive(Default)]
pub(crate) struct Reloads {
    applied: AtomicU64,
    refused: AtomicU64,
    /// The warning about the file in force.
    warning: Mutex<Option<Arc<str>>>,
}

impl Reloads {
    /// Counts a file that is in force now. Its warning, if it has one, stands until the next file is in force.
    pub(crate) fn count_applied(&self, warning: Option<&str>) {
        self.applied.fetch_add(1, Ordering::Relaxed);
        let mut standing = self.warning.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        *standing = warning.map(Arc::from);
    }

    /// Returns the warning that stands.
    pub(crate) fn warning(&self) -> Option<Arc<str>> {
        self.warning.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).clone()
    }

    pub(crate) fn count_refused(&self) {
        self.refused.fetch_add(1, Ordering::Relaxed);
    }

    /// Returns the count of reloads, in the text format of Prometheus.
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

/// The doctor's checks that found the store unsafe at the start, by name.
#[derive(Default)]
pub(crate) struct UnsafeStore(Mutex<BTreeSet<&'static str>>);

impl UnsafeStore {
    pub(crate) fn note(&self, findings: &[Finding]) {
        let reasons = findings.iter().filter(|finding| finding.level == Level::Unsafe);
        let mut known = self.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        *known = reasons.map(|finding| finding.check).collect();
    }

    /// Returns one gauge for each unsafe check, in the text format of Prometheus, with instances that differ now.
    pub(crate) fn text(&self, mismatch: InstanceMismatch) -> String {
        let mut text =
            "# HELP spillgate_store_unsafe Checks of `spillgate doctor` that found the store unsafe at the \
                        start; instances that differ, as found now.\n\
             # TYPE spillgate_store_unsafe gauge\n"
                .to_owned();
        let known = self.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        let differing = doctor::mismatches(mismatch).map(|(check, _)| check);
        for reason in known.iter().copied().chain(differing) {
            writeln!(text, "spillgate_store_unsafe{{reason=\"{reason}\"}} 1")
                .expect("a string takes all text");
        }
        text
    }
}
