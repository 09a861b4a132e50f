//! Adds denials to the fleet's record, which has one hash an hour, and reads them. Rule, limit and subject are
//! sealed: they are unknown here.

use std::ops::RangeInclusive;

use ::redis::Value;

use super::Call;
use crate::error::StoreError;

/// The denials of one subject at one limit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredDenials {
    /// The keyed hash of rule, limit and subject.
    pub field: u64,
    /// How many requests were denied.
    pub denied: u32,
    /// About how many were allowed in the same minutes; [`ALLOWED_UNKNOWN`] if unknown or too large.
    pub allowed: u32,
    /// The minutes of the hour in which they were, the first in the lowest of 60 bits.
    pub minutes: u64,
    /// The code of the last reason.
    pub reason: u8,
    /// Rule, limit and subject, sealed.
    pub sealed: Vec<u8>,
}

/// A part of the denials that one instance counted in one minute.
#[derive(Clone, Debug, Default)]
pub struct DenialsOfMinute {
    /// The minute, since 1970-01-01 00:00 UTC.
    pub minute: u64,
    /// The number of this part of the minute, below [`PARTS_MAX`]. Parts are written in order.
    pub part: u64,
    /// The denials that are not among the subjects.
    pub others: u64,
    /// The subjects of this part. Their minutes have no effect.
    pub subjects: Vec<StoredDenials>,
}

/// What the record has of one hour, or some of it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DenialsOfHour {
    /// The hour, since 1970-01-01 00:00 UTC.
    pub hour: u64,
    /// The denials that are not counted by subject, if they were read.
    pub others: Option<u64>,
    /// The subjects that were read.
    pub subjects: Vec<StoredDenials>,
}

impl DenialsOfMinute {
    /// Returns the call that adds this part to the record that has a tag.
    pub(crate) fn call(&self, record: &str, instance: u64) -> Call {
        let DenialsOfMinute { minute, part, others, subjects } = self;
        let mut own = vec![b'i'];
        own.extend(instance.to_be_bytes());
        let keys = [key(record, minute / MINUTES)];
        let call = Call::new(&super::DENIALS, &keys).with(own).with(minute * PARTS_MAX + part);
        let mut call = call.with(minute % MINUTES).with(FIELDS_MAX).with(LIFE_MS).with(*others);
        for StoredDenials { field, denied, allowed, reason, sealed, .. } in subjects {
            call = call.with(&field.to_be_bytes()[..]).with(*denied).with(*allowed);
            call = call.with(*reason).with(&sealed[..]);
        }
        call
    }
}

impl DenialsOfHour {
    /// Returns the call that reads some fields of some hours.
    pub(crate) fn call(record: &str, hours: RangeInclusive<u64>, fields: &[u64]) -> Call {
        let keys: Vec<String> = hours.map(|hour| key(record, hour)).collect();
        let call = Call::new(&super::DENIALS_OF, &keys);
        fields.iter().fold(call, |call, field| call.with(&field.to_be_bytes()[..]))
    }

    /// Parses the reply to [`call`](Self::call).
    pub(crate) fn read(
        reply: Value,
        hours: RangeInclusive<u64>,
        fields: &[u64],
    ) -> Result<Vec<DenialsOfHour>, StoreError> {
        let Value::Array(lists) = reply else { return Err(foreign()) };
        let each = hours.zip(lists).map(|(hour, list)| {
            let Value::Array(values) = list else { return None };
            let (others, values) = values.split_first()?;
            let found = fields.iter().zip(values).filter(|(_, value)| **value != Value::Nil);
            let subjects = found.map(|(field, value)| StoredDenials::read(*field, value));
            let others = Some(number(others).unwrap_or(0));
            Some(DenialsOfHour { hour, others, subjects: subjects.collect::<Option<_>>()? })
        });
        each.collect::<Option<_>>().ok_or_else(foreign)
    }

    /// Returns the call that reads a page of one hour.
    pub(crate) fn page(record: &str, hour: u64, cursor: u64) -> Call {
        Call::new(&super::DENIALS_PAGE, &[key(record, hour)]).with(cursor).with(PAGE)
    }

