//! Sliding log: in every half-open interval of one period, admitted ≤ count, exactly.
//!
//! A log is the list of the instants of all admitted units, oldest first. So the n-th unit needs no search, and the units
//! before an instant are found by bisection. A unit is live while instant + period > now. Units before the head have
//! expired or were refunded. Each write moves the head; only an admission removes the units before it.
//!
//! State of other parameters is counted by the new period over the units from the head on. It is gone at the
//! latest when it would have been under its own period, which is also when the store deletes it. No write
//! marks the change, so every call computes the same.
//!
//! Instants are kept on the log's own clock, which never goes back. It runs `shift_us` ahead of the store's
//! clock, and a re-base only increases that shift.

use std::collections::VecDeque;
use std::{fmt, iter};

use super::passing::{Passing, Shape};
use super::period::QuotaPeriod;
use super::{
    Charge, Counting, FORCED_TIMES, Footprint, LimitError, LimitParams, Profile, Rate, Reading,
    Refund, Share, tolerated_us, whole_periods_us,
};

/// `count` units in every interval of one period.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Params {
    /// The capacity.
    pub count: u32,
    /// The period.
    pub period_us: u64,
}

/// The recent admissions, and the parameters that they were made under.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct State {
    /// The instants of the units, on the log's clock.
    units: VecDeque<u64>,
    /// How many of these have expired or been refunded, as of the last write.
    head: usize,
    /// How far the log's clock runs ahead of the store's.
    shift_us: u64,
    count: u32,
    period_us: u64,
    /// The name of this life; 0 until the first receipt.
    incarnation: u64,
}

/// The log at an instant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct View<'n> {
    params: &'n Params,
    /// The number of live units.
    pub used: u64,
    /// How long until the log is gone under its own period, if that differs from the one in force.
    pub gone_after_us: Option<u64>,
    head: usize,
    /// The newest unit's instant.
    last_us: u64,
    /// Now, on the log's clock, but never before the newest unit.
    clock_us: u64,
    /// How far the newest unit is ahead of now, if it is.
    ahead_us: u64,
    shift_us: u64,
    incarnation: u64,
    rebased: bool,
}

/// What sets sliding logs apart.
pub static PROFILE: Profile = Profile {
    name: "sliding-log",
    own_field: None,
    own_key: Some(b'l'),
    is_leasable: false,
    lease_ends_with_window: false,
    has_calendar: false,
    counts_permits: false,
    charge_us: 30,
    unit_us: 2,
    // A log of few calls takes 300 to 480 bytes of memory with its counter. A unit takes six bytes in Redis, and the
    // spare room of its string.
    bytes: Footprint { memory: 300, memory_unit: 8, redis_unit: 8 },
    build: |fields| {
        let (count, length) = fields.rate(super::COUNT_MAX)?;
        if count > COUNT_MAX {
            return Err(LimitError::new(
                "quota",
                format!(
                    "a sliding-log keeps the instant of every admitted unit, so its count is at most {COUNT_MAX}, got {count}; write that, or algorithm = \"sliding-window\""
                ),
            ));
        }
        Ok(LimitParams::SlidingLog(Params { count, period_us: length.us() }))
    },
    decode: |count, period_us, _| {
        // A store writes as many bytes as a log has units.
        let is_valid = count <= COUNT_MAX && period_us > 0;
        is_valid.then_some(LimitParams::SlidingLog(Params { count, period_us }))
    },
};

impl Counting for Params {
    fn capacity(&self) -> u32 {
        self.count
    }

    fn period(&self) -> u64 {
        self.period_us
    }

    fn longest_wait_us(&self) -> u64 {
        self.period_us
    }

    fn spaced_us(&self, _first: u64, total: u64) -> u64 {
        whole_periods_us(total, self.count, self.period_us)
    }

    fn replaced_by(&self, asked: &Rate) -> Option<LimitParams> {
        // The largest count is nearest to the one asked for. The rule's own may be far lower.
        let count = asked.count.min(COUNT_MAX);
        Some(LimitParams::SlidingLog(Params { count, period_us: asked.period_us }))
    }

    fn narrowed_to(&self, asked: &Rate) -> Option<LimitParams> {
        let count = Rate::of_windows(self.count, self.period_us).capped(asked)?;
        Some(LimitParams::SlidingLog(Params { count, period_us: asked.period_us }))
    }

