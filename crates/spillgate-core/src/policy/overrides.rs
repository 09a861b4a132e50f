//! Overrides: other limits for some subjects of a rule, found by value or by network. The one with
//! most attributes wins, and of one attribute the smallest network.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use smallvec::SmallVec;

use super::rule::Rule;
use super::types::{AttributeType, Named, NoAddress};
use crate::ip::{Network, Networks};
use crate::limit::NamedLimit;
use crate::request::Request;
use crate::subject::Encoding;

mod reading;
mod runtime;

pub(crate) use reading::Reading;
pub(crate) use runtime::subject_of;

/// The overrides of all rules. A million take about 100 MB, since equal limits of one rule are
/// shared.
#[derive(Clone, Debug, Default)]
pub struct Overrides {
    /// The sets by the rule's index, those with most attributes first, and those with the same
    /// attributes side by side.
    by_rule: Vec<SmallVec<[Set; 1]>>,
    limits: Vec<Box<[NamedLimit]>>,
    /// The units of these limits.
    units: BTreeSet<Box<str>>,
    /// The overrides before these. It makes one more cheap, however many there are, and has none before it.
    older: Option<Arc<Overrides>>,
}

/// The overrides of one rule that name the same attributes, and a network of the same one.
#[derive(Clone, Debug)]
struct Set {
    /// The attributes that they name.
    attributes: AttributeSet,
    covers: Covers,
}

/// The subjects that the overrides of a set cover.
#[derive(Clone, Debug)]
enum Covers {
    /// By their values, encoded in the order of the rule's key.
    Values(HashMap<Box<[u8]>, Override>),
    /// By the networks of one attribute, for each encoding of the other attributes' values.
    Networks { place: usize, by_others: HashMap<Box<[u8]>, Networks<Override>> },
}

/// A subset of a rule's key attributes: one bit for each position.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
struct AttributeSet(u32);

#[derive(Clone, Copy, Debug)]
struct Override {
    /// The index of its limits in the list of all limits.
    limits: u32,
    /// Its place in the file, or its number among runtime changes, the newest last.
    at: u32,
}

/// The override that applies to a subject.
#[derive(Clone, Copy, Debug)]
pub struct Found {
    /// The index of its limits.
    pub(crate) limits: u32,
    attributes: AttributeSet,
    /// The prefix of its network; [`ONE_VALUE`] if it names none.
    prefix: u8,
    at: u32,
}

/// The subjects that an override covers.
#[derive(Clone, Debug)]
pub struct Covered {
    attributes: AttributeSet,
    /// The values of these attributes but the one with a network, encoded in the order of the key.
    values: Encoding,
    /// The attribute with a network, by its place in the key.
    network: Option<(usize, Network)>,
}

/// The error that attributes and values name no subjects of a rule.
#[derive(Clone, Debug)]
struct NoSubject {
    /// The wrong attribute.
    attribute: String,
    /// The problem and its remedy.
    message: String,
}

/// The error that a rule's overrides name the largest number of attribute sets already.
#[derive(Clone, Copy, Debug)]
struct TooManySets;

impl Overrides {
    /// Returns the override that applies to a subject: the one with most attributes, of those that
    /// name the same attributes the one with the smallest network, and the last of the rest. In a
    /// file two cannot tie.
    #[inline]
    pub fn get(&self, rule_index: u32, rule: &Rule, request: &Request<'_>) -> Option<Found> {
        let sets = self.by_rule.get(rule_index as usize).filter(|sets| !sets.is_empty());
        let newest = sets.and_then(|sets| Overrides::find(sets, rule, request));
        let Some(older) = &self.older else { return newest };
        let older_places = older.places();
        let newest = newest.map(|it| Found { limits: older_places + it.limits, ..it });
        match (older.get(rule_index, rule, request), newest) {
            (Some(older), Some(newest)) if older.is_narrower_than(&newest) => Some(older),
            (older, newest) => newest.or(older),
        }
    }

    fn find(sets: &[Set], rule: &Rule, request: &Request<'_>) -> Option<Found> {
        let values: SmallVec<[&[u8]; 4]> =
            rule.key().map(|attribute| rule.subject_value(request, attribute)).collect();
        let mut winner: Option<Found> = None;
        for same in sets.chunk_by(|one, next| one.attributes == next.attributes) {
            // Sets are sorted, so no later one names more attributes.
            let count = same[0].attributes.count();
            if winner.is_some_and(|winner| winner.attributes.count() > count) {
                break;
            }
            let found = same.iter().filter_map(|set| set.find(&values));
            let Some(found) = found.max_by_key(|found| (found.prefix, found.at)) else { continue };
            if winner.is_none_or(|winner| winner.at < found.at) {
                winner = Some(found);
            }
        }
        winner
    }

