//! Rules: the requests that they match, their subjects and their limits.
//!
//! Longer than 450 lines because a rule has one method for each of its fields.

use std::sync::Arc;

use bytes::Bytes;

use super::denial::RuleDenial;
use super::file::Table;
use super::leasing::{HotSubjects, LeaseTerms};
use super::limits;
use super::matching::{Condition, read_conditions};
use super::problem::Problems;
use super::types::Types;
use crate::algorithm::Share;
use crate::limit::{Limit, LimitError, LimitSpec, NamedLimit, checked_name};
use crate::request::Request;
use crate::subject::{DEFAULT_DOMAIN, Encoding, Secret, SubjectKey, fixed_hash};

/// The effect of a rule.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Mode {
    /// It decides.
    #[default]
    Enforce,
    /// It is evaluated and charged, and never changes an answer.
    Shadow,
    /// It has no effect.
    Off,
}

impl Mode {
    /// Returns the word of the policy file: `enforce`, `shadow` or `off`.
    pub fn name(self) -> &'static str {
        word_for(self, &MODES)
    }

    /// Returns the mode with this name.
    ///
    /// ```
    /// # use spillgate_core::Mode;
    /// assert_eq!(Mode::named("shadow"), Some(Mode::Shadow));
    /// assert_eq!(Mode::named("on"), None);
    /// ```
    pub fn named(name: &str) -> Option<Mode> {
        MODES.iter().find(|(word, _)| *word == name).map(|(_, mode)| *mode)
    }
}

/// The behaviour of a rule while the store is out of reach.
///
/// `RuleSpec::on_outage` takes it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum OnOutage {
    /// Each instance enforces its local share of the limit.
    #[default]
    Local,
    /// Every request is denied.
    Deny,
    /// Every request is allowed.
    Allow,
}

impl OnOutage {
    /// Returns the word of the policy file: `local`, `deny` or `allow`.
    pub fn name(self) -> &'static str {
        word_for(self, &ON_OUTAGE)
    }
}

/// The effect of a limit that a request asks for, by [`Request::limited_to`] or in a descriptor of Envoy.
///
/// `RuleSpec::request_limit` takes it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum RequestLimit {
    /// It has none.
    #[default]
    Ignore,
    /// It holds beside each limit of the rule that is larger, with a counter of its own.
    Lower,
    /// It replaces the rule's limit, be it lower or higher. Where an override is in force it may only lower that.
    Replace,
}

impl RequestLimit {
    /// Returns the word of the policy file: `ignore`, `lower` or `replace`.
    pub fn name(self) -> &'static str {
        word_for(self, &REQUEST_LIMITS)
    }
}

/// A named entry of the policy: the requests that it matches, its subjects, limits, mode and outage behaviour.
#[derive(Clone, Debug)]
pub struct Rule {
    name: Arc<str>,
    domain: Box<str>,
    conditions: Vec<Condition>,
    key: Attributes,
    anchor: Option<Attributes>,
    limits: Vec<NamedLimit>,
    /// The limits as written, from which overrides inherit.
    specs: Vec<LimitSpec>,
    mode: Mode,
    on_outage: OnOutage,
    postpaid: bool,
    negative_hits: bool,
    request_limit: RequestLimit,
    local_share: Option<Share>,
    pub(crate) lease: Option<(LeaseTerms, HotSubjects)>,
    denial: Option<Arc<RuleDenial>>,
    /// The hash of domain, name and generation.
    id: u128,
    /// The cached header text of each limit, which is the same for every request.
    pub(crate) header_texts: Arc<[std::sync::OnceLock<Bytes>]>,
}

/// The attributes of a key or an anchor.
#[derive(Clone, Debug)]
struct Attributes {
    /// The names, sorted, so that reordering them in the file keeps the state.
    names: Vec<Box<str>>,
    /// The hash of the names. Equal values of other attributes make another subject.
    id: u128,
}

impl Rule {
    /// Returns its name, which is unique in the policy.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the domain of the requests that it matches.
    pub fn domain(&self) -> &str {
        &self.domain
    }

    /// Returns the attributes of its subjects, sorted by name. Without any, all requests share one counter.
    pub fn key(&self) -> impl ExactSizeIterator<Item = &str> {
        self.key.names.iter().map(|attribute| attribute.as_ref())
    }

    /// Returns the attributes that a request needs to match the rule: those of `match`, then those of the key.
    ///
    /// ```
    /// # use spillgate_core as spillgate;
    /// use spillgate::Policy;
    /// let policy = Policy::from_toml(r#"
    ///     [[rule]]
    ///     name = "login"
    ///     match = { route = "/login" }
    ///     key = ["ip"]
    ///     limits = ["5/minute"]
    /// "#)?;
    /// assert!(policy.rule("login").unwrap().needs().eq(["route", "ip"]));
    /// # Ok::<(), spillgate::PolicyError>(())
    /// ```
    pub fn needs(&self) -> impl Iterator<Item = &str> {
        let with_value = self.conditions.iter().filter(|condition| condition.needs_value());
        with_value.map(Condition::attribute).chain(self.key())
    }

