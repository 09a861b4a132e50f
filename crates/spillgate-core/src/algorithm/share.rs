//! A fraction of a limit: the local share of one instance while the store is out of reach, or the
//! part that leases may take.

use super::{COUNT_MAX, gcd};

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

    /// Parses a decimal number above 0 and up to 1, such as `0.25`. Returns `None` for anything else.
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

    /// Returns this share of a count, rounded down, but at least 1.
    pub fn of_count(self, count: u32) -> u32 {
        // A share is at most the whole, so it fits.
        self.part_of(count.into()).max(1) as u32
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
    use crate::algorithm::{LimitParams, token_bucket};
    use crate::limit::Limit;

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
    fn share_of(quota: &str, share: &str) -> token_bucket::Params {
        let limit = Limit::parse(quota).unwrap();
        let params = limit.params().unwrap().counting().share(Share::parse(share).unwrap());
        let LimitParams::TokenBucket(params) = params else { panic!("a bucket") };
        params
    }

    #[test]
    fn a_share_keeps_the_rate_and_rounds_the_burst_down() {
        let whole = |quota| share_of(quota, "1");
        assert_eq!(share_of("100/second", "0.25"), whole("25/second"));
        let slow = share_of("1/second", "0.3");
        assert_eq!((slow.burst, slow.count, slow.period_us), (1, 3, 10_000_000));
    }

    #[test]
    fn the_smallest_share_of_the_slowest_limit_is_no_more_than_its_whole() {
        for (quota, share) in [("1/366d", "0.000001"), ("1000000000/366d", "0.999999")] {
            let (whole, part) = (share_of(quota, "1"), share_of(quota, share));
            let rate = |params: token_bucket::Params, other: token_bucket::Params| {
                u128::from(params.count) * u128::from(other.period_us)
            };
            assert!(rate(part, whole) < rate(whole, part), "{share} of {quota}: {part:?}");
            assert!(part.burst <= whole.burst);
        }
    }
}
