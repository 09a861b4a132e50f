//! Exchanges runtime changes with the fleet's record, which has them once. The entries are sealed: their
//! content is unknown here.

use ::redis::Value;

use super::Call;
use crate::error::StoreError;

/// An entry in the record.
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

/// The input of an exchange with the record.
#[derive(Clone, Debug, Default)]
pub struct Exchange {
    /// The version of the changes that was seen last; empty to read all of them.
    pub seen: Vec<u8>,
    /// Names what is written now: random, below 2^53.
    pub nonce: u64,
    /// The most entries that the record may hold.
    pub entries_max: usize,
    /// How long an entry is kept after its end while there is room.
    pub kept_us: u64,
    /// Entries to write.
    pub entries: Vec<StoredEntry>,
    /// Entries to delete, if they have ended by the store's clock.
    pub forgotten: Vec<u128>,
}

/// The result of an exchange with the record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Exchanged {
    /// The store's time of the exchange.
    pub now_us: u64,
    /// The version that is seen now: of all changes, or only up to the last of `unseen` if there are more. Empty if
    /// there are none.
    pub version: Vec<u8>,
    /// How many entries did not fit.
    pub refused: u64,
    /// Whether `unseen` begins with the first entry: what the caller has seen before is lost or was not named.
    pub is_from_start: bool,
    /// Entries that are newer than the version seen, the oldest first.
    pub unseen: Vec<StoredEntry>,
}

impl Exchange {
    /// Returns the call of this exchange with the record that has a tag.
    pub fn call(&self, record: &str) -> Call {
        let keys = ["c", "r"].map(|part| format!("sg1:{{{record}}}:{part}"));
        let Exchange { seen, nonce, entries_max, kept_us, entries, forgotten } = self;
        let mut call = Call::new(&super::CHANGES, &keys).with(&seen[..]).with(*nonce);
        call = call.with(*entries_max).with(*kept_us).with(entries.len());
        for entry in entries {
            call = call.with(&entry.id.to_be_bytes()[..]).with(entry.value());
        }
        for id in forgotten {
            call = call.with(&id.to_be_bytes()[..]);
        }
        call
    }
}

impl Exchanged {
    /// Returns whether no entries follow those of this reply. The version has a nonce then.
    pub fn is_whole(&self) -> bool {
        self.version.last() != Some(&b':')
    }

    /// Parses the reply of the script.
    pub fn read(answer: Value) -> Result<Exchanged, StoreError> {
        let foreign = || {
            StoreError::Foreign("the record of runtime changes returned a malformed reply".into())
        };
        let Value::Array(parts) = answer else { return Err(foreign()) };
        // Pairs of id and value follow the header.
        let (head, entries) = parts.split_first_chunk().ok_or_else(foreign)?;
        let [
            Value::Int(now_us),
            Value::BulkString(version),
            Value::Int(refused),
            Value::Int(is_from_start),
        ] = head
        else {
            return Err(foreign());
        };
        let mut unseen = Vec::with_capacity(entries.len() / 2);
        // A field that is no entry must not keep the others away.
        unseen.extend(entries.chunks(2).filter_map(StoredEntry::read));
        let [now_us, refused] = [now_us, refused].map(|number| number.max(&0).cast_unsigned());
        let (version, is_from_start) = (version.clone(), *is_from_start == 1);
        Ok(Exchanged { now_us, version, refused, is_from_start, unseen })
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