    /// Returns the attributes of its anchor, sorted by name, if it has one. Subjects with equal anchor values share a
    /// shard.
    pub fn anchor(&self) -> Option<impl ExactSizeIterator<Item = &str>> {
        self.anchor.as_ref().map(|anchor| anchor.names.iter().map(|attribute| attribute.as_ref()))
    }

    /// Returns its limits in file order, before any override.
    pub fn limits(&self) -> impl ExactSizeIterator<Item = &Limit> {
        self.limits.iter().map(NamedLimit::limit)
    }

    /// Returns its mode.
    pub fn mode(&self) -> Mode {
        self.mode
    }

    /// Returns its behaviour while the store is out of reach.
    pub fn on_outage(&self) -> OnOutage {
        self.on_outage
    }

    /// Returns the part of its limits that one instance enforces while the store is out of reach. `None` if it
    /// follows from the number of instances.
    pub fn local_share(&self) -> Option<Share> {
        self.local_share
    }

    /// Returns its lease terms, if instances may lease its limits.
    pub fn lease(&self) -> Option<&LeaseTerms> {
        self.lease.as_ref().map(|(terms, _)| terms)
    }

    /// Returns its response to the requests that it denies, if it has one of its own.
    pub fn denial(&self) -> Option<&RuleDenial> {
        self.denial.as_deref()
    }

    /// Returns whether it is post-paid. Then it is charged whether it has room or not, and whatever other rules
    /// decide. Only peeks are denied.
    pub fn postpaid(&self) -> bool {
        self.postpaid
    }

    /// Returns whether callers may refund without a receipt, as Envoy's negative hits do.
    pub fn negative_hits(&self) -> bool {
        self.negative_hits
    }

    /// Returns the effect of a limit that a request asks for.
    pub fn request_limit(&self) -> RequestLimit {
        self.request_limit
    }

    /// Returns its limits with the names of their stored state.
    #[inline]
    #[doc(hidden)]
    pub fn named_limits(&self) -> &[NamedLimit] {
        &self.limits
    }

    /// Returns the first key attribute that a request does not have.
    #[doc(hidden)]
    pub fn missing_from(&self, request: &Request<'_>) -> Option<&str> {
        self.key().find(|attribute| request.value(attribute).is_none())
    }

    /// Returns the value of a key attribute by which the rule names the subject. Of several readings it is that of the
    /// readings that the rule matches.
    #[inline]
    #[doc(hidden)]
    pub fn subject_value<'r>(&self, request: &'r Request<'_>, attribute: &str) -> &'r [u8] {
        let Some(value) = request.value(attribute) else { return &[] };
        value.subject(|reading| {
            let mut of_attribute =
                self.conditions.iter().filter(|condition| condition.attribute() == attribute);
            of_attribute.all(|condition| condition.holds_for(reading))
        })
    }

    /// Returns the keys of a subject's state, for a request that has all key attributes.
    ///
    /// The values are hashed once for the key, and once more for an anchor. The tag is the hash of the anchor, or
    /// else of the key, so that rules with the same anchor and rules keyed by it share a shard. The id is the hash of
    /// the key combined with the rule's.
    #[inline(always)] // else the result is moved into the charge
    #[doc(hidden)]
    pub fn subject_key(&self, request: &Request<'_>, secret: &Secret) -> SubjectKey {
        let value = |attribute: &str| self.subject_value(request, attribute);
        let subject = self.key.hash_values(value, secret);
        let tag = self.anchor.as_ref().map(|anchor| anchor.hash_values(value, secret));
        SubjectKey { tag: tag.unwrap_or(subject), id: subject ^ self.id, rule: self.id }
    }

    /// Returns the rule in another mode, or with another generation, which starts with new state.
    pub(crate) fn changed(&self, mode: Option<Mode>, generation: Option<u64>) -> Rule {
        let mut changed = Rule { mode: mode.unwrap_or(self.mode), ..self.clone() };
        if let Some(generation) = generation {
            changed.id = id(&self.domain, &self.name, generation);
        }
        changed
    }

    /// Returns its name without copying it.
    #[doc(hidden)]
    pub fn shared_name(&self) -> Arc<str> {
        Arc::clone(&self.name)
    }

    pub(crate) fn conditions(&self) -> &[Condition] {
        &self.conditions
    }

    pub(crate) fn specs(&self) -> &[LimitSpec] {
        &self.specs
    }

    pub(crate) fn is_matched_by(&self, request: &Request<'_>) -> bool {
        self.mode != Mode::Off
            && self.conditions.iter().all(|condition| condition.holds(request))
            && self.missing_from(request).is_none()
    }

