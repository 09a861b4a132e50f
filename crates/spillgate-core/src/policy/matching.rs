//! Conditions on attributes, and the index that finds the few rules that can match a request.

use std::cmp::Reverse;
use std::collections::HashMap;

use smallvec::SmallVec;

use super::glob::Glob;
use super::rule::Rule;
use crate::ip::{Network, Networks};
use crate::request::Request;
use crate::subject::DEFAULT_DOMAIN;

mod reading;

pub(crate) use reading::{read_conditions, read_literal};

/// A condition on one attribute.
#[derive(Clone, Debug)]
pub(crate) struct Condition {
    attribute: Box<str>,
    any_of: AnyOf,
}

/// Patterns of which one must hold.
#[derive(Clone, Debug, Default)]
pub struct AnyOf {
    /// The exact values, sorted.
    exact: Vec<Box<[u8]>>,
    globs: Vec<Glob>,
    networks: Networks<()>,
    /// Whether a request without the attribute matches.
    absent: bool,
    /// Patterns of which none may hold.
    not: Vec<AnyOf>,
}

/// A pattern of a rule's `match` for one attribute.
///
/// `Rule::matches` lists them.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Pattern<'p> {
    /// The value is equal to this.
    Exact(&'p [u8]),
    /// The value has this form.
    Glob(&'p Glob),
    /// The value is an address of this network.
    Network(Network),
    /// The request does not have the attribute.
    Absent,
    /// None of these holds. A request without the attribute matches, unless one of them is
    /// `Absent`.
    Not(Vec<Pattern<'p>>),
}

/// A kind of names in requests. `Policy::unused_names` returns it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum NameKind {
    /// The name of an attribute.
    Attribute,
    /// The unit of a cost.
    Unit,
}

/// The part of a pattern by which the index finds it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Key<'p> {
    Exact(&'p [u8]),
    Head(&'p [u8]),
    Network(Network),
}

impl Condition {
    pub(crate) fn attribute(&self) -> &str {
        &self.attribute
    }

    pub(crate) fn holds(&self, request: &Request<'_>) -> bool {
        let mut readings = request.readings(&self.attribute).peekable();
        match readings.peek() {
            None => self.any_of.holds(None),
            Some(_) => readings.any(|reading| self.holds_for(reading)),
        }
    }

    /// Returns whether it holds for one reading of the attribute's value.
    pub(crate) fn holds_for(&self, reading: &[u8]) -> bool {
        self.any_of.holds(Some(reading))
    }

    /// Returns whether a request needs the attribute.
    pub(crate) fn needs_value(&self) -> bool {
        !self.any_of.holds(None)
    }

    /// Describes the patterns for people. A long list is abbreviated.
    pub(crate) fn wants(&self) -> String {
        described(self.any_of.patterns())
    }
}

impl AnyOf {
    fn holds(&self, value: Option<&[u8]>) -> bool {
        value.map_or(self.absent, |value| self.has(value))
            || self.not.iter().any(|not| !not.holds(value))
    }

    fn has(&self, value: &[u8]) -> bool {
        self.exact.binary_search_by(|known| known.as_ref().cmp(value)).is_ok()
            || self.globs.iter().any(|glob| glob.matches(value))
            || network_of(&self.networks, value)
                .is_some_and(|address| self.networks.around(address).is_some())
    }

    fn patterns(&self) -> impl Iterator<Item = Pattern<'_>> {
        let exact = self.exact.iter().map(|value| Pattern::Exact(value));
        let globs = self.globs.iter().map(Pattern::Glob);
        let networks = self.networks.iter().map(|(network, ())| Pattern::Network(network));
        let absent = self.absent.then_some(Pattern::Absent);
        let not = self.not.iter().map(|not| Pattern::Not(not.patterns().collect()));
        exact.chain(globs).chain(networks).chain(absent).chain(not)
    }

    /// Returns whether every value that matches can be found by its beginning or its network.
    fn is_indexed(&self) -> bool {
        let by_head = |glob: &Glob| !glob.head().is_empty() || glob.is_any();
        !self.absent && self.not.is_empty() && self.globs.iter().all(by_head)
    }

    fn keys(&self) -> impl Iterator<Item = Key<'_>> {
        let exact = self.exact.iter().map(|value| Key::Exact(value));
        let heads = self.globs.iter().map(|glob| Key::Head(glob.head()));
        exact.chain(heads).chain(self.networks.iter().map(|(network, ())| Key::Network(network)))
    }

    /// Returns how few values match: the shortest beginning, or the widest network.
    fn precision(&self) -> usize {
        let heads = self.globs.iter().map(|glob| glob.head().len());
        let networks = self.networks.iter().map(|(network, ())| usize::from(network.prefix()));
        heads.chain(networks).min().unwrap_or(usize::MAX)
    }
}

