//! Decides over loaded counters, all or none. `check.lua` does the same in Redis.

use smallvec::SmallVec;

use super::{Charge, LimitParams, Reading, State, View};

/// A counter of a decision: its input, and after [`step`] its result.
#[derive(Debug)]
pub struct StepCounter<'a> {
    /// The parameters of the limit.
    pub params: &'a LimitParams,
    /// The cost that this decision charges; 0 only reads the counter.
    pub cost: u64,
    /// 0 is enforced. Each other number is a group that is decided by itself and cannot deny, such
    /// as a shadow rule.
    pub group: u16,
    /// The stored state; changed in place.
    pub state: Option<State>,
    /// Whether `state` was changed and must be stored.
    pub changed: bool,
    /// Whether the cost had room; for a cost of 0, whether 1 has.
    pub fits: bool,
    /// The numbers that clients see, after the decision.
    pub reading: Reading,
    /// The receipt, if one was requested and something was charged.
    pub charge: Option<Charge>,
}

/// What a decision does if there is room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Intent {
    /// Charges.
    Charge,
    /// Charges and returns receipts, as reservations and provisional charges need them. The nonce
    /// names new incarnations and permits.
    Reserve {
        /// Random, below 2^48.
        nonce: u64,
    },
    /// Changes nothing, and returns what would happen.
    Peek,
}

/// A refund to one counter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refund {
    /// A part of a receipt's charge.
    Unused {
        /// The receipt for this counter.
        charge: Charge,
        /// The part that was not used.
        unused: u64,
    },
    /// An amount, no matter which request charged it. It may free more than was charged by the caller.
    Amount(u64),
}

impl<'a> StepCounter<'a> {
    /// Creates a counter with its stored state, before the decision.
    #[inline]
    pub fn new(
        params: &'a LimitParams,
        cost: u64,
        group: u16,
        state: Option<State>,
    ) -> StepCounter<'a> {
        let reading = Reading { remaining: 0, retry_after_us: None, reset_after_us: 0 };
        StepCounter {
            params,
            cost,
            group,
            state,
            changed: false,
            fits: false,
            reading,
            charge: None,
        }
    }

    /// Computes the counter at an instant, and records whether the cost has room.
    fn view(&mut self, now_us: u64) -> View<'a> {
        let view = View::new(self.state.as_ref(), self.params, now_us);
        self.fits = view.has_room(self.tested_cost());
        view
    }

    /// Charges if the whole group fits and `intent` charges, then takes the reading.
    fn settle(&mut self, view: &mut View<'_>, group_fits: bool, intent: Intent, now_us: u64) {
        if intent != Intent::Peek && self.cost > 0 {
            if group_fits {
                self.charge = view.charge(&mut self.state, self.cost, intent, now_us);
                self.changed = true;
            } else if view.rebased() {
                // A denial stores nothing but a re-base.
                view.save(&mut self.state);
                self.changed = true;
            }
        }
        self.reading = view.reading(self.state.as_ref(), self.tested_cost());
        if self.fits {
            // The charge may have used up the room, but an allowed request need not wait.
            self.reading.retry_after_us = Some(0);
        }
    }

    /// Returns the cost to test for room: a peek tests a cost of 1.
    fn tested_cost(&self) -> u64 {
        self.cost.max(1)
    }
}

/// Decides over `counters`, enforced ones first, at `now_us`. Returns whether the request is allowed.
///
/// If every enforced counter has room, all are charged, else none. Shadow rules are charged only if the
/// request is allowed, each all or none by itself.
pub fn step(counters: &mut [StepCounter<'_>], intent: Intent, now_us: u64) -> bool {
    let mut allowed = true;
    let mut rest = counters;
    while let Some(first) = rest.first() {
        let group = first.group;
        let length = rest.iter().take_while(|counter| counter.group == group).count();
        let (members, others) = rest.split_at_mut(length);
        rest = others;
        let enforced = group == 0;
        // After a denial the shadow rules still run, as peeks, so that they have a reading.
        let may_charge = allowed && intent != Intent::Peek;
        let fits = step_group(members, if may_charge { intent } else { Intent::Peek }, now_us);
        allowed = allowed && (fits || !enforced);
    }
    allowed
}

fn step_group(counters: &mut [StepCounter<'_>], intent: Intent, now_us: u64) -> bool {
    // All views are taken before any charge, because the group is all or none.
    let mut views: Views<'_> = SmallVec::new();
    for counter in counters.iter_mut() {
        views.push(counter.view(now_us));
    }
    let fits = counters.iter().all(|counter| counter.fits);
    for (counter, view) in counters.iter_mut().zip(&mut views) {
        counter.settle(view, fits, intent, now_us);
    }
    fits
}

/// Charges every counter even without room, up to the limit of force.
pub fn force(counters: &mut [StepCounter<'_>], now_us: u64) {
    for counter in counters {
        let mut view = View::new(counter.state.as_ref(), counter.params, now_us);
        view.force(&mut counter.state, counter.cost, now_us);
        counter.changed = true;
        counter.fits = true;
        counter.reading = view.reading(counter.state.as_ref(), 1);
    }
}

/// Charges one counter for what a reservation used above its estimate, as [`force`] does.
///
/// State that was written under other numbers since then stays as it is: under the reservation's numbers, use above
/// them would be erased.
pub fn force_above_estimate(counter: &mut StepCounter<'_>, now_us: u64) {
    let view = View::new(counter.state.as_ref(), counter.params, now_us);
    if !view.is_converted() {
        return force(std::slice::from_mut(counter), now_us);
    }
    counter.fits = true;
    counter.reading = view.reading(counter.state.as_ref(), 1);
}

/// Refunds to one counter. Returns the whole units refunded.
pub fn refund(counter: &mut StepCounter<'_>, what: Refund, now_us: u64) -> u64 {
    let mut view = View::new(counter.state.as_ref(), counter.params, now_us);
    let returned = view.refund(&mut counter.state, what, now_us);
    counter.changed = returned.is_some();
    counter.fits = true;
    counter.reading = view.reading(counter.state.as_ref(), 1);
    returned.unwrap_or(0)
}

/// Returns whether a permit is still held; true for charges of other algorithms.
pub fn holds(counter: &StepCounter<'_>, charge: &Charge, now_us: u64) -> bool {
    View::new(counter.state.as_ref(), counter.params, now_us).holds(counter.state.as_ref(), charge)
}

/// Extends a permit by `for_us` from now, if it is still held.
pub fn renew(counter: &mut StepCounter<'_>, charge: &Charge, for_us: u64, now_us: u64) {
    let mut view = View::new(counter.state.as_ref(), counter.params, now_us);
    counter.changed = view.renew(&mut counter.state, charge, for_us);
    counter.reading = view.reading(counter.state.as_ref(), 1);
}

/// Each counter at the instant of the decision.
type Views<'n> = SmallVec<[View<'n>; 4]>;
