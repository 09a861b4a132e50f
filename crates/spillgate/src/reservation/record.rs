//! The record of one reservation, and what each call about it is answered. `records.lua` is the same in
//! Redis.

use super::{Answer, Ended, Ending, Opened, Outcome, REMEMBERED_US};
use crate::algorithm::Charge;

/// What is remembered of a reservation.
#[derive(Clone, Debug)]
pub(crate) struct Record {
    body: u128,
    /// From here on it cannot be settled any more.
    ends_us: u64,
    /// Until here it is remembered.
    forget_us: u64,
    state: State,
    /// What each counter was charged, in the order of the counters.
    charges: Box<[Charged]>,
}

/// What one counter was charged, and was meant to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Charged {
    pub(crate) cost: u64,
    pub(crate) charge: Option<Charge>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Open,
    /// By an ending of this mark.
    Ended(u64),
}

/// How one counter is put right.
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

    /// Returns what a reservation under the same id is answered, as far as its permits are still held.
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

    /// Whether it may end so now, or be renewed; else what is answered.
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

    /// What is to be done to the counter at a place, if it is charged `actual` in the end.
    pub(crate) fn correction(&self, place: usize, actual: Option<u64>) -> Option<Correction> {
        let Charged { cost, charge } = *self.charges.get(place)?;
        match (actual?, charge) {
            // A shadow rule that had no room was never charged; what was only looked at can be.
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
