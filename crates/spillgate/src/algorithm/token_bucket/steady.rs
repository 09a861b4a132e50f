//! A bucket in steady use: charged in one go where nothing hinges on the exact instant.
//!
//! Tokens drain from the boundary on, whenever others are added, as long as the bucket does not run
//! empty. So a charge at an instant that is somewhat old leaves the very bucket that one at the true
//! instant would; room that was there has not shrunk since; and as long as no token drained in
//! between, what remains is the same too. Everything else is for [`super::View`] and the true instant.

use super::{Numbers, Reading};
use crate::time::Lately;

/// What is stored of a bucket without receipts, written under the numbers in force.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Steady {
    /// Whole tokens used at the boundary.
    pub used: u32,
    /// When the first of them began to drain: whole µs …
    pub boundary_us: u64,
    /// … and parts of 1/d µs.
    pub boundary_part: u32,
}

/// A bucket that was charged, as it is now.
#[derive(Clone, Copy, Debug)]
pub struct Charged {
    /// Of its numbers.
    pub burst: u32,
    /// The numbers for people.
    pub reading: Reading,
}

impl Charged {
    /// Whether four fifths of it are used.
    #[inline]
    pub fn is_near(&self) -> bool {
        self.reading.remaining <= u64::from(self.burst) / NEAR
    }
}

impl Steady {
    /// The bucket with `cost` tokens more, and the numbers for people; nothing where it takes another
    /// look to say so, as for a cost of 0. Of those numbers only `reset_after_us` is as of
    /// `lately.at_us`.
    #[inline]
    pub fn charged(
        self,
        numbers: &Numbers,
        cost: u64,
        lately: Lately,
    ) -> Option<(Steady, Reading)> {
        let (n, d) = (numbers.n, u64::from(numbers.d));
        let burst = u64::from(numbers.burst);
        let used = u64::from(self.used);
        let elapsed_us = lately.at_us.checked_sub(self.boundary_us).filter(|us| *us > 0)?;
        let elapsed = elapsed_us.checked_mul(d)? - u64::from(self.boundary_part);
        let (drained, part) = (elapsed / n, elapsed % n);
        let before = used.checked_sub(drained).filter(|tokens| *tokens > 0)?;
        let after = before + cost;
        let left = after.checked_mul(n)? - part;
        let stays_in_use = left - cost * n > lately.late_us * d;
        let none_drains = part + lately.tick_us * d < n;
        let is_in_bounds = cost > 0 && after <= burst && used <= numbers.forced_max;
        if !(stays_in_use && none_drains && is_in_bounds) {
            return None;
        }
        // Most rates take whole µs for a token, and a division by 1 takes as long as any.
        let up = |parts: u64| if d == 1 { parts } else { parts.div_ceil(d) };
        let began_us = up(part);
        let bucket = Steady {
            // A burst fits 32 bits, and so does a part, which is below d.
            used: after as u32,
            boundary_us: lately.at_us - began_us,
            boundary_part: (began_us * d - part) as u32,
        };
        let reading =
            Reading { remaining: burst - after, retry_after_us: Some(0), reset_after_us: up(left) };
        Some((bucket, reading))
    }
}

/// A limit is near where no more than this part of it remains: a fifth.
pub const NEAR: u64 = 5;

#[cfg(test)]
mod tests {
    use super::super::{State, View};
    use super::*;
    use proptest::prelude::*;

    const NOW_US: u64 = 1_795_000_000_000_000;

    /// The state that a charge at `now_us` leaves, with the reading; nothing where there is no room.
    fn charged_by_view(
        state: &State,
        numbers: &Numbers,
        cost: u64,
        now_us: u64,
    ) -> Option<(State, Reading)> {
        let mut view = View::of(Some(state), numbers, now_us);
        if !view.has_room(cost) {
            return None;
        }
        view.charge(cost, now_us);
        let reading = Reading { retry_after_us: Some(0), ..view.reading(cost) };
        Some((view.state()?, reading))
    }

    fn state_of(steady: Steady, numbers: &Numbers) -> State {
        State {
            used: steady.used,
            boundary_us: steady.boundary_us,
            boundary_part: steady.boundary_part,
            count: numbers.count,
            period_us: numbers.period_us,
            tracked: None,
        }
    }

