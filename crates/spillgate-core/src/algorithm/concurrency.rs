//! Concurrency: permits held and not expired ≤ count.
//!
//! A charge of cost c is one hold of weight c. It ends when it is released, or `max_hold_us` after it was taken
//! or last renewed, whichever comes first. Each hold has its own end. A changed count therefore binds at
//! once, and a changed `max_hold_us` binds holds that are taken or renewed from then on. `retry_after` means "at
//! the latest": it is exact if no permit is released before.
//!
//! A hold is found by its name: the receipt's `incarnation` (the caller's nonce) and `mark`. While it lasts,
//! only its own receipt frees it, and only its own permits, so a release can never free too much. Receipts
//! stay valid under changed parameters and after a step of the clock. After a reset the hold does not exist.
//!
//! Ends are kept on the holds' own clock, which never goes back. It runs `shift_us` ahead of the store's
//! clock, and a re-base only increases that shift.

use std::collections::BTreeMap;
use std::fmt;

use super::period::Period;
use super::quota::Length;
use super::{
    COUNT_MAX, Charge, Counting, FORCED_TIMES, Fields, Footprint, LimitError, LimitParams,
    OwnField, Profile, Rate, Reading, Refund, Share, checked_count, tolerated_us,
};

/// At most `count` permits held at once, each for at most `max_hold_us`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Params {
    /// The capacity.
    pub count: u32,
    /// The max hold: how long a permit is held unless it is released.
    pub max_hold_us: u64,
}

/// The holds. Expired ones stay until permits are taken.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct State {
    /// The permits of each hold, by its end and number: in the order in which they end.
    holds: BTreeMap<(u64, u64), u64>,
    /// The end of each hold, by its number.
    ends: BTreeMap<u64, End>,
    /// The permits of all holds.
    weight: u64,
    /// The number of holds taken so far, which names the next.
    taken: u64,
    /// When a hold was last taken or renewed, on the holds' clock.
    last_us: u64,
    /// How far the holds' clock runs ahead of the store's.
    shift_us: u64,
}

/// The end of a hold, and the incarnation that took it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct End {
    end_us: u64,
    incarnation: u64,
}

/// One hold of `weight` permits.
#[derive(Clone, Copy, Debug)]
struct Hold {
    end_us: u64,
    number: u64,
    weight: u64,
}

/// The permits at an instant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct View<'n> {
    params: &'n Params,
    /// Permits held and not expired.
    pub held: u64,
    /// Now, on the holds' clock, but never before the last write.
    clock_us: u64,
    shift_us: u64,
    /// How far the last write is ahead of now, if it is.
    ahead_us: u64,
    rebased: bool,
}

/// What sets permits apart.
pub static PROFILE: Profile = Profile {
    name: "concurrency",
    own_field: Some(OwnField::MaxHold),
    own_key: Some(b's'),
    is_leasable: false,
    lease_ends_with_window: false,
    has_calendar: false,
    counts_permits: true,
    charge_us: 30,
    unit_us: 0,
    // Redis keeps a held permit by its name and by its end. In memory most of its bytes are the record by which it is
    // released: 1,000 to 1,180 with its counter, measured over 100,000 subjects.
    bytes: Footprint { memory: 0, memory_unit: 1_000, redis_unit: 330 },
    build,
    decode: |count, max_hold_us, _| {
        (max_hold_us > 0).then_some(LimitParams::Concurrency(Params { count, max_hold_us }))
    },
};

fn build(fields: &Fields<'_>) -> Result<LimitParams, LimitError> {
    if fields.length.is_some() {
        // The count is checked first, so that the advice is one that works.
        let count = checked_count(COUNT_MAX, fields.count)?;
        return Err(LimitError::new(
            "quota",
            format!(
                "concurrency counts permits, not requests in a period; write quota = \"{count}\" and max_hold = \"30s\""
            ),
        ));
    }
    let Some(max_hold) = fields.max_hold else {
        return Err(LimitError::new(
            "max_hold",
            "a permit must end even if its holder dies; write for example max_hold = \"30s\"",
        ));
    };
    let max_hold = Length::parse("max_hold", max_hold)?;
    let count = checked_count(COUNT_MAX, fields.count)?;
    Ok(LimitParams::Concurrency(Params { count, max_hold_us: max_hold.us() }))
}

