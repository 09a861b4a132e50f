//! What `check.lua` is told, and what it answers. The layout is documented at the head of that file.

use ::redis::{Cmd, Value};
use smallvec::SmallVec;

use super::guard::Expected;
use super::{keys, script};
use crate::algorithm::{
    Charge, GiveBack, Intent, Numbers, Reading, concurrency, fixed_window, sliding_log,
    sliding_window, token_bucket,
};
use crate::engine::{Ask, AskTier, Change, StoreError, Told, ToldTier};
use crate::limit::{Algorithm, NamedLimit, RecordName};
use crate::subject::SubjectKey;

/// What goes before the limits of every call.
#[derive(Clone, Copy, Debug)]
pub(super) struct Header {
    /// The instant to decide at; 0: the store's own time.
    pub(super) given_us: u64,
    /// Where the store's time is thought to be, for calendar windows.
    pub(super) estimate_us: u64,
    /// Names what begins in this call.
    pub(super) nonce: u64,
}

/// One call of the script.
#[derive(Debug)]
pub(super) struct Call<'a> {
    header: Header,
    subjects: Vec<(SubjectKey, u64)>,
    /// Each with where it begins in the program.
    limits: Vec<(&'a NamedLimit, &'a Numbers, u64)>,
    limit_words: Msgpack,
    keys: Vec<Vec<u8>>,
    decisions: Vec<u64>,
    nonce: Option<u64>,
    guard: Option<Expected>,
}

/// The integers that came back.
#[derive(Debug)]
pub(super) struct Reply(Vec<i64>);

