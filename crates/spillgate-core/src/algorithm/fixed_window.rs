//! Fixed window: in each window, used ≤ count.
//!
//! Windows of a period are aligned to the epoch; those of a day, week, month or year to a calendar.
//!
//! The state is one window and the use in it. It counts until the end of that window, even under other
//! parameters. The first charge that finds a window other than its own moves the use into its own.

use std::fmt;
use std::ops::Range;

use super::bytes::Bytes;
use super::passing::Passing;
use super::period::{DAY_MS, Period, QuotaPeriod};
use super::{
    Charge, Counting, Fields, Footprint, LimitError, LimitParams, OwnField, Profile, Rate, Reading,
    Refund, Share, WINDOW_COUNT_MAX, forced_max_in_window, tolerated_us, whole_periods_us,
};
use crate::calendar::{Calendar, CalendarUnit};

/// At most `count` in each window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Params {
    /// The capacity.
    pub count: u32,
    /// The borders of windows.
    pub window: Window,
}

/// The borders of windows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Window {
    /// At a fixed period, aligned to the epoch.
    Every {
        /// The period.
        period_us: u64,
    },
    /// By a calendar.
    Calendar(Calendar),
}

impl Window {
    /// Returns a number that differs whenever the lengths of windows differ. Calendars of time zones with equal clock
    /// changes have one number.
    pub fn period(&self) -> u64 {
        match self {
            Window::Every { period_us } => *period_us,
            // No period has the highest bit.
            Window::Calendar(calendar) => calendar.longest_us() | 1 << 63,
        }
    }

    /// Returns the length of the longest window.
    pub fn longest_us(&self) -> u64 {
        match self {
            Window::Every { period_us } => *period_us,
            Window::Calendar(calendar) => calendar.longest_us(),
        }
    }

    /// Returns a lower bound of the length of windows.
    pub fn shortest_us(&self) -> u64 {
        match self {
            Window::Every { period_us } => *period_us,
            // The shortest are February, and days of a clock change.
            Window::Calendar(calendar) => calendar.longest_us() / 2,
        }
    }
}

/// A window and the use in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct State {
    /// When the window began.
    pub start_us: u64,
    /// When the window ends.
    pub end_us: u64,
    /// The use in the window; never 0 in stored state.
    pub used: u32,
    /// The name of this life; 0 until the first receipt.
    pub incarnation: u64,
}

impl State {
    /// Returns when the state is irrelevant, and may be deleted.
    pub fn gone_us(&self) -> u64 {
        self.end_us
    }
}

/// The window at an instant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct View<'n> {
    params: &'n Params,
    /// The window that counts; an empty one while nothing is used.
    state: State,
    now_us: u64,
    rebased: bool,
}

/// The use, and how long it counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Level {
    /// The use in the window.
    pub used: u64,
    /// How long until the window ends; 0 while nothing is used.
    pub left_us: u64,
}

/// What sets fixed windows apart.
pub static PROFILE: Profile = Profile {
    name: "fixed-window",
    own_field: Some(OwnField::TimeZone),
    own_key: None,
    is_leasable: true,
    lease_ends_with_window: true,
    has_calendar: true,
    counts_permits: false,
    charge_us: 5,
    unit_us: 0,
    bytes: Footprint { memory: 0, memory_unit: 0, redis_unit: 0 },
    build,
    decode,
};

fn build(fields: &Fields<'_>) -> Result<LimitParams, LimitError> {
    let (count, length) = fields.rate(WINDOW_COUNT_MAX)?;
    let window = match (length.calendar(), fields.time_zone) {
        (Some(unit), zone) => {
            let zone = zone.unwrap_or("UTC");
            let message = || {
                format!("{zone:?} is not a time zone; write an IANA name such as \"Europe/Berlin\"")
            };
            let calendar = Calendar::new(unit, zone);
            Window::Calendar(calendar.ok_or_else(|| LimitError::new("time_zone", message()))?)
        }
        (None, None) => Window::Every { period_us: length.us() },
        (None, Some(_)) => {
            return Err(LimitError::new(
                "time_zone",
                format!(
                    "windows of {length} are aligned to the epoch, in no time zone; write a quota per day, week, month or year, or leave time_zone out"
                ),
            ));
        }
    };
    Ok(LimitParams::FixedWindow(Params { count, window }))
}

