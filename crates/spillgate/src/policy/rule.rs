//! One rule: when it applies, to whom, and by what it limits.

use std::sync::Arc;

use siphasher::sip128::SipHasher24;

use super::file::Table;
use super::limits;
use super::matching::{Condition, read_conditions};
use super::problem::Problems;
use crate::limit::{Limit, LimitError, LimitSpec, NamedLimit, checked_name};
use crate::request::{DEFAULT_DOMAIN, Request};
use crate::subject::{Encoding, Secret, SubjectKey};

/// Whether a rule decides, or only watches.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Mode {
    /// It decides.
    #[default]
    Enforce,
    /// It is judged and charged, and never changes an answer.
    Shadow,
    /// As if it were not there.
    Off,
}

impl Mode {
    /// The word for it: `enforce`, `shadow`, `off`.
    pub fn name(self) -> &'static str {
        word_for(self, &MODES)
    }
}

/// What a rule says while the store is out of reach.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum OnOutage {
    /// Each process enforces its share of the limit alone.
    #[default]
    Local,
    /// Nothing passes.
    Deny,
    /// Everything passes.
    Allow,
}

impl OnOutage {
    /// The word for it: `local`, `deny`, `allow`.
    pub fn name(self) -> &'static str {
        word_for(self, &ON_OUTAGE)
    }
}

/// A named entry of the policy: when it applies, to whom, its limits, mode and outage behaviour.
#[derive(Clone, Debug)]
pub struct Rule {
    name: Arc<str>,
    domain: Box<str>,
    conditions: Vec<Condition>,
    /// Sorted, so that reordering `key` keeps the state.
    key: Vec<Box<str>>,
    /// Sorted, for the same reason.
    anchor: Option<Vec<Box<str>>>,
    limits: Vec<NamedLimit>,
    /// The limits as written: what an override leaves unsaid.
    specs: Vec<LimitSpec>,
    mode: Mode,
    on_outage: OnOutage,
    /// Domain, rule and generation, encoded: what every subject's id begins with.
    id_prefix: Box<[u8]>,
    id: u128,
}

impl Rule {
    /// Its name, which no other rule of the policy has.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The domain whose requests it is for.
    pub fn domain(&self) -> &str {
        &self.domain
    }

    /// The attributes that say who is limited, sorted by name: the order in the file means nothing.
    /// None of them: one bucket for all.
    pub fn key(&self) -> impl ExactSizeIterator<Item = &str> {
        self.key.iter().map(|attribute| attribute.as_ref())
    }

    /// The attributes whose subjects share a shard, sorted by name, where the rule says so.
    pub fn anchor(&self) -> Option<impl ExactSizeIterator<Item = &str>> {
        self.anchor.as_ref().map(|anchor| anchor.iter().map(|attribute| attribute.as_ref()))
    }

    /// Its limits, in the order of the file, before any override.
    pub fn limits(&self) -> impl ExactSizeIterator<Item = &Limit> {
        self.limits.iter().map(NamedLimit::limit)
    }

    /// Whether it decides, or only watches.
    pub fn mode(&self) -> Mode {
        self.mode
    }

    /// What it says while the store is out of reach.
    pub fn on_outage(&self) -> OnOutage {
        self.on_outage
    }

    pub(crate) fn named_limits(&self) -> &[NamedLimit] {
        &self.limits
    }

    /// The first key attribute that a request does not have.
    pub(crate) fn missing_from(&self, request: &Request<'_>) -> Option<&str> {
        self.key().find(|attribute| request.attribute(attribute).is_none())
    }

    /// Whose state this is, for a request that has all key attributes.
    ///
    /// The id is hashed from domain, rule, generation and the key's (name, value) pairs sorted by
    /// name; the tag from the pairs of the anchor, or else of the key, so that rules with the same
    /// anchor and rules keyed by it share a shard.
    pub(crate) fn subject_key(&self, request: &Request<'_>, secret: &Secret) -> SubjectKey {
        let mut encoding = Encoding::prefix(&self.id_prefix);
        encode_pairs(&self.key, request, &mut encoding);
        let tag = match &self.anchor {
            None => secret.hash_bytes(&encoding.as_bytes()[self.id_prefix.len()..]),
            Some(anchor) => {
                let mut encoding = Encoding::new();
                encode_pairs(anchor, request, &mut encoding);
                secret.hash(&encoding)
            }
        };
        SubjectKey { tag, id: secret.hash(&encoding), rule: self.id }
    }

    pub(super) fn shared_name(&self) -> Arc<str> {
        Arc::clone(&self.name)
    }

    pub(super) fn conditions(&self) -> &[Condition] {
        &self.conditions
    }

    pub(super) fn specs(&self) -> &[LimitSpec] {
        &self.specs
    }

    pub(super) fn is_met_by(&self, request: &Request<'_>) -> bool {
        self.mode != Mode::Off
            && self.conditions.iter().all(|condition| condition.holds(request))
            && self.missing_from(request).is_none()
    }

