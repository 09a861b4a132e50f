//! The records of reservations in this process, in a bounded number of bytes.

use std::sync::Arc;

use smallvec::SmallVec;

use super::Memory;
use crate::algorithm::Intent;
use crate::counter::{Change, LimitHandle, PlannedCharge};
use crate::plan::{RecordReply, Transaction, TransactionReply};
use crate::reservation::kept::{RecordedCharge, RecordedCharges};
use crate::reservation::record::{Record, RecordedCost};
use crate::reservation::{Answer, EndResult, Ended, Ending, Group, Opened, Opening};

mod room;

pub(crate) use room::Records;
use room::{Held, bytes_of_open};

/// A correction that was made to a counter when its reservation ended.
#[derive(Clone, Copy, Debug)]
pub enum Corrected {
    /// This many units were refunded.
    Refunded(u64),
    /// This many units were charged by force.
    Forced(u64),
}

/// A record of charges by the local fallback.
pub struct Kept {
    /// The hash of the request.
    pub body: u128,
    /// The time for which it can be settled, in µs.
    pub lasting_us: u64,
    /// The result of [`subject_of`] for the counters of the transaction.
    pub subject: u128,
    /// The counters charged here.
    pub counters: Vec<RecordedCharge>,
    /// The charge of each counter.
    pub charges: Vec<RecordedCost>,
    /// The groups of the reservation with records on the store.
    pub elsewhere: SmallVec<[Group; 1]>,
}

/// Counts of the records in this process, for the metrics.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RecordsHeld {
    /// Records of reservations that are open, or expired without an end.
    pub open: u64,
    /// Records of reservations that were settled, cancelled or released.
    pub ended: u64,
    /// The bytes of all records.
    pub bytes: u64,
}

impl Memory {
    /// Decides a reservation, and stores its record if it is allowed.
    pub(crate) fn open<L: LimitHandle>(
        &self,
        transaction: &Transaction<L>,
        opening: &Opening,
    ) -> TransactionReply {
        let now_us = self.clock.now_us();
        let mut records = self.records.lock();
        records.forget_gone(now_us);
        let subject = subject_of(&transaction.charges);
        let known = records.get(opening.id);
        let opened = match known
            .map(|held| self.opened_again(held, transaction, opening.body, now_us))
        {
            Some(opened) => opened,
            None if !records.make_room(subject, bytes_of_open(transaction), now_us) => Opened::Full,
            None => Opened::New,
        };
        let charges = &transaction.charges[..];
        // A repeated, conflicting or rejected opening charges nothing: the peek only fills in the reply.
        let intent = if opened == Opened::New { transaction.intent } else { Intent::Peek };
        let mut locked = self.lock(charges);
        let mut deciding = self.deciding(&mut locked, charges, intent);
        deciding.needs_own = true;
        let mut replies = SmallVec::new();
        let allowed = deciding.decide(|_, reply| replies.push(reply));
        // Without room for a counter the decision became a peek.
        let opened = match opened {
            Opened::New if allowed && deciding.intent != intent => Opened::Full,
            opened => opened,
        };
        let record = RecordReply::Opened(opened);
        let mut reply = TransactionReply { allowed, replies, record, is_resent: false };
        drop(locked);
        match opened {
            Opened::Repeated => reply.admit(),
            Opened::Conflict | Opened::Ended(_) => {
                reply.allowed = false;
                reply.replies.iter_mut().for_each(|counter| counter.fits = false);
            }
            // The limits have decided: a denial by a limit is reported as such, even if there is no room.
            Opened::New | Opened::Refused | Opened::Full => {}
        }
        // Only an allowed new reservation gets a record; a denied one can be tried again under the same id.
        let is_open = opened == Opened::New && reply.allowed && intent != Intent::Peek;
        if is_open {
            let charges = transaction.charges.iter().zip(&reply.replies);
            let charges = charges
                .map(|(counter, reply)| RecordedCost { cost: counter.cost, charge: reply.charge });
            let record = Record::new(opening.body, opening.lasting_us, charges, now_us);
            let counters = transaction.charges.iter().map(RecordedCharge::new).collect();
            let held = Held { record, counters, elsewhere: SmallVec::new(), subject };
            records.put(opening.id, Box::new(held));
        }
        if opened == Opened::New && !is_open {
            reply.record = RecordReply::Opened(Opened::Refused);
        }
        reply
    }

    /// Returns the result of opening a reservation whose id already has a record.
    ///
    /// If a limit in force takes permits, the record must still hold its own: they may have expired.
    fn opened_again<L: LimitHandle>(
        &self,
        held: &Held,
        transaction: &Transaction<L>,
        body: u128,
        now_us: u64,
    ) -> Opened {
        let opened = held.record.opened_again(body, now_us);
        if opened == Opened::Repeated
            && takes_permits(&transaction.charges)
            && !self.holds_permits(held)
        {
            return Opened::Ended(Ended::PermitEnded);
        }
        opened
    }