    fn numbers() -> impl Strategy<Value = Numbers> {
        let count = prop_oneof![1..50_u32, Just(7), Just(1_000_003), 1..=1_000_000_000_u32];
        let period_ms = prop_oneof![Just(1_000), Just(60_000), Just(86_400_000), 1..10_000_u64];
        (count, period_ms, 1..5_000_u64)
            .prop_filter_map("too slow to refill", |(count, ms, burst)| {
                Numbers::new(count, ms * 1_000, burst).ok()
            })
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(10_000))]

        #[test]
        fn says_what_the_view_says_at_every_instant_it_may_be(
            numbers in numbers(),
            (used, since, cost) in (1..5_000_u32, 0..1_000_u64, 1..100_u64),
            (part, tick_us, late_us) in (any::<u32>(), 0..20_000_u64, 0..200_000_u64),
            (behind, later) in (0..=1_000_u64, 0..1_500_u64),
        ) {
            let late_us = late_us.max(tick_us);
            let drain_us = u64::from(used) * numbers.n / u64::from(numbers.d);
            let state = state_of(
                Steady {
                    used,
                    boundary_us: NOW_US - drain_us * since / 1_000,
                    boundary_part: part % numbers.d,
                },
                &numbers,
            );
            let steady =
                Steady { used, boundary_us: state.boundary_us, boundary_part: state.boundary_part };
            let lately = Lately { at_us: NOW_US, tick_us, late_us };
            let Some((after, reading)) = steady.charged(&numbers, cost, lately) else {
                return Ok(());
            };
            let after = state_of(after, &numbers);
            // The tick's own length, the longest delay, and somewhere in between.
            for behind_us in [0, tick_us, late_us * behind / 1_000, late_us] {
                let now_us = NOW_US + behind_us;
                let (expected, exact) =
                    charged_by_view(&state, &numbers, cost, now_us).expect("there is room");
                for instant_us in [now_us, now_us + drain_us * later / 1_000] {
                    prop_assert_eq!(
                        View::of(Some(&after), &numbers, instant_us),
                        View::of(Some(&expected), &numbers, instant_us)
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

    /// Ten a second, burst 20; five used at the boundary, 250 ms ago: two have drained, and half of the third.
    fn charged(change: impl Fn(&mut Steady, &mut Lately, &mut u64)) -> Option<u64> {
        let numbers = Numbers::new(10, 1_000_000, 20).unwrap();
        let mut steady = Steady { used: 5, boundary_us: NOW_US - 250_000, boundary_part: 0 };
        let mut lately = Lately { at_us: NOW_US, tick_us: 10_000, late_us: 100_000 };
        let mut cost = 1;
        change(&mut steady, &mut lately, &mut cost);
        let (_, reading) = steady.charged(&numbers, cost, lately)?;
        Some(reading.remaining)
    }

    #[test]
    fn a_bucket_in_use_needs_no_second_look() {
        assert_eq!(charged(|_, _, _| ()), Some(16));
        assert_eq!(charged(|_, _, cost| *cost = 17), Some(0));
        assert_eq!(charged(|_, lately, _| lately.tick_us = 49_999), Some(16));
        assert_eq!(charged(|_, lately, _| lately.late_us = 249_999), Some(16));
    }

    #[test]
    fn whatever_hinges_on_the_instant_takes_a_second_look() {
        assert_eq!(charged(|_, _, cost| *cost = 0), None, "a peek");
        assert_eq!(charged(|_, _, cost| *cost = 18), None, "perhaps no room");
        assert_eq!(charged(|_, lately, _| lately.tick_us = 50_000), None, "a token may drain");
        assert_eq!(charged(|_, lately, _| lately.late_us = 250_000), None, "it may run empty");
        assert_eq!(charged(|steady, _, _| steady.used = 2), None, "it is empty");
        assert_eq!(charged(|steady, _, _| steady.used = 41), None, "beyond what force does");
        assert_eq!(charged(|steady, _, _| steady.boundary_us = NOW_US), None, "time ahead");
        assert_eq!(charged(|steady, _, _| steady.boundary_us = NOW_US + 1), None, "time ahead");
    }
}
