//! Helpers for the tests of several algorithms: a stored counter, and reproducible random numbers.

use super::{Charge, Intent, LimitParams, Reading, Refund, State, View};

/// A counter's stored state, and the parameters in force.
#[derive(Clone)]
pub(crate) struct Stored {
    pub(crate) params: LimitParams,
    pub(crate) state: Option<State>,
}

impl Stored {
    pub(crate) fn new(params: LimitParams) -> Stored {
        Stored { params, state: None }
    }

    pub(crate) fn check(&mut self, cost: u64, now_us: u64) -> (bool, Reading) {
        let (fits, reading, _) = self.step(cost, Intent::Charge, now_us);
        (fits, reading)
    }

    pub(crate) fn allows(&mut self, cost: u64, now_us: u64) -> bool {
        self.check(cost, now_us).0
    }

    pub(crate) fn reserve(&mut self, cost: u64, nonce: u64, now_us: u64) -> Charge {
        self.step(cost, Intent::Reserve { nonce }, now_us).2.expect("there is room")
    }

    pub(crate) fn peek(&self, now_us: u64) -> Reading {
        self.clone().step(0, Intent::Peek, now_us).1
    }

    pub(crate) fn step(
        &mut self,
        cost: u64,
        intent: Intent,
        now_us: u64,
    ) -> (bool, Reading, Option<Charge>) {
        let (params, tested) = (self.params, cost.max(1));
        let mut view = View::new(self.state.as_ref(), &params, now_us);
        let (fits, mut charge) = (view.has_room(tested), None);
        let may_charge = intent != Intent::Peek && cost > 0;
        if may_charge && fits {
            charge = view.charge(&mut self.state, cost, intent, now_us);
        } else if may_charge && view.rebased() {
            view.save(&mut self.state);
        }
        let mut reading = view.reading(self.state.as_ref(), tested);
        if fits {
            reading.retry_after_us = Some(0);
        }
        (fits, reading, charge)
    }

    pub(crate) fn force(&mut self, cost: u64, now_us: u64) -> Reading {
        let params = self.params;
        let mut view = View::new(self.state.as_ref(), &params, now_us);
        view.force(&mut self.state, cost, now_us);
        view.reading(self.state.as_ref(), 1)
    }

    pub(crate) fn refund(&mut self, what: Refund, now_us: u64) -> u64 {
        let (params, before) = (self.params, self.state.clone());
        let mut view = View::new(self.state.as_ref(), &params, now_us);
        let returned = view.refund(&mut self.state, what, now_us);
        assert!(returned.is_some() || before == self.state, "changed without saying so");
        returned.unwrap_or(0)
    }
}

/// Random numbers by xorshift64*.
pub(crate) struct Random(pub u64);

impl Random {
    pub(crate) fn below(&mut self, end: u64) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) % end.max(1)
    }

    /// Usually a little later; sometimes much later, and sometimes earlier.
    pub(crate) fn later(&mut self, now_us: u64) -> u64 {
        let kind = self.below(10);
        let most = match kind {
            0 => self.one_of([2, 1_000, SECOND, SECOND, 2 * SECOND, DAY]),
            1 => self.one_of([3 * DAY, 40 * DAY, 400 * DAY]),
            _ => self.one_of([1, 3, 1_000, SECOND, HOUR]),
        };
        let by = self.below(most);
        if kind == 0 { now_us - by } else { now_us + by }
    }

    pub(crate) fn one_of<const N: usize>(&mut self, choices: [u64; N]) -> u64 {
        choices[self.below(N as u64) as usize]
    }
}

pub(crate) const SECOND: u64 = 1_000_000;
pub(crate) const HOUR: u64 = 3_600 * SECOND;
pub(crate) const DAY: u64 = 24 * HOUR;
/// A Wednesday: 2026-03-18T12:00Z.
pub(crate) const NOON: u64 = 1_773_835_200 * SECOND;