    /// Makes a rule of a table of a file or of code, unless something is missing or wrong.
    pub(crate) fn check(
        table: &Table<'_>,
        types: &Types,
        problems: &mut Problems<'_>,
    ) -> Option<Rule> {
        table.refuse_unknown(&FIELDS, problems);
        for (field, example) in REQUIRED {
            table.require(field, example, problems);
        }
        let name = table.text("name", problems).and_then(|name| {
            let wrong = |error: LimitError| table.wrong("name", error.message());
            problems.noting(checked_name("name", name).map_err(wrong))
        });
        let domain = read_domain(table, problems);
        let conditions = read_conditions(table, types, problems);
        let key = read_key(table, problems);
        let anchor = read_anchor(table, key.as_deref(), problems);
        let mode = table.choice("mode", &MODES, problems).unwrap_or_default();
        let on_outage = table.choice("on_outage", &ON_OUTAGE, problems).unwrap_or_default();
        let local_share = table.share("local_share", problems);
        let truth = |field, problems: &mut _| table.truth(field, problems).unwrap_or_default();
        let postpaid = truth("postpaid", problems);
        let negative_hits = truth("negative_hits", problems);
        let request_limit =
            table.choice("request_limit", &REQUEST_LIMITS, problems).unwrap_or_default();
        let denial = RuleDenial::read(table, problems).map(Arc::new);
        let (limits, specs) = read_limits(table, problems)?;
        if request_limit == RequestLimit::Replace {
            refuse_irreplaceable(table, &limits, problems);
        }
        let lease = LeaseTerms::read(table, key.as_deref(), types, &limits, problems);
        if postpaid && lease.is_some() {
            problems.note(LeaseTerms::refused_postpaid(table));
        }
        let (name, domain) = (name?, domain?);
        let id = id(&domain, &name, FIRST_GENERATION);
        let key = Attributes::new(key?);
        let anchor = anchor.map(Attributes::new);
        let header_texts = limits.iter().map(|_| Default::default()).collect();
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
            postpaid,
            negative_hits,
            request_limit,
            local_share,
            lease,
            denial,
            id,
            header_texts,
        })
    }
}

impl Attributes {
    fn new(names: Vec<Box<str>>) -> Attributes {
        let id = fixed_hash(names.iter().map(|name| name.as_bytes()));
        Attributes { names, id }
    }

    /// Returns the hash of names and values.
    fn hash_values<'v>(&self, value: impl Fn(&str) -> &'v [u8], secret: &Secret) -> u128 {
        // A single value is unambiguous. Several need their lengths.
        let values = match &self.names[..] {
            [name] => secret.hash_bytes(value(name)),
            names => {
                let mut encoding = Encoding::new();
                names.iter().for_each(|name| encoding.part(value(name)));
                secret.hash(&encoding)
            }
        };
        values ^ self.id
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

/// Reads a list of distinct attributes and sorts it.
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
                format!("{name:?} is listed twice; keep one of them"),
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

/// Refuses limits that no limit of a request could stand in for.
fn refuse_irreplaceable(table: &Table<'_>, limits: &[NamedLimit], problems: &mut Problems<'_>) {
    if limits.len() > 1 {
        let message = format!(
            "a request can replace one limit, and this rule has {}; leave one, and write the others in a rule of their own",
            limits.len()
        );
        problems.note(table.wrong("request_limit", message));
    } else if limits.iter().any(|limit| limit.algorithm().counts_permits()) {
        let message = "a limit of a request is a rate, and cannot replace a concurrency limit; leave request_limit out";
        problems.note(table.wrong("request_limit", message));
    }
}

fn id(domain: &str, name: &str, generation: u64) -> u128 {
    fixed_hash([domain.as_bytes(), name.as_bytes(), &generation.to_le_bytes()])
}

fn word_for<T: PartialEq>(choice: T, choices: &[(&'static str, T)]) -> &'static str {
    choices.iter().find(|(_, known)| *known == choice).map_or("", |(word, _)| word)
}

const FIELDS: [&str; 14] = [
    "name",
    "domain",
    "match",
    "key",
    "limits",
    "on_outage",
    "mode",
    "anchor",
    "local_share",
    "postpaid",
    "negative_hits",
    "request_limit",
    "lease",
    "denial",
];
const REQUIRED: [(&str, &str); 3] = [
    ("name", "name = \"login\""),
    ("key", "key = [\"ip\"], or key = [] for one counter for all"),
    ("limits", "limits = [\"5/minute\"]"),
];
const MODES: [(&str, Mode); 3] =
    [("enforce", Mode::Enforce), ("shadow", Mode::Shadow), ("off", Mode::Off)];
const ON_OUTAGE: [(&str, OnOutage); 3] =
    [("local", OnOutage::Local), ("deny", OnOutage::Deny), ("allow", OnOutage::Allow)];
const REQUEST_LIMITS: [(&str, RequestLimit); 3] = [
    ("ignore", RequestLimit::Ignore),
    ("lower", RequestLimit::Lower),
    ("replace", RequestLimit::Replace),
];
/// The longest domain. Proxies join domains from the names of namespace, gateway and listener.
const DOMAIN_MAX: usize = 1024;
/// The most key attributes: as many as the APIs allow in a request. An override's set of them has 32 bits.
const KEY_MAX: usize = 32;
/// The generation of a rule that was never reset.
const FIRST_GENERATION: u64 = 0;
