//! Sliding window: prev × (P − e) + curr × P ≤ count × P, without rounding.
//!
//! The state has two counts: of the current window, and of the one before. The latter counts in proportion to
//! its part in the period that ends now. Windows are aligned to the epoch. Costs are whole, so comparing the
//! use, rounded up, equals comparing the products.
//!
//! State of another period is compared by that period with the count in force. The next charge turns the use into the
//! count of the current window of the new period.

use std::fmt;

use super::fixed_window::Window;
use super::passing::Passing;
use super::period::QuotaPeriod;
use super::{
    Charge, Counting, Footprint, LimitParams, Profile, Rate, Reading, Refund, Share,
    WINDOW_COUNT_MAX, forced_max_in_window, tolerated_us, whole_periods_us,
};

/// `count` in a sliding period, as a close approximation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Params {
    /// The capacity.
    pub count: u32,
    /// The period.
    pub period_us: u64,
}

/// The counts of two windows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct State {
    /// When the current window began.
    pub start_us: u64,
    /// The period that the state was written under.
    pub period_us: u64,
    /// The amount charged in the window before.
    pub prev: u32,
    /// The amount charged in the current window.
    pub curr: u32,
    /// The name of this life; 0 until the first receipt.
    pub incarnation: u64,
}

/// The two windows at an instant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct View<'n> {
    params: &'n Params,
    /// Its current window contains now.
    state: State,
    now_us: u64,
    rebased: bool,
}

/// The two counts, and the position of now in their period.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Counts {
    /// The amount charged in the window before.
    pub prev: u64,
    /// The amount charged in the current window.
    pub curr: u64,
    /// The time since the current window began; negative while it lies ahead of now.
    pub elapsed_us: i64,
    /// The period that the counts were written under.
    pub period_us: u64,
}

/// What sets sliding windows apart.
pub static PROFILE: Profile = Profile {
    name: "sliding-window",
    own_field: None,
    own_key: None,
    is_leasable: true,
    lease_ends_with_window: false,
    has_calendar: false,
    counts_permits: false,
    charge_us: 5,
    unit_us: 0,
    bytes: Footprint { memory: 0, memory_unit: 0, redis_unit: 0 },
    build: |fields| {
        let (count, length) = fields.rate(WINDOW_COUNT_MAX)?;
        Ok(LimitParams::SlidingWindow(Params { count, period_us: length.us() }))
    },
    decode: |count, period_us, _| {
        (period_us > 0).then_some(LimitParams::SlidingWindow(Params { count, period_us }))
    },
};

impl Params {
    /// Returns the windows in which the counts are kept. None of them admits more than the count.
    fn windows(&self) -> Window {
        Window::Every { period_us: self.period_us }
    }
}

impl Counting for Params {
    fn capacity(&self) -> u32 {
        self.count
    }

    fn period(&self) -> u64 {
        self.period_us
    }

    fn longest_wait_us(&self) -> u64 {
        2 * self.period_us
    }

    fn window_us(&self) -> Option<u64> {
        Some(self.period_us)
    }

    fn spaced_us(&self, _first: u64, total: u64) -> u64 {
        // Up to twice the count can pass in one period.
        whole_periods_us(total, self.count, self.period_us / 2)
    }

    fn rate(&self) -> Option<Rate> {
        Some(Rate::of_windows(self.count, self.period_us))
    }

    fn replaced_by(&self, asked: &Rate) -> Option<LimitParams> {
        let Rate { count, period_us, .. } = *asked;
        Some(LimitParams::SlidingWindow(Params { count, period_us }))
    }

    fn narrowed_to(&self, asked: &Rate) -> Option<LimitParams> {
        let count = self.rate()?.capped(asked)?;
        Some(LimitParams::SlidingWindow(Params { count, period_us: asked.period_us }))
    }

    fn doubled(&self) -> Option<LimitParams> {
        let count = self.count.checked_mul(2)?;
        Some(LimitParams::SlidingWindow(Params { count, ..*self }))
    }

    fn share(&self, share: Share) -> LimitParams {
        LimitParams::SlidingWindow(Params { count: share.of_count(self.count), ..*self })
    }

