//! A decision by the pure algorithms over loaded counters: the oracle of both stores.

use spillgate_core::algorithm::{Charge, Intent, LimitParams, Reading, Refund, State, View};

/// An enforced counter of a decision: its input, and afterwards its result.
#[derive(Debug)]
pub struct StepCounter<'a> {
    pub params: &'a LimitParams,
    pub cost: u64,
    pub state: Option<State>,
    pub changed: bool,
    pub fits: bool,
    pub reading: Reading,
    pub charge: Option<Charge>,
}

impl<'a> StepCounter<'a> {
    pub fn new(params: &'a LimitParams, cost: u64, state: Option<State>) -> StepCounter<'a> {
        let reading = Reading { remaining: 0, retry_after_us: None, reset_after_us: 0 };
        let (changed, fits, charge) = (false, true, None);
        StepCounter { params, cost, state, changed, fits, reading, charge }
    }

    fn view(&self, now_us: u64) -> View<'a> {
        View::new(self.state.as_ref(), self.params, now_us)
    }

    /// Charges even without room, up to the limit of force.
    pub fn force(&mut self, now_us: u64) {
        let mut view = self.view(now_us);
        view.force(&mut self.state, self.cost, now_us);
        self.reading = view.reading(self.state.as_ref(), 1);
    }

    /// Returns the whole units refunded.
    pub fn refund(&mut self, what: Refund, now_us: u64) -> u64 {
        let mut view = self.view(now_us);
        let returned = view.refund(&mut self.state, what, now_us);
        self.reading = view.reading(self.state.as_ref(), 1);
        returned.unwrap_or(0)
    }

    /// Returns whether a permit is still held; true for charges of other algorithms.
    pub fn holds(&self, charge: &Charge, now_us: u64) -> bool {
        self.view(now_us).holds(self.state.as_ref(), charge)
    }

    /// Extends a permit by `for_us` from now, if it is still held.
    pub fn renew(&mut self, charge: &Charge, for_us: u64, now_us: u64) {
        self.view(now_us).renew(&mut self.state, charge, for_us);
    }
}

/// Charges all counters if each has room, else none. Returns whether it did.
pub fn step(counters: &mut [StepCounter<'_>], intent: Intent, now_us: u64) -> bool {
    let mut views: Vec<View<'_>> = counters.iter().map(|counter| counter.view(now_us)).collect();
    for (counter, view) in counters.iter_mut().zip(&views) {
        counter.fits = view.has_room(counter.cost.max(1));
    }
    let all_fit = counters.iter().all(|counter| counter.fits);
    for (counter, view) in counters.iter_mut().zip(&mut views) {
        let may_charge = intent != Intent::Peek && counter.cost > 0;
        if may_charge && all_fit {
            counter.charge = view.charge(&mut counter.state, counter.cost, intent, now_us);
        } else if may_charge && view.rebased() {
            // A denial stores nothing but a re-base.
            view.save(&mut counter.state);
        }
        counter.changed = may_charge && (all_fit || view.rebased());
        counter.reading = view.reading(counter.state.as_ref(), counter.cost.max(1));
        if counter.fits {
            counter.reading.retry_after_us = Some(0);
        }
    }
    all_fit
}