fn decode(count: u32, period_us: u64, rest: &mut Bytes<'_>) -> Option<LimitParams> {
    let window = if period_us > 0 {
        Window::Every { period_us }
    } else {
        let [unit, length] = rest.take()?;
        let zone = std::str::from_utf8(rest.slice(usize::from(length))?).ok()?;
        Window::Calendar(Calendar::new(*CalendarUnit::ALL.get(usize::from(unit))?, zone)?)
    };
    Some(LimitParams::FixedWindow(Params { count, window }))
}

impl Counting for Params {
    fn capacity(&self) -> u32 {
        self.count
    }

    fn period(&self) -> u64 {
        self.window.period()
    }

    fn longest_wait_us(&self) -> u64 {
        self.window.longest_us()
    }

    fn spaced_us(&self, _first: u64, total: u64) -> u64 {
        whole_periods_us(total, self.count, self.window.shortest_us())
    }

    fn one_more_after_us(&self, _used: u64, reset_after_us: u64) -> Option<u64> {
        Some(reset_after_us)
    }

    fn own_value(&self) -> Option<String> {
        let Window::Calendar(calendar) = &self.window else { return None };
        Some(calendar.parts().1.to_owned())
    }

    fn replaced_by(&self, asked: &Rate) -> Option<LimitParams> {
        let window = self.window.asked_for(asked.period_us);
        Some(LimitParams::FixedWindow(Params { count: asked.count, window }))
    }

    fn narrowed_to(&self, asked: &Rate) -> Option<LimitParams> {
        let own = Rate::of_windows(self.count, self.window.longest_us());
        let window = self.window.asked_for(asked.period_us);
        let count = own.capped(&Rate { period_us: window.longest_us(), ..*asked })?;
        Some(LimitParams::FixedWindow(Params { count, window }))
    }

    fn doubled(&self) -> Option<LimitParams> {
        let count = self.count.checked_mul(2)?;
        Some(LimitParams::FixedWindow(Params { count, ..*self }))
    }

    fn share(&self, share: Share) -> LimitParams {
        LimitParams::FixedWindow(Params { count: share.of_count(self.count), ..*self })
    }

    fn passing(&self) -> Option<Passing> {
        Some(Passing::windows(self.count, self.window))
    }

    fn has_room_for(&self, other: &LimitParams) -> bool {
        let passing = other.counting().passing();
        passing.is_some_and(|it| it.within_window(&self.window) <= u128::from(self.count))
    }

    fn surely_counted(&self, amount: u64, at_us: u64, now_us: u64, margin_us: u64) -> u64 {
        self.window.surely_counted(amount, at_us, now_us, margin_us)
    }

    fn words(&self, out: &mut Vec<u64>, estimate_us: u64) {
        // A calendar goes as the windows around the estimate of the store's time.
        let (period_us, around) = match &self.window {
            Window::Every { period_us } => (*period_us, [0; 4]),
            Window::Calendar(calendar) => (0, calendar.around(estimate_us)),
        };
        out.extend([u64::from(self.count), period_us]);
        out.extend(around);
    }

    fn reply_width(&self) -> usize {
        2
    }

    fn reading(&self, reply: &[i64], cost: u64, since: i64) -> Option<Reading> {
        let &[used, left_us] = reply else { return None };
        let [used, left_us] = [used + since, left_us].map(|word| word.max(0) as u64);
        Some(Level { used, left_us }.reading(self, cost))
    }

    fn encode(&self, bytes: &mut Vec<u8>) {
        bytes.extend(self.count.to_be_bytes());
        match &self.window {
            Window::Every { period_us } => bytes.extend(period_us.to_be_bytes()),
            Window::Calendar(calendar) => {
                let (unit, zone) = calendar.parts();
                bytes.extend(0_u64.to_be_bytes());
                // The names of time zones are far shorter than 255 bytes.
                bytes.extend([unit as u8, zone.len() as u8]);
                bytes.extend(zone.as_bytes());
            }
        }
    }
}