    /// Ends or renews a reservation. Calls `corrected` for each correction that is due.
    pub fn close(
        &self,
        id: u128,
        ending: &Ending<'_>,
        mut corrected: impl FnMut(&RecordedCharge, Corrected),
    ) -> Answer {
        let now_us = self.clock.now_us();
        let mut records = self.records.lock();
        records.forget_gone(now_us);
        let Some(held) = records.get(id) else {
            return Answer::EndResult(EndResult::Unknown);
        };
        if let Err(answer) = held.record.may_end(ending, now_us) {
            return answer;
        }
        if let Ending::Renew { for_us } = ending {
            if !self.renew(held, *for_us) {
                return Answer::EndResult(EndResult::Expired);
            }
            records.change(id, |held| held.record.renew(*for_us, now_us));
            return Answer::EndResult(EndResult::Done);
        }
        for (place, counter) in held.counters.iter().enumerate() {
            let Some(change) = held.record.correction(place, ending.actual(counter)) else {
                continue;
            };
            let planned = counter.planned(0);
            let returned = match change {
                // State that was written under other numbers since then stays as it is: under the reservation's numbers,
                // use above them would be erased.
                Change::Force(cost) => {
                    self.with_counter(&planned, true, |view, state, now_us| {
                        (!view.is_converted()).then(|| view.force(state, cost, now_us))
                    });
                    0
                }
                Change::Refund(_) => self.change(&planned, change).0,
            };
            corrected(
                counter,
                match change {
                    Change::Force(amount) => Corrected::Forced(amount),
                    Change::Refund(_) => Corrected::Refunded(returned),
                },
            );
        }
        if matches!(ending, Ending::Undo) {
            records.remove(id);
            return Answer::EndResult(EndResult::Done);
        }
        // The ended record stays without its counters, to answer late and repeated calls.
        records.change(id, |held| {
            held.record.end(ending);
            held.counters = RecordedCharges::default();
        });
        Answer::EndResult(EndResult::Done)
    }

    /// Extends all permits of a record. Returns whether all enforced ones were still held; if not, none is
    /// extended.
    fn renew(&self, held: &Held, for_us: u64) -> bool {
        let all_held = self.holds_permits(held);
        if all_held {
            for (counter, charge) in held.charges() {
                self.with_counter(&counter, false, |view, state, _| {
                    view.renew(state, &charge, for_us).then_some(())
                });
            }
        }
        all_held
    }

    /// Returns whether all enforced permits of a record are still held.
    fn holds_permits(&self, held: &Held) -> bool {
        let mut enforced =
            held.counters.iter().enumerate().filter(|(_, counter)| counter.is_enforced);
        enforced.all(|(place, counter)| {
            held.record.charge(place).is_none_or(|charge| {
                let mut is_held = false;
                self.with_counter(&counter.planned(0), false, |view, state, _| {
                    is_held = view.holds(state.as_ref(), &charge);
                    None::<()>
                });
                is_held
            })
        })
    }

    /// Stores a record of the charges that this instance made while the store was unavailable.
    ///
    /// The caller must have checked [`has_room`](Self::has_room) before the charge. If the id has a record
    /// already, returns as an error the result of opening it again, and the record that was not stored.
    pub fn keep(&self, id: u128, kept: Kept) -> Result<(), (Opened, Box<Kept>)> {
        let now_us = self.clock.now_us();
        let mut records = self.records.lock();
        records.forget_gone(now_us);
        if let Some(held) = records.get(id) {
            return Err((held.record.opened_again(kept.body, now_us), Box::new(kept)));
        }
        let Kept { body, lasting_us, subject, counters, charges, elsewhere } = kept;
        let record = Record::new(body, lasting_us, charges, now_us);
        records.put(id, Box::new(Held { record, counters: counters.into(), elsewhere, subject }));
        Ok(())
    }

    /// Returns the result of opening a reservation that has a record here, and the groups of its other records.
    pub fn kept(
        &self,
        transaction: &Transaction,
        opening: &Opening,
    ) -> Option<(Opened, SmallVec<[Group; 1]>)> {
        let now_us = self.clock.now_us();
        let mut records = self.records.lock();
        records.forget_gone(now_us);
        let held = records.get(opening.id)?;
        Some((self.opened_again(held, transaction, opening.body, now_us), held.elsewhere.clone()))
    }

    /// Returns the counters of an open record; none if there is no such record.
    pub fn counters_of(&self, id: u128) -> RecordedCharges {
        let records = self.records.lock();
        records.get(id).map(|held| Arc::clone(&held.counters)).unwrap_or_default()
    }

    /// Returns whether there is room for the record of a transaction.
    pub fn has_room(&self, transaction: &Transaction) -> bool {
        let now_us = self.clock.now_us();
        self.records.lock().make_room(
            subject_of(&transaction.charges),
            bytes_of_open(transaction),
            now_us,
        )
    }

    /// Returns the number of records, and their bytes.
    pub fn records(&self) -> RecordsHeld {
        self.records.lock().held()
    }
}

/// Returns the subject that a record's bytes count for: the narrowest enforced subject.
///
/// A wide subject would let one of the many clients that share it use up the room of all.
pub fn subject_of<L>(counters: &[PlannedCharge<L>]) -> u128 {
    let narrowest = |enforced: bool| {
        let counters = counters.iter().rev().filter(|counter| (counter.group == 0) == enforced);
        counters.max_by_key(|counter| counter.attributes).map(|counter| counter.key.id)
    };
    narrowest(true).or_else(|| narrowest(false)).unwrap_or_default()
}

/// Returns whether an enforced limit grants a permit, which expires by itself.
pub fn takes_permits<L: LimitHandle>(counters: &[PlannedCharge<L>]) -> bool {
    let takes = |counter: &PlannedCharge<L>| {
        counter.group == 0 && counter.cost > 0 && counter.limit().algorithm().counts_permits()
    };
    counters.iter().any(takes)
}
