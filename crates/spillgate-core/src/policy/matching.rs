//! Conditions on attributes, and the index that finds the few rules that can match a request.

use std::cmp::Reverse;
use std::collections::HashMap;

use smallvec::SmallVec;
use toml::Spanned;
use toml::de::DeValue;

use super::file::{Entry, Table};
use super::problem::{Problem, Problems};
use super::rule::Rule;
use crate::request::Request;
use crate::subject::DEFAULT_DOMAIN;

/// A condition on one attribute: it is present and matches one of the patterns.
#[derive(Clone, Debug)]
pub(super) struct Condition {
    attribute: Box<str>,
    /// The exact values, sorted.
    exact: Vec<Box<[u8]>>,
    /// The prefixes. The empty one, written as `"*"`, matches every value.
    prefixes: Vec<Box<[u8]>>,
}

impl Condition {
    pub(super) fn attribute(&self) -> &str {
        &self.attribute
    }

    pub(super) fn holds(&self, request: &Request<'_>) -> bool {
        request.attribute(&self.attribute).is_some_and(|value| {
            self.exact.binary_search_by(|known| known.as_ref().cmp(value)).is_ok()
                || self.prefixes.iter().any(|prefix| value.starts_with(prefix))
        })
    }

    /// Describes the patterns for people. A long list is abbreviated.
    pub(super) fn wants(&self) -> String {
        let mut wants: Vec<String> =
            self.patterns().take(SHOWN_MAX).map(Pattern::describe).collect();
        let hidden = (self.exact.len() + self.prefixes.len()).saturating_sub(SHOWN_MAX);
        if hidden > 0 {
            wants.push(format!("{hidden} more"));
        }
        wants.join(" or ")
    }

    pub(super) fn patterns(&self) -> impl Iterator<Item = Pattern<'_>> {
        let exact = self.exact.iter().map(|value| Pattern::Exact(value));
        exact.chain(self.prefixes.iter().map(|prefix| Pattern::Prefix(prefix)))
    }
}

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
    ///     match = { path = "/api/*" }
    ///     key = ["user"]
    ///     limits = ["5/minute"]
    /// "#)?;
    /// let (attribute, mut patterns) = policy.rule("api").unwrap().matches().next().unwrap();
    /// assert_eq!((attribute, patterns.next()), ("path", Some(Pattern::Prefix(b"/api/"))));
    /// # Ok::<(), spillgate::PolicyError>(())
    /// ```
    pub fn matches(&self) -> impl Iterator<Item = (&str, impl Iterator<Item = Pattern<'_>>)> {
        self.conditions().iter().map(|condition| (condition.attribute(), condition.patterns()))
    }
}

/// A pattern of a rule's `match` for one attribute.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Pattern<'t> {
    /// The value must be equal to this.
    Exact(&'t [u8]),
    /// The value must start with this. The empty prefix matches any value.
    Prefix(&'t [u8]),
}

impl Pattern<'_> {
    fn describe(self) -> String {
        match self {
            Pattern::Exact(value) => format!("{:?}", String::from_utf8_lossy(value)),
            Pattern::Prefix(b"") => "anything".to_owned(),
            Pattern::Prefix(prefix) => {
                format!("\"{}*\"", String::from_utf8_lossy(prefix).escape_debug())
            }
        }
    }
}

/// The most patterns in a description.
const SHOWN_MAX: usize = 4;

/// Reads the conditions of a rule from its field `match`.
pub(super) fn read_conditions(table: &Table<'_>, problems: &mut Problems<'_>) -> Vec<Condition> {
    let mut conditions = Vec::new();
    for (attribute, value) in table.attributes("match", problems).unwrap_or_default() {
        let mut condition =
            Condition { attribute: attribute.into(), exact: Vec::new(), prefixes: Vec::new() };
        let list = value.get_ref().as_array();
        let alone = std::slice::from_ref(value);
        if list.is_some_and(|list| list.is_empty()) {
            let message = format!(
                "an empty list, which nothing matches; write a value, or leave {attribute:?} out"
            );
            problems.note(table.wrong_at(table.at(value.span()), "match", message));
        }
        for value in list.map_or(alone, |list| list) {
            match problems.noting(read_pattern(table, "match", attribute, value)) {
                None => {}
                Some(Pattern::Exact(value)) => condition.exact.push(value.into()),
                Some(Pattern::Prefix(prefix)) => condition.prefixes.push(prefix.into()),
            }
        }
        condition.exact.sort_unstable();
        conditions.push(condition);
    }
    conditions
}

/// Reads a pattern: a text, in which a final `*` matches anything, or a table that takes its text
/// literally.
fn read_pattern<'t>(
    table: &Table<'t>,
    field: &str,
    attribute: &str,
    value: &'t Spanned<DeValue<'t>>,
) -> Result<Pattern<'t>, Problem> {
    let at = table.at(value.span());
    if let DeValue::Table(_) = value.get_ref() {
        return read_literal(table, field, attribute, value);
    }
    let text = table.text_of(field, value)?.text;
    let prefix = text.strip_suffix('*');
    if prefix.unwrap_or(text).contains('*') {
        let message = format!(
            "only a * at the end is special, and {text:?} has another; write {{ exact = {text:?} }} to take it literally, or {{ prefix = \"...\" }} to match values by their start"
        );
        return Err(table.wrong_at(at, field, message));
    }
    Ok(prefix.map_or(Pattern::Exact(text.as_bytes()), |prefix| Pattern::Prefix(prefix.as_bytes())))
}

