//! What a share of a limit is, in numbers.

use crate::algorithm::{
    Numbers, concurrency, fixed_window, sliding_log, sliding_window, token_bucket,
};
use crate::policy::Share;

/// A share of a limit: the rate exactly, counts and bursts rounded down, at least 1.
pub(super) fn part_of(numbers: &Numbers, share: Share) -> Numbers {
    // No share is more than the whole, so it fits.
    let part = |count: u32| share.of(count.into()).max(1) as u32;
    match numbers {
        Numbers::TokenBucket(numbers) => Numbers::TokenBucket(part_of_bucket(numbers, share)),
        Numbers::FixedWindow(numbers) => Numbers::FixedWindow(fixed_window::Numbers {
            count: part(numbers.count),
            window: numbers.window.clone(),
        }),
        Numbers::SlidingLog(numbers) => {
            Numbers::SlidingLog(sliding_log::Numbers { count: part(numbers.count), ..*numbers })
        }
        Numbers::SlidingWindow(numbers) => Numbers::SlidingWindow(sliding_window::Numbers {
            count: part(numbers.count),
            ..*numbers
        }),
        Numbers::Concurrency(numbers) => {
            Numbers::Concurrency(concurrency::Numbers { count: part(numbers.count), ..*numbers })
        }
    }
}

/// The rate exactly where that can be, else slower by less than a microsecond for each token.
fn part_of_bucket(numbers: &token_bucket::Numbers, share: Share) -> token_bucket::Numbers {
    let burst = share.of(numbers.burst.into()).max(1);
    let exactly = share.of_rate(numbers.count, numbers.period_us);
    if let Some(numbers) =
        exactly.and_then(|(count, us)| token_bucket::Numbers::new(count, us, burst).ok())
    {
        return numbers;
    }
    let token_us = share.time_for_one(numbers.count, numbers.period_us).min(REFILL_MAX_US);
    let burst = burst.min(REFILL_MAX_US / token_us);
    token_bucket::Numbers::new(1, token_us, burst).unwrap_or(*numbers)
}

/// As long as a bucket may take to refill.
const REFILL_MAX_US: u64 = 1 << 53;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limit::Limit;

    fn share_of(quota: &str, share: &str) -> Numbers {
        let limit = crate::limit::NamedLimit::new(Limit::parse(quota).unwrap(), 0);
        part_of(limit.numbers().unwrap(), Share::parse(share).unwrap())
    }

    #[test]
    fn a_share_keeps_the_rate_and_rounds_the_burst_down() {
        let whole = |quota| share_of(quota, "1");
        assert_eq!(share_of("100/second", "0.25"), whole("25/second"));
        let Numbers::TokenBucket(slow) = share_of("1/second", "0.3") else { panic!("a bucket") };
        assert_eq!((slow.burst, slow.count, slow.period_us), (1, 3, 10_000_000));
    }

    #[test]
    fn the_smallest_share_of_the_slowest_limit_is_no_more_than_its_whole() {
        for (quota, share) in [("1/366d", "0.000001"), ("1000000000/366d", "0.999999")] {
            let Numbers::TokenBucket(whole) = share_of(quota, "1") else { panic!("a bucket") };
            let Numbers::TokenBucket(part) = share_of(quota, share) else { panic!("a bucket") };
            let rate = |numbers: token_bucket::Numbers, other: token_bucket::Numbers| {
                u128::from(numbers.count) * u128::from(other.period_us)
            };
            assert!(rate(part, whole) < rate(whole, part), "{share} of {quota}: {part:?}");
            assert!(part.burst <= whole.burst);
        }
    }
}