#[doc(hidden)]
impl Rule {
    /// Returns the conditions of its `match`: each attribute, with the patterns of which one must
    /// match.
    ///
    /// ```
    /// # use spillgate_core as spillgate;
    /// use spillgate::policy::Pattern;
    /// use spillgate::Policy;
    /// let policy = Policy::from_toml(r#"
    ///     [[rule]]
    ///     name = "api"
    ///     match = { method = ["GET", "HEAD"] }
    ///     key = ["user"]
    ///     limits = ["5/minute"]
    /// "#)?;
    /// let (attribute, mut patterns) = policy.rule("api").unwrap().matches().next().unwrap();
    /// assert_eq!((attribute, patterns.next()), ("method", Some(Pattern::Exact(b"GET"))));
    /// # Ok::<(), spillgate::PolicyError>(())
    /// ```
    pub fn matches(&self) -> impl Iterator<Item = (&str, impl Iterator<Item = Pattern<'_>>)> {
        self.conditions()
            .iter()
            .map(|condition| (condition.attribute(), condition.any_of.patterns()))
    }

    /// Returns the `match` that exempts the requests of this rule from another one. Returns `None`
    /// if its own `match` is not one attribute with plain patterns.
    ///
    /// ```
    /// # use spillgate_core as spillgate;
    /// use spillgate::Policy;
    /// let policy = Policy::from_toml(r#"
    ///     [[rule]]
    ///     name = "office"
    ///     match = { ip = "10.0.0.0/8" }
    ///     key = []
    ///     limits = ["unlimited"]
    /// "#)?;
    /// let exemption = policy.rule("office").unwrap().exemption();
    /// assert_eq!(exemption.as_deref(), Some(r#"match = { ip = { not = ["10.0.0.0/8"] } }"#));
    /// # Ok::<(), spillgate::PolicyError>(())
    /// ```
    pub fn exemption(&self) -> Option<String> {
        let [condition] = self.conditions() else { return None };
        let plain =
            |text: &str| !text.contains(['"', '\\', '{']) && !text.contains(char::is_control);
        let mut written = Vec::new();
        for pattern in condition.any_of.patterns() {
            let text = match pattern {
                Pattern::Exact(value) => {
                    str::from_utf8(value).ok().filter(|text| !text.contains('*'))?.to_owned()
                }
                Pattern::Glob(glob) => glob.to_string(),
                Pattern::Network(network) => network.to_string(),
                Pattern::Absent | Pattern::Not(_) => return None,
            };
            written.push(format!("\"{}\"", Some(text).filter(|text| plain(text))?));
        }
        if written.len() > SHOWN_MAX {
            written.truncate(SHOWN_MAX);
            written.push("…".to_owned());
        }
        Some(format!(
            "match = {{ {} = {{ not = [{}] }} }}",
            condition.attribute(),
            written.join(", ")
        ))
    }

    /// Returns whether the index must offer the rule to every request of its domain although it has
    /// conditions.
    pub(crate) fn is_tried_always(&self) -> bool {
        let conditions = self.conditions();
        !conditions.is_empty() && !conditions.iter().any(|condition| condition.any_of.is_indexed())
    }
}

impl Pattern<'_> {
    /// Describes the pattern for people.
    pub fn describe(&self) -> String {
        match self {
            Pattern::Exact(value) => format!("{:?}", String::from_utf8_lossy(value)),
            Pattern::Glob(glob) if glob.is_any() => "anything".to_owned(),
            Pattern::Glob(glob) => format!("\"{glob}\""),
            Pattern::Network(network) => format!("in {network}"),
            Pattern::Absent => "absent".to_owned(),
            Pattern::Not(patterns) => {
                format!("anything but {}", described(patterns.iter().cloned()))
            }
        }
    }
}

fn described<'p>(mut patterns: impl Iterator<Item = Pattern<'p>>) -> String {
    let first = patterns.by_ref().take(SHOWN_MAX);
    let mut wants: Vec<String> = first.map(|pattern| pattern.describe()).collect();
    let hidden = patterns.count();
    if hidden > 0 {
        wants.push(format!("{hidden} more"));
    }
    wants.join(" or ")
}

/// Returns the address in a value of type ip, unless no network asks for it.
fn network_of<T>(networks: &Networks<T>, value: &[u8]) -> Option<Network> {
    if networks.is_empty() {
        return None;
    }
    Network::of_value(value)
}

/// So many patterns of a domain are sooner compared with a request than its values are looked up.
const FEW_PATTERNS: usize = 8;
/// The most patterns in a description.
const SHOWN_MAX: usize = 4;

/// Finds the rules that a request can match. Each rule is entered under the patterns of one of its
/// conditions: the one that the fewest other rules of its domain share.
#[derive(Clone, Debug, Default)]
pub struct Index {
    /// The domain `default`, found without hashing its name.
    default: Domain,
    others: HashMap<Box<str>, Domain>,
}

#[derive(Clone, Debug, Default)]
struct Domain {
    attributes: HashMap<Box<str>, Attribute>,
    /// The rules without a condition that can be indexed; all, if they have few patterns.
    always: Vec<u32>,
    /// The attributes in a `match` or a key, and the units of limits. Both are sorted.
    used: [Vec<Box<str>>; 2],
}

#[derive(Clone, Debug, Default)]
struct Attribute {
    exact: HashMap<Box<[u8]>, Vec<u32>>,
    heads: HashMap<Box<[u8]>, Vec<u32>>,
    /// The lengths of the heads, each once.
    head_lengths: Vec<usize>,
    networks: Networks<Vec<u32>>,
}

