//! What receipts are about, in a store: the places of a reservation, and its end. A record says what is
//! to be put right, and is closed by the call that does it.

use std::sync::Arc;

use ::redis::Value;

use super::topology::{Location, Route};
use super::{Redis, StoreError, keys};
use crate::algorithm::Intent;
use crate::counter::LimitHandle;
use crate::engine::{AS_CHARGED, RecordAction, Transaction};
use crate::limit::Algorithm;
use crate::reservation::kept::{self, RecordedCharge, RecordedCharges};
use crate::reservation::{
    Answer, Closed, Closes, Closing, Ended, Ending, GROUPS_MAX, Group, Opening, Outcome,
    REMEMBERED_US,
};
use crate::time::Deadline;

/// What a record says to whoever has not seen the reservation.
enum Recorded {
    Open(RecordedCharges),
    /// By an ending of this mark.
    Ended(u64),
}

impl Redis {
    /// Ends or renews what one record is about, wherever its subjects live, or lived on the ring before
    /// this one.
    pub(crate) async fn close(
        &self,
        id: u128,
        group: &Group,
        ending: &Ending<'_>,
    ) -> Result<Answer, StoreError> {
        let deadline = self.deadline();
        let location = self.topology.location(group.tag);
        let answer = self.close_at(location, id, group, ending, deadline).await?;
        let Some(old) = self.topology.location_before(group.tag) else { return Ok(answer) };
        match self.close_at(old, id, group, ending, deadline).await {
            Ok(at_old) => Ok(answer.max(at_old)),
            Err(_) if self.gives_up(old) => Ok(answer),
            Err(error) => Err(error),
        }
    }

    /// Returns how the reservation of a record has ended: nothing while it is open and all its permits are
    /// held, wherever its subjects live, or lived on the ring before this one.
    pub(crate) async fn ended(&self, id: u128, tag: u128) -> Result<Option<Ended>, StoreError> {
        let deadline = self.deadline();
        let ended = self.ended_at(self.topology.location(tag), id, tag, deadline).await?;
        let Some(old) = self.topology.location_before(tag).filter(|_| ended.is_none()) else {
            return Ok(ended);
        };
        match self.ended_at(old, id, tag, deadline).await {
            Err(_) if self.gives_up(old) => Ok(None),
            at_old => at_old,
        }
    }

    /// Whether the id of a reservation is in use for no other request. With `takes` it is in use for this
    /// one from then on, for as long as its record is remembered.
    pub(crate) async fn names(&self, opening: &Opening, takes: bool) -> Result<bool, StoreError> {
        let (key, body) = (keys::named(opening.id), opening.body.to_be_bytes());
        let (location, deadline) = (self.topology.location(opening.id), self.deadline());
        if takes {
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
            _ => Err(StoreError::Foreign("what an id is in use for is none that we wrote".into())),
        }
    }

    /// At how many places the enforced counters of a decision live, old owners included.
    pub(crate) fn locations<L: LimitHandle>(&self, transaction: &Transaction<L>) -> usize {
        let mut locations: Vec<Location> = Vec::new();
        for counter in transaction.counters.iter().filter(|counter| counter.group == 0) {
            let location = Some(self.topology.location(counter.key.tag));
            for location in location.into_iter().chain(self.topology.old_location(counter)) {
                if !locations.contains(&location) {
                    locations.push(location);
                }
            }
        }
        locations.len()
    }

    /// Whether a receipt can name all places of a decision.
    pub(crate) fn has_receipt_for<L: LimitHandle>(&self, transaction: &Transaction<L>) -> bool {
        self.topology.is_one_location() || self.locations(transaction) <= GROUPS_MAX
    }

    /// Takes back what a record at one place says was charged, and the record with it. Out of reach it
    /// stays charged: that admits nobody wrongly.
    pub(super) async fn undo(&self, location: Location, id: u128, counters: &[RecordedCharge]) {
        let closing = Arc::new(Closing::of(id, &Ending::Undo));
        let _ = self.correct_at(location, &closing, counters, &Ending::Undo, self.deadline()).await;
    }