impl fmt::Display for Params {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/", self.count)?;
        match &self.window {
            // Longer units would mean those of the calendar.
            Window::Every { period_us } if *period_us < DAY_MS * 1_000 => {
                QuotaPeriod(*period_us).fmt(f)
            }
            Window::Every { period_us } => Period(*period_us).fmt(f),
            Window::Calendar(calendar) => calendar.fmt(f),
        }
    }
}

impl Window {
    /// Returns the windows that a caller means by a period: those of this calendar if the period is as long as the
    /// calendar's day, week, month or year, else windows aligned to the epoch.
    fn asked_for(&self, period_us: u64) -> Window {
        match self {
            Window::Calendar(calendar) if calendar.parts().0.usual_us() == period_us => *self,
            _ => Window::Every { period_us },
        }
    }

    /// Returns `amount` if a store whose clock differs by less than `margin_us` surely charged it in the window that
    /// it is in at `now_us`, else 0.
    pub fn surely_counted(&self, amount: u64, at_us: u64, now_us: u64, margin_us: u64) -> u64 {
        let window = self.at(now_us);
        // A refund lowers the window that it arrives in, so that must be the one that was charged.
        let surely_inside = window.start + margin_us..window.end.saturating_sub(margin_us);
        if surely_inside.contains(&at_us) && surely_inside.contains(&now_us) { amount } else { 0 }
    }

    /// Returns the window that contains an instant.
    pub fn at(&self, at_us: u64) -> Range<u64> {
        match self {
            Window::Every { period_us } => {
                let start_us = at_us - at_us % period_us;
                start_us..start_us.saturating_add(*period_us)
            }
            Window::Calendar(calendar) => {
                let [_, start_us, end_us, _] = calendar.around(at_us);
                start_us..end_us
            }
        }
    }
}