    /// The rule that a table says, unless something is missing or wrong.
    pub(super) fn read(table: &Table<'_>, problems: &mut Problems<'_>) -> Option<Rule> {
        table.refuse_unknown(&FIELDS, problems);
        for (field, example) in REQUIRED {
            table.require(field, example, problems);
        }
        let name = table.text("name", problems).and_then(|name| {
            let wrong = |error: LimitError| table.wrong("name", error.message());
            problems.noting(checked_name("name", name).map_err(wrong))
        });
        let domain = read_domain(table, problems);
        let conditions = read_conditions(table, problems);
        let key = read_key(table, problems);
        let anchor = read_anchor(table, key.as_deref(), problems);
        let mode = table.choice("mode", &MODES, problems).unwrap_or_default();
        let on_outage = table.choice("on_outage", &ON_OUTAGE, problems).unwrap_or_default();
        let (limits, specs) = read_limits(table, problems)?;
        let (name, domain) = (name?, domain?);
        let id_prefix = id_prefix(&domain, &name);
        // What is known of a rule is the operator's, so no secret is needed.
        let id = SipHasher24::new().hash(&id_prefix).as_u128();
        let key = key?;
        Some(Rule {
            name,
            domain,
            conditions,
            key,
            anchor,
            limits,
            specs,
            mode,
            on_outage,
            id_prefix,
            id,
        })
    }
}

fn read_domain(table: &Table<'_>, problems: &mut Problems<'_>) -> Option<Box<str>> {
    let domain = match table.has("domain") {
        true => table.text("domain", problems)?,
        false => DEFAULT_DOMAIN,
    };
    if (1..=DOMAIN_MAX).contains(&domain.len()) {
        return Some(domain.into());
    }
    let message = format!(
        "a domain has 1 to {DOMAIN_MAX} bytes, and this one has {}; leave it out for {DEFAULT_DOMAIN:?}",
        domain.len()
    );
    problems.note(table.wrong("domain", message));
    None
}

fn read_key(table: &Table<'_>, problems: &mut Problems<'_>) -> Option<Vec<Box<str>>> {
    let key = read_attributes(table, "key", problems)?;
    if key.len() <= KEY_MAX {
        return Some(key);
    }
    let message =
        format!("{} attributes, and a request has {KEY_MAX} at most; leave some out", key.len());
    problems.note(table.wrong("key", message));
    None
}

fn read_anchor(
    table: &Table<'_>,
    key: Option<&[Box<str>]>,
    problems: &mut Problems<'_>,
) -> Option<Vec<Box<str>>> {
    let anchor = read_attributes(table, "anchor", problems)?;
    for attribute in
        anchor.iter().filter(|attribute| key.is_some_and(|key| !key.contains(attribute)))
    {
        let message = format!(
            "{attribute:?} is not in the key, and only a part of the key can be the anchor; leave it out, or add it to the key"
        );
        problems.note(table.wrong("anchor", message));
    }
    Some(anchor)
}

/// A list of distinct attributes, sorted.
fn read_attributes(
    table: &Table<'_>,
    field: &str,
    problems: &mut Problems<'_>,
) -> Option<Vec<Box<str>>> {
    let mut attributes: Vec<Box<str>> = Vec::new();
    for text in table.texts(field, problems)? {
        let Some(name) = problems.noting(table.attribute_name(field, text)) else { continue };
        match attributes.binary_search_by(|known| known.as_ref().cmp(name)) {
            Ok(_) => problems.note(table.wrong_at(
                text.at,
                field,
                format!("{name:?} is said twice; keep one of them"),
            )),
            Err(place) => attributes.insert(place, name.into()),
        }
    }
    Some(attributes)
}

fn read_limits(
    table: &Table<'_>,
    problems: &mut Problems<'_>,
) -> Option<(Vec<NamedLimit>, Vec<LimitSpec>)> {
    let written = limits::read(table, problems)?;
    let mut limits: Vec<NamedLimit> = Vec::with_capacity(written.len());
    for (position, written) in written.iter().enumerate() {
        let Some(limit) = problems.noting(written.build()) else { continue };
        let limit = NamedLimit::new(limit, position);
        if limits.iter().any(|earlier| earlier.name() == limit.name()) {
            let message = format!(
                "another limit of this rule is named {:?} already, be it by its position; give each a name of its own",
                limit.name()
            );
            problems.note(written.wrong(message));
        }
        limits.push(limit);
    }
    Some((limits, written.into_iter().map(|limit| limit.spec).collect()))
}

fn encode_pairs(attributes: &[Box<str>], request: &Request<'_>, encoding: &mut Encoding) {
    for attribute in attributes {
        encoding.part(attribute.as_bytes());
        encoding.part(request.attribute(attribute).unwrap_or_default());
    }
}

fn id_prefix(domain: &str, name: &str) -> Box<[u8]> {
    let mut encoding = Encoding::new();
    [domain.as_bytes(), name.as_bytes(), &GENERATION.to_le_bytes()]
        .iter()
        .for_each(|part| encoding.part(part));
    encoding.as_bytes().into()
}

fn word_for<T: PartialEq>(choice: T, choices: &[(&'static str, T)]) -> &'static str {
    choices.iter().find(|(_, known)| *known == choice).map_or("", |(word, _)| word)
}

const FIELDS: [&str; 8] =
    ["name", "domain", "match", "key", "limits", "on_outage", "mode", "anchor"];
const REQUIRED: [(&str, &str); 3] = [
    ("name", "name = \"login\""),
    ("key", "key = [\"ip\"], or key = [] for one bucket for all"),
    ("limits", "limits = [\"5/minute\"]"),
];
const MODES: [(&str, Mode); 3] =
    [("enforce", Mode::Enforce), ("shadow", Mode::Shadow), ("off", Mode::Off)];
const ON_OUTAGE: [(&str, OnOutage); 3] =
    [("local", OnOutage::Local), ("deny", OnOutage::Deny), ("allow", OnOutage::Allow)];
/// Proxies glue domains from the names of namespace, gateway and listener.
const DOMAIN_MAX: usize = 256;
/// As many attributes as a request may have at the doors; an override's sets of them are 32 bits.
const KEY_MAX: usize = 32;
/// What a reset of the rule would raise.
const GENERATION: u64 = 0;
