//! What `check.lua` answers.

use std::slice::ChunkBy;

use ::redis::Value;
use smallvec::SmallVec;

use super::{Times, is_crowd};
use crate::algorithm::EXACT_MAX;
use crate::algorithm::{
    Charge, Intent, Numbers, Reading, concurrency, fixed_window, sliding_log, sliding_window,
    token_bucket,
};
use crate::engine::{Ask, AskTier, AtRecord, Change, StoreError, Told, ToldTier};
use crate::limit::Algorithm;
use crate::reservation::{Answer, Closed, Ended, Group, Opened, Opening, Outcome};

/// The integers that came back.
#[derive(Debug)]
pub(in super::super) struct Reply(Vec<i64>);

impl Reply {
    /// What the script answered, or what is wrong with that.
    pub(in super::super) fn of(answer: Value) -> Result<Reply, String> {
        let Value::Array(values) = answer else {
            return Err("the script answered no list".into());
        };
        let integers = values.into_iter().map(|value| match value {
            Value::Int(integer) if integer.unsigned_abs() <= EXACT_MAX => Ok(integer),
            other => Err(format!("the script answered {other:?}")),
        });
        integers.collect::<Result<_, _>>().map(Reply)
    }

    /// The same of a list of integers.
    pub(in super::super) fn of_integers(integers: Vec<i64>) -> Result<Reply, String> {
        match integers.iter().find(|integer| integer.unsigned_abs() > EXACT_MAX) {
            Some(other) => Err(format!("the script answered {other}")),
            None => Ok(Reply(integers)),
        }
    }

    /// The instant that was decided at.
    pub(in super::super) fn now_us(&self) -> u64 {
        self.0.first().map_or(0, |now| now.max(&0).cast_unsigned())
    }

    /// Whether nothing was executed, for want of a window that holds that instant.
    pub(in super::super) fn outside(&self) -> bool {
        self.0.get(1) == Some(&OUTSIDE)
    }

    /// Whether nothing was executed, for the shard's guard is another.
    pub(in super::super) fn guarded_otherwise(&self) -> bool {
        self.0.get(1) == Some(&GUARDED)
    }

    /// What became of `asks`, each told in its part.
    pub(in super::super) fn told(
        &self,
        asks: &[Ask],
        parts: &[Part],
    ) -> Result<Vec<Result<Told, StoreError>>, StoreError> {
        asks.iter().zip(parts).map(|(ask, part)| self.told_one(ask, *part)).collect()
    }

    fn told_one(&self, ask: &Ask, part: Part) -> Result<Result<Told, StoreError>, StoreError> {
        let mut rest = self.0.get(part.from as usize..).unwrap_or_default();
        let rest = &mut rest;
        let mut all = Heard::default();
        if is_crowd(ask, part.times) {
            for group in groups(ask) {
                self.of_crowd(rest, group, part.place, &mut all)?;
            }
            let foreign = all.foreign;
            let told = all.told(ask);
            return Ok(if foreign { Err(not_ours()) } else { Ok(told) });
        }
        for tier in ask.tiers.iter().filter(|tier| tier.owed > 0) {
            self.tier(rest, tier, false)?;
        }
        if let AtRecord::Close(closing) = &ask.record {
            closing.note(closed(take(rest)?)?);
            return Ok(Ok(Told { allowed: true, tiers: SmallVec::new() }));
        }
        let opened = match &ask.record {
            AtRecord::Open(_) => Some(opened(take(rest)?)?),
            AtRecord::None | AtRecord::Close(_) => None,
        };
        for tier in &ask.tiers {
            all.add(self.tier(rest, tier, has_receipt(ask, tier))?);
        }
        let foreign = all.foreign;
        let mut told = all.told(ask);
        if let (AtRecord::Open(opening), Some(opened)) = (&ask.record, opened) {
            note(opening, opened, ask, &mut told);
        }
        Ok(if foreign { Err(not_ours()) } else { Ok(told) })
    }

    /// One group of a crowd, as the decision at a place of it is told.
    fn of_crowd(
        &self,
        rest: &mut &[i64],
        group: &[AskTier],
        place: u32,
        all: &mut Heard,
    ) -> Result<(), StoreError> {
        let [charged] = take(rest)?;
        let is_charged = i64::from(place) < charged;
        for tier in group {
            // Each charge between the first and this one has used so much more.
            let since = if is_charged { u64::from(place) * tier.cost } else { 0 };
            let told = self.tier_after(rest, tier, since)?;
            if is_charged {
                all.add(told);
            }
        }
        for tier in group {
            let told = self.tier(rest, tier, false)?;
            if !is_charged {
                all.add(told);
            }
        }
        Ok(())
    }

