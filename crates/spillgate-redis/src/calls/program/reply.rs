//! Decodes the replies of `check.lua`.

use smallvec::SmallVec;

use super::{Times, groups, is_coalesced};
use crate::algorithm::EXACT_MAX;
use crate::algorithm::{Charge, Intent, LimitParams, Reading};
use crate::counter::{Change, ChargeReply, PlannedCharge};
use crate::error::StoreError;
use crate::plan::{RecordAction, RecordReply, Transaction, TransactionReply};
use crate::reservation::{Answer, Closed, EndResult, Ended, Opened};

/// The integers of a reply.
#[derive(Debug)]
pub(crate) struct Reply(Vec<i64>);

impl Reply {
    /// Checks the integers of a reply, and returns what is wrong with them.
    pub(crate) fn parse(integers: Vec<i64>) -> Result<Reply, String> {
        match integers.iter().find(|integer| integer.unsigned_abs() > EXACT_MAX) {
            Some(other) => Err(format!("the script returned {other}")),
            None => Ok(Reply(integers)),
        }
    }

    /// Returns the instant of the decision.
    pub(crate) fn now_us(&self) -> u64 {
        self.0.first().map_or(0, |now| now.max(&0).cast_unsigned())
    }

    /// Returns whether nothing was executed, because no calendar window of the call contains the store's time.
    pub(crate) fn outside(&self) -> bool {
        self.0.get(1) == Some(&OUTSIDE)
    }

    /// Returns whether nothing was executed, because the shard's guard has another value.
    pub(crate) fn guarded_otherwise(&self) -> bool {
        self.0.get(1) == Some(&GUARDED)
    }

    /// Decodes the replies to `transactions`, each from its range.
    pub(crate) fn read(
        &self,
        transactions: &[Transaction],
        ranges: &[ReplyRange],
    ) -> Result<Vec<Result<TransactionReply, StoreError>>, StoreError> {
        transactions
            .iter()
            .zip(ranges)
            .map(|(transaction, range)| self.read_one(transaction, *range))
            .collect()
    }

    fn read_one(
        &self,
        transaction: &Transaction,
        range: ReplyRange,
    ) -> Result<Result<TransactionReply, StoreError>, StoreError> {
        let mut rest = self.0.get(range.from as usize..).unwrap_or_default();
        let rest = &mut rest;
        let mut all = CounterReplies::default();
        if is_coalesced(transaction, range.times) {
            for group in groups(transaction) {
                self.of_coalesced(rest, group, range.place, &mut all)?;
            }
            let reply = reply_from(transaction, all.replies);
            return Ok(if all.foreign { Err(not_ours()) } else { Ok(reply) });
        }
        // Deferred charges were forced before the decision, so their replies come first.
        for counter in transaction.charges.iter().filter(|counter| counter.deferred > 0) {
            self.counter(rest, counter, false)?;
        }
        // An end answers with one word for the whole record, and no counters.
        if let RecordAction::Close(_) = &transaction.record {
            let record = RecordReply::Closed(closed(take(rest)?)?);
            return Ok(Ok(TransactionReply { record, ..reply_from(transaction, SmallVec::new()) }));
        }
        let opened = match &transaction.record {
            RecordAction::Open(_) => Some(opened(take(rest)?)?),
            RecordAction::None | RecordAction::Close(_) => None,
        };
        for counter in &transaction.charges {
            all.add(counter, self.counter(rest, counter, has_receipt(transaction, counter))?);
        }
        let mut reply = reply_from(transaction, all.replies);
        if let Some(opened) = opened {
            apply(opened, &mut reply);
        }
        Ok(if all.foreign { Err(not_ours()) } else { Ok(reply) })
    }

    /// Decodes one counter group of a coalesced batch for the decision at `place` in it.
    fn of_coalesced(
        &self,
        rest: &mut &[i64],
        group: &[PlannedCharge],
        place: u32,
        all: &mut CounterReplies,
    ) -> Result<(), StoreError> {
        let [charged] = take(rest)?;
        let is_charged = i64::from(place) < charged;
        for counter in group {
            // Each charged decision between the first and this one has used `cost` more.
            let since = if is_charged { u64::from(place) * counter.cost } else { 0 };
            let reply = self.counter_of(rest, counter, counter.cost, since, false)?;
            if is_charged {
                all.add(counter, reply);
            }
        }
        // The second set of counters is for the decisions that were denied.
        for counter in group {
            let reply = self.counter(rest, counter, false)?;
            if !is_charged {
                all.add(counter, reply);
            }
        }
        Ok(())
    }

