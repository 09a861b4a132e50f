//! Other limits for some subjects of a rule: found by value, the override of most attributes first.

use std::collections::HashMap;

use smallvec::SmallVec;

use super::rule::Rule;
use crate::limit::NamedLimit;
use crate::request::Request;
use crate::subject::Encoding;

mod reading;

pub(super) use reading::Reading;

/// The overrides of all rules. A million take some 100 MB: those of a rule that are written alike
/// share their limits.
#[derive(Clone, Debug, Default)]
pub(super) struct Overrides {
    /// By the rule's place; the sets with most attributes first.
    by_rule: Vec<SmallVec<[SetOfAttributes; 1]>>,
    limits: Vec<Box<[NamedLimit]>>,
}

/// The overrides of one rule that name the same attributes.
#[derive(Clone, Debug)]
struct SetOfAttributes {
    attributes: Attributes,
    /// By the values, encoded in the order of the rule's key.
    by_values: HashMap<Box<[u8]>, Override>,
}

/// Some attributes of a rule's key: a bit for each place in it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Attributes(u32);

#[derive(Clone, Copy, Debug)]
struct Override {
    /// Its place in the list of all limits.
    limits: u32,
    /// Where it stands in the file.
    at: u32,
}

impl Overrides {
    /// The limits of the override that wins for a subject, by their place.
    pub(super) fn of(&self, rule_index: u32, rule: &Rule, request: &Request<'_>) -> Option<u32> {
        let sets = self.by_rule.get(rule_index as usize).filter(|sets| !sets.is_empty())?;
        let values: SmallVec<[&[u8]; 4]> =
            rule.key().map(|attribute| request.attribute(attribute).unwrap_or_default()).collect();
        let found = sets
            .iter()
            .find_map(|set| set.by_values.get(set.attributes.encode(&values).as_bytes()))?;
        Some(found.limits)
    }

    /// The limits at a place that [`Overrides::of`] told.
    pub(super) fn limits(&self, place: u32) -> &[NamedLimit] {
        &self.limits[place as usize]
    }

    /// How many there are.
    pub(super) fn count(&self) -> usize {
        self.by_rule.iter().flatten().map(|set| set.by_values.len()).sum()
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

    /// The places in the key, ascending.
    fn places(self) -> impl Iterator<Item = usize> {
        (0..32).filter(move |place| self.has(*place))
    }

    /// The values of these attributes, out of those of the whole key.
    fn encode(self, key_values: &[&[u8]]) -> Encoding {
        let mut encoding = Encoding::new();
        self.places()
            .filter_map(|place| key_values.get(place))
            .for_each(|value| encoding.part(value));
        encoding
    }

    /// Of these attributes' encoded values those that `shared` has too.
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

/// Two overrides that could cover one subject and name equally many attributes, by their places in
/// the file.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Tie {
    later: u32,
    earlier: u32,
}

/// The first tie in the file of each two sets that have one.
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

/// Two overrides can cover one subject if they agree on the attributes that both name.
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