    /// What came back of each change, and the tiers as they are then.
    pub(in super::super) fn changed<'t>(
        &self,
        changes: impl IntoIterator<Item = (&'t AskTier, Change)>,
    ) -> Result<Vec<(u64, ToldTier)>, StoreError> {
        let mut rest = self.0.get(FIRST..).unwrap_or_default();
        let mut changed = Vec::new();
        for (tier, change) in changes {
            let returned = match change {
                Change::Force(_) => 0,
                Change::GiveBack(_) => take::<1>(&mut rest)?[0].max(0).cast_unsigned(),
            };
            let (told, ours) = self.tier_of(&mut rest, tier, 1, false)?;
            if !ours {
                return Err(not_ours());
            }
            changed.push((returned, told));
        }
        Ok(changed)
    }

    /// The integers from a place on.
    pub(super) fn after(&self, from: usize) -> &[i64] {
        self.0.get(from..).unwrap_or_default()
    }

    /// A tier that was asked about alone, as the last of an answer.
    pub(super) fn one_tier(
        &self,
        mut words: &[i64],
        tier: &AskTier,
    ) -> Result<ToldTier, StoreError> {
        let (told, ours) = self.tier(&mut words, tier, false)?;
        if ours { Ok(told) } else { Err(not_ours()) }
    }

    fn tier(
        &self,
        rest: &mut &[i64],
        asked: &AskTier,
        reserved: bool,
    ) -> Result<(ToldTier, bool), StoreError> {
        self.tier_of(rest, asked, asked.cost, reserved)
    }

    /// Reads a tier whose cost was another than asked.
    fn tier_of(
        &self,
        rest: &mut &[i64],
        asked: &AskTier,
        cost: u64,
        reserved: bool,
    ) -> Result<(ToldTier, bool), StoreError> {
        // A slot goes by the call's nonce and the place of its tier in the answer.
        let place = (self.0.len() - rest.len()) as u64 + 1;
        let [fits] = take::<1>(rest)?;
        let reading = reading(asked.numbers(), rest, cost.max(1), 0)?;
        let mut charge = None;
        if reserved {
            let [incarnation] = take::<1>(rest)?;
            let slot = match asked.limit.algorithm() {
                Algorithm::Concurrency => place,
                Algorithm::TokenBucket => take::<1>(rest)?[0].max(0).cast_unsigned(),
                _ => 0,
            };
            charge = (incarnation != 0).then(|| Charge {
                incarnation: incarnation.cast_unsigned(),
                at_us: self.now_us(),
                amount: asked.cost,
                slot,
            });
        }
        Ok((ToldTier { fits: fits == 1, reading, charge }, fits >= 0))
    }

    /// A tier, as it is after so much more was charged.
    fn tier_after(
        &self,
        rest: &mut &[i64],
        asked: &AskTier,
        since: u64,
    ) -> Result<(ToldTier, bool), StoreError> {
        let [fits] = take::<1>(rest)?;
        let reading = reading(asked.numbers(), rest, asked.cost.max(1), since)?;
        Ok((ToldTier { fits: fits == 1, reading, charge: None }, fits >= 0))
    }
}

/// Where in an answer a decision is told of, and which of a crowd it is.
#[derive(Clone, Copy, Debug)]
pub(in super::super) struct Part {
    from: u32,
    times: u32,
    place: u32,
}

impl Part {
    pub(in super::super) fn at(self, place: u32) -> Part {
        Part { place, ..self }
    }
}

/// Where one decision after the other is told of.
#[derive(Debug)]
pub(in super::super) struct Parts {
    from: u32,
}

impl Parts {
    pub(in super::super) fn new() -> Parts {
        Parts { from: FIRST as u32 }
    }

    /// Where the next is told of, the first of as many as ask for it.
    pub(in super::super) fn next(&mut self, ask: &Ask, times: u32) -> Part {
        let part = Part { from: self.from, times, place: 0 };
        self.from += width(ask, times) as u32;
        part
    }
}

