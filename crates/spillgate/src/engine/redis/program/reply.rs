//! What `check.lua` answers.

use ::redis::Value;
use smallvec::SmallVec;

use crate::algorithm::{
    Charge, Intent, Numbers, Reading, concurrency, fixed_window, sliding_log, sliding_window,
    token_bucket,
};
use crate::engine::{Ask, AskTier, AtRecord, Change, StoreError, Told, ToldTier};
use crate::limit::{Algorithm, EXACT_MAX};
use crate::reservation::{Answer, Closed, Group, Opened, Opening, Outcome};

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

    /// What became of `asks`, which begin at `from`.
    pub(in super::super) fn told(
        &self,
        from: usize,
        asks: &[Ask<'_>],
    ) -> Result<Vec<Result<Told, StoreError>>, StoreError> {
        let mut rest = self.0.get(from..).unwrap_or_default();
        let mut told = Vec::with_capacity(asks.len());
        for ask in asks {
            let mut tiers = SmallVec::new();
            let mut foreign = false;
            for tier in ask.tiers.iter().filter(|tier| tier.owed > 0) {
                self.tier(&mut rest, tier, false)?;
            }
            if let AtRecord::Close(closing) = ask.record {
                closing.note(closed(take(&mut rest)?)?);
                told.push(Ok(Told { allowed: true, tiers }));
                continue;
            }
            let opened = match ask.record {
                AtRecord::Open(_) => Some(opened(take(&mut rest)?)?),
                AtRecord::None | AtRecord::Close(_) => None,
            };
            for tier in &ask.tiers {
                let (mut tier, ours) = self.tier(&mut rest, tier, has_receipt(ask, tier))?;
                if tier.fits {
                    // The charge may have used the room up; whoever was let in waits for nothing.
                    tier.reading.retry_after_us = Some(0);
                }
                tiers.push(tier);
                foreign |= !ours;
            }
            let enforced = ask.tiers.iter().zip(&tiers).filter(|(asked, _)| asked.group == 0);
            let allowed = enforced.fold(true, |all, (_, tier): (_, &ToldTier)| all && tier.fits);
            let mut one = Told { allowed, tiers };
            if let (AtRecord::Open(opening), Some(opened)) = (ask.record, opened) {
                note(opening, opened, ask, &mut one);
            }
            told.push(if foreign { Err(not_ours()) } else { Ok(one) });
        }
        Ok(told)
    }

    /// What came back of each change, and the tiers as they are then.
    pub(in super::super) fn changed<'t>(
        &self,
        changes: impl IntoIterator<Item = (&'t AskTier<'t>, Change)>,
    ) -> Result<Vec<(u64, ToldTier)>, StoreError> {
        let mut rest = self.0.get(FIRST..).unwrap_or_default();
        let mut changed = Vec::new();
        for (tier, change) in changes {
            let returned = match change {
                Change::Force(_) => 0,
                Change::GiveBack(_) => take::<1>(&mut rest)?[0].max(0).cast_unsigned(),
            };
            let peek = AskTier { cost: 1, ..*tier };
            let (told, ours) = self.tier(&mut rest, &peek, false)?;
            if !ours {
                return Err(not_ours());
            }
            changed.push((returned, told));
        }
        Ok(changed)
    }

    fn tier(
        &self,
        rest: &mut &[i64],
        asked: &AskTier<'_>,
        reserved: bool,
    ) -> Result<(ToldTier, bool), StoreError> {
        // A slot goes by the call's nonce and the place of its tier in the answer.
        let place = (self.0.len() - rest.len()) as u64 + 1;
        let [fits] = take::<1>(rest)?;
        let cost = asked.cost.max(1);
        let reading = reading(asked.numbers, rest, cost)?;
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
}

/// Takes note of what became of a record, which may change what the decision comes to.
fn note(opening: &Opening, opened: Opened, ask: &Ask<'_>, told: &mut Told) {
    match opened {
        Opened::Repeated => told.admit(),
        Opened::Conflict => told.tiers.iter_mut().for_each(|tier| tier.fits = false),
        Opened::New | Opened::Refused | Opened::Full => {}
    }
    opening.note(opened, || Group::of(ask));
}

fn opened([word]: [i64; 1]) -> Result<Opened, StoreError> {
    Ok(match word {
        0 => Opened::New,
        1 => Opened::Repeated,
        2 => Opened::Conflict,
        3 => Opened::Refused,
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

/// How many integers a decision is answered with.
pub(in super::super) fn width(ask: &Ask<'_>) -> usize {
    let of_record = match ask.record {
        AtRecord::None => 0,
        AtRecord::Open(_) => 1,
        AtRecord::Close(_) => return 1,
    };
    let of_tier = |tier: &AskTier<'_>| {
        let tier_alone = 1 + reply_width(tier.numbers);
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
fn has_receipt(ask: &Ask<'_>, tier: &AskTier<'_>) -> bool {
    matches!(ask.intent, Intent::Reserve { .. }) || tier.limit.algorithm() == Algorithm::Concurrency
}

/// The numbers for people, out of as many integers as the algorithm replies.
fn reading(numbers: &Numbers, rest: &mut &[i64], cost: u64) -> Result<Reading, StoreError> {
    Ok(match numbers {
        Numbers::TokenBucket(numbers) => {
            numbers.reading(&take::<{ token_bucket::REPLY_WIDTH }>(rest)?, cost)
        }
        Numbers::FixedWindow(numbers) => {
            numbers.reading(&take::<{ fixed_window::REPLY_WIDTH }>(rest)?, cost)
        }
        Numbers::SlidingLog(numbers) => {
            numbers.reading(&take::<{ sliding_log::REPLY_WIDTH }>(rest)?, cost)
        }
        Numbers::SlidingWindow(numbers) => {
            numbers.reading(&take::<{ sliding_window::REPLY_WIDTH }>(rest)?, cost)
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
pub(in super::super) const FIRST: usize = 1;
const OUTSIDE: i64 = -2;
const GUARDED: i64 = -3;
