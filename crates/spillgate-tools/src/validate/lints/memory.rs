//! Finds limits with large state.

use spillgate::{Algorithm, Mode};

use super::super::bytes::{LOG_ENTRY_BYTES, readable};
use super::{Checked, Finding};

pub(super) fn log_memory(checked: &Checked<'_>) -> Vec<Finding> {
    let mut found = Vec::new();
    for written in checked.rules().filter(|written| written.rule.mode() != Mode::Off) {
        for (position, limit) in written.rule.limits().enumerate() {
            let count = limit.capacity().filter(|_| limit.algorithm() == Algorithm::SlidingLog);
            if let Some(count) = count.filter(|count| *count >= LARGE) {
                let problem = format!(
                    "a sliding log keeps every call, so {limit} takes up to {} for each subject",
                    readable(count * LOG_ENTRY_BYTES)
                );
                let remedy =
                    "write algorithm = \"sliding-window\", which takes as much as a bucket";
                found.push(written.warning(written.entry.line_of_limit(position), problem, remedy));
            }
        }
    }
    found
}

/// At 80 KB a subject, a thousand busy subjects take 80 MB.
const LARGE: u64 = 10_000;