impl<'a> Call<'a> {
    pub(super) fn new(header: Header) -> Call<'a> {
        Call {
            header,
            subjects: Vec::new(),
            limits: Vec::new(),
            limit_words: Msgpack::default(),
            keys: Vec::new(),
            decisions: Vec::new(),
            nonce: None,
            guard: None,
        }
    }

    /// The same call, to be executed only where the shard's guard is the expected one.
    pub(super) fn guarded(self, guard: Option<Expected>) -> Call<'a> {
        Call { guard, ..self }
    }

    /// How many of `asks`, at least one, go into one call: as many as the script takes, and no two
    /// that ask one tier with different numbers, for the script loads each tier once.
    pub(super) fn capacity_for(asks: &[Ask<'_>]) -> usize {
        let mut tiers: Vec<&AskTier<'_>> = Vec::new();
        for (place, ask) in asks.iter().enumerate() {
            let clash = |tier: &AskTier<'_>| {
                tiers.iter().any(|known| {
                    known.key == tier.key
                        && known.limit.mix() == tier.limit.mix()
                        && known.numbers != tier.numbers
                })
            };
            if place > 0
                && (tiers.len() + ask.tiers.len() > TIERS_MAX || ask.tiers.iter().any(clash))
            {
                return place;
            }
            tiers.extend(&ask.tiers);
        }
        asks.len()
    }

    /// What is owed is charged first, by force.
    pub(super) fn decision(&mut self, ask: &Ask<'a>) {
        for tier in ask.tiers.iter().filter(|tier| tier.owed > 0) {
            self.change(tier, Change::Force(tier.owed));
        }
        let operation = match ask.intent {
            Intent::Charge => CHARGE,
            Intent::Reserve { nonce } => {
                self.nonce.get_or_insert(nonce);
                RESERVE
            }
            Intent::Peek => PEEK,
        };
        self.decisions.push(operation);
        let enforced = ask.tiers.iter().take_while(|tier| tier.group == 0).count();
        let (enforced, mut shadows) = ask.tiers.split_at(enforced);
        self.group(enforced);
        let count = self.decisions.len();
        self.decisions.push(0);
        while let Some(first) = shadows.first() {
            let length = shadows.iter().take_while(|tier| tier.group == first.group).count();
            let (group, rest) = shadows.split_at(length);
            self.group(group);
            self.decisions[count] += 1;
            shadows = rest;
        }
    }

    pub(super) fn change(&mut self, tier: &AskTier<'a>, change: Change) {
        let operation = match change {
            Change::Force(_) => FORCE,
            Change::GiveBack(GiveBack::Unused { .. }) => GIVE_BACK,
            Change::GiveBack(GiveBack::Amount(_)) => LOWER,
        };
        self.decisions.push(operation);
        self.place(tier);
        match change {
            Change::Force(amount) | Change::GiveBack(GiveBack::Amount(amount)) => {
                self.decisions.push(amount.min(AMOUNT_MAX));
            }
            Change::GiveBack(GiveBack::Unused { charge, unused }) => {
                let Charge { incarnation, at_us, amount, slot } = charge;
                self.decisions.extend([incarnation, at_us, amount, slot, unused.min(amount)]);
            }
        }
    }

    /// The command that runs this call by `name`: EVALSHA of a script's hash, or EVAL of its text.
    pub(super) fn command(&self, name: &str, script: &str, program: &[u8]) -> Cmd {
        let mut command = ::redis::cmd(name);
        command.arg(script).arg(self.keys.len() + usize::from(self.guard.is_some()));
        self.keys.iter().for_each(|key| {
            command.arg(&key[..]);
        });
        match &self.guard {
            None => command.arg(program),
            Some(guard) => {
                command.arg(guard.key()).arg(program);
                guard.tell(&mut command);
                &mut command
            }
        };
        command
    }

    /// The program, as one msgpack array.
    pub(super) fn encoded(&self) -> Vec<u8> {
        let nonce = self.nonce.unwrap_or(self.header.nonce);
        let decisions_at = LIMITS_AT + u64::from(self.limit_words.elements);
        let mut words = Msgpack::default();
        [self.header.given_us, nonce, decisions_at].iter().for_each(|word| words.number(*word));
        words.append(&self.limit_words);
        self.decisions.iter().for_each(|word| words.number(*word));
        words.finish()
    }

    fn group(&mut self, tiers: &[AskTier<'a>]) {
        self.decisions.push(tiers.len() as u64);
        for tier in tiers {
            self.place(tier);
            self.decisions.push(tier.cost);
        }
    }

    /// The tier's key, own key and limit.
    fn place(&mut self, tier: &AskTier<'a>) {
        let value = match self.subjects.iter().find(|(known, _)| *known == tier.key) {
            Some((_, value)) => *value,
            None => {
                let value = self.add_key(keys::value(tier.key));
                self.subjects.push((tier.key, value));
                value
            }
        };
        let own = match keys::own(tier.key, tier.limit) {
            None => 0,
            Some(own) => match self.keys.iter().position(|known| *known == own) {
                Some(place) => place as u64 + 1,
                None => self.add_key(own),
            },
        };
        let limit = self.limit(tier);
        self.decisions.extend([value, own, limit]);
    }

    fn add_key(&mut self, key: Vec<u8>) -> u64 {
        self.keys.push(key);
        self.keys.len() as u64
    }

    /// Where the tier's limit begins in the program.
    fn limit(&mut self, tier: &AskTier<'a>) -> u64 {
        let same = |(limit, numbers, _): &&(&NamedLimit, &Numbers, u64)| {
            std::ptr::eq(*numbers, tier.numbers)
                || (limit.mix() == tier.limit.mix() && *numbers == tier.numbers)
        };
        if let Some((_, _, at)) = self.limits.iter().find(same) {
            return *at;
        }
        let at = LIMITS_AT + u64::from(self.limit_words.elements);
        self.limits.push((tier.limit, tier.numbers, at));
        let words = &mut self.limit_words;
        words.number(u64::from(script::number(tier.limit.algorithm())));
        match tier.limit.record() {
            RecordName::Position(position) => {
                words.number(u64::from(position));
                words.number(0);
            }
            RecordName::Given(name) => {
                words.number(NAMED);
                words.bytes(&name);
            }
        }
        let mut numbers = Vec::new();
        tier.numbers.words(&mut numbers, self.header.estimate_us);
        numbers.iter().for_each(|word| words.number(*word));
        at
    }
}

impl Reply {
    /// What the script answered, or what is wrong with that.
    pub(super) fn of(answer: Value) -> Result<Reply, String> {
        let Value::Array(values) = answer else {
            return Err("the script answered no list".into());
        };
        let integers = values.into_iter().map(|value| match value {
            Value::Int(integer) => Ok(integer),
            other => Err(format!("the script answered {other:?}")),
        });
        integers.collect::<Result<_, _>>().map(Reply)
    }

    /// The instant that was decided at.
    pub(super) fn now_us(&self) -> u64 {
        self.0.first().map_or(0, |now| now.max(&0).cast_unsigned())
    }

    /// Whether nothing was executed, for want of a window that holds that instant.
    pub(super) fn outside(&self) -> bool {
        self.0.get(1) == Some(&OUTSIDE)
    }

