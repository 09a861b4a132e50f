//! Estimates the memory of a rule's state from measurements, with every limit in use.

use serde::Serialize;
use spillgate::{Limit, Rule};

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
        let own: u64 = kept().filter_map(own_key_bytes).sum();
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

/// Returns the bytes of a key for one limit alone, if it has one, with the limit in full use.
fn own_key_bytes(limit: &Limit) -> Option<u64> {
    let profile = limit.algorithm().profile();
    profile.own_key.map(|_| KEY_BYTES + in_full_use(limit, profile.bytes.redis_unit))
}

fn slot_bytes(limit: &Limit) -> u64 {
    let bytes = &limit.algorithm().profile().bytes;
    SLOT_BYTES + bytes.memory + in_full_use(limit, bytes.memory_unit)
}

fn in_full_use(limit: &Limit, unit_bytes: u64) -> u64 {
    limit.capacity().unwrap_or(0).saturating_mul(unit_bytes)
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