/// Rules by their indexes in the file.
pub type Candidates = SmallVec<[u32; 8]>;

impl Index {
    pub fn from_rules(rules: &[Rule]) -> Index {
        let mut sharing: HashMap<(&str, &str, Key<'_>), usize> = HashMap::new();
        let mut patterns: HashMap<&str, usize> = HashMap::new();
        for rule in rules {
            for condition in rule.conditions() {
                for key in condition.any_of.keys() {
                    *patterns.entry(rule.domain()).or_default() += 1;
                    *sharing.entry((rule.domain(), &condition.attribute, key)).or_default() += 1;
                }
            }
        }
        let mut index = Index::default();
        for (place, rule) in (0..).zip(rules) {
            // The more rules share a pattern, the more candidates it gives. Short heads and wide
            // networks match more values, so among equals the most precise wins.
            let shared_by = |condition: &&Condition| {
                let others = condition
                    .any_of
                    .keys()
                    .map(|key| sharing[&(rule.domain(), &*condition.attribute, key)]);
                (others.max(), Reverse(condition.any_of.precision()))
            };
            let domain = match rule.domain() {
                DEFAULT_DOMAIN => &mut index.default,
                other => index.others.entry(other.into()).or_default(),
            };
            let attributes = rule.conditions().iter().map(Condition::attribute).chain(rule.key());
            domain.used[0].extend(attributes.map(Box::from));
            domain.used[1].extend(rule.limits().map(|limit| limit.unit().into()));
            let conditions = rule.conditions().iter();
            let indexed = conditions.filter(|condition| condition.any_of.is_indexed());
            let best = indexed.min_by_key(shared_by);
            match best.filter(|_| patterns[rule.domain()] > FEW_PATTERNS) {
                Some(condition) => {
                    let attribute =
                        domain.attributes.entry(condition.attribute.clone()).or_default();
                    condition.any_of.keys().for_each(|key| attribute.enter(key, place));
                }
                None => domain.always.push(place),
            }
        }
        for domain in index.others.values_mut().chain([&mut index.default]) {
            for names in &mut domain.used {
                names.sort_unstable();
                names.dedup();
            }
        }
        index
    }

    /// Returns the names that the rules of a domain use, sorted.
    pub fn used(&self, domain: &str, kind: NameKind) -> &[Box<str>] {
        self.domain(domain).map_or(&[], |domain| &domain.used[kind as usize])
    }

    /// Returns whether a limit of any rule counts this unit.
    pub fn counts_unit(&self, unit: &str) -> bool {
        let counts = |domain: &Domain| {
            let used = &domain.used[NameKind::Unit as usize];
            used.binary_search_by(|used| (**used).cmp(unit)).is_ok()
        };
        counts(&self.default) || self.others.values().any(counts)
    }

    pub fn has_domain(&self, domain: &str) -> bool {
        let is_empty = |found: &Domain| found.attributes.is_empty() && found.always.is_empty();
        self.domain(domain).is_some_and(|found| !is_empty(found))
    }

    /// Returns all rules of a domain if none of them is indexed, else `None`.
    #[inline]
    pub fn unindexed(&self, domain: &str) -> Option<&[u32]> {
        let domain = self.domain(domain)?;
        domain.attributes.is_empty().then_some(&domain.always)
    }

    /// Returns every rule that can match the request, and few others, in file order.
    pub fn candidates(&self, request: &Request<'_>) -> Candidates {
        let Some(domain) = self.domain(request.domain()) else { return Candidates::new() };
        let mut candidates = Candidates::from_slice(&domain.always);
        for (name, value) in request.values() {
            if let Some(attribute) = domain.attributes.get(name) {
                value.readings().for_each(|reading| attribute.find(reading, &mut candidates));
            }
        }
        candidates.sort_unstable();
        candidates.dedup();
        candidates
    }

    fn domain(&self, name: &str) -> Option<&Domain> {
        match name {
            DEFAULT_DOMAIN => Some(&self.default),
            other => self.others.get(other),
        }
    }
}

impl Attribute {
    fn enter(&mut self, key: Key<'_>, rule: u32) {
        match key {
            Key::Exact(value) => self.exact.entry(value.into()).or_default().push(rule),
            Key::Network(network) => self.networks.entry(network).push(rule),
            Key::Head(head) => {
                self.heads.entry(head.into()).or_default().push(rule);
                if !self.head_lengths.contains(&head.len()) {
                    self.head_lengths.push(head.len());
                }
            }
        }
    }

    fn find(&self, value: &[u8], candidates: &mut Candidates) {
        let exact = self.exact.get(value);
        let heads = self.head_lengths.iter().filter_map(|length| value.get(..*length));
        let by_head = heads.filter_map(|head| self.heads.get(head));
        let address = network_of(&self.networks, value).into_iter();
        let by_network = address.flat_map(|address| self.networks.all_around(address));
        let found = exact.into_iter().chain(by_head).chain(by_network);
        found.for_each(|rules| candidates.extend_from_slice(rules));
    }
}