    async fn close_at(
        &self,
        location: Location,
        id: u128,
        group: &Group,
        ending: &Ending<'_>,
        deadline: Deadline,
    ) -> Result<Answer, StoreError> {
        let mut known = group.counters.clone();
        for _ in 0..=1 {
            let counters = match known.take() {
                Some(counters) => counters,
                None => match self.recorded(location, group.tag, id, deadline).await? {
                    Some(Recorded::Open(counters)) => counters,
                    Some(Recorded::Ended(mark)) => return Ok(ended(mark, ending)),
                    None => return Ok(Answer::Outcome(Outcome::Unknown)),
                },
            };
            let closing = Arc::new(Closing::of(id, ending));
            self.correct_at(location, &closing, &counters, ending, deadline).await?;
            // Processes on another ring part a reservation's counters otherwise.
            if let Some(Closed::Answered(answer)) = closing.noted() {
                return Ok(answer);
            }
        }
        Err(StoreError::Foreign("a record changed while it was read".into()))
    }

    async fn correct_at(
        &self,
        location: Location,
        closing: &Arc<Closing>,
        counters: &[RecordedCharge],
        ending: &Ending<'_>,
        deadline: Deadline,
    ) -> Result<(), StoreError> {
        let asked = |counter: &RecordedCharge| {
            let actual = ending.actual(counter);
            counter.asked(actual.map_or(AS_CHARGED, |actual| actual.min(AS_CHARGED - 1))).to_owned()
        };
        let record = RecordAction::Close(Arc::clone(closing));
        let counters = counters.iter().map(asked).collect();
        let transaction = Transaction { intent: Intent::Charge, record, counters };
        self.decide_one_at(location, &transaction, deadline).await.map(|_| ())
    }

    async fn ended_at(
        &self,
        location: Location,
        id: u128,
        tag: u128,
        deadline: Deadline,
    ) -> Result<Option<Ended>, StoreError> {
        let counters = match self.recorded(location, tag, id, deadline).await? {
            Some(Recorded::Open(counters)) => counters,
            Some(Recorded::Ended(mark)) => return Ok(Some(Ended::by_mark(mark))),
            None => return Ok(None),
        };
        let closing = Arc::new(Closing::new(id, Closes::Looks, 0));
        let as_charged = Ending::Renew { for_us: 0 };
        self.correct_at(location, &closing, &counters, &as_charged, deadline).await?;
        let is_over = closing.noted() == Some(Closed::Answered(Answer::Outcome(Outcome::Expired)));
        let is_permit =
            |counter: &RecordedCharge| counter.limit.algorithm() == Algorithm::Concurrency;
        let how = if counters.iter().any(is_permit) { Ended::PermitEnded } else { Ended::Expired };
        Ok(is_over.then_some(how))
    }

    async fn command_at(
        &self,
        location: Location,
        command: &::redis::Cmd,
        deadline: Deadline,
    ) -> Result<Value, StoreError> {
        let run = |route: Route| async move { route.shard.command(command, deadline).await };
        self.follow(location, deadline, run).await
    }

    /// What the record beside a tag says; nothing if there is none. It is looked at again by the call
    /// that closes it.
    async fn recorded(
        &self,
        location: Location,
        tag: u128,
        id: u128,
        deadline: Deadline,
    ) -> Result<Option<Recorded>, StoreError> {
        let mut get = ::redis::cmd("GET");
        get.arg(keys::record(tag, id));
        let foreign = || StoreError::Foreign("a record is none that we wrote".into());
        match self.command_at(location, &get, deadline).await? {
            Value::Nil => Ok(None),
            Value::BulkString(bytes) => read(&bytes).map(Some).ok_or_else(foreign),
            _ => Err(foreign()),
        }
    }
}

/// The layout is documented at the head of `reservation.lua`.
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

/// What is answered for a record that ended before.
fn ended(mark: u64, ending: &Ending<'_>) -> Answer {
    match ending {
        Ending::Renew { .. } => Answer::Outcome(Outcome::Expired),
        _ if mark == ending.mark() => Answer::Outcome(Outcome::Repeated),
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
        fn bytes_of_anybodys_are_read_or_not_without_a_panic(bytes: Vec<u8>) {
            let _ = read(&bytes);
        }
    }
}
