//! Writes periods in their shortest exact form.

use std::fmt;

/// Writes a period as in a quota: `90s`, `1500ms`, `7d`.
pub fn write_period(f: &mut fmt::Formatter<'_>, period_us: u64) -> fmt::Result {
    write_length(f, period_us / 1_000)
}

/// Writes a length of time in its shortest exact form: `90s`, `1500ms`, `7d`.
pub fn write_length(f: &mut fmt::Formatter<'_>, ms: u64) -> fmt::Result {
    let (unit_ms, unit) = SHORT
        .into_iter()
        .rev()
        .find(|(unit_ms, _)| ms.is_multiple_of(*unit_ms))
        .unwrap_or((1, "ms"));
    write!(f, "{}{unit}", ms / unit_ms)
}

/// The units and their milliseconds, shortest first.
pub const SHORT: [(u64, &str); 5] =
    [(1, "ms"), (SECOND_MS, "s"), (60 * SECOND_MS, "m"), (3_600 * SECOND_MS, "h"), (DAY_MS, "d")];
/// The milliseconds of a second.
pub const SECOND_MS: u64 = 1_000;
/// The milliseconds of 24 hours.
pub const DAY_MS: u64 = 86_400 * SECOND_MS;
