//! A fraction of a limit: the local share of one instance while the store is out of reach, or the
//! part that leases may take.

use super::file::Table;
use super::problem::Problems;
use crate::algorithm::{COUNT_MAX, gcd};

/// The fraction `part` ÷ `of`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Share {
    part: u32,
    of: u32,
}

impl Share {
    /// Returns one of `parts` equal parts, or the whole if `parts` is 0.
    pub fn one_of(parts: u32) -> Share {
        Share { part: 1, of: parts.max(1) }
    }

    /// Reads a share from a field.
    pub(crate) fn read(
        table: &Table<'_>,
        field: &str,
        problems: &mut Problems<'_>,
    ) -> Option<Share> {
        let text = table.decimal(field, problems)?;
        let share = Share::parse(text);
        if share.is_none() {
            let message = format!(
                "must be greater than 0 and at most 1, with at most six decimal places, got {text}; write for example 0.25"
            );
            problems.note(table.wrong(field, message));
        }
        share
    }

    /// Parses a decimal number above 0 and up to 1, such as `0.25`. Returns `None` for anything
    /// else.
    pub fn parse(text: &str) -> Option<Share> {
        let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
        let digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
        if !digits(whole) || !digits(fraction) || fraction.len() > DIGITS_MAX {
            return None;
        }
        let of = 10_u32.pow(fraction.len() as u32);
        let whole: u32 = whole.parse().ok()?;
        let fraction: u32 = if fraction.is_empty() { 0 } else { fraction.parse().ok()? };
        let part = whole.checked_mul(of)?.checked_add(fraction)?;
        (1..=of).contains(&part).then_some(Share { part, of })
    }

    /// Returns this share of a whole, rounded down.
    pub fn part_of(self, whole: u64) -> u64 {
        let part = u128::from(whole) * u128::from(self.part) / u128::from(self.of);
        u64::try_from(part).unwrap_or(whole)
    }

    /// Returns this share of the rate `count` in `period_us`, if it can be exact.
    pub fn of_rate(self, count: u32, period_us: u64) -> Option<(u32, u64)> {
        // Fractions are reduced first, so that more shares stay exact within the bounds.
        let divisor = common_divisor(self.part, self.of);
        let (part, of) = (self.part / divisor, self.of / divisor);
        let shared = common_divisor(count, of);
        let count = (count / shared).checked_mul(part).filter(|count| *count <= COUNT_MAX)?;
        Some((count, period_us.checked_mul(u64::from(of / shared))?))
    }

    /// Returns the time for one of `count` in `period_us` at this share of the rate, rounded up.
    pub fn time_for_one(self, count: u32, period_us: u64) -> u64 {
        let parts = u128::from(count.max(1)) * u128::from(self.part);
        let us = (u128::from(period_us) * u128::from(self.of)).div_ceil(parts);
        u64::try_from(us).unwrap_or(u64::MAX)
    }
}

fn common_divisor(a: u32, b: u32) -> u32 {
    // Fits: it divides both.
    gcd(a.into(), b.into()) as u32
}

/// A millionth of a limit is small enough.
const DIGITS_MAX: usize = 6;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_is_a_decimal_above_zero_and_up_to_one() {
        assert_eq!(Share::parse("0.25"), Some(Share { part: 25, of: 100 }));
        assert_eq!(Share::parse("1"), Some(Share { part: 1, of: 1 }));
        assert_eq!(Share::parse("1.0"), Some(Share { part: 10, of: 10 }));
        for text in ["0", "0.0", "1.1", "2", "-0.5", "5e-1", "0.0000001", "inf", "nan", "", "."] {
            assert_eq!(Share::parse(text), None, "{text}");
        }
    }

    #[test]
    fn a_part_of_a_rate_is_exact() {
        let quarter = Share::parse("0.25").unwrap();
        assert_eq!(quarter.of_rate(100, 1_000), Some((25, 1_000)));
        assert_eq!(quarter.of_rate(3, 1_000), Some((3, 4_000)));
        assert_eq!(Share::one_of(16).of_rate(100, 1_000), Some((25, 4_000)));
        assert_eq!((quarter.part_of(7), quarter.part_of(3)), (1, 0));
    }
}
