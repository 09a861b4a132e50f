//! Ends and renews reservations on the store.
//!
//! A record lists the charges of one reservation at one location. The call that corrects the charges also
//! closes the record.

use std::sync::Arc;

use ::redis::Value;

use super::engine::Redis;
use crate::algorithm::Intent;
use crate::calls::keys;
use crate::connecting::topology::{Location, Topology};
use crate::counter::{AS_CHARGED, LimitHandle};
use crate::error::StoreError;
use crate::plan::{RecordAction, RecordReply, Transaction};
use crate::reservation::kept::{self, RecordedCharge, RecordedCharges};
use crate::reservation::{
    Answer, Closed, Closes, Closing, EndResult, Ended, Ending, Group, Opening, REMEMBERED_US,
};
use crate::time::Deadline;

/// The content of a record, for an instance that did not make it.
enum Recorded {
    Open(RecordedCharges),
    /// Ended by an ending with this mark.
    Ended(u64),
}

/// Whether a request only looks at a reservation's id, or takes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IdUse {
    /// Changes nothing.
    Look,
    /// The id then belongs to the request for as long as the reservation's record is remembered.
    Take,
}

impl Redis {
    /// Ends or renews one group of a reservation.
    pub async fn close(
        &self,
        id: u128,
        group: &Group,
        ending: &Ending<'_>,
    ) -> Result<Answer, StoreError> {
        let deadline = self.deadline();
        let location = self.topology.location(group.tag);
        // The receipt may list the counters. If the record has others, they are read from the record, once.
        let mut known = group.counters.clone();
        for _ in 0..=1 {
            let counters = match known.take() {
                Some(counters) => counters,
                None => match self.recorded(location, group.tag, id, deadline).await? {
                    Some(Recorded::Open(counters)) => counters,
                    Some(Recorded::Ended(mark)) => return Ok(ended(mark, ending)),
                    None => return Ok(Answer::EndResult(EndResult::Unknown)),
                },
            };
            let closing = Closing::from_ending(id, ending);
            // With other counters: an instance on another ring divided the reservation otherwise. Tries again.
            if let Closed::Answered(answer) =
                self.correct_at(location, closing, &counters, ending, deadline).await?
            {
                return Ok(answer);
            }
        }
        Err(StoreError::Foreign("a reservation's record changed while it was read".into()))
    }

    /// Returns how a reservation has ended, or `None` while it is open and all its permits are held.
    pub async fn ended(&self, id: u128, tag: u128) -> Result<Option<Ended>, StoreError> {
        let (deadline, location) = (self.deadline(), self.topology.location(tag));
        let counters = match self.recorded(location, tag, id, deadline).await? {
            Some(Recorded::Open(counters)) => counters,
            Some(Recorded::Ended(mark)) => return Ok(Some(Ended::by_mark(mark))),
            None => return Ok(None),
        };
        // Changes nothing: the call only reports whether the record, and its permits, are still valid.
        let closing = Closing { id, how: Closes::Looks, mark: 0 };
        let as_charged = Ending::Renew { for_us: 0 };
        let closed = self.correct_at(location, closing, &counters, &as_charged, deadline).await?;
        let is_over = closed == Closed::Answered(Answer::EndResult(EndResult::Expired));
        let is_permit = |counter: &RecordedCharge| {
            counter.is_enforced && counter.limit.algorithm().counts_permits()
        };
        let how = if counters.iter().any(is_permit) { Ended::PermitEnded } else { Ended::Expired };
        Ok(is_over.then_some(how))
    }

    /// Returns whether a reservation's id is free for this request, or used by it already.
    pub async fn claim_id(&self, opening: &Opening, id_use: IdUse) -> Result<bool, StoreError> {
        let (deadline, location) = (self.deadline(), self.topology.location(opening.id));
        let (key, body) = (keys::named(opening.id), opening.body.to_be_bytes());
        if id_use == IdUse::Take {
            let mut set = ::redis::cmd("SET");
            let life_ms = (opening.lasting_us + REMEMBERED_US).div_ceil(1_000);
            set.arg(&key).arg(&body).arg("NX").arg("PX").arg(life_ms);
            if self.command_at(location, &set, deadline).await? != Value::Nil {
                return Ok(true);
            }
        }
        let mut get = ::redis::cmd("GET");
        get.arg(&key);
        match self.command_at(location, &get, deadline).await? {
            Value::Nil => Ok(true),
            Value::BulkString(known) => Ok(known == body),
            _ => Err(StoreError::Foreign(
                "the value under a reservation's id has an unknown format".into(),
            )),
        }
    }

