//! The records of reservations in this process, in a bounded number of bytes.

use smallvec::SmallVec;

use super::Memory;
use crate::algorithm::{self, Intent, Refund};
use crate::counter::LimitHandle;
use crate::engine::{Change, PlannedCharge, RecordAction, Transaction, TransactionReply};
use crate::limit::Algorithm;
use crate::reservation::kept::{RecordedCharge, RecordedCharges};
use crate::reservation::record::{Charged, Correction, Record};
use crate::reservation::{Answer, Ended, Ending, Group, Opened, Opening, Outcome};

mod room;

pub(super) use room::Records;
use room::{Held, bytes_of_open};

/// What was done to a counter.
#[derive(Clone, Copy, Debug)]
#[cfg_attr(not(feature = "redis"), expect(dead_code, reason = "only a fallback asks"))]
pub(crate) enum Corrected {
    Refunded(u64),
    Forced(u64),
}

/// What a fallback keeps of what it charged alone.
#[cfg(feature = "redis")]
pub(crate) struct Kept {
    pub(crate) body: u128,
    pub(crate) lasting_us: u64,
    /// As [`subject_of`] the counters that were asked for.
    pub(crate) subject: u128,
    pub(crate) counters: Vec<RecordedCharge>,
    pub(crate) charges: Vec<Charged>,
    pub(crate) elsewhere: SmallVec<[Group; 1]>,
}

/// The records of this process, as the metrics show them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RecordsHeld {
    /// Records of reservations that are open, or expired without an end.
    pub open: u64,
    /// Records of reservations that were settled, cancelled or released.
    pub ended: u64,
    /// The bytes of both.
    pub bytes: u64,
}

impl Memory {
    /// Decides a reservation, and keeps its record.
    pub(super) fn open<L: LimitHandle>(
        &self,
        transaction: &Transaction<L>,
        opening: &Opening,
    ) -> TransactionReply {
        let now_us = self.clock.now_us();
        let mut records = self.records.lock();
        records.forget_gone(now_us);
        let subject = subject_of(&transaction.counters);
        let known = records.get(opening.id);
        let opened = match known
            .map(|held| self.opened_again(held, transaction, opening.body, now_us))
        {
            Some(opened) => opened,
            None if !records.make_room(subject, bytes_of_open(transaction), now_us) => Opened::Full,
            None => Opened::New,
        };
        let intent = if opened == Opened::New { transaction.intent } else { Intent::Peek };
        let mut reply = self.decide::<L>(&Transaction {
            intent,
            record: RecordAction::None,
            counters: transaction.counters.clone(),
        });
        match opened {
            Opened::Repeated => reply.admit(),
            Opened::Conflict | Opened::Ended(_) => {
                reply.allowed = false;
                reply.counters.iter_mut().for_each(|counter| counter.fits = false);
            }
            // What the limits say of it comes first.
            Opened::New | Opened::Refused | Opened::Full => {}
        }
        let is_open = opened == Opened::New && reply.allowed && intent != Intent::Peek;
        if is_open {
            let charges = transaction.counters.iter().zip(&reply.counters);
            let charges = charges
                .map(|(counter, reply)| Charged { cost: counter.cost, charge: reply.charge });
            let record = Record::new(opening.body, opening.lasting_us, charges, now_us);
            let counters = transaction.counters.iter().map(RecordedCharge::of).collect();
            let held = Held { record, counters, elsewhere: SmallVec::new(), subject };
            records.put(opening.id, Box::new(held));
        }
        let opened = if opened == Opened::New && !is_open { Opened::Refused } else { opened };
        let tag = transaction.counters.first().map_or(0, |counter| counter.key.tag);
        opening.note(opened, || Group { tag, counters: None });
        reply
    }

    /// Returns what a reservation under the id of a record is answered. Its permits count where a limit
    /// in force asks for one.
    fn opened_again<L: LimitHandle>(
        &self,
        held: &Held,
        transaction: &Transaction<L>,
        body: u128,
        now_us: u64,
    ) -> Opened {
        let opened = held.record.opened_again(body, now_us);
        if opened == Opened::Repeated
            && takes_permits(&transaction.counters)
            && !self.holds_permits(held)
        {
            return Opened::Ended(Ended::PermitEnded);
        }
        opened
    }

