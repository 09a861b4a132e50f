//! Exchanges runtime changes with their copies, one on each shard. The entries are sealed: their content is
//! unknown here.

use std::time::Duration;

use ::redis::{Cmd, Value};

use super::heartbeat::Member;
use crate::connecting::topology::ShardTag;
use crate::error::StoreError;

/// An entry in a copy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredEntry {
    /// The entry's id.
    pub id: u128,
    /// When it was written.
    pub time_us: u64,
    /// Distinguishes two entries written at the same instant; below 2^53.
    pub random: u64,
    /// When the entry may be deleted; 0 means never.
    pub forget_at_us: u64,
    /// The sealed content.
    pub sealed: Vec<u8>,
}

/// The input of an exchange with one copy.
#[derive(Clone, Debug, Default)]
pub struct Exchange {
    /// The version of the copy that was seen last; empty if none was.
    pub seen: Vec<u8>,
    /// Names the copy if it begins now: random, below 2^53.
    pub epoch: u64,
    /// The most entries that the copy may hold.
    pub entries_max: usize,
    /// How long an entry is kept after its end while there is room.
    pub kept_us: u64,
    /// Entries to write.
    pub entries: Vec<StoredEntry>,
    /// Entries to delete, if they have ended by the copy's clock.
    pub forgotten: Vec<u128>,
}

/// The result of an exchange with one copy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Exchanged {
    /// The store's time of the exchange.
    pub now_us: u64,
    /// The version of the copy now; empty if there is none.
    pub version: Vec<u8>,
    /// How many entries did not fit.
    pub refused: u64,
    /// Entries that are newer than the version seen.
    pub unseen: Vec<StoredEntry>,
}

impl Member<'_> {
    /// Reads the version of each shard's copy; empty if there is none.
    pub async fn copy_versions(&self) -> Vec<(String, Result<Vec<u8>, StoreError>)> {
        let answers = self.topology.on_each_shard(LOOK, |shard| Some(version_of(shard))).await;
        let version = |value| match value {
            Value::BulkString(version) => Ok(version),
            Value::Nil => Ok(Vec::new()),
            other => Err(StoreError::Foreign(
                format!("the version of a copy of runtime changes is {other:?}").into(),
            )),
        };
        answers.into_iter().map(|(name, answer)| (name, answer.and_then(version))).collect()
    }

    /// Runs an exchange with each shard for which `exchange` returns one.
    pub async fn exchange(
        &self,
        exchange: impl Fn(&str) -> Option<Exchange>,
    ) -> Vec<(String, Result<Exchanged, StoreError>)> {
        let command = |tag: &ShardTag| Some(exchange(&tag.name)?.command(tag));
        let answers = self.topology.on_each_shard(TIMEOUT, command).await;
        answers.into_iter().map(|(name, answer)| (name, answer.and_then(Exchanged::read))).collect()
    }
}

impl Exchange {
    /// Builds the call of this exchange.
    pub fn command(&self, shard: &ShardTag) -> Cmd {
        let mut command = ::redis::cmd("EVAL");
        command.arg(SCRIPT).arg(2).arg(&keys(shard));
        command.arg(&self.seen).arg(self.epoch).arg(self.entries_max);
        command.arg(self.kept_us).arg(self.entries.len());
        for entry in &self.entries {
            command.arg(&entry.id.to_be_bytes()[..]).arg(entry.value());
        }
        self.forgotten.iter().for_each(|id| {
            command.arg(&id.to_be_bytes()[..]);
        });
        command
    }
}

impl Exchanged {
    /// Parses the reply of the script.
    pub fn read(answer: Value) -> Result<Exchanged, StoreError> {
        let foreign =
            || StoreError::Foreign("a copy of runtime changes returned a malformed reply".into());
        let Value::Array(parts) = answer else { return Err(foreign()) };
        // Pairs of id and value follow the header.
        let ([Value::Int(now_us), Value::BulkString(version), Value::Int(refused)], entries) =
            parts.split_first_chunk().ok_or_else(foreign)?
        else {
            return Err(foreign());
        };
        let mut unseen = Vec::with_capacity(entries.len() / 2);
        for entry in entries.chunks(2) {
            unseen.push(StoredEntry::read(entry).ok_or_else(foreign)?);
        }
        let [now_us, refused] = [now_us, refused].map(|number| number.max(&0).cast_unsigned());
        Ok(Exchanged { now_us, version: version.clone(), refused, unseen })
    }
}

impl StoredEntry {
    fn value(&self) -> Vec<u8> {
        let numbers = [self.time_us, self.random, self.forget_at_us].map(u64::to_be_bytes);
        [numbers.as_flattened(), &self.sealed].concat()
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

fn version_of(shard: &ShardTag) -> Cmd {
    let [entries, _] = keys(shard);
    let mut command = ::redis::cmd("HGET");
    command.arg(entries).arg("v");
    command
}

/// Returns the keys of a copy: its entries, and their revisions.
fn keys(shard: &ShardTag) -> [String; 2] {
    [format!("sg1:{{{}}}:c", shard.tag), format!("sg1:{{{}}}:r", shard.tag)]
}

/// The time limit of a version check. A lost one and the next fit the second in which a change reaches every instance.
const LOOK: Duration = Duration::from_millis(400);
/// The time limit of an exchange. A copy of thousands of entries is some megabytes, and an operator can wait.
const TIMEOUT: Duration = Duration::from_secs(1);
/// Sent whole each time: it runs only when something changes, and then a flush of scripts does not matter.
const SCRIPT: &str = include_str!("../lua/control.lua");