    /// Whether nothing was executed, for the shard's guard is another.
    pub(super) fn guarded_otherwise(&self) -> bool {
        self.0.get(1) == Some(&GUARDED)
    }

    pub(super) fn told(
        &self,
        asks: &[Ask<'_>],
    ) -> Result<Vec<Result<Told, StoreError>>, StoreError> {
        let mut rest = self.0.get(1..).unwrap_or_default();
        let mut told = Vec::with_capacity(asks.len());
        for ask in asks {
            let mut tiers = SmallVec::new();
            let mut foreign = false;
            for tier in ask.tiers.iter().filter(|tier| tier.owed > 0) {
                self.tier(&mut rest, tier, false)?;
            }
            for tier in &ask.tiers {
                // A slot always has a receipt: nothing else could release it.
                let reserved = matches!(ask.intent, Intent::Reserve { .. })
                    || tier.limit.algorithm() == Algorithm::Concurrency;
                let (mut tier, ours) = self.tier(&mut rest, tier, reserved)?;
                if tier.fits {
                    // The charge may have used the room up; whoever was let in waits for nothing.
                    tier.reading.retry_after_us = Some(0);
                }
                tiers.push(tier);
                foreign |= !ours;
            }
            let enforced = ask.tiers.iter().zip(&tiers).filter(|(asked, _)| asked.group == 0);
            let allowed = enforced.fold(true, |all, (_, tier): (_, &ToldTier)| all && tier.fits);
            told.push(if foreign { Err(not_ours()) } else { Ok(Told { allowed, tiers }) });
        }
        Ok(told)
    }

    /// What came back of each change, and the tiers as they are then.
    pub(super) fn changed<'t>(
        &self,
        changes: impl IntoIterator<Item = (&'t AskTier<'t>, Change)>,
    ) -> Result<Vec<(u64, ToldTier)>, StoreError> {
        let mut rest = self.0.get(1..).unwrap_or_default();
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
            charge = (incarnation != 0).then(|| Charge {
                incarnation: incarnation.cast_unsigned(),
                at_us: self.now_us(),
                amount: asked.cost,
                slot: if asked.limit.algorithm() == Algorithm::Concurrency { place } else { 0 },
            });
        }
        Ok((ToldTier { fits: fits == 1, reading, charge }, fits >= 0))
    }
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

/// One msgpack array of numbers and short byte strings.
#[derive(Debug, Default)]
struct Msgpack {
    elements: u32,
    bytes: Vec<u8>,
}

impl Msgpack {
    fn number(&mut self, number: u64) {
        self.elements += 1;
        match number {
            0..=0x7f => self.bytes.push(number as u8),
            0x80..=0xffff => {
                self.bytes.push(0xcd);
                self.bytes.extend((number as u16).to_be_bytes());
            }
            0x1_0000..=0xffff_ffff => {
                self.bytes.push(0xce);
                self.bytes.extend((number as u32).to_be_bytes());
            }
            _ => {
                self.bytes.push(0xcf);
                self.bytes.extend(number.to_be_bytes());
            }
        }
    }

    fn bytes(&mut self, bytes: &[u8; 8]) {
        self.elements += 1;
        self.bytes.push(0xa0 | bytes.len() as u8);
        self.bytes.extend(bytes);
    }

    fn append(&mut self, other: &Msgpack) {
        self.elements += other.elements;
        self.bytes.extend(&other.bytes);
    }

    fn finish(self) -> Vec<u8> {
        let mut array = Vec::with_capacity(self.bytes.len() + 5);
        array.push(0xdd);
        array.extend(self.elements.to_be_bytes());
        array.extend(self.bytes);
        array
    }
}

/// One script call holds the server for its length: so many tiers are well below a millisecond.
const TIERS_MAX: usize = 128;
/// More than any tier holds, and exact in Lua.
const AMOUNT_MAX: u64 = 1 << 40;
/// Counted from 1: behind the instant, the nonce, and where decisions begin.
const LIMITS_AT: u64 = 4;
const CHARGE: u64 = 0;
const RESERVE: u64 = 1;
const PEEK: u64 = 2;
const FORCE: u64 = 3;
const GIVE_BACK: u64 = 4;
const LOWER: u64 = 5;
const NAMED: u64 = 15;
const OUTSIDE: i64 = -2;
const GUARDED: i64 = -3;
