//! Writes periods in their shortest exact form.

use std::fmt;

/// A length of time in µs, written in its shortest exact form: `90s`, `1500ms`, `7d`.
pub struct Period(pub u64);

impl fmt::Display for Period {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ms = self.0 / 1_000;
        let mut longest_first = SHORT.into_iter().rev();
        let whole = longest_first.find(|(unit_ms, _)| ms.is_multiple_of(*unit_ms));
        let (unit_ms, unit) = whole.unwrap_or((1, "ms"));
        write!(f, "{}{unit}", ms / unit_ms)
    }
}

/// The period of a quota, written by its name if it has one: `minute`, `90s`. A quota parses it as the same period.
pub struct QuotaPeriod(pub u64);

impl fmt::Display for QuotaPeriod {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match NAMED.into_iter().find(|(ms, _)| ms * 1_000 == self.0) {
            Some((_, name)) => f.write_str(name),
            None => Period(self.0).fmt(f),
        }
    }
}

/// The periods that have a name, and their milliseconds.
pub const NAMED: [(u64, &str); 7] = [
    (SECOND_MS, "second"),
    (60 * SECOND_MS, "minute"),
    (3_600 * SECOND_MS, "hour"),
    (DAY_MS, "day"),
    (7 * DAY_MS, "week"),
    (30 * DAY_MS, "month"),
    (365 * DAY_MS, "year"),
];
/// The units and their milliseconds, shortest first.
pub const SHORT: [(u64, &str); 5] =
    [(1, "ms"), (SECOND_MS, "s"), (60 * SECOND_MS, "m"), (3_600 * SECOND_MS, "h"), (DAY_MS, "d")];
/// The milliseconds of a second.
pub const SECOND_MS: u64 = 1_000;
/// The milliseconds of 24 hours.
pub const DAY_MS: u64 = 86_400 * SECOND_MS;
