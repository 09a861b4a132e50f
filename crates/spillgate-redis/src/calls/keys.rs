//! The names of keys in the store: `sg3:{tag}:id`, without any byte of a request. The number is [`SCHEMA`].
//!
//! Heartbeats, guards and runtime changes keep the prefix `sg1:`, so that instances of different schemas find
//! each other there.

use crate::limit::{NamedLimit, RecordName};
use crate::subject::SubjectKey;

/// Returns the key of the value with the small states of all limits of one rule and subject.
pub fn value(key: SubjectKey) -> Vec<u8> {
    let mut name = Vec::with_capacity(KEY_LENGTH);
    name.extend_from_slice(PREFIX);
    base64url(key.tag, &mut name);
    name.extend_from_slice(b"}:");
    base64url(key.id, &mut name);
    name
}

/// Returns the text between the braces of a tag's keys.
pub fn tag_name(tag: u128) -> Vec<u8> {
    let mut name = Vec::with_capacity(22);
    base64url(tag, &mut name);
    name
}

/// Returns the key of a log or of permits, which are stored apart; the other algorithms have none.
pub fn own(key: SubjectKey, limit: &NamedLimit) -> Option<Vec<u8>> {
    let letter = limit.algorithm().profile().own_key?;
    let mut name = value(key);
    name.extend_from_slice(&[b':', letter]);
    match limit.record() {
        RecordName::Position(position) => name.extend_from_slice(position.to_string().as_bytes()),
        RecordName::Given(hash) => {
            name.push(b':');
            base64url(u128::from(u64::from_le_bytes(hash)), &mut name);
        }
    }
    Some(name)
}

/// Returns the key of a reservation's record.
pub fn record(tag: u128, id: u128) -> Vec<u8> {
    let mut name = Vec::with_capacity(KEY_LENGTH + 2);
    name.extend_from_slice(PREFIX);
    base64url(tag, &mut name);
    name.extend_from_slice(b"}:r:");
    base64url(id, &mut name);
    name
}

/// Returns the key that ties a reservation's id to its request. It is not stored beside a counter, because
/// another request under the same id may have other counters.
pub fn named(id: u128) -> Vec<u8> {
    let mut name = Vec::with_capacity(KEY_LENGTH);
    name.extend_from_slice(PREFIX);
    base64url(id, &mut name);
    name.extend_from_slice(b"}:i");
    name
}

/// Returns the key of the leases on a counter, beside its value.
pub fn ledger(key: SubjectKey, limit: &NamedLimit) -> Vec<u8> {
    let mut name = value(key);
    name.extend_from_slice(b":e:");
    base64url(limit.mix(), &mut name);
    name
}

/// Returns every key that a subject's limits may have.
pub fn all_of(key: SubjectKey, limits: &[NamedLimit]) -> Vec<Vec<u8>> {
    std::iter::once(value(key)).chain(limits.iter().filter_map(|limit| own(key, limit))).collect()
}

/// Encodes 128 bits in 22 characters.
fn base64url(bits: u128, out: &mut Vec<u8>) {
    const LETTERS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
    out.extend((0..22).map(|digit| LETTERS[(bits >> (6 * digit)) as usize & 63]));
}

/// The version of the key names and of the records under them; the prefix of the names carries it.
///
/// Raise both if an instance of this version cannot share counters with one of the version before. Heartbeats
/// carry the number, and each side warns about the other.
pub const SCHEMA: u32 = 3;
const PREFIX: &[u8] = b"sg3:{";
/// The tag of keys on a server of its own, where any tag will do.
pub const ANY_TAG: &str = "control";
/// `sg3:{`, 22 characters, `}:`, 22 characters.
const KEY_LENGTH: usize = 51;