    fn passing(&self) -> Option<Passing> {
        Some(Passing::windows(self.count, self.windows()))
    }

    fn has_room_for(&self, other: &LimitParams) -> bool {
        if let LimitParams::SlidingWindow(other) = other
            && other.period_us == self.period_us
        {
            return other.count <= self.count;
        }
        let Some(passing) = other.counting().passing() else { return false };
        // The weighted count is at most what passes within a period plus what passes at once.
        let refilled = passing.count * u128::from(self.period_us);
        passing.burst * passing.period_us + refilled <= u128::from(self.count) * passing.period_us
    }

    fn surely_counted(&self, amount: u64, at_us: u64, now_us: u64, margin_us: u64) -> u64 {
        self.windows().surely_counted(amount, at_us, now_us, margin_us)
    }

    fn words(&self, out: &mut Vec<u64>, _estimate_us: u64) {
        out.extend([u64::from(self.count), self.period_us]);
    }

    fn reply_width(&self) -> usize {
        4
    }

    fn reading(&self, reply: &[i64], cost: u64, since: i64) -> Option<Reading> {
        let &[prev, curr, elapsed_us, period_us] = reply else { return None };
        let [prev, curr, period_us] =
            [prev, curr + since, period_us].map(|word| word.max(0) as u64);
        Some(Counts { prev, curr, elapsed_us, period_us }.reading(self, cost))
    }

    fn encode(&self, bytes: &mut Vec<u8>) {
        bytes.extend(self.count.to_be_bytes());
        bytes.extend(self.period_us.to_be_bytes());
    }
}

impl fmt::Display for Params {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.count, QuotaPeriod(self.period_us))
    }
}

impl<'n> View<'n> {
    /// Computes the stored windows at `now_us` under `params`.
    pub fn new(state: Option<&State>, params: &'n Params, now_us: u64) -> View<'n> {
        let unused = View { params, state: State::new(params, now_us, 0), now_us, rebased: false };
        let Some(state) = state else { return unused };
        if state.start_us.saturating_sub(now_us) > tolerated_us(2 * params.period_us) {
            // The clock stepped back: all counts move into the window of now.
            let used = state.counts(state.start_us).used();
            let state = State::new(params, now_us, used);
            return View { state, rebased: true, ..unused };
        }
        state.at(now_us).map_or(unused, |state| View { state, ..unused })
    }

    /// Returns whether `cost` more fits now.
    pub fn has_room(&self, cost: u64) -> bool {
        self.counts().has_room(self.params, cost)
    }

    /// Returns the numbers that clients see, for `cost`.
    pub fn reading(&self, cost: u64) -> Reading {
        self.counts().reading(self.params, cost)
    }

    /// Returns whether the stored window was too far ahead of now, so that the use was moved to now.
    pub fn rebased(&self) -> bool {
        self.rebased
    }

    /// Uses `cost` in the current window.
    pub fn charge(&mut self, cost: u64, now_us: u64) {
        if self.state.period_us != self.params.period_us {
            let used = self.counts().used();
            self.state = State::new(self.params, now_us.max(self.state.start_us), used);
        }
        // Fits: neither a count nor what is forced is larger.
        self.state.curr = self.state.curr.saturating_add(cost as u32);
    }

    /// Uses up to `cost` even without room, up to the limit of force.
    pub fn force(&mut self, cost: u64, now_us: u64) {
        let forced_max = forced_max_in_window(self.params.count);
        let cost = cost.min(forced_max.saturating_sub(self.counts().used()));
        if cost > 0 {
            self.charge(cost, now_us);
        }
    }

    /// Creates a receipt for `amount` charged just now. Begins a life named `nonce` if there is none.
    pub fn receipt(&mut self, amount: u64, now_us: u64, nonce: u64) -> Charge {
        if self.state.incarnation == 0 {
            self.state.incarnation = nonce;
        }
        Charge { incarnation: self.state.incarnation, at_us: now_us, amount, mark: 0 }
    }

    /// Refunds. Returns how much less is used now, or `None` if nothing changed.
    pub fn refund(&mut self, what: Refund, now_us: u64) -> Option<u64> {
        let (before, used) = (self.state, self.counts().used());
        match what {
            Refund::Unused { charge, unused } => self.uncharge(&charge, unused, now_us),
            Refund::Amount(amount) => self.lower_by(amount),
        }
        if (self.state.prev, self.state.curr) == (before.prev, before.curr) {
            return None;
        }
        Some(used - self.counts().used())
    }

    /// Returns the state to store, or `None` if nothing is used.
    pub fn state(&self) -> Option<State> {
        (self.state.prev > 0 || self.state.curr > 0).then_some(self.state)
    }

    /// Takes `unused` off the window in which the charge was made.
    fn uncharge(&mut self, charge: &Charge, unused: u64, now_us: u64) {
        let State { start_us, period_us, incarnation, .. } = self.state;
        if charge.incarnation == 0 || charge.incarnation != incarnation || now_us < charge.at_us {
            return;
        }
        let unused = u32::try_from(unused).unwrap_or(u32::MAX);
        if charge.at_us >= start_us {
            self.state.curr = self.state.curr.saturating_sub(unused);
        } else if charge.at_us.saturating_add(period_us) >= start_us {
            self.state.prev = self.state.prev.saturating_sub(unused);
        }
    }

    /// Lowers the use by `amount`, not below 0: the current window first, then the window before it, to the
    /// largest count that weighs that much less.
    fn lower_by(&mut self, amount: u64) {
        let counts = self.counts();
        let from_curr = amount.min(counts.curr);
        self.state.curr -= from_curr as u32;
        if from_curr == amount {
            return;
        }
        let weight = counts.weight().saturating_sub(amount - from_curr);
        let prev = u128::from(weight) * u128::from(counts.period_us) / u128::from(counts.left_us());
        self.state.prev = self.state.prev.min(u32::try_from(prev).unwrap_or(u32::MAX));
    }

    fn counts(&self) -> Counts {
        self.state.counts(self.now_us)
    }
}

impl State {
    /// Returns when neither count has any weight left.
    pub fn gone_us(&self) -> u64 {
        self.start_us + self.period_us * if self.curr > 0 { 2 } else { 1 }
    }

