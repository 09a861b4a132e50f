//! Limits with the name of their stored state: name and algorithm, never parameters.

use std::sync::Arc;

use super::{Algorithm, Kind, Limit, Words};
use crate::algorithm::LimitParams;
use crate::subject::{SubjectKey, fixed_hash};

/// A limit with the name of its stored state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamedLimit {
    limit: Limit,
    position: u8,
    record: RecordName,
    /// The hash of a given name; 0 for a position.
    given_mix: u128,
}

/// A limit's name in a Redis value: short for positions, hashed for given names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RecordName {
    /// The position in the rule, below 15.
    Position(u8),
    /// The hash of a name that is not such a position.
    Given([u8; 8]),
}

impl NamedLimit {
    /// Makes a limit with its given name, or else its position in the rule.
    #[inline]
    pub fn new(limit: Limit, position: usize) -> NamedLimit {
        // A decision has at most 64 counters, so a rule has no more limits than that.
        let position = position.min(POSITION_NAMES.len() - 1);
        let record = match limit.name() {
            // Inline limits have no name, and for them this runs on every request.
            None if position < usize::from(POSITIONS) => RecordName::Position(position as u8),
            name => RecordName::from_name(name.unwrap_or(POSITION_NAMES[position])),
        };
        let given_mix = match record {
            RecordName::Position(_) => 0,
            RecordName::Given(_) => {
                mix_of_name(limit.name().unwrap_or(POSITION_NAMES[position]), limit.algorithm())
            }
        };
        NamedLimit { position: position as u8, limit, record, given_mix }
    }

    /// Makes the limit that replaces a rule's for some subjects. With another algorithm or period
    /// it has a counter of its own, and the rule's counter keeps its state. If only the count
    /// differs, both are one counter.
    pub fn in_place_of(replaced: &NamedLimit, limit: Limit) -> NamedLimit {
        let named = NamedLimit::new(limit, usize::from(replaced.position));
        match named.limit.period() {
            // It counts permits, or nothing. The algorithm in the name keeps permits from rates.
            0 => named,
            period if period == replaced.limit.period() => named,
            // The rule's limit may have no period. Then all periods would share its name.
            period => named.apart("override", period),
        }
    }

    /// Makes the limit that a request adds beside a rule's, with a counter of its own for each
    /// period. It is shown as `NAME.request`.
    pub fn beside(configured: &NamedLimit, limit: Limit) -> NamedLimit {
        let name = Some(format!("{}.request", configured.name()).into());
        let unit = limit.words.as_ref().and_then(|words| words.unit.clone());
        let limit = Limit { words: Some(Arc::new(Words { name, unit })), ..limit };
        let named = NamedLimit::new(limit, usize::from(configured.position));
        let period = named.limit.period();
        named.apart("request", period)
    }

    /// Returns the limit with a counter of its own. Names have no zero bytes, so the new name
    /// equals no other.
    fn apart(self, why: &str, period: u64) -> NamedLimit {
        let name = format!("{}\0{why}\0{period}", self.name());
        let given_mix = mix_of_name(&name, self.limit.algorithm());
        NamedLimit { record: RecordName::given(&name), given_mix, ..self }
    }

    /// Makes a limit from the name in a record. `mix` is that of a given name. Returns `None` for a
    /// position that no limit has.
    pub fn recorded(limit: Limit, record: RecordName, mix: Option<u128>) -> Option<NamedLimit> {
        let (position, given_mix) = match record {
            RecordName::Position(position) if position < POSITIONS => (position, 0),
            RecordName::Position(_) => return None,
            RecordName::Given(_) => (0, mix?),
        };
        Some(NamedLimit { limit, position, record, given_mix })
    }

    /// Returns the limit under the same name with other parameters of its algorithm, for example a
    /// local share.
    pub fn with_params(&self, params: LimitParams) -> NamedLimit {
        let limit = Limit { kind: Kind::Counted(params), ..self.limit.clone() };
        NamedLimit { limit, ..self.clone() }
    }

    /// Returns the keys of its counter as an inline limit under a caller's key, one for each period.
    #[inline]
    pub fn inline_key(&self, key: SubjectKey) -> SubjectKey {
        key.of_period(self.limit.period())
    }

