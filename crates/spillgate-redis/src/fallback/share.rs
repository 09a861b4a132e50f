//! Computes the parameters of a local share.

use crate::algorithm::{LimitParams, token_bucket};
use crate::policy::Share;

/// Returns the local share of a limit. The rate is exact; counts and bursts are rounded down, to at
/// least 1.
pub fn part_of(params: &LimitParams, share: Share) -> LimitParams {
    if let LimitParams::TokenBucket(params) = params {
        return LimitParams::TokenBucket(part_of_bucket(params, share));
    }
    let mut part = *params;
    if let Some(count) = part.count_mut() {
        // A share is at most the whole, so it fits.
        *count = share.part_of((*count).into()).max(1) as u32;
    }
    part
}

/// Returns the share of a bucket. The rate is exact if a bucket can have it, else slower by less
/// than 1 µs for each token.
fn part_of_bucket(params: &token_bucket::Params, share: Share) -> token_bucket::Params {
    let burst = share.part_of(params.burst.into()).max(1);
    let exactly = share.of_rate(params.count, params.period_us);
    if let Some(params) =
        exactly.and_then(|(count, us)| token_bucket::Params::new(count, us, burst).ok())
    {
        return params;
    }
    let token_us = share.time_for_one(params.count, params.period_us).min(REFILL_MAX_US);
    let burst = burst.min(REFILL_MAX_US / token_us);
    token_bucket::Params::new(1, token_us, burst).unwrap_or(*params)
}

/// The longest time that a bucket may take to refill.
const REFILL_MAX_US: u64 = 1 << 53;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limit::Limit;

    fn share_of(quota: &str, share: &str) -> LimitParams {
        let limit = crate::limit::NamedLimit::new(Limit::parse(quota).unwrap(), 0);
        part_of(limit.params().unwrap(), Share::parse(share).unwrap())
    }

    #[test]
    fn a_share_keeps_the_rate_and_rounds_the_burst_down() {
        let whole = |quota| share_of(quota, "1");
        assert_eq!(share_of("100/second", "0.25"), whole("25/second"));
        let LimitParams::TokenBucket(slow) = share_of("1/second", "0.3") else {
            panic!("a bucket")
        };
        assert_eq!((slow.burst, slow.count, slow.period_us), (1, 3, 10_000_000));
    }

    #[test]
    fn the_smallest_share_of_the_slowest_limit_is_no_more_than_its_whole() {
        for (quota, share) in [("1/366d", "0.000001"), ("1000000000/366d", "0.999999")] {
            let LimitParams::TokenBucket(whole) = share_of(quota, "1") else { panic!("a bucket") };
            let LimitParams::TokenBucket(part) = share_of(quota, share) else { panic!("a bucket") };
            let rate = |params: token_bucket::Params, other: token_bucket::Params| {
                u128::from(params.count) * u128::from(other.period_us)
            };
            assert!(rate(part, whole) < rate(whole, part), "{share} of {quota}: {part:?}");
            assert!(part.burst <= whole.burst);
        }
    }
}
