//! The memory engine reads the exact clock only where it matters. Here the coarse clock lags by up to a tick:
//! no decision, no number except the reset, and no stored state may depend on it.

use spillgate::{Limit, LimitSpec};
use spillgate_core::limit::NamedLimit;
use spillgate_core::time::Clock;

use crate::support::random::Random;
use crate::support::target::{Act, OnEngine, Target, params, subject};
use crate::support::world::TODAY_US;

fn buckets() -> Vec<NamedLimit> {
    [("10/second", 40), ("7/minute", 20), ("1000/second", 900), ("104250/day", 300), ("3/1ms", 9)]
        .map(|(quota, burst)| {
            let limit: Limit = LimitSpec::new(quota).burst(burst).build().unwrap();
            NamedLimit::new(limit, 0)
        })
        .into()
}

/// Checks in bursts with pauses in between. Sometimes the limit changes or the clock steps back.
#[test]
fn a_lagging_coarse_clock_changes_no_decision_and_no_state() {
    let mut lagged = 0;
    for (seed, tick_us) in (0..60).zip([1_000, 4_000, 10_000].into_iter().cycle()) {
        let mut random = Random::new(seed);
        let limits = buckets();
        let mut exact = OnEngine::memory(subject(1));
        let mut coarse = OnEngine::memory_by(Clock::ticking(tick_us), subject(1));
        let mut now_us = TODAY_US;
        let mut limit = random.pick(&limits);
        for number in 0..2_000 {
            if random.one_in(200) {
                limit = random.pick(&limits);
            }
            let wait_us = params(limit).counting().longest_wait_us();
            now_us += match random.below(8) {
                0 => random.spread(wait_us),
                1..=3 => random.spread(wait_us / 16),
                _ => random.below(2_000),
            };
            if random.one_in(300) {
                now_us -= random.below(3_000_000);
            }
            let act = match random.below(20) {
                0 => Act::Peek(random.below(5)),
                1 => Act::Lower(random.below(5)),
                2 => Act::Force(random.below(10)),
                _ => Act::Check(random.below(5)),
            };
            let reply = coarse.act(act, limit, now_us);
            let expected = exact.act(act, limit, now_us);
            let place = format!("seed {seed}, act {number}: {act:?} on {}", limit.limit());
            let lag_us = reply.reading.reset_after_us.wrapping_sub(expected.reading.reset_after_us);
            assert!(lag_us < tick_us, "{place}: the reset is {lag_us} µs off");
            lagged += u32::from(lag_us > 0);
            assert_eq!(
                (reply.fits, reply.reading.remaining, reply.reading.retry_after_us, reply.returned),
                (
                    expected.fits,
                    expected.reading.remaining,
                    expected.reading.retry_after_us,
                    expected.returned
                ),
                "{place}"
            );
        }
    }
    assert!(lagged > 1_000, "only {lagged} checks used the lagging clock");
}