    /// Creates a state with `used` in the window of `params` that contains `at_us`, and nothing before it.
    fn new(params: &Params, at_us: u64, used: u64) -> State {
        State {
            start_us: at_us - at_us % params.period_us,
            period_us: params.period_us,
            prev: 0,
            curr: u32::try_from(used).unwrap_or(u32::MAX),
            incarnation: 0,
        }
    }

    /// Returns the state with the window that contains `now_us` as the current one, or `None` if nothing
    /// counts any more.
    fn at(&self, now_us: u64) -> Option<State> {
        match now_us.saturating_sub(self.start_us) / self.period_us {
            0 => Some(*self),
            1 if self.curr > 0 => {
                let start_us = self.start_us + self.period_us;
                Some(State { start_us, prev: self.curr, curr: 0, ..*self })
            }
            _ => None,
        }
    }

    fn counts(&self, now_us: u64) -> Counts {
        Counts {
            prev: u64::from(self.prev),
            curr: u64::from(self.curr),
            elapsed_us: now_us.wrapping_sub(self.start_us) as i64,
            period_us: self.period_us,
        }
    }
}

impl Counts {
    /// Returns the numbers that clients see, for `cost`.
    pub fn reading(self, params: &Params, cost: u64) -> Reading {
        let reset_us = match self {
            Counts { prev: 0, curr: 0, .. } => 0,
            Counts { curr: 0, .. } => self.ends_us(),
            Counts { .. } => self.ends_us() + self.period_us,
        };
        let fits = self.has_room(params, cost);
        Reading {
            remaining: u64::from(params.count).saturating_sub(self.used()),
            retry_after_us: Some(if fits { 0 } else { self.wait_us(params, cost) }),
            reset_after_us: reset_us,
        }
    }