    /// Ends or renews a reservation; each correction is told as it is made.
    pub(crate) fn close(
        &self,
        id: u128,
        ending: &Ending<'_>,
        mut corrected: impl FnMut(&RecordedCharge, Corrected),
    ) -> Answer {
        let now_us = self.clock.now_us();
        let mut records = self.records.lock();
        records.forget_gone(now_us);
        let Some(held) = records.get(id) else {
            return Answer::Outcome(Outcome::Unknown);
        };
        if let Err(answer) = held.record.may_end(ending, now_us) {
            return answer;
        }
        if let Ending::Renew { for_us } = ending {
            if !self.renew(held, *for_us) {
                return Answer::Outcome(Outcome::Expired);
            }
            records.change(id, |held| held.record.renew(*for_us, now_us));
            return Answer::Outcome(Outcome::Done);
        }
        for (place, counter) in held.counters.iter().enumerate() {
            let Some(correction) = held.record.correction(place, ending.actual(counter)) else {
                continue;
            };
            let change = match correction {
                Correction::Force(amount) => Change::Force(amount),
                Correction::Refund { charge, unused } => {
                    Change::Refund(Refund::Unused { charge, unused })
                }
            };
            let (returned, _) = self.change(&counter.asked(0), change);
            corrected(
                counter,
                match correction {
                    Correction::Force(amount) => Corrected::Forced(amount),
                    Correction::Refund { .. } => Corrected::Refunded(returned),
                },
            );
        }
        #[cfg(feature = "redis")]
        if matches!(ending, Ending::Undo) {
            records.remove(id);
            return Answer::Outcome(Outcome::Done);
        }
        records.change(id, |held| {
            held.record.end(ending);
            held.counters = RecordedCharges::default();
        });
        Answer::Outcome(Outcome::Done)
    }

    /// Whether all slots were still held, and now are for longer.
    fn renew(&self, held: &Held, for_us: u64) -> bool {
        let all_held = self.holds_permits(held);
        if all_held {
            for (counter, charge) in held.charges() {
                self.with_counter(&counter, |counter, now_us| {
                    algorithm::renew(counter, &charge, for_us, now_us);
                });
            }
        }
        all_held
    }

    fn holds_permits(&self, held: &Held) -> bool {
        held.charges().all(|(counter, charge)| {
            self.with_counter(&counter, |counter, now_us| {
                algorithm::holds(counter, &charge, now_us)
            })
            .0
        })
    }

    /// Keeps a record of what was charged here beside a store, whose room [`has_room`](Self::has_room)
    /// was asked for before the charge. Returns it where the id has a record already.
    #[cfg(feature = "redis")]
    pub(crate) fn keep(&self, id: u128, kept: Kept) -> Result<(), Box<Kept>> {
        let now_us = self.clock.now_us();
        let mut records = self.records.lock();
        records.forget_gone(now_us);
        if records.get(id).is_some() {
            return Err(Box::new(kept));
        }
        let Kept { body, lasting_us, subject, counters, charges, elsewhere } = kept;
        let record = Record::new(body, lasting_us, charges, now_us);
        records.put(id, Box::new(Held { record, counters: counters.into(), elsewhere, subject }));
        Ok(())
    }

    /// Returns what a reservation under the id of a record here is answered, and where else it has records.
    #[cfg(feature = "redis")]
    pub(crate) fn kept(
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

    /// Whether the record of a decision finds room.
    #[cfg(feature = "redis")]
    pub(crate) fn has_room(&self, transaction: &Transaction) -> bool {
        let now_us = self.clock.now_us();
        self.records.lock().make_room(
            subject_of(&transaction.counters),
            bytes_of_open(transaction),
            now_us,
        )
    }

    /// How many reservations are remembered, and in how many bytes.
    pub fn records(&self) -> RecordsHeld {
        self.records.lock().held()
    }
}

/// Whose room a record takes: the narrowest of its enforced subjects, for a subject that many share would
/// let one of them use up the room of all.
pub(crate) fn subject_of<L>(counters: &[PlannedCharge<L>]) -> u128 {
    let narrowest = |enforced: bool| {
        let counters = counters.iter().rev().filter(|counter| (counter.group == 0) == enforced);
        counters.max_by_key(|counter| counter.attributes).map(|counter| counter.key.id)
    };
    narrowest(true).or_else(|| narrowest(false)).unwrap_or_default()
}

/// Whether some enforced limit gives a permit, which ends by itself.
pub(crate) fn takes_permits<L: LimitHandle>(counters: &[PlannedCharge<L>]) -> bool {
    let takes = |counter: &PlannedCharge<L>| {
        counter.group == 0
            && counter.cost > 0
            && counter.limit().algorithm() == Algorithm::Concurrency
    };
    counters.iter().any(takes)
}