    fn doubled(&self) -> Option<LimitParams> {
        let count = self.count.checked_mul(2).filter(|count| *count <= COUNT_MAX)?;
        Some(LimitParams::SlidingLog(Params { count, ..*self }))
    }

    fn share(&self, share: Share) -> LimitParams {
        LimitParams::SlidingLog(Params { count: share.of_count(self.count), ..*self })
    }

    fn passing(&self) -> Option<Passing> {
        Some(Passing {
            burst: self.count.into(),
            count: self.count.into(),
            period_us: self.period_us.into(),
            shape: Shape::Spaced,
        })
    }

    fn has_room_for(&self, other: &LimitParams) -> bool {
        let passing = other.counting().passing();
        passing.is_some_and(|it| it.within(self.period_us - 1) <= u128::from(self.count))
    }

    fn words(&self, out: &mut Vec<u64>, _estimate_us: u64) {
        out.extend([u64::from(self.count), self.period_us]);
    }

    fn reply_width(&self) -> usize {
        3
    }

    fn reading(&self, reply: &[i64], _cost: u64, since: i64) -> Option<Reading> {
        let &[used, retry_us, reset_us] = reply else { return None };
        let [used, retry_after_us, reset_after_us] =
            [used + since, retry_us, reset_us].map(|word| word.max(0).cast_unsigned());
        Some(Reading {
            remaining: u64::from(self.count).saturating_sub(used),
            retry_after_us: Some(retry_after_us),
            reset_after_us,
        })
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

impl State {
    /// Returns when the log is empty under the parameters that it was written under.
    pub fn gone_us(&self) -> u64 {
        let last_us = self.last_us();
        last_us.map_or(0, |last_us| (last_us + self.period_us).saturating_sub(self.shift_us))
    }

    /// Returns whether receipts can refund units of this life.
    pub fn has_receipts(&self) -> bool {
        self.incarnation != 0
    }

    /// Returns the bytes on the heap.
    pub fn heap_bytes(&self) -> usize {
        self.units.capacity() * size_of::<u64>()
    }

    /// Returns the newest unit's instant, if a unit is in use.
    fn last_us(&self) -> Option<u64> {
        self.units.back().copied().filter(|_| self.units.len() > self.head)
    }

    /// Returns the place of the first unit from the head on whose instant is not before the given one.
    fn seek(&self, head: usize, from_us: u64) -> usize {
        // Usually no unit has expired since the last write.
        match self.units.get(head) {
            Some(at_us) if *at_us < from_us => self.units.partition_point(|at_us| *at_us < from_us),
            _ => head,
        }
    }

    /// Makes room for some more units, in steps, up to a full log. Frees what a log that became small does not need.
    fn resize(&mut self, units: usize, count: u32) {
        let (needed, count) = (self.units.len() + units, count as usize);
        let full = if needed > count { FORCED_TIMES as usize * count } else { count };
        let ample = full.min(needed + needed / 2 + 8).max(needed);
        if self.units.capacity() < needed {
            self.units.reserve_exact(ample - self.units.len());
        } else if self.units.capacity() > 4 * needed + 32 {
            self.units.shrink_to(ample);
        }
    }
}

impl<'n> View<'n> {
    /// Computes the stored log at `now_us` under `params`.
    pub fn new(state: Option<&State>, params: &'n Params, now_us: u64) -> View<'n> {
        let Some((state, last_us)) = state.and_then(|state| Some((state, state.last_us()?))) else {
            return View::unused(params, now_us);
        };
        let (mut shift_us, mut clock_us) = (state.shift_us, now_us + state.shift_us);
        if last_us + state.period_us.min(params.period_us) <= clock_us {
            return View::unused(params, now_us);
        }
        let mut ahead_us = last_us.saturating_sub(clock_us);
        let rebased = ahead_us > tolerated_us(params.period_us);
        // The clock stepped back by more than is tolerated. The log's clock continues at the newest unit, by
        // a larger shift.
        if rebased {
            shift_us += ahead_us;
            clock_us = last_us;
            ahead_us = 0;
        }
        // A small step: the newest unit's instant counts as now.
        clock_us += ahead_us;
        let live_from_us = (clock_us + 1).saturating_sub(params.period_us);
        let head = state.seek(state.head, live_from_us);
        // A re-base is written under the parameters in force, and begins another life.
        let same_period = rebased || state.period_us == params.period_us;
        let same_life = !rebased && same_period && state.count == params.count;
        View {
            params,
            used: (state.units.len() - head) as u64,
            gone_after_us: (!same_period).then(|| last_us + state.period_us - clock_us + ahead_us),
            head,
            last_us,
            clock_us,
            ahead_us,
            shift_us,
            incarnation: if same_life { state.incarnation } else { 0 },
            rebased,
        }
    }

    /// Returns whether `cost` more units fit now.
    pub fn has_room(&self, cost: u64) -> bool {
        self.used + cost <= u64::from(self.params.count)
    }

    /// Returns the numbers that clients see, for `cost`.
    pub fn reading(&self, state: Option<&State>, cost: u64) -> Reading {
        let count = u64::from(self.params.count);
        let over = (self.used + cost).saturating_sub(count);
        Reading {
            remaining: count.saturating_sub(self.used),
            retry_after_us: match state {
                Some(state) if over > 0 && over <= self.used => {
                    Some(self.expiry_us(state.units[self.head + over as usize - 1]))
                }
                _ => (over == 0).then_some(0),
            },
            reset_after_us: if self.used == 0 { 0 } else { self.expiry_us(self.last_us) },
        }
    }

    /// Returns whether stored time was too far ahead of now, so that the use was moved to now.
    pub fn rebased(&self) -> bool {
        self.rebased
    }

    /// Admits `cost` units. Returns a receipt if there is a nonce, which also names a new life.
    pub fn charge(
        &mut self,
        state: &mut State,
        cost: u64,
        now_us: u64,
        nonce: Option<u64>,
    ) -> Option<Charge> {
        if let Some(nonce) = nonce
            && self.incarnation == 0
        {
            self.incarnation = nonce;
        }
        self.admit(state, cost);
        // The receipt contains its units' instant: its incarnation exceeds the log's by as much as their instant
        // exceeds the charge's.
        let incarnation = (self.incarnation + self.ahead_us) % INCARNATIONS;
        nonce.map(|_| Charge { incarnation, at_us: now_us, amount: cost, mark: 0 })
    }

    /// Admits up to `cost` units even without room, up to the limit of force.
    pub fn force(&mut self, state: &mut State, cost: u64) {
        let forced_max = FORCED_TIMES * u64::from(self.params.count);
        let cost = cost.min(forced_max.saturating_sub(self.used));
        self.gone_after_us = None;
        if cost == 0 { self.save(state) } else { self.admit(state, cost) }
    }

    /// Refunds. Returns the units refunded, or `None` if nothing changed.
    ///
    /// Without a receipt the oldest units go, as if they had expired. In any later interval that frees no
    /// more than removing any other units would.
    pub fn refund(&mut self, state: &mut State, what: Refund, now_us: u64) -> Option<u64> {
        let returned = match what {
            Refund::Unused { charge, unused } => self.lower_own(state, &charge, unused, now_us),
            Refund::Amount(amount) => {
                let returned = amount.min(self.used);
                self.head += returned as usize;
                returned
            }
        };
        if returned == 0 {
            return None;
        }
        self.gone_after_us = None;
        self.used -= returned;
        if self.used == 0 {
            *self = View { rebased: self.rebased, ..View::unused(self.params, now_us) };
        } else {
            self.last_us = state.units.back().copied().expect("units are in use");
        }
        self.save(state);
        Some(returned)
    }

    /// Saves this view as state.
    pub fn save(&self, state: &mut State) {
        if self.used == 0 {
            state.units.clear();
        }
        state.head = self.head;
        state.shift_us = self.shift_us;
        state.count = self.params.count;
        state.period_us = self.params.period_us;
        state.incarnation = self.incarnation;
    }

    fn admit(&mut self, state: &mut State, units: u64) {
        state.units.drain(..if self.used == 0 { state.units.len() } else { self.head });
        state.resize(units as usize, self.params.count);
        state.units.extend(iter::repeat_n(self.clock_us, units as usize));
        self.head = 0;
        self.used += units;
        self.last_us = self.clock_us;
        self.gone_after_us = None;
        self.save(state);
    }

    /// Removes the unused part of a charge's units, as far as they are left.
    fn lower_own(&self, state: &mut State, charge: &Charge, unused: u64, now_us: u64) -> u64 {
        let past_us = (charge.incarnation + INCARNATIONS - self.incarnation) % INCARNATIONS;
        let same_life = self.incarnation > 0 && past_us <= tolerated_us(self.params.period_us);
        if !same_life || now_us < charge.at_us {
            return 0;
        }
        let at_us = charge.at_us + self.shift_us + past_us;
        let first = state.seek(self.head, at_us);
        let left = state.seek(first, at_us + 1) - first;
        let returned = unused.min(charge.amount).min(left as u64);
        state.units.drain(first..first + returned as usize);
        returned
    }

    fn expiry_us(&self, at_us: u64) -> u64 {
        let wait_us = at_us + self.params.period_us - self.clock_us + self.ahead_us;
        wait_us.min(self.gone_after_us.unwrap_or(u64::MAX))
    }

    fn unused(params: &'n Params, now_us: u64) -> View<'n> {
        View {
            params,
            used: 0,
            gone_after_us: None,
            head: 0,
            last_us: 0,
            clock_us: now_us,
            ahead_us: 0,
            shift_us: 0,
            incarnation: 0,
            rebased: false,
        }
    }
}

/// The largest count: a log keeps the instant of every unit.
pub const COUNT_MAX: u32 = 10_000;
/// Incarnations are below this.
const INCARNATIONS: u64 = 1 << 48;

#[cfg(test)]
mod tests {
    use super::super::testing::Random;
    use super::*;

    const MINUTE_US: u64 = 60_000_000;
    const START_US: u64 = 1_700_000_000_000_000;

    #[test]
    fn admits_the_count_in_every_half_open_window() {
        let params = Params { count: 2, period_us: MINUTE_US };
        let mut state = State::default();
        for (at_us, allowed) in [
            (0, true),
            (1, true),
            (2, false),
            (MINUTE_US - 1, false),
            (MINUTE_US, true),
            (MINUTE_US, false),
            (MINUTE_US + 1, true),
        ] {
            assert_eq!(admitted(&mut state, &params, START_US + at_us, 1), allowed, "at {at_us}");
        }
    }

    #[test]
    fn ten_thousand_calls_in_one_instant_are_all_counted() {
        let params = Params { count: COUNT_MAX, period_us: MINUTE_US };
        let mut state = State::default();
        let calls = (0..10_001).filter(|_| admitted(&mut state, &params, START_US, 1));
        assert_eq!(calls.count(), 10_000);
        assert_eq!(state.heap_bytes(), 8 * COUNT_MAX as usize);
    }

    #[test]
    fn waits_for_the_unit_that_makes_room() {
        let params = Params { count: 10, period_us: MINUTE_US };
        let mut state = State::default();
        for (at_us, cost) in [(0, 1), (10, 6), (20, 3)] {
            assert!(admitted(&mut state, &params, START_US + at_us, cost));
        }
        let view = View::new(Some(&state), &params, START_US + 30);
        let wait_us = |cost| view.reading(Some(&state), cost).retry_after_us;
        assert_eq!(wait_us(1), Some(MINUTE_US - 30));
        assert_eq!([wait_us(2), wait_us(7)], [Some(MINUTE_US - 20); 2]);
        assert_eq!([wait_us(8), wait_us(10)], [Some(MINUTE_US - 10); 2]);
    }

    #[test]
    fn a_log_that_became_small_frees_its_memory() {
        let params = Params { count: COUNT_MAX, period_us: 2 * u64::from(COUNT_MAX) };
        let mut state = State::default();
        for call in 0..u64::from(COUNT_MAX) {
            assert!(admitted(&mut state, &params, START_US + call, 1));
        }
        assert_eq!(state.heap_bytes(), 8 * COUNT_MAX as usize);
        // All but one hundred have expired.
        let later_us = START_US + params.period_us + u64::from(COUNT_MAX) - 101;
        assert_eq!(View::new(Some(&state), &params, later_us).used, 100);
        assert!(admitted(&mut state, &params, later_us, 1));
        assert!(state.heap_bytes() < 2_000, "{} bytes", state.heap_bytes());
    }

    #[test]
    fn a_small_log_stays_small() {
        let params = Params { count: 10, period_us: MINUTE_US };
        let mut state = State::default();
        for call in 0..10_000 {
            assert!(admitted(&mut state, &params, START_US + call * MINUTE_US / 10, 1));
        }
        assert!(state.heap_bytes() <= 1_000, "{} bytes", state.heap_bytes());
    }

    #[test]
    fn cancelled_reservations_leave_nothing() {
        let params = Params { count: 100, period_us: 86_400_000_000 };
        let mut state = State::default();
        assert!(admitted(&mut state, &params, START_US, 1));
        for call in 1..100_000 {
            let now_us = START_US + call;
            let mut view = View::new(Some(&state), &params, now_us);
            let charge = view.charge(&mut state, 7, now_us, Some(5)).unwrap();
            let what = Refund::Unused { charge, unused: 7 };
            let mut view = View::new(Some(&state), &params, now_us);
            assert_eq!(view.refund(&mut state, what, now_us), Some(7));
        }
        assert!(state.heap_bytes() <= 1_000, "{} bytes", state.heap_bytes());
        assert_eq!(View::new(Some(&state), &params, START_US + 100_000).used, 1);
    }

    #[test]
    fn a_receipt_lowers_its_own_charge_and_no_other() {
        let params = Params { count: 10, period_us: MINUTE_US };
        let mut state = State::default();
        let mut charges = Vec::new();
        for at_us in [START_US, START_US + 10] {
            let mut view = View::new(Some(&state), &params, at_us);
            charges.push(view.charge(&mut state, 4, at_us, Some(77)).unwrap());
        }
        let mut refund = |charge, unused, now_us| {
            let mut view = View::new(Some(&state), &params, now_us);
            view.refund(&mut state, Refund::Unused { charge, unused }, now_us)
        };
        let foreign = Charge { incarnation: 76, ..charges[0] };
        assert_eq!(refund(foreign, 4, START_US + 20), None);
        assert_eq!(refund(charges[0], 3, START_US + 20), Some(3));
        assert_eq!(refund(charges[0], 3, START_US + 20), Some(1));
        assert_eq!(refund(charges[0], 3, START_US + 20), None);
        assert_eq!(refund(charges[1], 3, START_US + 9), None);
        assert_eq!(refund(charges[1], 3, START_US + 10 + MINUTE_US), None);
        assert_eq!(refund(charges[1], 4, START_US + 9 + MINUTE_US), Some(4));
    }

    #[test]
    fn a_clock_that_stepped_back_keeps_the_use_and_its_wait() {
        let params = Params { count: 3, period_us: MINUTE_US };
        let mut state = State::default();
        for at_us in [0, 20_000_000, 40_000_000] {
            assert!(admitted(&mut state, &params, START_US + at_us, 1));
        }
        let back_us = START_US - 86_400_000_000;
        let view = View::new(Some(&state), &params, back_us);
        assert!(view.rebased() && view.used == 3);
        assert_eq!(view.reading(Some(&state), 1).retry_after_us, Some(20_000_000));
        view.save(&mut state);
        assert!(!admitted(&mut state, &params, back_us + 19_999_999, 1));
        assert!(admitted(&mut state, &params, back_us + 20_000_000, 1));
    }

    #[test]
    fn agrees_with_the_definition() {
        for seed in 1..=100 {
            agrees_from(seed, 2_000);
        }
    }

    fn agrees_from(seed: u64, operations: usize) {
        let mut random = Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let counts = [1, 3, 10, 100, 1_000, COUNT_MAX];
        let count = counts[random.below(6) as usize];
        let periods = [1_000, 50_000, 2_000_000, MINUTE_US, 3_600_000_000];
        let mut params = Params { count, period_us: periods[random.below(5) as usize] };
        let pace_us = 1 + params.period_us / (1 + random.below(400));
        let mut now_us = START_US;
        let mut state = State::default();
        let mut oracle = Oracle::default();
        let mut receipts: Vec<(Charge, Own)> = Vec::new();
        for operation in 0..operations {
            let place = format!("seed {seed}, operation {operation}, {params:?}, now {now_us}");
            now_us = match random.below(300) {
                0 => now_us - random.below(2 * params.period_us + 2_000_000),
                1..10 => now_us - random.below(tolerated_us(params.period_us) + 2),
                10 => now_us + random.below(3 * params.period_us),
                11..80 => now_us,
                _ => now_us + random.below(pace_us),
            };
            if random.below(150) == 0 {
                let factors = [1, 2, 5];
                let [a, b, c, d] = [(); 4].map(|()| factors[random.below(3) as usize]);
                params.count = (params.count * a / b).clamp(1, COUNT_MAX);
                params.period_us = params.period_us * u64::from(c) / u64::from(d);
            }
            let mut view = View::new(Some(&state), &params, now_us);
            oracle.judges(&params, now_us, |seen| {
                assert_eq!(view.used, seen.used(), "{place}");
                for cost in [1, 1 + random.below(u64::from(params.count))] {
                    let reading = view.reading(Some(&state), cost);
                    assert_eq!(
                        reading.remaining,
                        u64::from(params.count).saturating_sub(seen.used()),
                        "{place}"
                    );
                    assert_eq!(reading.retry_after_us, Some(seen.wait_us(cost)), "{place}");
                    assert_eq!(reading.reset_after_us, seen.reset_us(), "{place}");
                }
            });
            let cost = 1 + random.below(u64::from(params.count))
                / (1 + random.below(u64::from(params.count)));
            match random.below(20) {
                0 => {
                    view.force(&mut state, cost);
                    oracle.force(&params, now_us, cost);
                }
                1 => {
                    let amount = random.below(2 * cost);
                    let returned = view.refund(&mut state, Refund::Amount(amount), now_us);
                    assert_eq!(returned, oracle.lower(&params, now_us, amount), "{place}");
                }
                2..8 if !receipts.is_empty() => {
                    let newest = receipts.len() as u64 - 1;
                    let (charge, own) = receipts
                        [(newest - random.below(newest + 1).min(random.below(200))) as usize];
                    let unused = random.below(charge.amount + 1);
                    let returned =
                        view.refund(&mut state, Refund::Unused { charge, unused }, now_us);
                    assert_eq!(returned, oracle.refund(&params, now_us, own, unused), "{place}");
                }
                _ if view.has_room(cost) => {
                    assert!(oracle.has_room(&params, now_us, cost), "{place}");
                    let nonce = (random.below(2) == 0).then(|| 1 + random.below(INCARNATIONS - 1));
                    let charge = view.charge(&mut state, cost, now_us, nonce);
                    let own = oracle.charge(&params, now_us, cost, nonce.is_some());
                    receipts.extend(charge.zip(own));
                }
                _ => {
                    assert!(!oracle.has_room(&params, now_us, cost), "{place}");
                    if view.rebased() {
                        view.save(&mut state);
                        oracle.rebase(&params, now_us);
                    }
                    let view = View::new(Some(&state), &params, now_us);
                    let wait_us = view.reading(Some(&state), cost).retry_after_us.unwrap();
                    for (later_us, fits) in [(wait_us - 1, false), (wait_us, true)] {
                        let later = View::new(Some(&state), &params, now_us + later_us);
                        assert_eq!(later.has_room(cost), fits, "{place}: {cost} after {later_us}");
                    }
                }
            }
        }
    }

    /// A plain list of admissions, and the definition.
    #[derive(Clone, Default)]
    struct Oracle {
        entries: Vec<OracleEntry>,
        written: Option<Params>,
        life: u64,
    }

    #[derive(Clone, Copy)]
    struct OracleEntry {
        at_us: i128,
        units: u64,
    }

    /// The life and the entry that a receipt belongs to.
    #[derive(Clone, Copy)]
    struct Own {
        life: u64,
        entry_us: i128,
        charged_us: u64,
    }

    /// The live entries at an instant, according to the oracle.
    struct Seen<'o> {
        entries: &'o [OracleEntry],
        params: &'o Params,
        gone_us: i128,
        now_us: i128,
    }

    impl Oracle {
        /// Ages the list to `now_us` under `params`, as a write would.
        fn settle(&mut self, params: &Params, now_us: u64) {
            let now_us = i128::from(now_us);
            let Some(last) = self.entries.last().copied() else { return };
            let ahead_us = last.at_us - now_us;
            let written = self.written.unwrap();
            if last.at_us + i128::from(written.period_us) <= now_us {
                self.entries.clear();
                return;
            }
            if ahead_us > i128::from(params.period_us.min(1_000_000)) {
                self.entries.iter_mut().for_each(|entry| entry.at_us -= ahead_us);
                self.life += 1;
                self.written = Some(*params);
            } else if written != *params {
                self.life += 1;
            }
            let clock_us = now_us.max(self.entries.last().unwrap().at_us);
            self.entries.retain(|entry| entry.at_us + i128::from(params.period_us) > clock_us);
        }

        fn judges(&self, params: &Params, now_us: u64, look: impl FnOnce(&Seen<'_>)) {
            let mut settled = self.clone();
            settled.settle(params, now_us);
            let gone_us = match (settled.entries.last(), settled.written) {
                (Some(last), Some(written)) => last.at_us + i128::from(written.period_us),
                _ => 0,
            };
            look(&Seen { entries: &settled.entries, params, gone_us, now_us: i128::from(now_us) });
        }

        fn has_room(&self, params: &Params, now_us: u64, cost: u64) -> bool {
            let mut room = false;
            self.judges(params, now_us, |seen| {
                room = seen.used() + cost <= u64::from(params.count)
            });
            room
        }

        fn rebase(&mut self, params: &Params, now_us: u64) {
            self.settle(params, now_us);
            self.wrote(params);
        }

        fn wrote(&mut self, params: &Params) {
            self.written = Some(*params);
            if self.entries.is_empty() {
                self.life += 1;
            }
        }

        fn charge(
            &mut self,
            params: &Params,
            now_us: u64,
            cost: u64,
            receipt: bool,
        ) -> Option<Own> {
            self.settle(params, now_us);
            if self.entries.is_empty() {
                self.life += 1;
            }
            let at_us = self.entries.last().map_or(0, |last| last.at_us).max(i128::from(now_us));
            match self.entries.last_mut() {
                Some(last) if last.at_us == at_us => last.units += cost,
                _ => self.entries.push(OracleEntry { at_us, units: cost }),
            }
            self.written = Some(*params);
            receipt.then_some(Own { life: self.life, entry_us: at_us, charged_us: now_us })
        }

        fn force(&mut self, params: &Params, now_us: u64, cost: u64) {
            self.settle(params, now_us);
            let used: u64 = self.entries.iter().map(|entry| entry.units).sum();
            let cost = cost.min((2 * u64::from(params.count)).saturating_sub(used));
            if cost > 0 {
                self.charge(params, now_us, cost, false);
            }
            self.wrote(params);
        }

        fn lower(&mut self, params: &Params, now_us: u64, amount: u64) -> Option<u64> {
            let mut settled = self.clone();
            settled.settle(params, now_us);
            let mut left = amount;
            for entry in &mut settled.entries {
                let taken = left.min(entry.units);
                entry.units -= taken;
                left -= taken;
            }
            self.take(settled, params, amount - left)
        }

        fn refund(&mut self, params: &Params, now_us: u64, own: Own, unused: u64) -> Option<u64> {
            let mut settled = self.clone();
            settled.settle(params, now_us);
            if own.life != settled.life || now_us < own.charged_us {
                return None;
            }
            let entry = settled.entries.iter_mut().find(|entry| entry.at_us == own.entry_us)?;
            let returned = unused.min(entry.units);
            entry.units -= returned;
            self.take(settled, params, returned)
        }

        fn take(&mut self, mut settled: Oracle, params: &Params, returned: u64) -> Option<u64> {
            if returned == 0 {
                return None;
            }
            settled.entries.retain(|entry| entry.units > 0);
            settled.wrote(params);
            *self = settled;
            Some(returned)
        }
    }

    impl Seen<'_> {
        fn used(&self) -> u64 {
            self.entries.iter().map(|entry| entry.units).sum()
        }

        fn wait_us(&self, cost: u64) -> u64 {
            let mut used = self.used();
            let mut wait_us = 0;
            for entry in self.entries {
                if used + cost <= u64::from(self.params.count) {
                    break;
                }
                used -= entry.units;
                wait_us = self.until_us(entry);
            }
            wait_us
        }

        fn reset_us(&self) -> u64 {
            self.entries.last().map_or(0, |entry| self.until_us(entry))
        }

        fn until_us(&self, entry: &OracleEntry) -> u64 {
            let expiry_us = entry.at_us + i128::from(self.params.period_us);
            (expiry_us.min(self.gone_us) - self.now_us) as u64
        }
    }

    fn admitted(state: &mut State, params: &Params, now_us: u64, cost: u64) -> bool {
        let mut view = View::new(Some(state), params, now_us);
        let room = view.has_room(cost);
        if room {
            view.charge(state, cost, now_us, None);
        }
        room
    }
}
