//! The copies of what operators set while running, one on each shard: what is said to them, and what
//! they answer. What the entries mean is sealed, and not known here.

use std::time::Duration;

use ::redis::{Cmd, Value};

use super::{Redis, ShardTag};
use crate::engine::StoreError;

/// An entry as a copy holds it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredEntry {
    /// Its name.
    pub id: u128,
    /// When it was written.
    pub time_us: u64,
    /// What tells two writings of one instant apart; below 2^53.
    pub random: u64,
    /// When nobody needs to know of it any more; 0: never.
    pub forget_at_us: u64,
    /// What it says.
    pub sealed: Vec<u8>,
}

/// What one copy is told and asked.
#[derive(Clone, Debug, Default)]
pub struct Exchange {
    /// The version of the copy that was seen last; empty: none.
    pub seen: Vec<u8>,
    /// Random, below 2^53: names the copy, should it begin now.
    pub epoch: u64,
    /// How many entries it may hold.
    pub entries_max: usize,
    /// What it is to know.
    pub reply: Vec<StoredEntry>,
    /// What it is to forget, if it is time by its own clock.
    pub forgotten: Vec<u128>,
}

/// What one copy answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Exchanged {
    /// The store's time.
    pub now_us: u64,
    /// Its version now; empty: there is no copy.
    pub version: Vec<u8>,
    /// How many entries found no room.
    pub refused: u64,
    /// What was not in the version seen.
    pub unseen: Vec<StoredEntry>,
}

impl Redis {
    /// The version of each shard's copy; empty: there is none.
    pub(crate) async fn copy_versions(&self) -> Vec<(String, Result<Vec<u8>, StoreError>)> {
        let answers = self.on_each_shard(LOOK, |location| Some(version_of(location))).await;
        let version = |value| match value {
            Value::BulkString(version) => Ok(version),
            Value::Nil => Ok(Vec::new()),
            other => Err(StoreError::Foreign(format!("a copy's version is {other:?}"))),
        };
        answers.into_iter().map(|(name, answer)| (name, answer.and_then(version))).collect()
    }

    /// Tells and asks each shard's copy what `exchange` says for it, if anything.
    pub(crate) async fn exchange(
        &self,
        exchange: impl Fn(&str) -> Option<Exchange>,
    ) -> Vec<(String, Result<Exchanged, StoreError>)> {
        let command = |location: &ShardTag| Some(exchange(&location.name)?.command(location));
        let answers = self.on_each_shard(TIMEOUT, command).await;
        answers.into_iter().map(|(name, answer)| (name, answer.and_then(Exchanged::of))).collect()
    }
}

impl Exchange {
    /// The call that this is.
    pub fn command(&self, location: &ShardTag) -> Cmd {
        let mut command = ::redis::cmd("EVAL");
        command.arg(SCRIPT).arg(2).arg(&keys(location));
        command.arg(&self.seen).arg(self.epoch).arg(self.entries_max).arg(self.reply.len());
        for entry in &self.reply {
            command.arg(&entry.id.to_be_bytes()[..]).arg(entry.value());
        }
        self.forgotten.iter().for_each(|id| {
            command.arg(&id.to_be_bytes()[..]);
        });
        command
    }
}

impl Exchanged {
    /// What an answer of the script says.
    pub fn of(answer: Value) -> Result<Exchanged, StoreError> {
        let foreign =
            || StoreError::Foreign("a copy of what is set answered something else".into());
        let Value::Array(parts) = answer else { return Err(foreign()) };
        let ([seconds, us, version, refused], entries) =
            parts.split_first_chunk().ok_or_else(foreign)?;
        let (Value::BulkString(version), Value::Int(refused)) = (version, refused) else {
            return Err(foreign());
        };
        let mut unseen = Vec::with_capacity(entries.len() / 2);
        for entry in entries.chunks(2) {
            unseen.push(StoredEntry::read(entry).ok_or_else(foreign)?);
        }
        let number = |value: &Value| match value {
            Value::BulkString(digits) => std::str::from_utf8(digits).ok()?.parse::<u64>().ok(),
            _ => None,
        };
        let now_us = || number(seconds)?.checked_mul(1_000_000)?.checked_add(number(us)?);
        let now_us = now_us().ok_or_else(foreign)?;
        let (version, refused) = (version.clone(), refused.max(&0).cast_unsigned());
        Ok(Exchanged { now_us, version, refused, unseen })
    }
}

impl StoredEntry {
    fn value(&self) -> Vec<u8> {
        let params = [self.time_us, self.random, self.forget_at_us].map(u64::to_be_bytes);
        [params.as_flattened(), &self.sealed].concat()
    }

    fn read(pair: &[Value]) -> Option<StoredEntry> {
        let [Value::BulkString(id), Value::BulkString(value)] = pair else { return None };
        let id = u128::from_be_bytes(id.as_slice().try_into().ok()?);
        let (time_us, rest) = value.split_first_chunk()?;
        let (random, rest) = rest.split_first_chunk()?;
        let (forget_at_us, sealed) = rest.split_first_chunk()?;
        let [time_us, random, forget_at_us] =
            [time_us, random, forget_at_us].map(|number| u64::from_be_bytes(*number));
        Some(StoredEntry { id, time_us, random, forget_at_us, sealed: sealed.into() })
    }
}

fn version_of(location: &ShardTag) -> Cmd {
    let [entries, _] = keys(location);
    let mut command = ::redis::cmd("HGET");
    command.arg(entries).arg("v");
    command
}

/// The keys of the copy: its entries, and their revisions.
fn keys(location: &ShardTag) -> [String; 2] {
    [format!("sg1:{{{}}}:c", location.tag), format!("sg1:{{{}}}:r", location.tag)]
}

/// A look that is lost, and the next one, fit into the second within which what is set holds everywhere.
const LOOK: Duration = Duration::from_millis(400);
/// An operator can wait, and a copy of thousands of entries is some megabytes.
const TIMEOUT: Duration = Duration::from_secs(1);
/// Sent whole each time: it runs when something changes, and whatever forgets scripts cannot matter.
const SCRIPT: &str = include_str!("control.lua");