    /// Returns the number of entries in the list of limits.
    pub fn places(&self) -> u32 {
        self.older.as_ref().map_or(0, |older| older.places()) + self.limits.len() as u32
    }

    /// Returns the limits at an index that [`Overrides::get`] returned.
    pub fn limits(&self, place: u32) -> &[NamedLimit] {
        match &self.older {
            Some(older) if place < older.places() => older.limits(place),
            Some(older) => &self.limits[(place - older.places()) as usize],
            None => &self.limits[place as usize],
        }
    }

    /// Returns the number of overrides.
    pub fn count(&self) -> usize {
        self.by_rule.iter().flatten().map(Set::count).sum()
    }

    /// Returns whether the limit of an override counts this unit.
    pub fn count_unit(&self, unit: &str) -> bool {
        self.units.contains(unit) || self.older.as_ref().is_some_and(|older| older.count_unit(unit))
    }

    fn add_limits(&mut self, limits: Box<[NamedLimit]>) -> u32 {
        for limit in &limits {
            if !self.units.contains(limit.limit().unit()) {
                self.units.insert(limit.limit().unit().into());
            }
        }
        self.limits.push(limits);
        self.limits.len() as u32 - 1
    }

    /// Inserts an override, and returns the one that it replaces.
    fn insert(
        &mut self,
        rule_index: u32,
        subject: &Covered,
        entered: Override,
    ) -> Result<Option<Override>, TooManySets> {
        let sets = &mut self.by_rule[rule_index as usize];
        let known = sets.iter().position(|set| set.is_for(subject));
        if known.is_none() && sets.len() == SETS_MAX {
            return Err(TooManySets);
        }
        let place = known.unwrap_or_else(|| {
            sets.push(Set::new(subject));
            sets.len() - 1
        });
        Ok(sets[place].insert(subject, entered))
    }

    /// Sorts the sets of each rule in the order in which they are looked up. Must be called after all
    /// overrides are inserted, and before any look-up.
    pub fn sort(&mut self) {
        for sets in &mut self.by_rule {
            sets.sort_by_key(|set| {
                (std::cmp::Reverse(set.attributes.count()), set.attributes, set.network_at())
            });
        }
    }
}

impl Set {
    fn new(subject: &Covered) -> Set {
        let covers = match subject.network {
            None => Covers::Values(HashMap::new()),
            Some((place, _)) => Covers::Networks { place, by_others: HashMap::new() },
        };
        Set { attributes: subject.attributes, covers }
    }

    fn is_for(&self, subject: &Covered) -> bool {
        self.attributes == subject.attributes
            && self.network_at() == subject.network.map(|(place, _)| place)
    }

    /// Returns the place of the attribute with networks.
    fn network_at(&self) -> Option<usize> {
        match self.covers {
            Covers::Values(_) => None,
            Covers::Networks { place, .. } => Some(place),
        }
    }

    /// Returns the attributes with a single value.
    fn with_values(&self) -> AttributeSet {
        self.network_at().map_or(self.attributes, |place| self.attributes.without(place))
    }

    fn insert(&mut self, subject: &Covered, entered: Override) -> Option<Override> {
        let values = subject.values.as_bytes();
        match (&mut self.covers, subject.network) {
            (Covers::Networks { by_others, .. }, Some((_, network))) => {
                by_others.entry(values.into()).or_default().insert(network, entered)
            }
            (Covers::Values(by_values), _) => by_values.insert(values.into(), entered),
            (Covers::Networks { .. }, None) => None,
        }
    }

    /// Returns the override for a subject with these values.
    fn find(&self, key_values: &[&[u8]]) -> Option<Found> {
        let values = self.with_values().encode(key_values);
        let (found, prefix) = match &self.covers {
            Covers::Values(by_values) => (by_values.get(values.as_bytes())?, ONE_VALUE),
            Covers::Networks { place, by_others } => {
                let networks = by_others.get(values.as_bytes())?;
                let address = Network::of_value(key_values.get(*place)?)?;
                let (network, found) = networks.around(address)?;
                (found, network.prefix())
            }
        };
        let Override { limits, at } = *found;
        Some(Found { limits, attributes: self.attributes, prefix, at })
    }

    fn count(&self) -> usize {
        match &self.covers {
            Covers::Values(by_values) => by_values.len(),
            Covers::Networks { by_others, .. } => by_others.values().map(Networks::len).sum(),
        }
    }

    /// Returns each override, with the encoding of its single values.
    fn iter(&self) -> Box<dyn Iterator<Item = (&[u8], &Override)> + '_> {
        match &self.covers {
            Covers::Values(by_values) => {
                Box::new(by_values.iter().map(|(values, found)| (&**values, found)))
            }
            Covers::Networks { by_others, .. } => {
                Box::new(by_others.iter().flat_map(|(values, networks)| {
                    networks.iter().map(move |(_, found)| (&**values, found))
                }))
            }
        }
    }
}

