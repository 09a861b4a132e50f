//! Limits whose state is large.

use spillgate::{Algorithm, Mode};

use super::super::bytes::{LOG_ENTRY_BYTES, readable};
use super::{Found, Looked};

pub(super) fn log_memory(looked: &Looked<'_>) -> Vec<Found> {
    let mut found = Vec::new();
    for written in looked.rules().filter(|written| written.rule.mode() != Mode::Off) {
        for (position, limit) in written.rule.limits().enumerate() {
            let count = limit.capacity().filter(|_| limit.algorithm() == Algorithm::SlidingLog);
            if let Some(count) = count.filter(|count| *count >= LARGE) {
                let what = format!(
                    "a sliding log keeps every call, so {limit} takes up to {} for each subject",
                    readable(count * LOG_ENTRY_BYTES)
                );
                let remedy =
                    "write algorithm = \"sliding-window\", which takes as much as a bucket";
                found.push(written.warning(written.entry.line_of_limit(position), what, remedy));
            }
        }
    }
    found
}

/// From 80 KB a subject on, a thousand busy ones are felt.
const LARGE: u64 = 10_000;