/// Reads `{ exact = "..." }` or `{ prefix = "..." }`.
pub(super) fn read_literal<'t>(
    table: &Table<'t>,
    field: &str,
    attribute: &str,
    value: &'t Spanned<DeValue<'t>>,
) -> Result<Pattern<'t>, Problem> {
    let literal = value.get_ref().as_table().into_iter().flatten();
    let entries: Vec<Entry<'t>> =
        literal.map(|(key, value)| (key.get_ref().as_ref(), value)).collect();
    let message = match entries[..] {
        [("exact", value)] => {
            return Ok(Pattern::Exact(table.text_of(field, value)?.text.as_bytes()));
        }
        [("prefix", value)] => {
            return Ok(Pattern::Prefix(table.text_of(field, value)?.text.as_bytes()));
        }
        [(key, _)] => format!(
            "the value of {attribute:?} is a table; write one of exact and prefix in it, or put the attribute's name in quotes if it has a dot: {:?}",
            format!("{attribute}.{key}")
        ),
        _ => "write { exact = \"...\" } or { prefix = \"...\" }, and nothing else in it".to_owned(),
    };
    Err(table.wrong_at(table.at(value.span()), field, message))
}

/// Finds the rules that a request can match. Each rule is entered under the patterns of one of its
/// conditions: the one that the fewest other rules of its domain share.
#[derive(Clone, Debug, Default)]
pub(super) struct Index {
    /// The domain `default`, found without hashing its name.
    default: Domain,
    others: HashMap<Box<str>, Domain>,
}

#[derive(Clone, Debug, Default)]
struct Domain {
    attributes: HashMap<Box<str>, Attribute>,
    /// The rules without a condition.
    unconditional: Vec<u32>,
}

#[derive(Clone, Debug, Default)]
struct Attribute {
    exact: HashMap<Box<[u8]>, Vec<u32>>,
    prefixes: HashMap<Box<[u8]>, Vec<u32>>,
    /// The lengths of the prefixes, each once.
    prefix_lengths: Vec<usize>,
}

/// Rules by their indexes in the file.
pub(super) type Candidates = SmallVec<[u32; 8]>;

impl Index {
    pub(super) fn of(rules: &[Rule]) -> Index {
        let mut sharing: HashMap<(&str, &str, Pattern<'_>), usize> = HashMap::new();
        for rule in rules {
            for condition in rule.conditions() {
                for pattern in condition.patterns() {
                    *sharing.entry((rule.domain(), &condition.attribute, pattern)).or_default() +=
                        1;
                }
            }
        }
        let mut index = Index::default();
        for (place, rule) in (0..).zip(rules) {
            // The more rules share a pattern, the more candidates it gives. Short prefixes match
            // more values, so among equals the longest shortest prefix wins.
            let shared_by = |condition: &&Condition| {
                let others = condition
                    .patterns()
                    .map(|pattern| sharing[&(rule.domain(), &*condition.attribute, pattern)]);
                let shortest_prefix = condition.prefixes.iter().map(|prefix| prefix.len()).min();
                (others.max(), Reverse(shortest_prefix.unwrap_or(usize::MAX)))
            };
            let domain = match rule.domain() {
                DEFAULT_DOMAIN => &mut index.default,
                other => index.others.entry(other.into()).or_default(),
            };
            match rule.conditions().iter().min_by_key(shared_by) {
                Some(condition) => {
                    let attribute =
                        domain.attributes.entry(condition.attribute.clone()).or_default();
                    attribute.enter(condition, place);
                }
                None => domain.unconditional.push(place),
            }
        }
        index
    }

    pub(super) fn has_domain(&self, domain: &str) -> bool {
        match domain {
            DEFAULT_DOMAIN => !self.default.is_empty(),
            other => self.others.contains_key(other),
        }
    }

    /// Returns all rules of a domain if none has a condition, else `None`.
    #[inline]
    pub(super) fn unconditional(&self, domain: &str) -> Option<&[u32]> {
        let domain = self.domain(domain)?;
        domain.attributes.is_empty().then_some(&domain.unconditional)
    }

    /// Returns every rule that can match the request, and few others, in file order.
    pub(super) fn candidates(&self, request: &Request<'_>) -> Candidates {
        let Some(domain) = self.domain(request.domain()) else { return Candidates::new() };
        let mut candidates = Candidates::from_slice(&domain.unconditional);
        for (name, value) in request.attributes() {
            if let Some(attribute) = domain.attributes.get(name) {
                attribute.find(value, &mut candidates);
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

impl Domain {
    fn is_empty(&self) -> bool {
        self.attributes.is_empty() && self.unconditional.is_empty()
    }
}

impl Attribute {
    fn enter(&mut self, condition: &Condition, rule: u32) {
        for value in &condition.exact {
            self.exact.entry(value.clone()).or_default().push(rule);
        }
        for prefix in &condition.prefixes {
            self.prefixes.entry(prefix.clone()).or_default().push(rule);
            if !self.prefix_lengths.contains(&prefix.len()) {
                self.prefix_lengths.push(prefix.len());
            }
        }
    }

    fn find(&self, value: &[u8], candidates: &mut Candidates) {
        let exact = self.exact.get(value);
        let heads = self.prefix_lengths.iter().filter_map(|length| value.get(..*length));
        let by_prefix = heads.filter_map(|head| self.prefixes.get(head));
        exact.into_iter().chain(by_prefix).for_each(|rules| candidates.extend_from_slice(rules));
    }
}