    /// Returns the number of locations of a transaction's enforced counters.
    pub fn locations<L: LimitHandle>(&self, transaction: &Transaction<L>) -> usize {
        if matches!(&*self.topology, Topology::One(_)) {
            return 1;
        }
        let mut locations: Vec<Location> = Vec::new();
        for counter in transaction.charges.iter().filter(|counter| counter.group == 0) {
            let location = self.topology.location(counter.key.tag);
            if !locations.contains(&location) {
                locations.push(location);
            }
        }
        locations.len()
    }

    /// Refunds all charges of a record, and deletes the record.
    ///
    /// If the store cannot be reached, the charges stay. That never admits too much.
    pub(crate) async fn undo(&self, location: Location, id: u128, counters: &[RecordedCharge]) {
        let (closing, deadline) = (Closing::from_ending(id, &Ending::Undo), self.deadline());
        let _ = self.correct_at(location, closing, counters, &Ending::Undo, deadline).await;
    }

    async fn correct_at(
        &self,
        location: Location,
        closing: Closing,
        counters: &[RecordedCharge],
        ending: &Ending<'_>,
        deadline: Deadline,
    ) -> Result<Closed, StoreError> {
        let asked = |counter: &RecordedCharge| {
            // A renewal gives a counter that cannot deny the final charge 0: its permit may be lost.
            let may_be_lost = matches!(ending, Ending::Renew { .. }) && !counter.is_enforced;
            let actual = if may_be_lost { Some(0) } else { ending.actual(counter) };
            counter
                .planned(actual.map_or(AS_CHARGED, |actual| actual.min(AS_CHARGED - 1)))
                .to_owned()
        };
        let record = RecordAction::Close(Arc::new(closing));
        let charges = counters.iter().map(asked).collect();
        let transaction = Transaction { intent: Intent::Charge, record, charges };
        match self.decide_one_at(location, &transaction, deadline).await?.record {
            RecordReply::Closed(closed) => Ok(closed),
            RecordReply::None | RecordReply::Opened(_) => {
                Err(StoreError::Foreign("the end of a record got no answer".into()))
            }
        }
    }

    /// Reads the record of a reservation beside a tag. The call that closes the record checks it again.
    async fn recorded(
        &self,
        location: Location,
        tag: u128,
        id: u128,
        deadline: Deadline,
    ) -> Result<Option<Recorded>, StoreError> {
        let mut get = ::redis::cmd("GET");
        get.arg(keys::record(tag, id));
        let foreign = || StoreError::Foreign("a reservation's record has an unknown format".into());
        match self.command_at(location, &get, deadline).await? {
            Value::Nil => Ok(None),
            Value::BulkString(bytes) => read(&bytes).map(Some).ok_or_else(foreign),
            _ => Err(foreign()),
        }
    }
}

/// Parses a record. The header of `reservation.lua` documents the layout.
fn read(record: &[u8]) -> Option<Recorded> {
    let (head, rest) = record.split_first_chunk::<HEAD>()?;
    if head[0] != 0 {
        let mark = head[MARK_AT..HEAD - 1].try_into().ok()?;
        return Some(Recorded::Ended(u64::from_be_bytes(mark)));
    }
    let count = usize::from(head[HEAD - 1]);
    let counters = kept::decoded(rest.get(count * CHARGE_BYTES..)?)?;
    (counters.len() == count && count > 0).then(|| Recorded::Open(counters.into()))
}

/// Returns the answer for a record that has ended before.
fn ended(mark: u64, ending: &Ending<'_>) -> Answer {
    match ending {
        Ending::Renew { .. } => Answer::EndResult(EndResult::Expired),
        _ if mark == ending.mark() => Answer::EndResult(EndResult::Repeated),
        _ => Answer::EndedOtherwise,
    }
}

const HEAD: usize = 40;
const MARK_AT: usize = 31;
const CHARGE_BYTES: usize = 17;

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn parsing_arbitrary_bytes_never_panics(bytes: Vec<u8>) {
            let _ = read(&bytes);
        }
    }
}
