//! The record of one reservation, and the answers to calls about it. `records.lua` does the same in
//! Redis.

use super::{Answer, Ended, Ending, Opened, Outcome, REMEMBERED_US};
use crate::algorithm::Charge;

/// The stored data of a reservation.
#[derive(Clone, Debug)]
pub(crate) struct Record {
    body: u128,
    /// The time from which it can no longer be settled.
    ends_us: u64,
    /// The time until which it is kept.
    forget_us: u64,
    state: State,
    /// The charges in the order of the counters.
    charges: Box<[Charged]>,
}

/// The charge of one counter: the cost requested and the charge applied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Charged {
    pub(crate) cost: u64,
    pub(crate) charge: Option<Charge>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Open,
    /// Ended, by an ending with this mark.
    Ended(u64),
}

/// The correction of one counter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Correction {
    Refund { charge: Charge, unused: u64 },
    Force(u64),
}

impl Record {
    pub(crate) fn new(
        body: u128,
        lasting_us: u64,
        charges: impl IntoIterator<Item = Charged>,
        now_us: u64,
    ) -> Record {
        let ends_us = now_us + lasting_us;
        let charges = charges.into_iter().collect();
        Record { body, ends_us, forget_us: ends_us + REMEMBERED_US, state: State::Open, charges }
    }

    /// Returns the answer to a reservation under the same id, assuming that its permits are still
    /// held.
    pub(crate) fn opened_again(&self, body: u128, now_us: u64) -> Opened {
        match self.state {
            _ if self.body != body => Opened::Conflict,
            State::Ended(mark) => Opened::Ended(Ended::by_mark(mark)),
            State::Open if now_us >= self.ends_us => Opened::Ended(Ended::Expired),
            State::Open => Opened::Repeated,
        }
    }

    pub(crate) fn is_open(&self) -> bool {
        self.state == State::Open
    }

    /// Returns `Ok` if the reservation can be ended or renewed now, else the answer to give.
    pub(crate) fn may_end(&self, ending: &Ending<'_>, now_us: u64) -> Result<(), Answer> {
        match (self.state, ending) {
            (State::Ended(_), Ending::Renew { .. }) => Err(Answer::Outcome(Outcome::Expired)),
            (State::Ended(mark), _) if mark == ending.mark() => {
                Err(Answer::Outcome(Outcome::Repeated))
            }
            (State::Ended(_), _) => Err(Answer::EndedOtherwise),
            (State::Open, _) if now_us >= self.ends_us => Err(Answer::Outcome(Outcome::Expired)),
            (State::Open, _) => Ok(()),
        }
    }

    /// Returns the correction of the counter at `place`, if it is charged `actual` in the end.
    pub(crate) fn correction(&self, place: usize, actual: Option<u64>) -> Option<Correction> {
        let Charged { cost, charge } = *self.charges.get(place)?;
        match (actual?, charge) {
            // A shadow rule without room was never charged. A counter that was only peeked at can
            // be charged now.
            (actual, None) if cost == 0 && actual > 0 => Some(Correction::Force(actual)),
            (_, None) => None,
            (actual, Some(charge)) if actual < charge.amount => {
                Some(Correction::Refund { charge, unused: charge.amount - actual })
            }
            (actual, Some(charge)) if actual > charge.amount => {
                Some(Correction::Force(actual - charge.amount))
            }
            (_, Some(_)) => None,
        }
    }

    pub(crate) fn charge(&self, place: usize) -> Option<Charge> {
        self.charges.get(place).and_then(|charged| charged.charge)
    }

    pub(crate) fn end(&mut self, ending: &Ending<'_>) {
        self.state = State::Ended(ending.mark());
        self.charges = Box::default();
    }

    pub(crate) fn renew(&mut self, for_us: u64, now_us: u64) {
        self.ends_us = self.ends_us.max(now_us + for_us);
        self.forget_us = self.ends_us + REMEMBERED_US;
    }

    pub(crate) fn forget_us(&self) -> u64 {
        self.forget_us
    }
}