/// Where decisions are told of that are asked for so many times each, the first of each.
pub(in super::super) fn parts(asks: &[Times<'_>]) -> SmallVec<[Part; 1]> {
    let mut parts = Parts::new();
    asks.iter().map(|(ask, times)| parts.next(ask, *times)).collect()
}

/// What was heard of the tiers of one decision.
#[derive(Default)]
struct Heard {
    tiers: SmallVec<[ToldTier; 1]>,
    foreign: bool,
}

impl Heard {
    fn add(&mut self, (mut tier, ours): (ToldTier, bool)) {
        if tier.fits {
            // The charge may have used the room up; whoever was let in waits for nothing.
            tier.reading.retry_after_us = Some(0);
        }
        self.tiers.push(tier);
        self.foreign |= !ours;
    }

    fn told(self, ask: &Ask) -> Told {
        let tiers = self.tiers;
        let enforced = ask.tiers.iter().zip(&tiers).filter(|(asked, _)| asked.group == 0);
        let allowed = enforced.fold(true, |all, (_, tier): (_, &ToldTier)| all && tier.fits);
        Told { allowed, tiers }
    }
}

/// The enforced tiers, none perhaps, and those of each shadow rule.
fn groups(ask: &Ask) -> impl Iterator<Item = &[AskTier]> {
    let enforced = ask.tiers.iter().take_while(|tier| tier.group == 0).count();
    let (enforced, shadows) = ask.tiers.split_at(enforced);
    let shadows: ChunkBy<'_, _, _> = shadows.chunk_by(|one, next| one.group == next.group);
    std::iter::once(enforced).chain(shadows)
}

/// Takes note of what became of a record, which may change what the decision comes to.
fn note(opening: &Opening, opened: Opened, ask: &Ask, told: &mut Told) {
    match opened {
        Opened::Repeated => told.admit(),
        Opened::Conflict | Opened::Ended(_) => {
            told.tiers.iter_mut().for_each(|tier| tier.fits = false);
        }
        Opened::New | Opened::Refused | Opened::Full => {}
    }
    // Another policy may have parted the tiers otherwise when the record was made.
    let is_known = opened == Opened::New;
    opening
        .note(opened, || if is_known { Group::of(&ask.tiers) } else { Group::unread(&ask.tiers) });
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
    Ok(Closed::Told(match word {
        0 => Answer::Told(Outcome::Done),
        1 => Answer::Told(Outcome::Repeated),
        2 => Answer::Told(Outcome::Expired),
        3 => Answer::Told(Outcome::Unknown),
        4 => Answer::EndedOtherwise,
        5 => return Ok(Closed::OtherTiers),
        _ => return Err(not_ours()),
    }))
}

/// How many integers a decision, or a crowd of it, is answered with.
fn width(ask: &Ask, times: u32) -> usize {
    let alone = |tier: &AskTier| 1 + reply_width(tier.numbers());
    if is_crowd(ask, times) {
        return groups(ask).count() + 2 * ask.tiers.iter().map(alone).sum::<usize>();
    }
    let of_record = match &ask.record {
        AtRecord::None => 0,
        AtRecord::Open(_) => 1,
        AtRecord::Close(_) => return 1,
    };
    let of_tier = |tier: &AskTier| {
        let tier_alone = alone(tier);
        let owed = if tier.owed > 0 { tier_alone } else { 0 };
        let receipt = match tier.limit.algorithm() {
            _ if !has_receipt(ask, tier) => 0,
            Algorithm::TokenBucket => 2,
            _ => 1,
        };
        owed + tier_alone + receipt
    };
    of_record + ask.tiers.iter().map(of_tier).sum::<usize>()
}

fn reply_width(numbers: &Numbers) -> usize {
    match numbers {
        Numbers::TokenBucket(_) => token_bucket::REPLY_WIDTH,
        Numbers::FixedWindow(_) => fixed_window::REPLY_WIDTH,
        Numbers::SlidingLog(_) => sliding_log::REPLY_WIDTH,
        Numbers::SlidingWindow(_) => sliding_window::REPLY_WIDTH,
        Numbers::Concurrency(_) => concurrency::REPLY_WIDTH,
    }
}

/// A slot always has a receipt: nothing else could release it.
fn has_receipt(ask: &Ask, tier: &AskTier) -> bool {
    matches!(ask.intent, Intent::Reserve { .. }) || tier.limit.algorithm() == Algorithm::Concurrency
}

/// The numbers for people, out of as many integers as the algorithm replies, once `since` more is used.
fn reading(
    numbers: &Numbers,
    rest: &mut &[i64],
    cost: u64,
    since: u64,
) -> Result<Reading, StoreError> {
    // What a tier holds ends far below.
    let since = since.cast_signed();
    Ok(match numbers {
        Numbers::TokenBucket(numbers) => {
            let [used, drained, gone_after_us] = take::<{ token_bucket::REPLY_WIDTH }>(rest)?;
            numbers.reading(&[used + since, drained, gone_after_us], cost)
        }
        Numbers::FixedWindow(numbers) => {
            let [used, left_us] = take::<{ fixed_window::REPLY_WIDTH }>(rest)?;
            numbers.reading(&[used + since, left_us], cost)
        }
        Numbers::SlidingLog(numbers) => {
            let [used, retry_us, reset_us] = take::<{ sliding_log::REPLY_WIDTH }>(rest)?;
            numbers.reading(&[used + since, retry_us, reset_us], cost)
        }
        Numbers::SlidingWindow(numbers) => {
            let [prev, curr, elapsed_us, period_us] =
                take::<{ sliding_window::REPLY_WIDTH }>(rest)?;
            numbers.reading(&[prev, curr + since, elapsed_us, period_us], cost)
        }
        Numbers::Concurrency(numbers) => {
            numbers.reading(&take::<{ concurrency::REPLY_WIDTH }>(rest)?, cost)
        }
    })
}

fn take<const N: usize>(rest: &mut &[i64]) -> Result<[i64; N], StoreError> {
    let Some((taken, left)) = rest.split_first_chunk::<N>() else {
        return Err(StoreError::Foreign("the script answered too little".into()));
    };
    *rest = left;
    Ok(*taken)
}

fn not_ours() -> StoreError {
    StoreError::Foreign("a value under one of our keys is none that we wrote".into())
}

/// Where the first decision begins: behind the instant.
pub(super) const FIRST: usize = 1;
const OUTSIDE: i64 = -2;
const GUARDED: i64 = -3;