impl Counting for Params {
    fn capacity(&self) -> u32 {
        self.count
    }

    fn period(&self) -> u64 {
        0
    }

    fn longest_wait_us(&self) -> u64 {
        self.max_hold_us
    }

    fn window_us(&self) -> Option<u64> {
        None
    }

    fn spaced_us(&self, _first: u64, _total: u64) -> u64 {
        // A permit may be released at any time.
        0
    }

    fn max_hold_us(&self) -> Option<u64> {
        Some(self.max_hold_us)
    }

    fn own_value(&self) -> Option<String> {
        Some(Period(self.max_hold_us).to_string())
    }

    fn replaced_by(&self, _asked: &Rate) -> Option<LimitParams> {
        None
    }

    fn narrowed_to(&self, _asked: &Rate) -> Option<LimitParams> {
        None
    }

    fn doubled(&self) -> Option<LimitParams> {
        let count = self.count.checked_mul(2).filter(|count| *count <= COUNT_MAX)?;
        Some(LimitParams::Concurrency(Params { count, ..*self }))
    }

    fn share(&self, share: Share) -> LimitParams {
        LimitParams::Concurrency(Params { count: share.of_count(self.count), ..*self })
    }

    fn has_room_for(&self, other: &LimitParams) -> bool {
        // The number of held permits does not show how many requests pass.
        let LimitParams::Concurrency(other) = other else { return false };
        // `other` counts each permit at least as long as this does, and has no more of them.
        other.count <= self.count && other.max_hold_us >= self.max_hold_us
    }

    fn words(&self, out: &mut Vec<u64>, _estimate_us: u64) {
        out.extend([u64::from(self.count), self.max_hold_us]);
    }

    fn reply_width(&self) -> usize {
        3
    }

    fn reading(&self, reply: &[i64], _cost: u64, _since: i64) -> Option<Reading> {
        let &[held, retry_us, reset_us] = reply else { return None };
        let held = u64::try_from(held).unwrap_or(0);
        Some(Reading {
            remaining: u64::from(self.count).saturating_sub(held),
            retry_after_us: u64::try_from(retry_us).ok(),
            reset_after_us: u64::try_from(reset_us).unwrap_or(0),
        })
    }

    fn encode(&self, bytes: &mut Vec<u8>) {
        bytes.extend(self.count.to_be_bytes());
        bytes.extend(self.max_hold_us.to_be_bytes());
    }
}

impl fmt::Display for Params {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} max_hold {}", self.count, Period(self.max_hold_us))
    }
}