impl<'n> View<'n> {
    /// Computes the stored window at `now_us` under `params`.
    pub fn new(state: Option<&State>, params: &'n Params, now_us: u64) -> View<'n> {
        let unused = View { params, state: State::new(now_us..now_us, 0), now_us, rebased: false };
        match state {
            Some(state) if now_us < state.end_us => {
                let ahead_us = state.start_us.saturating_sub(now_us);
                if ahead_us <= tolerated_us(params.window.longest_us()) {
                    return View { state: *state, ..unused };
                }
                // The clock stepped back: the use moves into the window of now.
                let window = params.window.at(now_us);
                let state = State::new(window, state.used);
                View { state, rebased: true, ..unused }
            }
            _ => unused,
        }
    }

    /// Returns whether `cost` more fits now.
    pub fn has_room(&self, cost: u64) -> bool {
        self.level().has_room(self.params, cost)
    }

    /// Returns the numbers that clients see, for `cost`.
    pub fn reading(&self, cost: u64) -> Reading {
        self.level().reading(self.params, cost)
    }

    /// Returns whether the stored window was too far ahead of now, so that the use was moved to now.
    pub fn rebased(&self) -> bool {
        self.rebased
    }

    /// Uses `cost` in the current window of these parameters.
    pub fn charge(&mut self, cost: u64, now_us: u64) {
        // The calendar is computed only here: a stored window that contains now needs none.
        let window = self.params.window.at(now_us.max(self.state.start_us));
        if window != (self.state.start_us..self.state.end_us) {
            self.state = State::new(window, self.state.used);
        }
        // Fits: neither a count nor what is forced is larger.
        self.state.used = self.state.used.saturating_add(cost as u32);
    }

    /// Uses up to `cost` even without room, up to the limit of force.
    pub fn force(&mut self, cost: u64, now_us: u64) {
        let forced_max = forced_max_in_window(self.params.count);
        let cost = cost.min(forced_max.saturating_sub(self.level().used));
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

    /// Refunds. Returns the amount refunded, or `None` if nothing changed.
    pub fn refund(&mut self, what: Refund, now_us: u64) -> Option<u64> {
        let back = match what {
            Refund::Unused { charge, unused } if self.holds(&charge, now_us) => unused,
            Refund::Unused { .. } => 0,
            Refund::Amount(amount) => amount,
        };
        // The use may be lower than the charge: another refund came first.
        let back = back.min(self.level().used);
        self.state.used -= back as u32;
        (back > 0).then_some(back)
    }

    /// Returns the state to store, or `None` if nothing is used.
    pub fn state(&self) -> Option<State> {
        (self.state.used > 0).then_some(self.state)
    }

    /// Returns whether a charge is part of the current use: a life never outlasts its window.
    fn holds(&self, charge: &Charge, now_us: u64) -> bool {
        charge.incarnation != 0
            && charge.incarnation == self.state.incarnation
            && charge.at_us <= now_us
    }

    fn level(&self) -> Level {
        let State { used, end_us, .. } = self.state;
        let left_us = if used == 0 { 0 } else { end_us.saturating_sub(self.now_us) };
        Level { used: u64::from(used), left_us }
    }
}

impl State {
    fn new(window: Range<u64>, used: u32) -> State {
        State { start_us: window.start, end_us: window.end, used, incarnation: 0 }
    }
}

impl Level {
    fn has_room(self, params: &Params, cost: u64) -> bool {
        cost <= u64::from(params.count).saturating_sub(self.used)
    }

    /// Returns the numbers that clients see, for `cost`.
    pub fn reading(self, params: &Params, cost: u64) -> Reading {
        let fits = self.has_room(params, cost);
        Reading {
            remaining: u64::from(params.count).saturating_sub(self.used),
            retry_after_us: Some(if fits { 0 } else { self.left_us }),
            reset_after_us: self.left_us,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::algorithm::testing::{DAY, HOUR, NOON, Random, SECOND, Stored};
    use crate::algorithm::{self, Intent};
    use crate::calendar::CalendarUnit;

    fn every(count: u32, period_us: u64) -> algorithm::LimitParams {
        algorithm::LimitParams::FixedWindow(Params { count, window: Window::Every { period_us } })
    }

    fn calendar(count: u32, unit: CalendarUnit, zone: &str) -> algorithm::LimitParams {
        let window = Window::Calendar(Calendar::new(unit, zone).unwrap());
        algorithm::LimitParams::FixedWindow(Params { count, window })
    }

    #[test]
    fn allows_the_count_in_each_window_aligned_to_the_epoch() {
        let mut stored = Stored::new(every(10, 90 * SECOND));
        let start = NOON - NOON % (90 * SECOND);
        for window in 0..3 {
            let start = start + window * 90 * SECOND;
            assert!(stored.allows(4, start));
            assert!(stored.allows(6, start + SECOND));
            let (allowed, reading) = stored.check(1, start + 30 * SECOND);
            let ends_us = Some(60 * SECOND);
            assert!(!allowed);
            assert_eq!((reading.remaining, reading.retry_after_us), (0, ends_us));
            assert!(!stored.allows(1, start + 90 * SECOND - 1));
        }
    }

    #[test]
    fn allows_104250_a_day_and_not_one_more() {
        let mut stored = Stored::new(calendar(104_250, CalendarUnit::Day, "Europe/Berlin"));
        // 2026-03-29, a day of 23 hours.
        let (start, end) = (1_774_738_800 * SECOND, 1_774_821_600 * SECOND);
        for k in 0..104_250 {
            assert!(stored.allows(1, start + k * 700_000), "{k}");
        }
        let (allowed, reading) = stored.check(1, end - SECOND);
        assert_eq!((allowed, reading.retry_after_us), (false, Some(SECOND)));
        assert!(stored.allows(104_250, end));
    }

    #[test]
    fn another_count_applies_at_once() {
        let mut stored = Stored::new(every(10, HOUR));
        assert!(stored.allows(8, NOON));
        stored.params = every(5, HOUR);
        let (allowed, reading) = stored.check(1, NOON + 1);
        assert!(!allowed);
        assert_eq!((reading.remaining, reading.retry_after_us), (0, Some(HOUR - 1)));
        stored.params = every(20, HOUR);
        assert!(stored.allows(12, NOON + 2));
        assert!(!stored.allows(1, NOON + 3));
    }

    #[test]
    fn a_window_of_other_parameters_counts_until_its_own_end() {
        let mut stored = Stored::new(calendar(10, CalendarUnit::Day, "UTC"));
        assert!(stored.allows(8, NOON));
        stored.params = every(10, HOUR);
        let (allowed, reading) = stored.check(3, NOON + 1);
        assert_eq!((allowed, reading.retry_after_us), (false, Some(12 * HOUR - 1)));
        assert!(!stored.clone().allows(3, NOON + 12 * HOUR - 1));
        assert!(stored.clone().allows(10, NOON + 12 * HOUR));
        // A charge moves the use into the window of the new parameters, where it ends.
        assert!(stored.allows(1, NOON + 2));
        assert_eq!(stored.peek(NOON + 2).remaining, 1);
        assert!(stored.allows(10, NOON + HOUR));
    }

    #[test]
    fn use_moved_into_a_longer_window_counts_to_its_end() {
        let mut stored = Stored::new(every(10, HOUR));
        assert!(stored.allows(8, NOON));
        stored.params = calendar(10, CalendarUnit::Month, "UTC");
        assert!(stored.allows(2, NOON + 1));
        assert!(!stored.allows(1, NOON + DAY));
        // 2026-04-01
        assert_eq!(
            stored.check(1, NOON + DAY).1.retry_after_us,
            Some(1_775_001_600 * SECOND - NOON - DAY)
        );
    }

    #[test]
    fn a_window_that_begins_within_a_second_counts_already() {
        let mut stored = Stored::new(every(10, HOUR));
        assert!(stored.allows(10, NOON));
        let before = stored.clone();
        let (allowed, reading) = stored.check(1, NOON - SECOND);
        assert_eq!((allowed, reading.retry_after_us), (false, Some(HOUR + SECOND)));
        assert_eq!(stored.state, before.state);
    }

    #[test]
    fn a_window_far_ahead_moves_to_now_with_its_use() {
        let mut stored = Stored::new(every(10, HOUR));
        assert!(stored.allows(8, NOON + DAY));
        let now = NOON + HOUR / 2;
        assert_eq!(stored.peek(now).reset_after_us, HOUR / 2);
        let before = stored.clone();
        stored.step(0, Intent::Peek, now);
        assert_eq!(stored.state, before.state, "a peek writes nothing");
        let (allowed, reading) = stored.check(3, now);
        assert!(!allowed);
        assert_eq!((reading.remaining, reading.retry_after_us), (2, Some(HOUR / 2)));
        assert_ne!(stored.state, before.state, "a denial writes the re-base");
        assert!(stored.allows(10, NOON + HOUR));
    }

    #[test]
    fn force_ends_at_twice_the_count_and_never_lowers() {
        let mut stored = Stored::new(every(10, HOUR));
        stored.force(15, NOON);
        stored.force(u64::MAX, NOON);
        let Some(algorithm::State::FixedWindow(state)) = &stored.state else { panic!() };
        assert_eq!(state.used, 20);
        let before = stored.clone();
        stored.params = calendar(3, CalendarUnit::Month, "UTC");
        stored.force(5, NOON + 1);
        assert_eq!(stored.state, before.state);
    }

    #[test]
    fn a_receipt_refunds_in_its_own_window_only() {
        let mut stored = Stored::new(every(10, HOUR));
        let charge = stored.reserve(7, 99, NOON);
        let unused = |unused| Refund::Unused { charge, unused };
        assert_eq!(stored.clone().refund(unused(7), NOON - 1), 0, "before it was charged");
        assert_eq!(stored.clone().refund(unused(7), NOON + HOUR), 0, "after its window");
        let other = Charge { incarnation: 98, ..charge };
        assert_eq!(stored.refund(Refund::Unused { charge: other, unused: 7 }, NOON), 0);
        assert_eq!(stored.refund(unused(3), NOON + HOUR - 1), 3);
        assert_eq!(stored.peek(NOON).remaining, 6);
        assert_eq!(stored.refund(unused(9), NOON + 1), 4);
        assert_eq!(stored.state, None);
        // The current use was charged by others since.
        assert!(stored.allows(5, NOON + 2));
        assert_eq!(stored.refund(unused(2), NOON + 3), 0);
    }

    #[test]
    fn a_charge_under_another_window_ends_the_life_of_older_receipts() {
        let mut stored = Stored::new(every(10, HOUR));
        let charge = stored.reserve(3, 99, NOON);
        stored.params = every(10, 2 * HOUR);
        let what = Refund::Unused { charge, unused: 1 };
        assert_eq!(stored.clone().refund(what, NOON), 1);
        assert!(stored.allows(1, NOON));
        assert_eq!(stored.refund(what, NOON), 0);
    }

    #[test]
    fn an_amount_is_refunded_down_to_nothing_used() {
        let mut stored = Stored::new(every(10, HOUR));
        assert!(stored.allows(7, NOON));
        assert_eq!(stored.refund(Refund::Amount(3), NOON), 3);
        assert_eq!(stored.refund(Refund::Amount(9), NOON), 4);
        assert_eq!(stored.refund(Refund::Amount(9), NOON), 0);
    }

    #[test]
    fn displays_as_a_quota() {
        assert_eq!(every(100, 90 * SECOND).to_string(), "100/90s");
        assert_eq!(
            calendar(5, CalendarUnit::Month, "Europe/Berlin").to_string(),
            "5/month Europe/Berlin"
        );
    }

    /// The definition in another way: single charges, each in its window, and windows by counting days.
    #[derive(Default)]
    struct Oracle {
        window: (i128, i128),
        charges: Vec<i128>,
        life: Option<u64>,
    }

    impl Oracle {
        fn used(&self) -> i128 {
            self.charges.iter().sum()
        }

        /// Drops charges that are over, and moves charges that are too far ahead. Returns whether it moved any.
        fn settle(&mut self, params: &Params, now: i128) -> bool {
            if self.charges.is_empty() || self.window.1 <= now {
                *self = Oracle::default();
                return false;
            }
            let longest = match params.window {
                Window::Every { period_us } => period_us.into(),
                Window::Calendar(_) => i128::MAX,
            };
            if self.window.0 - now <= longest.min(1_000_000) {
                return false;
            }
            self.window = plain_window(&params.window, now);
            self.life = None;
            true
        }

        fn charge(&mut self, params: &Params, amount: i128, now: i128) {
            let at = if self.charges.is_empty() { now } else { now.max(self.window.0) };
            let window = plain_window(&params.window, at);
            if window != self.window {
                self.window = window;
                self.life = None;
            }
            self.charges.push(amount);
        }

        fn lower(&mut self, amount: i128) -> i128 {
            let back = amount.min(self.used());
            self.charges = vec![self.used() - back];
            self.charges.retain(|charge| *charge > 0);
            back
        }
    }

    /// Returns the window of an instant, by counting days since 1970-01-01, a Thursday.
    fn plain_window(window: &Window, at: i128) -> (i128, i128) {
        let day = i128::from(DAY);
        let unit = match window {
            Window::Every { period_us } => {
                let period = i128::from(*period_us);
                return (at.div_euclid(period) * period, (at.div_euclid(period) + 1) * period);
            }
            Window::Calendar(calendar) => calendar.to_string(),
        };
        let (mut start, mut month, mut year) = (0, 0, 1970);
        loop {
            let leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
            let months = [31, 28 + i128::from(leap), 31, 30, 31, 30, 31, 31, 30, 31, 30, 31];
            let length = match unit.as_str() {
                "day UTC" => return (at.div_euclid(day) * day, (at.div_euclid(day) + 1) * day),
                "week UTC" => {
                    let monday = (at + 3 * day).div_euclid(7 * day) * 7 * day - 3 * day;
                    return (monday, monday + 7 * day);
                }
                "month UTC" => months[month] * day,
                "year UTC" => months.iter().sum::<i128>() * day,
                other => panic!("{other}"),
            };
            if at < start + length {
                return (start, start + length);
            }
            start += length;
            month = (month + 1) % 12;
            year += i32::from(month == 0 || unit == "year UTC");
            month *= usize::from(unit != "year UTC");
        }
    }

    #[test]
    fn agrees_with_counting_single_charges() {
        for seed in 1..=60 {
            differ(seed);
        }
    }

    fn differ(seed: u64) {
        let mut random = Random(seed);
        let kinds = [
            every(10, 1_000),
            every(25, 700_000),
            every(20, 400_000),
            every(12, 90 * SECOND),
            every(1, 2 * HOUR),
            every(1_000_000_000, 366 * DAY),
            calendar(20, CalendarUnit::Day, "UTC"),
            calendar(15, CalendarUnit::Week, "UTC"),
            calendar(30, CalendarUnit::Month, "UTC"),
            calendar(40, CalendarUnit::Year, "UTC"),
        ];
        let mut stored = Stored::new(kinds[random.below(10) as usize]);
        let mut oracle = Oracle::default();
        let mut receipts: Vec<(Charge, Option<u64>)> = Vec::new();
        let mut now = NOON + random.below(400 * DAY);
        for turn in 0..1_500 {
            now = random.later(now);
            if random.below(6) == 0 {
                stored.params = kinds[random.below(10) as usize];
            }
            let algorithm::LimitParams::FixedWindow(params) = stored.params else { panic!() };
            let (count, at) = (i128::from(params.count), i128::from(now));
            let before = (oracle.window, oracle.charges.clone(), oracle.life);
            let rebased = oracle.settle(&params, at);
            let used = oracle.used();
            let cost = 1 + random.below(u64::from(params.count)) / (1 + random.below(6));
            let case =
                format!("seed {seed}, turn {turn}: {params} at {now}, cost {cost}, used {used}");
            let mut saved = false;
            let reading = match random.below(8) {
                0 => {
                    let reading = stored.peek(now);
                    assert_eq!(reading.retry_after_us == Some(0), used < count, "{case}");
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
                    let holds = life.is_some() && life == oracle.life && charge.at_us <= now;
                    let expected = if holds { oracle.lower(unused.into()) } else { 0 };
                    receipts[place].0.amount -= unused;
                    let returned = stored.refund(Refund::Unused { charge, unused }, now);
                    assert_eq!(i128::from(returned), expected, "{case}");
                    saved = expected > 0;
                    stored.peek(now)
                }
                3 => {
                    let amount = random.below(cost + 1);
                    let expected = oracle.lower(amount.into());
                    assert_eq!(
                        i128::from(stored.refund(Refund::Amount(amount), now)),
                        expected,
                        "{case}"
                    );
                    saved = expected > 0;
                    stored.peek(now)
                }
                kind => {
                    let nonce = (kind < 6).then(|| 1 + random.below((1 << 48) - 1));
                    let intent = nonce.map_or(Intent::Charge, |nonce| Intent::Reserve { nonce });
                    let (fits, reading, charge) = stored.step(cost, intent, now);
                    assert_eq!(fits, used + i128::from(cost) <= count, "{case}");
                    if fits {
                        oracle.charge(&params, cost.into(), at);
                        oracle.life = oracle.life.or(nonce);
                    }
                    saved = fits || rebased;
                    receipts.extend(charge.map(|charge| (charge, oracle.life)));
                    if !fits {
                        // Exact, on the state as stored now.
                        let wait = reading.retry_after_us.unwrap();
                        assert!(wait > 0 && !stored.clone().allows(cost, now + wait - 1), "{case}");
                        assert!(stored.clone().allows(cost, now + wait), "{case}");
                    }
                    reading
                }
            };
            let used = oracle.used();
            assert_eq!(i128::from(reading.remaining), (count - used).max(0), "{case}");
            let reset = if used > 0 { oracle.window.1 - at } else { 0 };
            assert_eq!(i128::from(reading.reset_after_us), reset, "{case}");
            if !saved {
                (oracle.window, oracle.charges, oracle.life) = before;
            }
        }
    }
}
