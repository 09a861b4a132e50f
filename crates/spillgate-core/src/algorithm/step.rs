//! One decision over loaded counters: all or none. `check.lua` is the same in Redis.

use smallvec::SmallVec;

use super::{Charge, LimitParams, Reading, State, View};

/// One counter of a decision: what it is charged, and after [`step`] what became of it.
#[derive(Debug)]
pub struct StepCounter<'a> {
    /// The limit's numbers.
    pub params: &'a LimitParams,
    /// What this decision costs it; 0 peeks.
    pub cost: u64,
    /// 0 is enforced; each other number is a shadow rule, judged by itself.
    pub group: u16,
    /// The stored state; changed in place.
    pub state: Option<State>,
    /// Whether `state` was changed and must be stored.
    pub changed: bool,
    /// Whether the cost had room (for a peek, whether a cost of 1 has).
    pub fits: bool,
    /// The numbers for people, after the decision.
    pub reading: Reading,
    /// The receipt's part, where one was asked for and something was charged.
    pub charge: Option<Charge>,
}

/// What a decision is to do where there is room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Intent {
    /// Charge.
    Charge,
    /// Charge and give a receipt; the nonce names new incarnations and the slots taken.
    Reserve {
        /// Random, below 2^48.
        nonce: u64,
    },
    /// Judge, and change nothing.
    Peek,
}

/// What is to be refunded to one counter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refund {
    /// So much of what a receipt says was charged.
    Unused {
        /// The receipt's part for this counter.
        charge: Charge,
        /// How much of it was not used.
        unused: u64,
    },
    /// So much, whoever charged it; may mint.
    Amount(u64),
}

impl<'a> StepCounter<'a> {
    /// A counter with its stored state, before the decision.
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

    /// The counter at an instant; notes whether the cost has room.
    fn view(&mut self, now_us: u64) -> View<'a> {
        let view = View::of(self.state.as_ref(), self.params, now_us);
        self.fits = view.has_room(self.judged_cost());
        view
    }

    /// Charges if the whole group fits and that is intended, and takes the reading.
    fn settle(&mut self, view: &mut View<'_>, group_fits: bool, intent: Intent, now_us: u64) {
        if intent != Intent::Peek && self.cost > 0 {
            if group_fits {
                self.charge = view.charge(&mut self.state, self.cost, intent, now_us);
                self.changed = true;
            } else if view.rebased() {
                view.save(&mut self.state);
                self.changed = true;
            }
        }
        self.reading = view.reading(self.state.as_ref(), self.judged_cost());
        if self.fits {
            // A charge may have used the room up; whoever was let in waits for nothing.
            self.reading.retry_after_us = Some(0);
        }
    }

    /// A peek asks whether a cost of 1 would fit.
    fn judged_cost(&self) -> u64 {
        self.cost.max(1)
    }
}

/// Decides over `counters`, enforced ones first, at `now_us`; answers whether it is allowed.
///
/// Every enforced counter has room and all are charged, or none is. Shadow rules are judged only
/// where the answer is yes, and each is charged all or none by itself.
pub fn step(counters: &mut [StepCounter<'_>], intent: Intent, now_us: u64) -> bool {
    let mut allowed = true;
    let mut rest = counters;
    while let Some(first) = rest.first() {
        let group = first.group;
        let length = rest.iter().take_while(|counter| counter.group == group).count();
        let (members, others) = rest.split_at_mut(length);
        rest = others;
        let enforced = group == 0;
        let may_charge = allowed && intent != Intent::Peek;
        let fits = step_group(members, if may_charge { intent } else { Intent::Peek }, now_us);
        allowed = allowed && (fits || !enforced);
    }
    allowed
}

fn step_group(counters: &mut [StepCounter<'_>], intent: Intent, now_us: u64) -> bool {
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

/// Charges every counter, room or not, as far as force goes.
pub fn force(counters: &mut [StepCounter<'_>], now_us: u64) {
    for counter in counters {
        let mut view = View::of(counter.state.as_ref(), counter.params, now_us);
        view.force(&mut counter.state, counter.cost, now_us);
        counter.changed = true;
        counter.fits = true;
        counter.reading = view.reading(counter.state.as_ref(), 1);
    }
}

/// Refunds to one counter; answers the whole units that came back.
pub fn refund(counter: &mut StepCounter<'_>, what: Refund, now_us: u64) -> u64 {
    let mut view = View::of(counter.state.as_ref(), counter.params, now_us);
    let returned = view.refund(&mut counter.state, what, now_us);
    counter.changed = returned.is_some();
    counter.fits = true;
    counter.reading = view.reading(counter.state.as_ref(), 1);
    returned.unwrap_or(0)
}

/// Whether a slot is still held; what is no slot always is.
pub fn holds(counter: &StepCounter<'_>, charge: &Charge, now_us: u64) -> bool {
    View::of(counter.state.as_ref(), counter.params, now_us).holds(counter.state.as_ref(), charge)
}

/// Keeps a slot that is still held for so long from now.
pub fn renew(counter: &mut StepCounter<'_>, charge: &Charge, for_us: u64, now_us: u64) {
    let mut view = View::of(counter.state.as_ref(), counter.params, now_us);
    counter.changed = view.renew(&mut counter.state, charge, for_us);
    counter.reading = view.reading(counter.state.as_ref(), 1);
}

/// Each counter at the instant of the decision.
type Views<'n> = SmallVec<[View<'n>; 4]>;