impl<'n> View<'n> {
    /// Computes the stored holds at `now_us` under `params`.
    pub fn new(state: Option<&State>, params: &'n Params, now_us: u64) -> View<'n> {
        let Some(state) = state else { return View::unused(params, now_us) };
        let (mut shift_us, mut clock_us) = (state.shift_us, now_us + state.shift_us);
        let mut ahead_us = state.last_us.saturating_sub(clock_us);
        let rebased = ahead_us > tolerated_us(params.max_hold_us);
        // The clock stepped back by more than is tolerated. The holds' clock continues at the last write, by
        // a larger shift.
        if rebased {
            shift_us += ahead_us;
            clock_us = state.last_us;
            ahead_us = 0;
        }
        // A small step: the instant of the last write counts as now.
        clock_us += ahead_us;
        match state.weight_after(clock_us) {
            0 => View::unused(params, now_us),
            held => View { params, held, clock_us, shift_us, ahead_us, rebased },
        }
    }

    /// Returns whether `cost` more permits are free now.
    pub fn has_room(&self, cost: u64) -> bool {
        self.held + cost <= u64::from(self.params.count)
    }

    /// Returns the numbers that clients see, for `cost`.
    pub fn reading(&self, state: Option<&State>, cost: u64) -> Reading {
        let count = u64::from(self.params.count);
        let state = state.filter(|_| self.held > 0);
        let wait_us =
            |end_us: Option<u64>| end_us.map_or(0, |end_us| end_us - self.clock_us + self.ahead_us);
        let end_leaving = |room| state?.end_leaving(self.held.checked_sub(room)?, self.clock_us);
        Reading {
            remaining: count.saturating_sub(self.held),
            retry_after_us: count.checked_sub(cost).map(|room| wait_us(end_leaving(room))),
            reset_after_us: wait_us(state.and_then(State::last_end_us)),
        }
    }

    /// Returns whether stored time was too far ahead of now, so that the holds were moved to now.
    pub fn rebased(&self) -> bool {
        self.rebased
    }

    /// Takes `cost` permits as one hold. It always has a receipt: nothing else could release it.
    pub fn charge(
        &mut self,
        state: &mut State,
        cost: u64,
        now_us: u64,
        nonce: Option<u64>,
    ) -> Option<Charge> {
        // Without a nonce, the instant distinguishes two lives of the state.
        let incarnation = nonce.unwrap_or(now_us);
        let number = self.take(state, cost, incarnation);
        Some(Charge { incarnation, at_us: now_us, amount: cost, mark: number })
    }

    /// Takes up to `cost` permits even without room, up to the limit of force.
    ///
    /// They end after `max_hold_us`, because no receipt exists for them.
    pub fn force(&mut self, state: &mut State, cost: u64, now_us: u64) {
        let forced_max = FORCED_TIMES * u64::from(self.params.count);
        match cost.min(forced_max.saturating_sub(self.held)) {
            0 => self.save(state),
            forced => {
                self.take(state, forced, now_us);
            }
        }
    }

    /// Refunds. Returns the permits refunded, or `None` if nothing changed.
    ///
    /// Without a receipt, the holds that end first go first, since they are the most likely to be abandoned.
    /// That is O(log n) for each hold that goes.
    pub fn refund(&mut self, state: &mut State, what: Refund, now_us: u64) -> Option<u64> {
        let held = self.held;
        match what {
            Refund::Unused { charge, unused } => {
                let hold = self.held_by(state, &charge)?;
                self.lower(state, hold, unused);
            }
            Refund::Amount(amount) => {
                let left = held.saturating_sub(amount);
                while self.held > left
                    && let Some(hold) = state.first_after(self.clock_us)
                {
                    self.lower(state, hold, self.held - left);
                }
            }
        }
        let returned = held - self.held;
        if returned == 0 {
            return None;
        }
        if self.held == 0 {
            *self = View::unused(self.params, now_us);
        }
        self.save(state);
        Some(returned)
    }

    /// Returns whether a hold still exists.
    pub fn holds(&self, state: &State, charge: &Charge) -> bool {
        self.held_by(state, charge).is_some()
    }

    /// Extends a hold by `for_us` from now, by at most another max hold, and never shortens it.
    ///
    /// Returns when it then ends, or `None` if it has ended.
    pub fn renew(&mut self, state: &mut State, charge: &Charge, for_us: u64) -> Option<u64> {
        let hold = self.held_by(state, charge)?;
        let end_us = hold.end_us.max(self.clock_us + self.params.max_hold_us.min(for_us));
        // The end is part of the key in `holds`, so the hold is removed and inserted again.
        state.forget(hold);
        state.put(Hold { end_us, ..hold }, charge.incarnation);
        state.last_us = self.clock_us;
        self.save(state);
        Some(end_us - self.shift_us)
    }

    /// Saves a re-base, and drops all holds once every one has ended.
    pub fn save(&self, state: &mut State) {
        state.shift_us = self.shift_us;
        if self.held == 0 {
            state.clear();
        }
    }

    fn unused(params: &'n Params, now_us: u64) -> View<'n> {
        View { params, held: 0, clock_us: now_us, shift_us: 0, ahead_us: 0, rebased: false }
    }

    /// Takes a hold of `weight`. Returns its number.
    fn take(&mut self, state: &mut State, weight: u64, incarnation: u64) -> u64 {
        self.save(state);
        state.forget_ended(self.clock_us);
        let number = state.taken;
        state.taken += 1;
        state.last_us = self.clock_us;
        state.put(
            Hold { end_us: self.clock_us + self.params.max_hold_us, number, weight },
            incarnation,
        );
        self.held += weight;
        number
    }

    /// Returns the hold of a receipt, unless it has ended or was released.
    fn held_by(&self, state: &State, charge: &Charge) -> Option<Hold> {
        // An empty view has reset its clock, so ends can no longer be compared with it.
        let end = state.ends.get(&charge.mark).filter(|_| self.held > 0)?;
        if end.incarnation != charge.incarnation || end.end_us <= self.clock_us {
            return None;
        }
        let weight = *state.holds.get(&(end.end_us, charge.mark))?;
        Some(Hold { end_us: end.end_us, number: charge.mark, weight })
    }

    /// Lowers a hold by at most `by`.
    fn lower(&mut self, state: &mut State, hold: Hold, by: u64) {
        let by = by.min(hold.weight);
        self.held -= by;
        if by == hold.weight {
            state.forget(hold);
        } else {
            state.holds.insert((hold.end_us, hold.number), hold.weight - by);
            state.weight -= by;
        }
    }
}

impl State {
    /// Returns when the last hold ends. Without a hold, a moment after the last one was taken: within one
    /// instant only `taken` keeps two names apart.
    pub fn gone_us(&self) -> u64 {
        let end_us = self.last_end_us().unwrap_or(self.last_us + NAMES_US);
        end_us.saturating_sub(self.shift_us)
    }

    /// Returns the bytes on the heap, including the boxed state itself.
    pub fn heap_bytes(&self) -> usize {
        size_of::<State>() + self.ends.len() * HOLD_BYTES
    }

    fn last_end_us(&self) -> Option<u64> {
        self.holds.last_key_value().map(|((end_us, _), _)| *end_us)
    }

    /// Returns the permits of the holds that end after `now_us`.
    // Walks the holds that have ended since permits were last taken: usually none.
    fn weight_after(&self, now_us: u64) -> u64 {
        if self.last_end_us().is_none_or(|end_us| end_us <= now_us) {
            return 0;
        }
        self.weight - self.holds.range(..=(now_us, u64::MAX)).map(|(_, weight)| weight).sum::<u64>()
    }

    /// Returns the first end after `now_us` by which `excess` permits are free; `None` if `excess` is 0.
    fn end_leaving(&self, excess: u64, now_us: u64) -> Option<u64> {
        let mut excess = Some(excess).filter(|excess| *excess > 0)?;
        for ((end_us, _), weight) in self.holds.range((now_us + 1, 0)..) {
            excess = excess.saturating_sub(*weight);
            if excess == 0 {
                return Some(*end_us);
            }
        }
        None
    }

    /// Returns the hold that ends first after `now_us`.
    fn first_after(&self, now_us: u64) -> Option<Hold> {
        let ((end_us, number), weight) = self.holds.range((now_us + 1, 0)..).next()?;
        Some(Hold { end_us: *end_us, number: *number, weight: *weight })
    }

    fn put(&mut self, hold: Hold, incarnation: u64) {
        self.holds.insert((hold.end_us, hold.number), hold.weight);
        self.ends.insert(hold.number, End { end_us: hold.end_us, incarnation });
        self.weight += hold.weight;
    }

    fn forget(&mut self, hold: Hold) {
        self.holds.remove(&(hold.end_us, hold.number));
        self.ends.remove(&hold.number);
        self.weight -= hold.weight;
    }

    fn forget_ended(&mut self, clock_us: u64) {
        while let Some(first) = self.holds.first_entry()
            && first.key().0 <= clock_us
        {
            let ((_, number), weight) = first.remove_entry();
            self.ends.remove(&number);
            self.weight -= weight;
        }
    }

    /// Drops all holds. `taken` keeps counting, so that no old receipt names a new hold.
    fn clear(&mut self) {
        let State { taken, last_us, shift_us, .. } = *self;
        *self = State { taken, last_us, shift_us, ..State::default() };
    }
}

/// Far longer than an instant.
const NAMES_US: u64 = 1_000_000;
/// The bytes of a hold in both maps: nodes of a B-tree are two thirds full on average.
const HOLD_BYTES: usize = size_of::<(u64, u64, u64, u64, End)>() * 3 / 2;

#[cfg(test)]
mod tests {
    use super::*;

    const NOW_US: u64 = 1_700_000_000_000_000;
    const SECOND_US: u64 = 1_000_000;

    const NUMBERS: Params = Params { count: 10, max_hold_us: 30 * SECOND_US };

    /// A counter under changing parameters, and all operations on it.
    #[derive(Clone, Default)]
    struct Slots {
        state: State,
        nonce: u64,
    }

    impl Slots {
        fn take(&mut self, params: &Params, cost: u64, now_us: u64) -> Charge {
            self.nonce += 1;
            let mut view = View::new(Some(&self.state), params, now_us);
            assert!(view.has_room(cost), "no room for {cost}: {view:?}");
            view.charge(&mut self.state, cost, now_us, Some(self.nonce)).unwrap()
        }

        fn release(&mut self, params: &Params, charge: Charge, now_us: u64) -> Option<u64> {
            let what = Refund::Unused { charge, unused: charge.amount };
            View::new(Some(&self.state), params, now_us).refund(&mut self.state, what, now_us)
        }

        fn reading(&self, params: &Params, cost: u64, now_us: u64) -> Reading {
            View::new(Some(&self.state), params, now_us).reading(Some(&self.state), cost)
        }

        fn held(&self, params: &Params, now_us: u64) -> u64 {
            View::new(Some(&self.state), params, now_us).held
        }
    }

    #[test]
    fn a_permit_ends_by_release_or_after_its_hold() {
        let mut slots = Slots::default();
        let first = slots.take(&NUMBERS, 4, NOW_US);
        slots.take(&NUMBERS, 6, NOW_US + SECOND_US);
        assert_eq!(
            slots.reading(&NUMBERS, 4, NOW_US + SECOND_US),
            Reading {
                remaining: 0,
                retry_after_us: Some(29 * SECOND_US),
                reset_after_us: 30 * SECOND_US
            }
        );
        assert_eq!(slots.release(&NUMBERS, first, NOW_US + SECOND_US), Some(4));
        assert_eq!(slots.release(&NUMBERS, first, NOW_US + SECOND_US), None);
        assert_eq!(slots.held(&NUMBERS, NOW_US + 31 * SECOND_US - 1), 6);
        assert_eq!(slots.held(&NUMBERS, NOW_US + 31 * SECOND_US), 0);
    }

    #[test]
    fn an_expired_permit_refunds_nothing() {
        let mut slots = Slots::default();
        let expired = slots.take(&NUMBERS, 1, NOW_US);
        slots.take(&NUMBERS, 1, NOW_US + SECOND_US);
        assert_eq!(slots.release(&NUMBERS, expired, NOW_US + NUMBERS.max_hold_us), None);
        assert_eq!(slots.held(&NUMBERS, NOW_US + NUMBERS.max_hold_us), 1);
    }

    #[test]
    fn a_receipt_of_another_life_refunds_nothing() {
        let mut slots = Slots::default();
        let old = slots.take(&NUMBERS, 1, NOW_US);
        slots.state = State::default();
        let new = slots.take(&NUMBERS, 1, NOW_US);
        assert_eq!(old.mark, new.mark);
        assert_eq!(slots.release(&NUMBERS, old, NOW_US), None);
        assert_eq!(slots.release(&NUMBERS, new, NOW_US), Some(1));
        assert_eq!(slots.release(&NUMBERS, new, NOW_US), None);
    }

    #[test]
    fn a_receipt_survives_changed_parameters_and_a_stepped_clock() {
        let mut slots = Slots::default();
        let charge = slots.take(&NUMBERS, 5, NOW_US);
        let changed = Params { count: 3, max_hold_us: SECOND_US };
        let hour_ago_us = NOW_US - 3_600 * SECOND_US;
        assert_eq!(slots.held(&changed, hour_ago_us), 5);
        assert_eq!(slots.release(&changed, charge, hour_ago_us), Some(5));
    }

    #[test]
    fn a_changed_count_binds_at_once_and_a_changed_hold_from_then_on() {
        let mut slots = Slots::default();
        slots.take(&NUMBERS, 5, NOW_US);
        let smaller = Params { count: 5, max_hold_us: SECOND_US };
        assert_eq!(slots.reading(&smaller, 1, NOW_US).retry_after_us, Some(30 * SECOND_US));
        let larger = Params { count: 6, max_hold_us: SECOND_US };
        slots.take(&larger, 1, NOW_US);
        assert_eq!(slots.held(&larger, NOW_US + SECOND_US), 5);
    }

    #[test]
    fn a_clock_that_stepped_back_delays_no_permit_beyond_a_hold() {
        let mut slots = Slots::default();
        slots.take(&NUMBERS, 10, NOW_US);
        let hour_ago_us = NOW_US - 3_600 * SECOND_US;
        let view = View::new(Some(&slots.state), &NUMBERS, hour_ago_us);
        assert!(view.rebased() && !view.has_room(1));
        view.save(&mut slots.state);
        let reading = slots.reading(&NUMBERS, 1, hour_ago_us);
        assert_eq!(reading.retry_after_us, Some(NUMBERS.max_hold_us));
        assert_eq!(slots.held(&NUMBERS, hour_ago_us + NUMBERS.max_hold_us), 0);
    }

    #[test]
    fn renewing_extends_a_permit_and_never_shortens_it() {
        let mut slots = Slots::default();
        let charge = slots.take(&NUMBERS, 2, NOW_US);
        let renew = |slots: &mut Slots, params: &Params, now_us| {
            View::new(Some(&slots.state), params, now_us).renew(
                &mut slots.state,
                &charge,
                u64::MAX >> 8,
            )
        };
        let later_us = NOW_US + 20 * SECOND_US;
        let end_us = later_us + NUMBERS.max_hold_us;
        assert_eq!(renew(&mut slots, &NUMBERS, later_us), Some(end_us));
        let shorter = Params { max_hold_us: SECOND_US, ..NUMBERS };
        assert_eq!(renew(&mut slots, &shorter, later_us), Some(end_us));
        assert_eq!(slots.held(&NUMBERS, end_us - 1), 2);
        assert_eq!(renew(&mut slots, &NUMBERS, end_us), None);
        assert_eq!(slots.held(&NUMBERS, end_us), 0);
    }

    #[test]
    fn force_ends_at_twice_the_capacity() {
        let mut slots = Slots::default();
        for _ in 0..3 {
            View::new(Some(&slots.state), &NUMBERS, NOW_US).force(&mut slots.state, 9, NOW_US);
        }
        assert_eq!(slots.held(&NUMBERS, NOW_US), 20);
        assert_eq!(slots.held(&NUMBERS, NOW_US + NUMBERS.max_hold_us), 0);
    }

    #[test]
    fn without_a_receipt_the_holds_that_end_first_go_first() {
        let mut slots = Slots::default();
        let first = slots.take(&NUMBERS, 3, NOW_US);
        let second = slots.take(&NUMBERS, 3, NOW_US);
        let mut view = View::new(Some(&slots.state), &NUMBERS, NOW_US);
        assert_eq!(view.refund(&mut slots.state, Refund::Amount(4), NOW_US), Some(4));
        assert_eq!(slots.release(&NUMBERS, first, NOW_US), None);
        assert_eq!(slots.release(&NUMBERS, second, NOW_US), Some(2));
    }

    #[test]
    fn ten_thousand_calls_in_one_instant_hold_ten_thousand_permits() {
        let params = Params { count: 10_000, max_hold_us: SECOND_US };
        let mut slots = Slots::default();
        let charges: Vec<Charge> = (0..10_000).map(|_| slots.take(&params, 1, NOW_US)).collect();
        assert_eq!(slots.reading(&params, 1, NOW_US).remaining, 0);
        for charge in charges {
            assert_eq!(slots.release(&params, charge, NOW_US), Some(1));
        }
        assert_eq!(slots.held(&params, NOW_US), 0);
    }

    #[test]
    fn a_cost_above_the_count_never_has_room() {
        let slots = Slots::default();
        assert_eq!(slots.reading(&NUMBERS, 10, NOW_US).retry_after_us, Some(0));
        assert_eq!(slots.reading(&NUMBERS, 11, NOW_US).retry_after_us, None);
    }

    #[test]
    fn taking_a_permit_drops_the_holds_that_have_ended() {
        let params = Params { count: 1_000, max_hold_us: SECOND_US };
        let mut slots = Slots::default();
        for i in 0..1_000 {
            slots.take(&params, 1, NOW_US + i);
        }
        slots.take(&params, 1, NOW_US + SECOND_US + 500);
        assert_eq!((slots.state.holds.len(), slots.state.ends.len()), (500, 500));
        assert_eq!(slots.held(&params, NOW_US + SECOND_US + 500), 500);
    }

    #[test]
    fn displays_as_in_a_policy() {
        assert_eq!(NUMBERS.to_string(), "10 max_hold 30s");
    }

    /// The definition: every hold with its end on the store's clock.
    #[derive(Clone, Default)]
    struct Oracle {
        /// End and weight of each hold in the order taken, expired and released ones included.
        holds: Vec<(i128, u64)>,
        last_us: i128,
    }

    impl Oracle {
        /// Returns the oracle at an instant, re-based if the clock stepped back, and the instant that counts as now.
        fn at(&self, max_hold_us: u64, now_us: u64) -> (Oracle, i128) {
            let mut oracle = self.clone();
            let ahead_us = self.last_us - i128::from(now_us);
            if ahead_us > i128::from(max_hold_us.min(SECOND_US)) {
                oracle.holds.iter_mut().for_each(|(end_us, _)| *end_us -= ahead_us);
                oracle.last_us -= ahead_us;
            }
            let rules_us = oracle.last_us.max(now_us.into());
            if oracle.forget_unless_held(rules_us) {
                return (oracle, now_us.into());
            }
            (oracle, rules_us)
        }

        /// Once nothing is held, an earlier instant must not revive a hold.
        fn forget_unless_held(&mut self, rules_us: i128) -> bool {
            let forgets = self.held_after(rules_us) == 0;
            if forgets {
                self.holds.iter_mut().for_each(|hold| hold.1 = 0);
            }
            forgets
        }

        /// Lowers a hold if it still exists. Returns by how much.
        fn lower(&mut self, i: usize, by: u64, rules_us: i128) -> u64 {
            let (end_us, weight) = &mut self.holds[i];
            let by = if *end_us > rules_us { by.min(*weight) } else { 0 };
            *weight -= by;
            by
        }

        fn held_after(&self, at_us: i128) -> u64 {
            self.holds.iter().filter(|(end_us, _)| *end_us > at_us).map(|(_, weight)| weight).sum()
        }

        /// Returns the shortest wait after which at most `room` is held.
        fn wait_us(&self, room: u64, rules_us: i128, now_us: u64) -> u64 {
            let ends = self.holds.iter().map(|(end_us, _)| *end_us).chain([rules_us]);
            let fits =
                ends.filter(|end_us| *end_us >= rules_us && self.held_after(*end_us) <= room);
            match fits.min().unwrap() {
                first_us if first_us == rules_us => 0,
                first_us => u64::try_from(first_us - i128::from(now_us)).unwrap(),
            }
        }
    }

    struct Xorshift(u64);

    impl Xorshift {
        fn below(&mut self, bound: u64) -> u64 {
            self.0 ^= self.0 << 13;
            self.0 ^= self.0 >> 7;
            self.0 ^= self.0 << 17;
            (self.0 >> 11) % bound
        }

        /// A number of any magnitude up to 2^`bits`.
        fn any(&mut self, bits: u64) -> u64 {
            let magnitude = self.below(bits + 1);
            self.below(1 << magnitude)
        }
    }

    #[test]
    fn agrees_with_the_definition_under_random_operations() {
        for seed in 1..=1_000_u64 {
            let mut random = Xorshift(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15));
            let mut now_us = NOW_US;
            let mut params = Params { count: 12, max_hold_us: SECOND_US };
            let (mut slots, mut oracle) = (Slots::default(), Oracle::default());
            let mut charges: Vec<(Charge, usize)> = Vec::new();
            for step in 0..300 {
                let at = format!("seed {seed}, step {step}");
                match random.below(20) {
                    0..8 => now_us += random.any(22),
                    8 => now_us += random.any(34),
                    9 => now_us -= random.any(21),
                    10 if step % 4 == 0 => now_us -= random.any(34),
                    11 => {
                        params = Params {
                            count: 1 + random.any(8) as u32,
                            max_hold_us: 1_000 + random.any(26),
                        };
                    }
                    12 if step % 8 == 0 => {
                        slots.state = State::default();
                        oracle.holds.iter_mut().for_each(|hold| hold.1 = 0);
                        // Without a nonce only the instant distinguishes lives, and the clock may step back to it.
                        charges.retain(|(charge, _)| charge.incarnation < NOW_US / 2);
                    }
                    _ => {}
                }
                let (mut now_held, rules_us) = oracle.at(params.max_hold_us, now_us);
                let count = u64::from(params.count);
                let held = now_held.held_after(rules_us);
                let cost = (1 + random.any(8)).min(count);
                let mut view = View::new(Some(&slots.state), &params, now_us);
                let expected = Reading {
                    remaining: count.saturating_sub(held),
                    retry_after_us: Some(now_held.wait_us(count - cost, rules_us, now_us)),
                    reset_after_us: now_held.wait_us(0, rules_us, now_us),
                };
                assert_eq!(view.reading(Some(&slots.state), cost), expected, "{at}: {view:?}");
                assert_eq!(view.has_room(cost), held + cost <= count, "{at}");
                let last_end_us = now_us + expected.reset_after_us;
                assert!(
                    view.rebased() || held == 0 || slots.state.gone_us() == last_end_us,
                    "{at}"
                );

                let end_us = rules_us + i128::from(params.max_hold_us);
                let take = |oracle: &mut Oracle, weight| {
                    *oracle = now_held.clone();
                    oracle.last_us = rules_us;
                    oracle.holds.push((end_us, weight));
                };
                match random.below(8) {
                    0..4 if held + cost <= count => {
                        slots.nonce += 1;
                        let nonce = Some(slots.nonce).filter(|_| random.below(2) == 0);
                        let charge = view.charge(&mut slots.state, cost, now_us, nonce).unwrap();
                        charges.push((charge, oracle.holds.len()));
                        take(&mut oracle, cost);
                    }
                    0..4 => {
                        if view.rebased() {
                            view.save(&mut slots.state);
                            oracle = now_held;
                        }
                        let wait_us = expected.retry_after_us.unwrap();
                        let has_room_at =
                            |at_us| View::new(Some(&slots.state), &params, at_us).has_room(cost);
                        assert!(!has_room_at(now_us + wait_us - 1), "{at}: too long");
                        assert!(has_room_at(now_us + wait_us), "{at}: too short");
                    }
                    4 if step % 3 == 0 => {
                        let forced = random.any(9);
                        view.force(&mut slots.state, forced, now_us);
                        match forced.min((2 * count).saturating_sub(held)) {
                            0 => oracle = now_held,
                            forced => take(&mut oracle, forced),
                        }
                    }
                    5 if step % 3 == 0 => {
                        let amount = random.any(6);
                        let mut order: Vec<usize> = (0..now_held.holds.len()).collect();
                        order.sort_by_key(|i| now_held.holds[*i].0);
                        let mut back = 0;
                        for i in order {
                            back += now_held.lower(i, amount - back, rules_us);
                        }
                        let what = Refund::Amount(amount);
                        let returned = view.refund(&mut slots.state, what, now_us);
                        assert_eq!(returned, Some(back).filter(|back| *back > 0), "{at}");
                        if back > 0 {
                            now_held.forget_unless_held(rules_us);
                            oracle = now_held;
                        }
                    }
                    6 | 7 if !charges.is_empty() => {
                        let recent = charges.len() as u64 - 1;
                        let (charge, i) = charges[(recent - random.any(6).min(recent)) as usize];
                        if random.below(3) == 0 {
                            let for_us = 1 + random.any(26);
                            let renewed = view.renew(&mut slots.state, &charge, for_us);
                            let (old_end_us, weight) = now_held.holds[i];
                            let end_us = rules_us + i128::from(params.max_hold_us.min(for_us));
                            assert_eq!(
                                renewed.is_some(),
                                weight > 0 && old_end_us > rules_us,
                                "{at}"
                            );
                            if let Some(renewed_us) = renewed {
                                oracle = now_held;
                                oracle.last_us = rules_us;
                                oracle.holds[i].0 = old_end_us.max(end_us);
                                assert_eq!(i128::from(renewed_us), oracle.holds[i].0, "{at}");
                            }
                        } else {
                            let unused = random.below(charge.amount + 1);
                            let what = Refund::Unused { charge, unused };
                            let returned = view.refund(&mut slots.state, what, now_us);
                            let back = now_held.lower(i, unused, rules_us);
                            assert_eq!(returned, Some(back).filter(|back| *back > 0), "{at}");
                            if back > 0 {
                                now_held.forget_unless_held(rules_us);
                                oracle = now_held;
                            }
                        }
                    }
                    _ => {}
                }
            }
        }
    }
}