    /// Parses the reply to [`page`](Self::page), and returns where the next page begins; 0 after the last.
    pub(crate) fn read_page(reply: Value, hour: u64) -> Result<(u64, DenialsOfHour), StoreError> {
        let Value::Array(parts) = reply else { return Err(foreign()) };
        let [cursor, Value::Array(pairs)] = &parts[..] else { return Err(foreign()) };
        let mut page = DenialsOfHour { hour, ..DenialsOfHour::default() };
        for pair in pairs.chunks_exact(2) {
            let [Value::BulkString(field), value] = pair else { return Err(foreign()) };
            if let Ok(field) = field.as_slice().try_into() {
                let field = u64::from_be_bytes(field);
                page.subjects.push(StoredDenials::read(field, value).ok_or_else(foreign)?);
            } else if field == b"others" {
                page.others = number(value);
            }
        }
        Ok((number(cursor).ok_or_else(foreign)?, page))
    }
}

impl StoredDenials {
    fn read(field: u64, value: &Value) -> Option<StoredDenials> {
        let Value::BulkString(value) = value else { return None };
        let (denied, rest) = value.split_first_chunk()?;
        let (allowed, rest) = rest.split_first_chunk()?;
        let (late, rest) = rest.split_first_chunk()?;
        let (early, rest) = rest.split_first_chunk()?;
        let (reason, sealed) = rest.split_first()?;
        let [late, early] = [late, early].map(|word| u64::from(u32::from_be_bytes(*word)));
        Some(StoredDenials {
            field,
            denied: u32::from_be_bytes(*denied),
            allowed: u32::from_be_bytes(*allowed),
            minutes: late << (MINUTES / 2) | early,
            reason: *reason,
            sealed: sealed.into(),
        })
    }
}

fn key(record: &str, hour: u64) -> String {
    format!("sg1:{{{record}}}:d:{hour}")
}

fn number(value: &Value) -> Option<u64> {
    let Value::BulkString(digits) = value else { return None };
    std::str::from_utf8(digits).ok()?.parse().ok()
}

fn foreign() -> StoreError {
    StoreError::Foreign("the record of denials returned a malformed reply".into())
}

/// The count of allowed requests of a subject whose instances did not all sample them.
pub const ALLOWED_UNKNOWN: u32 = u32::MAX;
/// More parts than one minute of one instance has.
pub const PARTS_MAX: u64 = 32;
const MINUTES: u64 = 60;
/// The most fields of an hour.
const FIELDS_MAX: u64 = 10_000;
/// How long an hour is kept after it was last written.
const LIFE_MS: u64 = 48 * 3_600_000;
/// About how many fields one call reads, in less than 1 ms of the server's time.
const PAGE: u64 = 500;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn minutes_of_both_halves_of_an_hour_are_read_in_order() {
        let counts = [7u32.to_be_bytes(), 300u32.to_be_bytes()];
        let value = [counts.as_flattened(), &[0x20, 0, 0, 0], &[0, 0, 0, 2], &[3], b"sealed"];
        let read = StoredDenials::read(9, &Value::BulkString(value.concat())).unwrap();
        assert_eq!(read.minutes, 1 << 59 | 1 << 1);
        assert_eq!(
            (read.field, read.denied, read.allowed, read.reason, &read.sealed[..]),
            (9, 7, 300, 3, &b"sealed"[..])
        );
        assert_eq!(StoredDenials::read(9, &Value::BulkString(vec![0; 16])), None);
    }

    #[test]
    fn a_page_has_subjects_and_others_but_no_instances() {
        let bulk = |bytes: &[u8]| Value::BulkString(bytes.into());
        let pairs = vec![
            bulk(b"i12345678"),
            bulk(b"99"),
            bulk(b"others"),
            bulk(b"4"),
            bulk(&[0, 0, 0, 0, 0, 0, 0, 5]),
            bulk(&[0; 17]),
        ];
        let reply = Value::Array(vec![bulk(b"17"), Value::Array(pairs)]);
        let (next, page) = DenialsOfHour::read_page(reply, 3).unwrap();
        assert_eq!((next, page.hour, page.others), (17, 3, Some(4)));
        assert_eq!(page.subjects.iter().map(|it| it.field).collect::<Vec<_>>(), [5]);
    }
}
