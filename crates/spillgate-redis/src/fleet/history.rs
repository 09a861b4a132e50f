//! Adds what each instance decides to the history of the fleet, minute by minute, and reads it. The meaning of the numbers
//! is unknown here.

use ::redis::Value;

use super::Call;
use crate::error::StoreError;

/// The numbers of a minute that are not about one rule. Of several instances they are summed.
pub type Facts = [u32; 32];

/// The numbers of one rule in a minute.
pub type Counts = [u32; 8];

/// What one instance decided in one minute.
#[derive(Clone, Debug)]
pub struct MinuteOfInstance {
    /// The minute, since 1970-01-01 00:00 UTC.
    pub minute: u64,
    /// Those of this instance.
    pub facts: Facts,
    /// The counts of each rule. Those under an empty name are of all other rules. At most [`SLOTS`] have a name.
    pub rules: Vec<(String, Counts)>,
}

/// What the fleet decided in one hour.
#[derive(Clone, Debug, Default)]
pub struct HourOfFleet {
    counts: Vec<u8>,
    rules: Vec<(String, usize)>,
}

impl MinuteOfInstance {
    /// Returns the call that adds this minute to the record that has a tag.
    pub(crate) fn call(&self, record: &str, instance: u64) -> Call {
        let keys = ["", ":r", ":i"].map(|end| key(record, self.minute / MINUTES) + end);
        let call = Call::new(&super::HISTORY, &keys).with(format!("{instance:016x}"));
        let call =
            call.with(self.minute % MINUTES).with(LIFE_MS).with(SLOTS).with(bytes(&self.facts));
        let add =
            |call: Call, (rule, counts): &(String, Counts)| call.with(rule).with(bytes(counts));
        self.rules.iter().fold(call, add)
    }
}

impl HourOfFleet {
    /// Returns the call that reads an hour.
    pub(crate) fn call(record: &str, hour: u64) -> Call {
        let call = Call::new(&super::HISTORY_OF, &["", ":r"].map(|end| key(record, hour) + end));
        call.with(MINUTES * 4 * BLOCK as u64).with(SLOTS)
    }

    /// Parses the reply to [`call`](Self::call).
    pub(crate) fn read(reply: Value) -> Result<HourOfFleet, StoreError> {
        let foreign = || StoreError::Foreign("the history returned a malformed reply".into());
        let Value::Array(parts) = reply else { return Err(foreign()) };
        let Some((Value::BulkString(counts), rules)) = parts.split_first() else {
            return Err(foreign());
        };
        let rule = |pair: &[Value]| {
            let [Value::BulkString(name), Value::BulkString(slot)] = pair else { return None };
            let slot = std::str::from_utf8(slot).ok()?.parse().ok()?;
            Some((String::from_utf8_lossy(name).into_owned(), slot))
        };
        let rules = rules.chunks(2).map(rule).collect::<Option<_>>().ok_or_else(foreign)?;
        Ok(HourOfFleet { counts: counts.clone(), rules })
    }

    /// Returns the facts of a minute of the hour; all 0 if no instance has written it.
    pub fn facts(&self, minute: usize) -> Facts {
        self.numbers(minute * BLOCK)
    }

    /// Returns the counts of a slot in a minute of the hour. Slot 0 has all rules without a slot.
    pub fn counts(&self, minute: usize, slot: usize) -> Counts {
        if slot > SLOTS {
            [0; COUNTS]
        } else {
            self.numbers(minute * BLOCK + FACTS + slot * COUNTS)
        }
    }

    /// Returns the rules that have a slot, with their slots.
    pub fn rules(&self) -> impl Iterator<Item = (&str, usize)> {
        self.rules.iter().map(|(rule, slot)| (&**rule, *slot))
    }

    fn numbers<const N: usize>(&self, first: usize) -> [u32; N] {
        std::array::from_fn(|place| {
            let at = 4 * (first + place);
            let word = self.counts.get(at..at + 4).and_then(|bytes| bytes.try_into().ok());
            word.map_or(0, u32::from_be_bytes)
        })
    }
}

fn bytes(numbers: &[u32]) -> Vec<u8> {
    numbers.iter().flat_map(|number| number.to_be_bytes()).collect()
}

fn key(record: &str, hour: u64) -> String {
    format!("sg1:{{{record}}}:h:{hour}")
}

/// The rules of an hour that are counted by themselves.
pub const SLOTS: usize = 64;
const FACTS: usize = 32;
const COUNTS: usize = 8;
/// The numbers of a minute.
const BLOCK: usize = FACTS + (SLOTS + 1) * COUNTS;
const MINUTES: u64 = 60;
/// How long an hour is kept after it was last written.
const LIFE_MS: u64 = 49 * 3_600_000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_hour_has_the_numbers_of_each_minute_and_slot() {
        let mut numbers = vec![0; 2 * BLOCK];
        (numbers[BLOCK], numbers[BLOCK + FACTS + 3 * COUNTS + 1]) = (7, 8);
        let bulk = |bytes: &[u8]| Value::BulkString(bytes.into());
        let reply = vec![bulk(&bytes(&numbers)), bulk(b"api"), bulk(b"3")];
        let hour = HourOfFleet::read(Value::Array(reply)).unwrap();
        assert_eq!(hour.rules().collect::<Vec<_>>(), [("api", 3)]);
        assert_eq!((hour.facts(0)[0], hour.facts(1)[0], hour.facts(2)[0]), (0, 7, 0));
        assert_eq!((hour.counts(1, 3)[1], hour.counts(1, 4)), (8, [0; COUNTS]));
        // Another writer of the store can give a rule any slot, and the string any length.
        assert_eq!((hour.counts(0, SLOTS + 1), hour.counts(59, 3)), ([0; COUNTS], [0; COUNTS]));
        assert!(HourOfFleet::read(Value::Array(vec![bulk(b""), bulk(b"api")])).is_err());
        assert!(HourOfFleet::read(Value::Array(Vec::new())).is_err());
    }
}