    /// Decodes the reply to changes: the units refunded, and the counters afterwards.
    pub(crate) fn changed<'t>(
        &self,
        changes: impl IntoIterator<Item = (&'t PlannedCharge, Change)>,
    ) -> Result<Vec<(u64, ChargeReply)>, StoreError> {
        let mut rest = self.0.get(FIRST..).unwrap_or_default();
        let mut changed = Vec::new();
        for (counter, change) in changes {
            let returned = match change {
                Change::Force(_) => 0,
                Change::Refund(_) => take::<1>(&mut rest)?[0].max(0).cast_unsigned(),
            };
            let (reply, ours) = self.counter_of(&mut rest, counter, 1, 0, false)?;
            if !ours {
                return Err(not_ours());
            }
            changed.push((returned, reply));
        }
        Ok(changed)
    }

    /// Returns the integers from an index on.
    pub(crate) fn after(&self, from: usize) -> &[i64] {
        self.0.get(from..).unwrap_or_default()
    }

    /// Decodes the only counter of a call, at the end of its reply.
    pub(crate) fn one_counter(
        &self,
        mut words: &[i64],
        counter: &PlannedCharge,
    ) -> Result<ChargeReply, StoreError> {
        let (reply, ours) = self.counter(&mut words, counter, false)?;
        if ours { Ok(reply) } else { Err(not_ours()) }
    }

    fn counter(
        &self,
        rest: &mut &[i64],
        asked: &PlannedCharge,
        reserved: bool,
    ) -> Result<(ChargeReply, bool), StoreError> {
        self.counter_of(rest, asked, asked.cost, 0, reserved)
    }

    /// Decodes a counter for a cost, as it is after `since` more was charged.
    fn counter_of(
        &self,
        rest: &mut &[i64],
        asked: &PlannedCharge,
        cost: u64,
        since: u64,
        reserved: bool,
    ) -> Result<(ChargeReply, bool), StoreError> {
        let [fits] = take::<1>(rest)?;
        let reading = reading(asked.params(), rest, cost.max(1), since)?;
        let mut charge = None;
        if reserved {
            let [incarnation, mark] = take(rest)?;
            charge = (incarnation != 0).then(|| Charge {
                incarnation: incarnation.cast_unsigned(),
                at_us: self.now_us(),
                amount: asked.cost,
                mark: mark.cast_unsigned(),
            });
        }
        Ok((ChargeReply { fits: fits == 1, reading, charge }, fits >= 0))
    }
}

/// The range of a decision in a reply, and the decision's position in its coalesced batch.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ReplyRange {
    from: u32,
    times: u32,
    place: u32,
}

impl ReplyRange {
    pub(crate) fn at(self, place: u32) -> ReplyRange {
        ReplyRange { place, ..self }
    }
}

