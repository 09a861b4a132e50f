//! The record of one reservation, and the answers to calls about it. `reservation.lua` does the same in
//! Redis.

use super::{Answer, EndResult, Ended, Ending, Opened, REMEMBERED_US};
use crate::algorithm::{Charge, Refund};
use crate::counter::Change;

/// The stored data of a reservation.
#[derive(Clone, Debug)]
pub struct Record {
    body: u128,
    /// The time from which it can no longer be settled.
    ends_us: u64,
    /// The time from which it may be deleted.
    pub forget_us: u64,
    standing: Standing,
    /// The charges in the order of the counters.
    charges: Box<[RecordedCost]>,
}

/// The charge of one counter: the cost requested and the charge applied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordedCost {
    /// The cost that the request asked for.
    pub cost: u64,
    /// The charge that was made, if any.
    pub charge: Option<Charge>,
}

/// Whether a call has ended the reservation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Standing {
    Open,
    /// Ended, by an ending with this mark.
    Ended(u64),
}

impl Record {
    /// Creates an open record.
    pub fn new(
        body: u128,
        lasting_us: u64,
        charges: impl IntoIterator<Item = RecordedCost>,
        now_us: u64,
    ) -> Record {
        let (ends_us, standing) = (now_us + lasting_us, Standing::Open);
        let charges = charges.into_iter().collect();
        Record { body, ends_us, forget_us: ends_us + REMEMBERED_US, standing, charges }
    }

    /// Returns the answer to a reservation under the same id, assuming that its permits are still
    /// held.
    pub fn opened_again(&self, body: u128, now_us: u64) -> Opened {
        match self.standing {
            _ if self.body != body => Opened::Conflict,
            Standing::Ended(mark) => Opened::Ended(Ended::by_mark(mark)),
            Standing::Open if now_us >= self.ends_us => Opened::Ended(Ended::Expired),
            Standing::Open => Opened::Repeated,
        }
    }

    /// Returns whether no call has ended the reservation. It may have expired.
    pub fn is_open(&self) -> bool {
        self.standing == Standing::Open
    }

    /// Returns `Ok` if the reservation can be ended or renewed now, else the answer to give.
    pub fn may_end(&self, ending: &Ending<'_>, now_us: u64) -> Result<(), Answer> {
        let expired = Err(Answer::EndResult(EndResult::Expired));
        match (self.standing, ending) {
            (Standing::Ended(_), Ending::Renew { .. }) => expired,
            (Standing::Ended(mark), _) if mark == ending.mark() => {
                Err(Answer::EndResult(EndResult::Repeated))
            }
            (Standing::Ended(_), _) => Err(Answer::EndedOtherwise),
            (Standing::Open, _) if now_us >= self.ends_us => expired,
            (Standing::Open, _) => Ok(()),
        }
    }

    /// Returns the correction of the counter at `place`, if it is charged `actual` in the end.
    pub fn correction(&self, place: usize, actual: Option<u64>) -> Option<Change> {
        let RecordedCost { cost, charge } = *self.charges.get(place)?;
        match (actual?, charge) {
            // A shadow rule without room was never charged. A counter that was only peeked at can
            // be charged now.
            (actual, None) if cost == 0 && actual > 0 => Some(Change::Force(actual)),
            (_, None) => None,
            (actual, Some(charge)) if actual < charge.amount => {
                Some(Change::Refund(Refund::Unused { charge, unused: charge.amount - actual }))
            }
            (actual, Some(charge)) if actual > charge.amount => {
                Some(Change::Force(actual - charge.amount))
            }
            (_, Some(_)) => None,
        }
    }

    /// Returns the charge of the counter at `place`.
    pub fn charge(&self, place: usize) -> Option<Charge> {
        self.charges.get(place).and_then(|charged| charged.charge)
    }

    /// Marks the reservation as ended, and drops its charges.
    pub fn end(&mut self, ending: &Ending<'_>) {
        self.standing = Standing::Ended(ending.mark());
        self.charges = Box::default();
    }

    /// Extends the reservation to `for_us` from now, if that is later than its present end.
    pub fn renew(&mut self, for_us: u64, now_us: u64) {
        self.ends_us = self.ends_us.max(now_us + for_us);
        self.forget_us = self.ends_us + REMEMBERED_US;
    }
}
