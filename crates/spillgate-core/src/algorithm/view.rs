//! A counter at one instant: dispatches to the five algorithms.

use super::{
    Charge, Intent, LimitParams, Reading, Refund, State, concurrency, each, fixed_window,
    sliding_log, sliding_window, token_bucket,
};

/// A counter at one instant, under the parameters in force.
#[derive(Clone, Debug)]
pub enum View<'n> {
    /// See [`token_bucket`].
    TokenBucket(token_bucket::View<'n>),
    /// See [`fixed_window`].
    FixedWindow(fixed_window::View<'n>),
    /// See [`sliding_log`].
    SlidingLog(sliding_log::View<'n>),
    /// See [`sliding_window`].
    SlidingWindow(sliding_window::View<'n>),
    /// See [`concurrency`].
    Concurrency(concurrency::View<'n>),
}

impl<'n> View<'n> {
    /// Computes the stored state at `now_us` under `params`.
    ///
    /// State of another algorithm belongs to another counter: it is ignored, and the counter starts empty.
    pub fn new(state: Option<&State>, params: &'n LimitParams, now_us: u64) -> View<'n> {
        macro_rules! view {
            ($variant:ident, $module:ident, $params:ident) => {
                View::$variant($module::View::new(state.and_then(State::$module), $params, now_us))
            };
        }
        match params {
            LimitParams::TokenBucket(params) => view!(TokenBucket, token_bucket, params),
            LimitParams::FixedWindow(params) => view!(FixedWindow, fixed_window, params),
            LimitParams::SlidingLog(params) => view!(SlidingLog, sliding_log, params),
            LimitParams::SlidingWindow(params) => view!(SlidingWindow, sliding_window, params),
            LimitParams::Concurrency(params) => view!(Concurrency, concurrency, params),
        }
    }

    /// Returns whether `cost` more fits now.
    pub fn has_room(&self, cost: u64) -> bool {
        each!(View, self, view => view.has_room(cost))
    }

    /// Returns whether stored time was too far ahead of now, so that the use was moved to now.
    pub fn rebased(&self) -> bool {
        each!(View, self, view => view.rebased())
    }

    /// Returns whether the state was written under other parameters, whose numbers a charge would replace.
    pub fn is_converted(&self) -> bool {
        match self {
            View::TokenBucket(view) => view.gone_after_us.is_some(),
            View::SlidingLog(view) => view.gone_after_us.is_some(),
            View::FixedWindow(_) | View::SlidingWindow(_) | View::Concurrency(_) => false,
        }
    }

    /// Returns the numbers that clients see, for `cost`.
    pub fn reading(&self, state: Option<&State>, cost: u64) -> Reading {
        match self {
            View::TokenBucket(view) => view.reading(cost),
            View::FixedWindow(view) => view.reading(cost),
            View::SlidingLog(view) => view.reading(state.and_then(State::sliding_log), cost),
            View::SlidingWindow(view) => view.reading(cost),
            View::Concurrency(view) => view.reading(state.and_then(State::concurrency), cost),
        }
    }

    /// Charges `cost`, which must have room, and saves the state.
    ///
    /// Returns a receipt if `intent` requests one. A permit always has one: nothing else could release it.
    pub fn charge(
        &mut self,
        stored: &mut Option<State>,
        cost: u64,
        intent: Intent,
        now_us: u64,
    ) -> Option<Charge> {
        let nonce = match intent {
            Intent::Reserve { nonce } => Some(nonce),
            Intent::Charge | Intent::Peek => None,
        };
        let charge = match self {
            View::SlidingLog(view) => return view.charge(State::log(stored), cost, now_us, nonce),
            View::Concurrency(view) => {
                return view.charge(State::permits(stored), cost, now_us, nonce);
            }
            View::TokenBucket(view) => {
                view.charge(cost);
                nonce.map(|nonce| view.receipt(cost, now_us, nonce))
            }
            View::FixedWindow(view) => {
                view.charge(cost, now_us);
                nonce.map(|nonce| view.receipt(cost, now_us, nonce))
            }
            View::SlidingWindow(view) => {
                view.charge(cost, now_us);
                nonce.map(|nonce| view.receipt(cost, now_us, nonce))
            }
        };
        self.save(stored);
        charge
    }

    /// Charges up to `cost` even without room, up to the limit of force, and saves the state.
    pub fn force(&mut self, stored: &mut Option<State>, cost: u64, now_us: u64) {
        match self {
            View::SlidingLog(view) => return view.force(State::log(stored), cost),
            View::Concurrency(view) => return view.force(State::permits(stored), cost, now_us),
            View::TokenBucket(view) => view.force(cost),
            View::FixedWindow(view) => view.force(cost, now_us),
            View::SlidingWindow(view) => view.force(cost, now_us),
        }
        self.save(stored);
    }

    /// Refunds, and saves the state. Returns the whole units refunded, or `None` if nothing changed.
    pub fn refund(&mut self, stored: &mut Option<State>, what: Refund, now_us: u64) -> Option<u64> {
        // A counter without state has no use to refund.
        stored.as_ref()?;
        let returned = match self {
            View::SlidingLog(view) => return view.refund(State::log(stored), what, now_us),
            View::Concurrency(view) => return view.refund(State::permits(stored), what, now_us),
            View::TokenBucket(view) => view.refund(what, now_us),
            View::FixedWindow(view) => view.refund(what, now_us),
            View::SlidingWindow(view) => view.refund(what, now_us),
        };
        if returned.is_some() {
            self.save(stored);
        }
        returned
    }

    /// Returns whether a permit is still held; true for charges of other algorithms.
    pub fn holds(&self, stored: Option<&State>, charge: &Charge) -> bool {
        match self {
            View::Concurrency(view) => stored
                .and_then(State::concurrency)
                .is_some_and(|permits| view.holds(permits, charge)),
            _ => true,
        }
    }

    /// Extends a permit by `for_us` from now, if it is still held. Returns whether anything changed.
    pub fn renew(&mut self, stored: &mut Option<State>, charge: &Charge, for_us: u64) -> bool {
        match self {
            View::Concurrency(view) if stored.is_some() => {
                view.renew(State::permits(stored), charge, for_us).is_some()
            }
            _ => false,
        }
    }

    /// Saves the view as state: after a charge, or a re-base.
    pub fn save(&self, stored: &mut Option<State>) {
        match self {
            View::SlidingLog(view) => view.save(State::log(stored)),
            View::Concurrency(view) => view.save(State::permits(stored)),
            View::TokenBucket(view) => *stored = view.state().map(State::TokenBucket),
            View::FixedWindow(view) => *stored = view.state().map(State::FixedWindow),
            View::SlidingWindow(view) => *stored = view.state().map(State::SlidingWindow),
        }
    }
}

impl State {
    fn token_bucket(&self) -> Option<&token_bucket::State> {
        if let State::TokenBucket(state) = self { Some(state) } else { None }
    }

    fn fixed_window(&self) -> Option<&fixed_window::State> {
        if let State::FixedWindow(state) = self { Some(state) } else { None }
    }

    fn sliding_log(&self) -> Option<&sliding_log::State> {
        if let State::SlidingLog(state) = self { Some(state) } else { None }
    }

    fn sliding_window(&self) -> Option<&sliding_window::State> {
        if let State::SlidingWindow(state) = self { Some(state) } else { None }
    }

    fn concurrency(&self) -> Option<&concurrency::State> {
        if let State::Concurrency(state) = self { Some(state) } else { None }
    }

    /// Returns the stored log, and stores an empty one if there is none.
    fn log(stored: &mut Option<State>) -> &mut sliding_log::State {
        if !matches!(stored, Some(State::SlidingLog(_))) {
            *stored = Some(State::SlidingLog(Box::default()));
        }
        match stored {
            Some(State::SlidingLog(log)) => log,
            _ => unreachable!("a log was stored just above"),
        }
    }

    /// Returns the stored holds, and stores empty ones if there are none.
    fn permits(stored: &mut Option<State>) -> &mut concurrency::State {
        if !matches!(stored, Some(State::Concurrency(_))) {
            *stored = Some(State::Concurrency(Box::default()));
        }
        match stored {
            Some(State::Concurrency(permits)) => permits,
            _ => unreachable!("holds were stored just above"),
        }
    }
}