    /// Returns the limit.
    #[inline]
    pub fn limit(&self) -> &Limit {
        &self.limit
    }

    /// Returns the limit with twice the quota under the same name, and so over the same state.
    /// `None` if there is no such limit.
    pub fn raised(&self) -> Option<NamedLimit> {
        Some(NamedLimit { limit: self.limit.raised()?, ..self.clone() })
    }

    /// Returns its name within its rule.
    pub fn name(&self) -> &str {
        self.limit.name().unwrap_or(POSITION_NAMES[usize::from(self.position)])
    }

    /// Returns its name within a Redis value.
    pub fn record(&self) -> RecordName {
        self.record
    }

    /// Returns its position in its rule.
    pub fn position(&self) -> u8 {
        self.position
    }

    /// Returns the hash that distinguishes this limit's state from the subject's other limits.
    #[inline]
    pub fn mix(&self) -> u128 {
        match self.record {
            RecordName::Position(position) => mix_of_position(position, self.algorithm()),
            RecordName::Given(_) => self.given_mix,
        }
    }

    /// Returns its parameters; `None` for `unlimited` and `block`, which keep no state.
    #[inline]
    pub fn params(&self) -> Option<&LimitParams> {
        match self.limit.kind() {
            Kind::Counted(params) => Some(params),
            Kind::Unlimited | Kind::Block => None,
        }
    }

    /// Returns the size of its texts in bytes, as if they were not shared.
    pub fn heap_bytes(&self) -> usize {
        let Some(words) = &self.limit.words else { return 0 };
        let length = |text: &Option<Arc<str>>| text.as_ref().map_or(0, |text| text.len());
        size_of::<Words>() + length(&words.name) + length(&words.unit)
    }

    /// Returns its algorithm.
    pub fn algorithm(&self) -> Algorithm {
        self.limit.algorithm()
    }
}

impl From<&NamedLimit> for NamedLimit {
    fn from(limit: &NamedLimit) -> NamedLimit {
        limit.clone()
    }
}

impl RecordName {
    fn from_name(name: &str) -> RecordName {
        match name.parse() {
            // The name `01` is not position 1.
            Ok(position @ 0..POSITIONS) if name == position.to_string() => {
                RecordName::Position(position)
            }
            _ => RecordName::given(name),
        }
    }

    fn given(name: &str) -> RecordName {
        let [given @ .., _, _, _, _, _, _, _, _] = fixed_hash([name.as_bytes()]).to_le_bytes();
        RecordName::Given(given)
    }
}

/// Returns a different number for each position and algorithm, without hashing, since it is needed
/// for every inline limit. Each step is invertible, so that no two are equal, and the bits are
/// spread like those of a hash.
const fn mix_of_position(position: u8, algorithm: Algorithm) -> u128 {
    let number = ((position as u128) << 4 | algorithm as u128) + 1;
    let spread = number.wrapping_mul(SPREAD);
    (spread ^ spread >> 64).wrapping_mul(SPREAD)
}

fn mix_of_name(name: &str, algorithm: Algorithm) -> u128 {
    fixed_hash([name.as_bytes(), algorithm.name().as_bytes()])
}

/// The number of positions that fit the four bits in a record's head.
const POSITIONS: u8 = 15;
/// The names of limits without a given name.
const POSITION_NAMES: [&str; 64] = [
    "0", "1", "2", "3", "4", "5", "6", "7", "8", "9", "10", "11", "12", "13", "14", "15", "16",
    "17", "18", "19", "20", "21", "22", "23", "24", "25", "26", "27", "28", "29", "30", "31", "32",
    "33", "34", "35", "36", "37", "38", "39", "40", "41", "42", "43", "44", "45", "46", "47", "48",
    "49", "50", "51", "52", "53", "54", "55", "56", "57", "58", "59", "60", "61", "62", "63",
];
/// The fraction of π in hexadecimal, made odd: an arbitrary constant.
const SPREAD: u128 = 0x243F_6A88_85A3_08D3_1319_8A2E_0370_7345;