/// Returns the range of each transaction, for the first of its equal decisions.
pub fn reply_ranges(transactions: &[Times<'_>]) -> SmallVec<[ReplyRange; 1]> {
    let mut from = FIRST as u32;
    let ranges = transactions.iter().map(|(transaction, times)| {
        let range = ReplyRange { from, times: *times, place: 0 };
        from += width(transaction, *times) as u32;
        range
    });
    ranges.collect()
}

/// The replies of one decision, as they are decoded.
#[derive(Default)]
struct CounterReplies {
    replies: SmallVec<[ChargeReply; 1]>,
    foreign: bool,
}

impl CounterReplies {
    fn add(&mut self, asked: &PlannedCharge, (mut counter, ours): (ChargeReply, bool)) {
        if counter.fits {
            // The charge may have used up the room, but an allowed request need not wait.
            counter.reading.retry_after_us = Some(0);
        }
        self.replies.push(counter);
        // An unknown format under a shadow rule or a post-paid limit denies nothing: the enforced counters are charged.
        self.foreign |= !ours && asked.group == 0;
    }
}

/// Makes the reply to a transaction from the replies of its counters, in the order of the charges.
pub fn reply_from(
    transaction: &Transaction,
    replies: SmallVec<[ChargeReply; 1]>,
) -> TransactionReply {
    let mut counters = transaction.charges.iter().zip(&replies);
    let allowed = counters.all(|(asked, reply)| asked.group > 0 || reply.fits);
    TransactionReply { allowed, replies, record: RecordReply::None, is_resent: false }
}

/// Applies the result of opening a record to the reply.
fn apply(opened: Opened, reply: &mut TransactionReply) {
    reply.record = RecordReply::Opened(opened);
    match opened {
        Opened::Repeated => reply.admit(),
        Opened::Conflict | Opened::Ended(_) => {
            reply.replies.iter_mut().for_each(|counter| counter.fits = false);
        }
        Opened::New | Opened::Refused | Opened::Full => {}
    }
}

fn opened([word]: [i64; 1]) -> Result<Opened, StoreError> {
    Ok(match word {
        0 => Opened::New,
        1 => Opened::Repeated,
        2 => Opened::Conflict,
        3 => Opened::Refused,
        4 => Opened::Ended(Ended::Expired),
        5 => Opened::Ended(Ended::Cancelled),
        6 => Opened::Ended(Ended::Released),
        7 => Opened::Ended(Ended::Settled),
        _ => return Err(not_ours()),
    })
}

fn closed([word]: [i64; 1]) -> Result<Closed, StoreError> {
    Ok(Closed::Answered(match word {
        0 => Answer::EndResult(EndResult::Done),
        1 => Answer::EndResult(EndResult::Repeated),
        2 => Answer::EndResult(EndResult::Expired),
        3 => Answer::EndResult(EndResult::Unknown),
        4 => Answer::EndedOtherwise,
        5 => return Ok(Closed::OtherCounters),
        _ => return Err(not_ours()),
    }))
}

/// Returns the number of integers in the reply to a transaction that stands for `times` decisions.
fn width(transaction: &Transaction, times: u32) -> usize {
    let alone = |counter: &PlannedCharge| 1 + counter.params().counting().reply_width();
    if is_coalesced(transaction, times) {
        return groups(transaction).count()
            + 2 * transaction.charges.iter().map(alone).sum::<usize>();
    }
    let of_record = match &transaction.record {
        RecordAction::None => 0,
        RecordAction::Open(_) => 1,
        RecordAction::Close(_) => return 1,
    };
    let of_counter = |counter: &PlannedCharge| {
        let counter_alone = alone(counter);
        let deferred = if counter.deferred > 0 { counter_alone } else { 0 };
        let receipt = if has_receipt(transaction, counter) { 2 } else { 0 };
        deferred + counter_alone + receipt
    };
    of_record + transaction.charges.iter().map(of_counter).sum::<usize>()
}

/// Returns whether a counter has a receipt. A permit always has one: nothing else could release it.
fn has_receipt(transaction: &Transaction, counter: &PlannedCharge) -> bool {
    matches!(transaction.intent, Intent::Reserve { .. })
        || counter.limit.algorithm().counts_permits()
}

/// Decodes an algorithm's words into a reading, as it is after `since` more was charged.
fn reading(
    params: &LimitParams,
    rest: &mut &[i64],
    cost: u64,
    since: u64,
) -> Result<Reading, StoreError> {
    let counting = params.counting();
    let split = rest.split_at_checked(counting.reply_width());
    // Fits: no counter holds that much.
    let since = since.cast_signed();
    let too_short = || StoreError::Foreign("the script's reply is too short".into());
    let (words, left) = split.ok_or_else(too_short)?;
    *rest = left;
    counting.reading(words, cost, since).ok_or_else(too_short)
}

fn take<const N: usize>(rest: &mut &[i64]) -> Result<[i64; N], StoreError> {
    let Some((taken, left)) = rest.split_first_chunk::<N>() else {
        return Err(StoreError::Foreign("the script's reply is too short".into()));
    };
    *rest = left;
    Ok(*taken)
}

fn not_ours() -> StoreError {
    StoreError::Foreign("a value in the store has an unknown format".into())
}

/// The index of the first operation's reply, after the instant.
pub const FIRST: usize = 1;
const OUTSIDE: i64 = -2;
const GUARDED: i64 = -3;