impl Found {
    /// Returns whether it covers fewer subjects than the other: it names more attributes, or a
    /// smaller network of the same.
    pub fn is_narrower_than(&self, other: &Found) -> bool {
        self.attributes.count() > other.attributes.count()
            || self.attributes == other.attributes && self.prefix > other.prefix
    }
}

impl Covered {
    /// Makes the subjects with these values.
    fn new<'a>(
        rule: &Rule,
        named: impl IntoIterator<Item = (&'a str, &'a [u8], AttributeType)>,
    ) -> Result<Covered, NoSubject> {
        let (mut attributes, mut network) = (AttributeSet::default(), None);
        let mut key_values: SmallVec<[Box<[u8]>; 4]> = rule.key().map(|_| Box::default()).collect();
        for (attribute, value, of_type) in named {
            let wrong = |message| NoSubject { attribute: attribute.to_owned(), message };
            let Some(place) = rule.key().position(|known| known == attribute) else {
                let key: Vec<&str> = rule.key().collect();
                let remedy = match key.is_empty() {
                    true => "all requests share its one counter, so name no attributes, such as \"subject\": {} over HTTP".to_owned(),
                    false => format!("name one or more of {key:?}"),
                };
                return Err(wrong(format!("{attribute:?} is not in the rule's key; {remedy}")));
            };
            attributes = attributes.with(place);
            let no_value =
                |problem: NoAddress| wrong(format!("{attribute:?}: {}", problem.message(value)));
            match of_type.named(value).map_err(no_value)? {
                Named::Value(value) => key_values[place] = value,
                Named::Network(_) if network.is_some() => {
                    return Err(wrong(format!("{attribute:?}: {TWO_NETWORKS}")));
                }
                Named::Network(found) => network = Some((place, found)),
            }
        }
        let with_values = network.map_or(attributes, |(place, _)| attributes.without(place));
        let key_values: SmallVec<[&[u8]; 4]> = key_values.iter().map(|value| &**value).collect();
        Ok(Covered { attributes, values: with_values.encode(&key_values), network })
    }
}

impl AttributeSet {
    fn with(self, place: usize) -> AttributeSet {
        AttributeSet(self.0 | 1 << place)
    }

    fn without(self, place: usize) -> AttributeSet {
        AttributeSet(self.0 & !(1 << place))
    }

    fn has(self, place: usize) -> bool {
        self.0 & 1 << place != 0
    }

    fn count(self) -> u32 {
        self.0.count_ones()
    }

    fn shared_with(self, other: AttributeSet) -> AttributeSet {
        AttributeSet(self.0 & other.0)
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
    fn project(self, mut values: &[u8], shared: AttributeSet) -> Vec<u8> {
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

/// Returns the first tie in the file for each two sets that have one. Sets with the same attributes
/// have none, since the smaller network wins.
fn ties(sets: &[Set]) -> impl Iterator<Item = Tie> {
    let pairs = sets
        .iter()
        .enumerate()
        .flat_map(|(i, one)| sets[i + 1..].iter().map(move |other| (one, other)));
    let equally_many = |(one, other): &(&Set, &Set)| {
        one.attributes != other.attributes && one.attributes.count() == other.attributes.count()
    };
    pairs.filter(equally_many).filter_map(|(one, other)| first_tie(one, other))
}

/// Returns the first tie of two sets. Two overrides can cover one subject if they agree on the
/// attributes for which both have a single value. Networks count as if all had a common address.
fn first_tie(one: &Set, other: &Set) -> Option<Tie> {
    let shared = one.with_values().shared_with(other.with_values());
    let mut first: HashMap<Vec<u8>, u32> = HashMap::new();
    for (values, found) in one.iter() {
        let at = first.entry(one.with_values().project(values, shared)).or_insert(found.at);
        *at = found.at.min(*at);
    }
    let agreeing = other.iter().filter_map(|(values, found)| {
        let at = first.get(&other.with_values().project(values, shared))?;
        Some(Tie { later: found.at.max(*at), earlier: found.at.min(*at) })
    });
    agreeing.min()
}

const TWO_NETWORKS: &str =
    "only one attribute of an override can be a network; write one address of the others";
/// The prefix of an override without a network: longer than that of any network.
const ONE_VALUE: u8 = u8::MAX;
/// The most overrides that are copied to add one. Once for so many additions all overrides are entered again, so either
/// takes a like part of the time if there are 10,000.
const COPIED_MAX: usize = 256;
/// The most sets of one rule. Each costs every request of the rule one look-up. It is enough for
/// all subsets of six attributes.
const SETS_MAX: usize = 64;
