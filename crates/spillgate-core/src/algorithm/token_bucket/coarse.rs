//! Charges by a coarse clock, which is some milliseconds behind, if the exact instant would change nothing.
//!
//! Tokens drain from the boundary on until the bucket is empty, whether or not others are added. While the
//! bucket does not become empty, a charge at an earlier instant therefore leaves the same state as one at the
//! exact instant. Room only grows with time, and if no token drains in between, the remaining quota is equal
//! too. Only the time until the bucket is full again is longer, by the age of the reading.

use super::View;
use crate::time::CoarseTime;

impl View<'_> {
    /// Returns whether the exact instant would make no difference to a charge of `cost` but a shorter
    /// `reset_after`.
    ///
    /// The view must have been taken at `now.at_us`. A cost of 0 only reads, and needs an exact clock.
    #[inline]
    pub fn is_certain(&self, cost: u64, now: CoarseTime) -> bool {
        let (n, d) = (self.params.n, u64::from(self.params.d));
        let drained_in = |us: u64| us.saturating_mul(d).saturating_add_signed(self.level.drained);
        // Receipts record the level of each write, and state of other parameters ends at an instant of its own.
        let is_plain = self.receipts.is_none() && self.gone_after_us.is_none() && !self.rebased;
        let has_room = cost > 0 && self.has_room(cost);
        let none_drains = drained_in(now.tick_us) < n;
        // A bucket that was full at the tick would be a tick late with its `reset_after`, and a header in whole
        // seconds would then show one second more.
        let has_drained = self.level.drained > 0;
        let stays_in_use = drained_in(now.late_us) < self.level.tokens.saturating_mul(n);
        is_plain && has_room && has_drained && none_drains && stays_in_use
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Params, Reading, State};
    use super::*;
    use proptest::prelude::*;

    const NOW_US: u64 = 1_795_000_000_000_000;

    /// Returns the state and the reading after a charge at `now_us`; `None` if there is no room.
    fn charged_by_view(
        state: &State,
        params: &Params,
        cost: u64,
        now_us: u64,
    ) -> Option<(State, Reading)> {
        let mut view = View::new(Some(state), params, now_us);
        if !view.has_room(cost) {
            return None;
        }
        view.charge(cost);
        let reading = Reading { retry_after_us: Some(0), ..view.reading(cost) };
        Some((view.state()?, reading))
    }

    fn bucket(params: &Params, used: u32, boundary: (u64, u32)) -> State {
        State {
            used,
            boundary_us: boundary.0,
            boundary_part: boundary.1,
            count: params.count,
            period_us: params.period_us,
            receipts: None,
        }
    }

    fn params() -> impl Strategy<Value = Params> {
        let count = prop_oneof![1..50_u32, Just(7), Just(1_000_003), 1..=1_000_000_000_u32];
        let period_ms = prop_oneof![Just(1_000), Just(60_000), Just(86_400_000), 1..10_000_u64];
        (count, period_ms, 1..5_000_u64)
            .prop_filter_map("too slow to refill", |(count, ms, burst)| {
                Params::new(count, ms * 1_000, burst).ok()
            })
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(10_000))]

        #[test]
        fn a_certain_charge_has_the_result_of_every_possible_instant(
            params in params(),
            (used, since, cost) in (1..5_000_u32, 0..1_000_u64, 1..100_u64),
            (ahead_us, part) in (prop_oneof![Just(0), 1..20_000_u64], any::<u32>()),
            (tick_us, late_us) in (0..20_000_u64, 0..200_000_u64),
            (behind, later) in (0..=1_000_u64, 0..1_500_u64),
        ) {
            let late_us = late_us.max(tick_us);
            let drain_us = u64::from(used) * params.n / u64::from(params.d);
            // The exact clock of an earlier charge may be ahead of the coarse one.
            let boundary_us = match ahead_us {
                0 => NOW_US - drain_us * since / 1_000,
                ahead_us => NOW_US + ahead_us,
            };
            let state = bucket(&params, used, (boundary_us, part % params.d));
            let coarse = CoarseTime { at_us: NOW_US, tick_us, late_us };
            if !View::new(Some(&state), &params, NOW_US).is_certain(cost, coarse) {
                return Ok(());
            }
            let (after, reading) =
                charged_by_view(&state, &params, cost, NOW_US).expect("it is certain");
            // The tick's own length, the longest delay, and a delay in between.
            for behind_us in [0, tick_us, late_us * behind / 1_000, late_us] {
                let now_us = NOW_US + behind_us;
                let (expected, exact) =
                    charged_by_view(&state, &params, cost, now_us).expect("there is room");
                for instant_us in [now_us, now_us + drain_us * later / 1_000] {
                    prop_assert_eq!(
                        View::new(Some(&after), &params, instant_us),
                        View::new(Some(&expected), &params, instant_us)
                    );
                }
                if behind_us <= tick_us {
                    prop_assert_eq!(reading.remaining, exact.remaining);
                    prop_assert_eq!(reading.retry_after_us, exact.retry_after_us);
                    prop_assert_eq!(reading.reset_after_us, exact.reset_after_us + behind_us);
                }
            }
        }
    }

    /// Ten a second, burst 20. Five were used at the boundary, 250 ms ago: two have drained, and half of the third.
    fn is_certain(change: impl Fn(&mut State, &mut CoarseTime, &mut u64)) -> bool {
        let params = Params::new(10, 1_000_000, 20).unwrap();
        let mut state = bucket(&params, 5, (NOW_US - 250_000, 0));
        let mut coarse = CoarseTime { at_us: NOW_US, tick_us: 10_000, late_us: 100_000 };
        let mut cost = 1;
        change(&mut state, &mut coarse, &mut cost);
        View::new(Some(&state), &params, NOW_US).is_certain(cost, coarse)
    }

    #[test]
    fn a_bucket_in_use_needs_no_exact_clock() {
        assert!(is_certain(|_, _, _| ()));
        assert!(is_certain(|_, _, cost| *cost = 17));
        assert!(is_certain(|_, coarse, _| coarse.tick_us = 49_999));
        assert!(is_certain(|_, coarse, _| coarse.late_us = 249_999));
    }

    #[test]
    fn the_exact_clock_decides_if_the_instant_matters() {
        assert!(!is_certain(|_, _, cost| *cost = 0), "a peek");
        assert!(!is_certain(|state, _, _| state.boundary_us = NOW_US), "charged just now");
        assert!(!is_certain(|state, _, _| state.boundary_us = NOW_US + 4_000), "since the tick");
        assert!(!is_certain(|_, _, cost| *cost = 18), "perhaps no room");
        assert!(!is_certain(|_, coarse, _| coarse.tick_us = 50_000), "a token may drain");
        assert!(!is_certain(|_, coarse, _| coarse.late_us = 250_000), "it may become empty");
        assert!(!is_certain(|state, _, _| state.used = 2), "it is empty");
        assert!(!is_certain(|state, _, _| state.used = 41), "beyond what force does");
        assert!(!is_certain(|state, _, _| state.count = 20), "another count");
        assert!(!is_certain(|state, _, _| state.boundary_us = NOW_US + 3_000_000), "time ahead");
    }
}
