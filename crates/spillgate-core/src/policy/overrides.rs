//! Overrides: other limits for some subjects of a rule, found by value. The one with most
//! attributes wins.

use std::collections::HashMap;

use smallvec::SmallVec;

use super::rule::Rule;
use crate::limit::NamedLimit;
use crate::request::Request;
use crate::subject::Encoding;

mod reading;
mod runtime;

pub(super) use reading::{Reading, place_in};

/// The overrides of all rules. A million take about 100 MB, since equal limits of one rule are
/// shared.
#[derive(Clone, Debug, Default)]
pub(super) struct Overrides {
    /// The sets by the rule's index, those with most attributes first.
    by_rule: Vec<SmallVec<[SetOfAttributes; 1]>>,
    limits: Vec<Box<[NamedLimit]>>,
}

/// The overrides of one rule that name the same attributes.
#[derive(Clone, Debug)]
struct SetOfAttributes {
    attributes: Attributes,
    /// The overrides by their values, encoded in the order of the rule's key.
    by_values: HashMap<Box<[u8]>, Override>,
}

/// A subset of a rule's key attributes: one bit for each position.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Attributes(u32);

#[derive(Clone, Copy, Debug)]
struct Override {
    /// The index of its limits in the list of all limits.
    limits: u32,
    /// Its place in the file, or its number among runtime changes, the newest last.
    at: u32,
}

/// The override that applies to a subject.
#[derive(Clone, Copy, Debug)]
pub(super) struct Found {
    /// The index of its limits.
    pub(super) limits: u32,
    /// The number of attributes that it names.
    pub(super) attributes: u32,
    at: u32,
}

/// The attributes that an override names, and their values encoded in the order of the rule's key.
type Subject = (Attributes, Encoding);

/// The error that a rule's overrides name the largest number of attribute sets already.
#[derive(Clone, Copy, Debug)]
struct TooManySets;

impl Overrides {
    /// Returns the override that applies to a subject: the one with most attributes, and the last
    /// of those. In a file two cannot tie.
    pub(super) fn of(&self, rule_index: u32, rule: &Rule, request: &Request<'_>) -> Option<Found> {
        let sets = self.by_rule.get(rule_index as usize).filter(|sets| !sets.is_empty())?;
        let values: SmallVec<[&[u8]; 4]> =
            rule.key().map(|attribute| request.attribute(attribute).unwrap_or_default()).collect();
        let mut winner: Option<Found> = None;
        for set in sets {
            let attributes = set.attributes.count();
            // Sets are sorted, so no later one names more attributes.
            if winner.is_some_and(|winner| winner.attributes > attributes) {
                break;
            }
            let Some(found) = set.by_values.get(set.attributes.encode(&values).as_bytes()) else {
                continue;
            };
            if winner.is_none_or(|winner| winner.at < found.at) {
                winner = Some(Found { limits: found.limits, attributes, at: found.at });
            }
        }
        winner
    }

    /// Returns the number of entries in the list of limits.
    pub(super) fn places(&self) -> u32 {
        self.limits.len() as u32
    }

    /// Returns the limits at an index that [`Overrides::of`] returned.
    pub(super) fn limits(&self, place: u32) -> &[NamedLimit] {
        &self.limits[place as usize]
    }

    /// Returns the number of overrides.
    pub(super) fn count(&self) -> usize {
        self.by_rule.iter().flatten().map(|set| set.by_values.len()).sum()
    }

    fn add_limits(&mut self, limits: Box<[NamedLimit]>) -> u32 {
        self.limits.push(limits);
        self.places() - 1
    }

    /// Inserts an override, and returns the one that it replaces.
    fn insert(
        &mut self,
        rule_index: u32,
        (attributes, values): &Subject,
        entered: Override,
    ) -> Result<Option<Override>, TooManySets> {
        let sets = &mut self.by_rule[rule_index as usize];
        let known = sets.iter().position(|set| set.attributes == *attributes);
        if known.is_none() && sets.len() == SETS_MAX {
            return Err(TooManySets);
        }
        let place = known.unwrap_or_else(|| {
            sets.push(SetOfAttributes { attributes: *attributes, by_values: HashMap::new() });
            sets.len() - 1
        });
        Ok(sets[place].by_values.insert(values.as_bytes().into(), entered))
    }

    /// Sorts the sets of each rule in the order in which they are looked up.
    fn sort(&mut self) {
        for sets in &mut self.by_rule {
            sets.sort_by_key(|set| std::cmp::Reverse(set.attributes.count()));
        }
    }
}

impl Attributes {
    fn with(self, place: usize) -> Attributes {
        Attributes(self.0 | 1 << place)
    }

    fn has(self, place: usize) -> bool {
        self.0 & 1 << place != 0
    }

    fn count(self) -> u32 {
        self.0.count_ones()
    }

    fn shared_with(self, other: Attributes) -> Attributes {
        Attributes(self.0 & other.0)
    }

    /// Returns the positions in the key, ascending.
    fn places(self) -> impl Iterator<Item = usize> {
        (0..32).filter(move |place| self.has(*place))
    }

    /// Encodes the values of these attributes, out of those of the whole key.
    fn encode(self, key_values: &[&[u8]]) -> Encoding {
        let mut encoding = Encoding::new();
        self.places()
            .filter_map(|place| key_values.get(place))
            .for_each(|value| encoding.part(value));
        encoding
    }

    /// Returns the encoded values of those of these attributes that `shared` has too.
    fn project(self, mut values: &[u8], shared: Attributes) -> Vec<u8> {
        let mut projected = Vec::new();
        for place in self.places() {
            let Some((length, _)) = values.split_first_chunk() else { break };
            let (part, rest) =
                values.split_at(size_of::<u32>() + u32::from_le_bytes(*length) as usize);
            if shared.has(place) {
                projected.extend_from_slice(part);
            }
            values = rest;
        }
        projected
    }
}

/// Two overrides that can both cover one subject and name equally many attributes, by their places
/// in the file.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Tie {
    later: u32,
    earlier: u32,
}

/// Returns the first tie in the file for each two sets that have one.
fn ties(sets: &[SetOfAttributes]) -> impl Iterator<Item = Tie> {
    let pairs = sets
        .iter()
        .enumerate()
        .flat_map(|(i, one)| sets[i + 1..].iter().map(move |other| (one, other)));
    pairs.filter_map(|(one, other)| {
        (one.attributes.count() == other.attributes.count())
            .then(|| first_tie(one, other))
            .flatten()
    })
}

/// Returns the first tie of two sets. Two overrides can cover one subject if they agree on the
/// attributes that both name.
fn first_tie(one: &SetOfAttributes, other: &SetOfAttributes) -> Option<Tie> {
    let shared = one.attributes.shared_with(other.attributes);
    let mut first: HashMap<Vec<u8>, u32> = HashMap::new();
    for (values, found) in &one.by_values {
        let at = first.entry(one.attributes.project(values, shared)).or_insert(found.at);
        *at = found.at.min(*at);
    }
    let agreeing = other.by_values.iter().filter_map(|(values, found)| {
        let at = first.get(&other.attributes.project(values, shared))?;
        Some(Tie { later: found.at.max(*at), earlier: found.at.min(*at) })
    });
    agreeing.min()
}

/// The most sets of one rule. Each costs every request of the rule one look-up. It is enough for
/// all subsets of six attributes.
const SETS_MAX: usize = 64;