    /// Returns how long until `cost`, which has no room now, has it.
    fn wait_us(self, params: &Params, cost: u64) -> u64 {
        let count = u64::from(params.count);
        // A count has no weight left at the end of the window after its own. This much earlier it weighs at
        // most `room`.
        let earlier_us = |room: u64, of: u64| {
            (u128::from(room) * u128::from(self.period_us) / u128::from(of.max(1))) as u64
        };
        match count.checked_sub(self.curr.saturating_add(cost)) {
            // Fits once the window before has shrunk to `room`.
            Some(room) => self.ends_us().saturating_sub(earlier_us(room, self.prev)),
            // Does not fit beside the current count: waits until that is the window before, and has shrunk.
            None => {
                self.ends_us() + self.period_us - earlier_us(count.saturating_sub(cost), self.curr)
            }
        }
    }

    fn has_room(self, params: &Params, cost: u64) -> bool {
        cost <= u64::from(params.count).saturating_sub(self.used())
    }

    /// Returns the use, rounded up.
    fn used(self) -> u64 {
        self.curr + self.weight()
    }

    /// Returns the weight of the window before, rounded up.
    fn weight(self) -> u64 {
        let parts = u128::from(self.prev) * u128::from(self.left_us());
        parts.div_ceil(u128::from(self.period_us.max(1))) as u64
    }

    /// Returns how much of the current window is left; all of it while it lies ahead of now.
    fn left_us(self) -> u64 {
        self.ends_us().min(self.period_us)
    }

