//! Estimates the memory of a rule's state from measurements, with every limit in use.

use serde::Serialize;
use spillgate::{Algorithm, Limit, Rule};

/// The estimated state of a number of subjects of one rule.
#[derive(Serialize)]
pub struct Bytes<'a> {
    pub(crate) rule: &'a str,
    pub(crate) in_redis: u64,
    pub(crate) in_memory: u64,
}

impl Bytes<'_> {
    pub fn new(rule: &Rule, subjects: u64) -> Bytes<'_> {
        // A rule without key attributes has one subject.
        let subjects = if rule.key().len() == 0 { 1 } else { subjects };
        let kept = || rule.limits().filter(|limit| limit.capacity().is_some_and(|most| most > 0));
        let records = kept().count() as u64;
        let value = if records > 0 { KEY_BYTES + records * RECORD_BYTES } else { 0 };
        let own: u64 = kept().filter(|limit| has_own_key(limit)).map(own_key_bytes).sum();
        let in_memory: u64 = kept().map(slot_bytes).sum();
        Bytes {
            rule: rule.name(),
            in_redis: subjects.saturating_mul(value + own),
            in_memory: subjects.saturating_mul(in_memory),
        }
    }

    pub fn for_people(&self) -> String {
        let Bytes { rule, in_redis, in_memory } = self;
        format!("{rule}: {} in Redis, {} in memory", readable(*in_redis), readable(*in_memory))
    }
}

/// A sliding log, and the permits of a concurrency limit, have keys beside that of the other counters.
fn has_own_key(limit: &Limit) -> bool {
    matches!(limit.algorithm(), Algorithm::SlidingLog | Algorithm::Concurrency)
}

fn own_key_bytes(limit: &Limit) -> u64 {
    KEY_BYTES + entries_bytes(limit, HOLD_BYTES)
}

fn slot_bytes(limit: &Limit) -> u64 {
    let own = if limit.algorithm() == Algorithm::SlidingLog { LOG_BYTES_IN_MEMORY } else { 0 };
    SLOT_BYTES + own + entries_bytes(limit, HOLD_BYTES_IN_MEMORY)
}

/// Returns the bytes of a full limit's entries: the units of a log, or the held permits.
fn entries_bytes(limit: &Limit, hold_bytes: u64) -> u64 {
    let each = match limit.algorithm() {
        Algorithm::SlidingLog => LOG_ENTRY_BYTES,
        Algorithm::Concurrency => hold_bytes,
        _ => 0,
    };
    limit.capacity().unwrap_or(0).saturating_mul(each)
}

/// Returns bytes in powers of ten: `1.5 MB`.
fn readable(bytes: u64) -> String {
    let unit = UNITS.iter().rev().find(|(size, _)| bytes >= *size);
    let Some((size, name)) = unit else { return format!("{bytes} bytes") };
    // The estimate is no more exact than three digits.
    let tenths = bytes / (size / 10);
    if tenths >= 100 {
        format!("{} {name}", tenths / 10)
    } else {
        format!("{}.{} {name}", tenths / 10, tenths % 10)
    }
}

const UNITS: [(u64, &str); 4] =
    [(1_000, "KB"), (1_000_000, "MB"), (1_000_000_000, "GB"), (1_000_000_000_000, "TB")];

/// A key of Spillgate in Redis, with its entry in the table of keys and its expiry.
const KEY_BYTES: u64 = 150;
/// One counter in a value.
const RECORD_BYTES: u64 = 30;
/// One unit in a log: six bytes in Redis, and the spare room of its string; eight in the memory engine.
const LOG_ENTRY_BYTES: u64 = 8;
/// One held permit, by its name and by its end.
const HOLD_BYTES: u64 = 330;
/// One held permit in the memory engine, most of it the record by which it is released: 1,000 to 1,180 bytes with its
/// counter, measured over 100,000 subjects.
const HOLD_BYTES_IN_MEMORY: u64 = 1_000;
/// A log of few calls in the memory engine: 300 to 480 bytes with its counter.
const LOG_BYTES_IN_MEMORY: u64 = 300;
/// One counter in the memory engine.
const SLOT_BYTES: u64 = 96;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_readable() {
        for (bytes, text) in [
            (999, "999 bytes"),
            (1_000, "1.0 KB"),
            (9_990, "9.9 KB"),
            (10_000, "10 KB"),
            (1_500_000, "1.5 MB"),
            (96_000_000_000, "96 GB"),
        ] {
            assert_eq!(readable(bytes), text);
        }
    }
}