    /// Returns how long until the current window ends.
    fn ends_us(self) -> u64 {
        (self.period_us as i64 - self.elapsed_us).max(0) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::algorithm::testing::{DAY, HOUR, NOON, Random, SECOND, Stored};
    use crate::algorithm::{self, Intent};

    fn params(count: u32, period_us: u64) -> algorithm::LimitParams {
        algorithm::LimitParams::SlidingWindow(Params { count, period_us })
    }

    fn per_hour(count: u32) -> Stored {
        Stored::new(params(count, HOUR))
    }

    /// Asserts that, after a full window, a cost fits exactly `elapsed_us` into the next one.
    #[track_caller]
    fn fits_after(count: u32, period_us: u64, cost: u64, elapsed_us: u64) {
        let mut stored = Stored::new(params(count, period_us));
        let start = NOON - NOON % period_us;
        assert!(stored.allows(count.into(), start));
        let next = start + period_us;
        for now in [start, next - 1, next, next + elapsed_us - 1] {
            let (allowed, reading) = stored.check(cost, now);
            assert_eq!((allowed, reading.retry_after_us), (false, Some(next + elapsed_us - now)));
        }
        assert!(stored.allows(cost, next + elapsed_us));
    }

    #[test]
    fn a_full_window_frees_room_gradually_in_the_next() {
        fits_after(10, HOUR, 1, HOUR / 10);
        fits_after(10, HOUR, 10, HOUR);
        // 86,400,000,000 / 104,250 = 828,776.97…
        fits_after(104_250, DAY, 1, 828_777);
        fits_after(104_250, DAY, 104_249, DAY - 828_776);
        fits_after(1_000_000_000, 30 * DAY, 1, 2_592);
        fits_after(1_000_000_000, 30 * DAY, 999_999_999, 30 * DAY - 2_592);
        fits_after(999_999_937, 366 * DAY, 7, 221_357);
    }

    #[test]
    fn counts_cost_five_as_five_of_one() {
        let (mut one, mut five) = (per_hour(100), per_hour(100));
        for k in 0..50 {
            let now = NOON + k * HOUR / 17;
            if five.allows(5, now) {
                assert!((0..5).all(|_| one.allows(1, now)));
            } else {
                assert!(one.peek(now).remaining < 5);
            }
            assert_eq!(one.state, five.state);
        }
    }

    #[test]
    fn is_gone_at_the_end_of_the_next_window() {
        let mut stored = per_hour(10);
        let (_, reading) = stored.check(1, NOON + HOUR / 4);
        assert_eq!((reading.remaining, reading.reset_after_us), (9, 2 * HOUR - HOUR / 4));
        assert_eq!(stored.peek(NOON + 2 * HOUR - 1).reset_after_us, 1);
        assert_eq!(stored.peek(NOON + 2 * HOUR).reset_after_us, 0);
    }

    #[test]
    fn another_count_applies_at_once() {
        let mut stored = per_hour(10);
        assert!(stored.allows(8, NOON));
        stored.params = params(5, HOUR);
        let (allowed, reading) = stored.check(1, NOON);
        // 8 × (P − e) ≤ 4 × P
        assert!(!allowed);
        assert_eq!((reading.remaining, reading.retry_after_us), (0, Some(HOUR + HOUR / 2)));
        stored.params = params(20, HOUR);
        assert!(stored.allows(12, NOON));
        assert!(!stored.allows(1, NOON));
    }

    #[test]
    fn another_period_counts_by_the_old_one_until_it_is_charged() {
        let mut stored = per_hour(10);
        assert!(stored.allows(8, NOON));
        stored.params = params(10, DAY);
        let (allowed, reading) = stored.check(3, NOON + HOUR + 1);
        // 8 × (P − e) ≤ 7 × P
        assert_eq!((allowed, reading.retry_after_us), (false, Some(HOUR / 8 - 1)));
        assert!(stored.allows(1, NOON + HOUR + HOUR / 2));
        // Now 4 + 1 belong to the day.
        let (allowed, reading) = stored.check(6, NOON + 2 * HOUR);
        assert!(!allowed);
        assert_eq!((reading.remaining, reading.reset_after_us), (5, 34 * HOUR));
    }

    #[test]
    fn a_window_that_begins_within_a_second_counts_already() {
        let mut stored = per_hour(10);
        assert!(stored.allows(10, NOON));
        let before = stored.clone();
        let (allowed, reading) = stored.check(1, NOON - SECOND);
        assert_eq!((allowed, reading.retry_after_us), (false, Some(SECOND + HOUR + HOUR / 10)));
        assert_eq!(stored.state, before.state);
    }

    #[test]
    fn a_window_far_ahead_moves_to_now_with_its_use() {
        let mut stored = per_hour(10);
        assert!(stored.allows(8, NOON + DAY));
        let (before, now) = (stored.clone(), NOON + HOUR / 2);
        assert_eq!(stored.peek(now).reset_after_us, HOUR + HOUR / 2);
        stored.step(0, Intent::Peek, now);
        assert_eq!(stored.state, before.state, "a peek writes nothing");
        let (allowed, reading) = stored.check(3, now);
        assert!(!allowed);
        assert_eq!((reading.remaining, reading.retry_after_us), (2, Some(HOUR / 2 + HOUR / 8)));
        assert_ne!(stored.state, before.state, "a denial writes the re-base");
    }

    #[test]
    fn force_ends_at_twice_the_count_and_never_lowers() {
        let mut stored = per_hour(10);
        stored.force(15, NOON);
        stored.force(u64::MAX, NOON);
        assert_eq!(stored.check(1, NOON).1.retry_after_us, Some(HOUR + HOUR * 11 / 20));
        let before = stored.clone();
        stored.params = params(3, DAY);
        stored.force(5, NOON + 1);
        assert_eq!(stored.state, before.state);
    }

    #[test]
    fn a_receipt_refunds_to_its_own_window() {
        let mut stored = per_hour(20);
        let first = stored.reserve(8, 99, NOON);
        let second = stored.reserve(6, 98, NOON + HOUR + 1);
        assert_eq!(second.incarnation, 99, "one life");
        let unused = |charge, unused| Refund::Unused { charge, unused };
        let now = NOON + HOUR + HOUR / 2;
        assert_eq!(stored.peek(now).remaining, 10);
        assert_eq!(stored.refund(unused(first, 4), now), 2);
        assert_eq!(stored.refund(unused(second, 4), now), 4);
        assert_eq!(stored.peek(now).remaining, 16);
        let now = NOON + 2 * HOUR + 1;
        assert_eq!(stored.refund(unused(first, 4), now), 0, "its window has no weight left");
        assert_eq!(stored.clone().refund(unused(second, 2), NOON), 0, "before it was charged");
        assert_eq!(stored.refund(unused(second, 2), now), 2);
        assert_eq!(stored.state, None);
        assert!(stored.allows(5, now));
        assert_eq!(stored.refund(unused(second, 2), now), 0, "another life");
    }

    #[test]
    fn an_amount_lowers_the_use_by_exactly_as_much() {
        for amount in 0..=12 {
            let mut stored = per_hour(10);
            assert!(stored.allows(9, NOON));
            let now = NOON + HOUR + HOUR / 3;
            assert!(stored.allows(4, now));
            assert_eq!(stored.refund(Refund::Amount(amount), now), amount.min(10));
            assert_eq!(stored.peek(now).remaining, amount.min(10));
        }
    }

    #[test]
    fn displays_as_a_quota() {
        assert_eq!(params(100, 90 * SECOND).to_string(), "100/90s");
    }

    /// The definition in another way: single charges by their window, and the products.
    #[derive(Clone, Default)]
    struct Oracle {
        period: i128,
        /// The current window at the time of the last write.
        start: i128,
        charges: Vec<(i128, i128)>,
        life: Option<u64>,
    }

    impl Oracle {
        fn of_window(&self, start: i128) -> i128 {
            let of_it = self.charges.iter().filter(|(window, _)| *window == start);
            of_it.map(|(_, amount)| amount).sum()
        }

        fn counts(&self) -> (i128, i128) {
            (self.of_window(self.start - self.period), self.of_window(self.start))
        }

        /// prev × (P − e) + curr × P.
        fn product(&self, now: i128) -> i128 {
            let elapsed = now.max(self.start) - self.start;
            let (prev, curr) = self.counts();
            prev * (self.period - elapsed) + curr * self.period
        }

        fn fits(&self, cost: i128, count: i128, now: i128) -> bool {
            self.product(now) + cost * self.period <= count * self.period
        }

        /// The smallest whole amount that is not less than the use.
        fn used(&self, now: i128) -> i128 {
            let whole = self.product(now) / self.period;
            if whole * self.period == self.product(now) { whole } else { whole + 1 }
        }

        fn afresh(period: i128, at: i128, used: i128) -> Oracle {
            let start = at.div_euclid(period) * period;
            Oracle { period, start, charges: vec![(start, used)], life: None }
        }

        /// Ages the oracle to an instant. Returns whether it moved charges that were too far ahead to now.
        fn settle(&mut self, params: &Params, now: i128) -> bool {
            let period = i128::from(params.period_us);
            if self.charges.is_empty() {
                *self = Oracle::afresh(period, now, 0);
                return false;
            }
            if self.start - now > (2 * period).min(1_000_000) {
                *self = Oracle::afresh(period, now, self.used(self.start));
                return true;
            }
            while self.start + self.period <= now {
                self.start += self.period;
                if self.of_window(self.start - self.period) == 0 {
                    *self = Oracle::afresh(period, now, 0);
                    break;
                }
            }
            false
        }

        fn charge(&mut self, params: &Params, amount: i128, now: i128) {
            let period = i128::from(params.period_us);
            if self.period != period {
                *self = Oracle::afresh(period, now.max(self.start), self.used(now));
            }
            self.charges.push((self.start, amount));
        }

        /// Takes an amount off one window's charges.
        fn take(&mut self, window: i128, amount: i128) {
            let left = (self.of_window(window) - amount).max(0);
            self.charges.retain(|(start, _)| *start != window);
            self.charges.push((window, left));
            if self.charges.iter().all(|(_, amount)| *amount == 0) {
                self.life = None;
            }
        }

        fn lower(&mut self, amount: i128, now: i128) {
            let target = (self.used(now) - amount).max(0);
            let from_curr = amount.min(self.of_window(self.start));
            self.take(self.start, from_curr);
            // Finds the largest amount that may stay of the window before, by bisection.
            let before = self.start - self.period;
            let (mut least, mut most) = (0, self.of_window(before));
            while least < most {
                let middle = (least + most) / 2;
                let mut less = self.clone();
                less.take(before, middle);
                if less.used(now) <= target { most = middle } else { least = middle + 1 }
            }
            self.take(before, least);
        }
    }

    #[test]
    fn agrees_with_the_products_of_single_charges() {
        for seed in 1..=60 {
            differ(seed);
        }
    }

    fn differ(seed: u64) {
        let mut random = Random(seed);
        let kinds = [
            params(10, 1_000),
            params(25, 700_000),
            params(20, 400_000),
            params(12, 90 * SECOND),
            params(7, HOUR),
            params(104_250, DAY),
            params(999_999_937, DAY),
            params(1_000_000_000, 30 * DAY),
            params(30, 366 * DAY),
        ];
        let mut stored = Stored::new(kinds[random.below(9) as usize]);
        let mut oracle = Oracle::default();
        let mut receipts: Vec<(Charge, Option<u64>)> = Vec::new();
        let mut now = NOON + random.below(400 * DAY);
        for turn in 0..1_500 {
            now = random.later(now);
            if random.below(6) == 0 {
                stored.params = kinds[random.below(9) as usize];
            }
            let algorithm::LimitParams::SlidingWindow(params) = stored.params else { panic!() };
            let (count, at) = (i128::from(params.count), i128::from(now));
            let before = oracle.clone();
            let rebased = oracle.settle(&params, at);
            let used = oracle.used(at);
            let cost = 1 + random.below(u64::from(params.count)) / (1 + random.below(6));
            let case =
                format!("seed {seed}, turn {turn}: {params} at {now}, cost {cost}, used {used}");
            let mut saved = false;
            let reading = match random.below(8) {
                0 => {
                    let reading = stored.peek(now);
                    assert_eq!(
                        reading.retry_after_us == Some(0),
                        oracle.fits(1, count, at),
                        "{case}"
                    );
                    reading
                }
                1 => {
                    let forced = i128::from(cost).min(2 * count - used).max(0);
                    if forced > 0 {
                        oracle.charge(&params, forced, at);
                    }
                    saved = true;
                    stored.force(cost, now)
                }
                2 if !receipts.is_empty() => {
                    let place = random.below(receipts.len() as u64) as usize;
                    let (charge, life) = receipts[place];
                    let unused = random.below(charge.amount + 1);
                    let counts = oracle.counts();
                    if life.is_some() && life == oracle.life && charge.at_us <= now {
                        let window =
                            i128::from(charge.at_us).div_euclid(oracle.period) * oracle.period;
                        oracle.take(window.min(oracle.start), unused.into());
                    }
                    receipts[place].0.amount -= unused;
                    let returned = stored.refund(Refund::Unused { charge, unused }, now);
                    assert_eq!(i128::from(returned), used - oracle.used(at), "{case}");
                    saved = counts != oracle.counts();
                    stored.peek(now)
                }
                3 => {
                    let amount = random.below(cost + 1);
                    oracle.lower(amount.into(), at);
                    let returned = stored.refund(Refund::Amount(amount), now);
                    assert_eq!(i128::from(returned), i128::from(amount).min(used), "{case}");
                    assert_eq!(i128::from(returned), used - oracle.used(at), "{case}");
                    saved = returned > 0;
                    stored.peek(now)
                }
                kind => {
                    let nonce = (kind < 6).then(|| 1 + random.below((1 << 48) - 1));
                    let intent = nonce.map_or(Intent::Charge, |nonce| Intent::Reserve { nonce });
                    let (fits, reading, charge) = stored.step(cost, intent, now);
                    assert_eq!(fits, oracle.fits(cost.into(), count, at), "{case}");
                    if fits {
                        oracle.charge(&params, cost.into(), at);
                        oracle.life = oracle.life.or(nonce);
                    } else {
                        // Exact, on the state as stored now.
                        let wait = reading.retry_after_us.unwrap();
                        assert!(wait > 0 && !stored.clone().allows(cost, now + wait - 1), "{case}");
                        assert!(stored.clone().allows(cost, now + wait), "{case}");
                    }
                    saved = fits || rebased;
                    receipts.extend(charge.map(|charge| (charge, oracle.life)));
                    reading
                }
            };
            let used = oracle.used(at);
            assert_eq!(i128::from(reading.remaining), (count - used).max(0), "{case}");
            let gone = match oracle.counts() {
                (0, 0) => at,
                (_, 0) => oracle.start + oracle.period,
                (_, _) => oracle.start + 2 * oracle.period,
            };
            assert_eq!(i128::from(reading.reset_after_us), gone - at, "{case}");
            if !saved {
                oracle = before;
            } else if gone == at {
                oracle = Oracle::default();
            }
        }
    }
}
