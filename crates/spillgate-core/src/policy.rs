//! The policy. `file`, `types`, `limits`, `rule` and `overrides` read it from TOML, with the line
//! of every mistake. `types` gives a request's values one spelling; `matching` and `overrides` find
//! its rules and limits. `runtime` joins the file with runtime changes.
//!
//! A policy is data: it holds no state of subjects, reads no clock, and does no I/O but in `from_path`.
//!
//! Longer than 450 lines because one reader shows how a file becomes a policy, and how a request finds its rules.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use bytes::Bytes;
use smallvec::SmallVec;

use crate::limit::{NamedLimit, REQUESTS};
use crate::request::Request;

mod builder;
mod denial;
mod file;
mod fingerprint;
mod format;
mod from_path;
mod glob;
mod json;
mod leasing;
mod limits;
mod matching;
mod nesting;
mod not_matched;
mod overrides;
mod problem;
mod rule;
mod runtime;
mod settings;
mod tree;
mod types;

pub use crate::algorithm::Share;
pub use builder::{DenialSpec, LeaseSpec, PolicyBuilder, RuleSpec};
pub use denial::{DenialBody, RuleDenial};
use file::{Piece, Place, Table, pieces, text_in};
use fingerprint::Fingerprint;
use format::other_format;
pub use glob::Glob;
pub use leasing::LeaseTerms;
use matching::Index;
pub use matching::{NameKind, Pattern};
use nesting::first_dot_too_many;
pub use not_matched::NotMatched;
use overrides::Overrides;
pub use problem::{PolicyError, nearest};
use problem::{Problem, Problems};
pub use rule::{Mode, OnOutage, RequestLimit, Rule};
pub use runtime::InvalidChange;
pub use runtime::{RuntimeEntry, Subject};
pub use settings::FileSetting;
pub use types::TypedRequest;
use types::Types;

#[doc = include_str!("policy.md")]
#[derive(Clone, Default)]
pub struct Policy {
    /// The rules in force: those of the file, with runtime modes and resets applied.
    rules: Arc<[Rule]>,
    /// The rules of the file. This and the following fields are shared by all versions that runtime
    /// changes make of one file.
    written: Arc<[Rule]>,
    places_by_name: Arc<HashMap<Arc<str>, u32>>,
    types: Arc<Types>,
    index: Arc<Index>,
    overrides: Arc<Overrides>,
    /// The overrides that are runtime changes.
    runtime: Arc<Overrides>,
    /// The number of limits of all rules.
    limit_count: usize,
    /// Whether the file has `rules = []`.
    is_empty_on_purpose: bool,
    fingerprint: u64,
}

/// The rules of a file while it is read.
#[derive(Default)]
struct Rules {
    in_order: Vec<Rule>,
    places_by_name: HashMap<Arc<str>, u32>,
    /// The place of `rules = []` in the file.
    none_at: Option<usize>,
    /// The number of rules that are tried for every request of their domain.
    tried_always: usize,
    fingerprint: Fingerprint,
}

/// A rule that matches a request.
#[derive(Debug)]
pub struct Matched<'p> {
    /// The rule.
    pub rule: &'p Rule,
    /// Its index in the file.
    pub rule_index: u32,
    /// The index of the override's limits, if an override is in force.
    pub overridden: Option<u32>,
    /// The limits in force.
    pub limits: &'p [NamedLimit],
}

/// The place of a counter's limit in a policy. For an inline limit it is the default.
#[derive(Clone, Copy, Debug, Default)]
pub struct LimitPlace {
    /// The index of the rule.
    pub rule: u32,
    /// The index of the override's limits, if an override is in force.
    pub overridden: Option<u32>,
    /// The index of the limit among those in force.
    pub limit: u32,
}

impl Policy {
    /// Parses a policy. Errors call the file `policy`.
    ///
    /// ```
    /// # use spillgate_core as spillgate;
    /// use spillgate::Policy;
    ///
    /// let policy = Policy::from_toml("[[rule]]\nname = 'login'\nkey = ['ip']\nlimits = ['5/minute']")?;
    /// assert_eq!(policy.rule("login").unwrap().key().next(), Some("ip"));
    ///
    /// let error = Policy::from_toml("[[rule]]\nname = 'login'").unwrap_err();
    /// assert!(error.to_string().starts_with("policy:1: rule \"login\", field `key`: missing; "));
    /// # Ok::<(), spillgate::PolicyError>(())
    /// ```
    pub fn from_toml(text: &str) -> Result<Policy, PolicyError> {
        Policy::from_toml_named("policy", text)
    }

    /// Parses a policy whose text has another source than a file. `name` appears in errors as a file's name would.
    ///
    /// # Errors
    /// Returns the first of [`Policy::problems_in`].
    pub fn from_toml_named(name: &str, text: &str) -> Result<Policy, PolicyError> {
        let mut problems = Problems::in_text(text);
        let policy = Policy::read(text, PIECE_BYTES, &mut problems);
        problems.into_errors(name).into_iter().next().map_or(Ok(policy), Err)
    }

    /// Returns all problems of a policy file in file order, or about the first hundred.
    ///
    /// Overrides are checked once all rules are valid.
    pub fn problems_in(file_name: &str, text: &str) -> Vec<PolicyError> {
        let mut problems = Problems::in_text(text);
        Policy::read(text, PIECE_BYTES, &mut problems);
        problems.into_errors(file_name)
    }

    /// Returns the rules in file order.
    pub fn rules(&self) -> impl ExactSizeIterator<Item = &Rule> {
        self.rules.iter()
    }

    /// Returns the rule with this name.
    pub fn rule(&self, name: &str) -> Option<&Rule> {
        self.places_by_name.get(name).map(|place| &self.rules[*place as usize])
    }

    /// Returns whether the file has `rules = []`: it has no rules on purpose, and was not
    /// truncated.
    ///
    /// ```
    /// # use spillgate_core as spillgate;
    /// use spillgate::Policy;
    /// assert!(Policy::from_toml("rules = []")?.is_empty_on_purpose());
    /// assert!(!Policy::from_toml("")?.is_empty_on_purpose());
    /// # Ok::<(), spillgate::PolicyError>(())
    /// ```
    #[doc(hidden)]
    pub fn is_empty_on_purpose(&self) -> bool {
        self.is_empty_on_purpose
    }

    /// Returns a number that is equal for policies with the same rules, types and overrides in the file. Comments,
    /// layout and the settings of a server do not matter.
    #[doc(hidden)]
    pub fn fingerprint(&self) -> u64 {
        self.fingerprint
    }

    /// Returns whether any rule is for this domain.
    #[doc(hidden)]
    pub fn has_domain(&self, domain: &str) -> bool {
        self.index.has_domain(domain)
    }

    /// Returns the attributes and units of a request that no rule of its domain uses. There are none
    /// for a domain without rules, nor for an inline limit. Middleware sends `ip`, `method`, `host` and `path` whether a
    /// rule uses them or not, so they are not among them.
    ///
    /// ```
    /// # use spillgate_core as spillgate;
    /// use spillgate::{Policy, Request};
    /// let policy = Policy::from_toml("[[rule]]\nname = \"a\"\nkey = [\"user\"]\nlimits = [\"5/s\"]")?;
    /// let request = Request::new().with("usr", "ann");
    /// let (kind, name) = policy.unused_names(&request).next().unwrap();
    /// assert_eq!((name, policy.nearest_name("default", kind, name)), ("usr", Some("user")));
    /// # Ok::<(), spillgate::PolicyError>(())
    /// ```
    pub fn unused_names<'r>(
        &'r self,
        request: &'r Request<'_>,
    ) -> impl Iterator<Item = (NameKind, &'r str)> {
        let domain = request.domain();
        let checks = request.inline_limit().is_none() && self.has_domain(domain);
        let attributes = request.attributes().map(|(name, _)| (NameKind::Attribute, name));
        let attributes = attributes.filter(|(_, name)| !SENT_UNASKED.contains(name));
        // Requests are charged one if no unit is named, so that unit is no mistake.
        let units = request.cost().amounts().map(|(unit, _)| (NameKind::Unit, unit));
        let units = units.filter(|(_, unit)| *unit != REQUESTS);
        let names = attributes.chain(units).filter(move |_| checks);
        names.filter(move |(kind, name)| {
            let used = self.index.used(domain, *kind);
            let by_override = |overrides: &Overrides| overrides.count_unit(name);
            used.binary_search_by(|used| (**used).cmp(name)).is_err()
                && !(*kind == NameKind::Unit
                    && (by_override(&self.overrides) || by_override(&self.runtime)))
        })
    }

    /// Returns the name of this kind, in use by rules of the domain, that was probably meant.
    #[doc(hidden)]
    pub fn nearest_name(&self, domain: &str, kind: NameKind, name: &str) -> Option<&str> {
        let used = self.index.used(domain, kind);
        let used: Vec<&str> = used.iter().take(COMPARED_MAX).map(|used| &**used).collect();
        nearest(name, &used)
    }

    /// Returns the number of limits of all rules. No request matches more.
    pub fn limit_count(&self) -> usize {
        self.limit_count
    }

    /// Returns whether any rule or override counts this unit, in whatever domain.
    #[doc(hidden)]
    pub fn counts_unit(&self, unit: &str) -> bool {
        self.index.counts_unit(unit)
            || self.overrides.count_unit(unit)
            || self.runtime.count_unit(unit)
    }

    /// Returns the number of overrides in the file.
    #[doc(hidden)]
    pub fn override_count(&self) -> usize {
        self.overrides.count()
    }

    /// Gives the values of a request the spelling of their attributes' types, by which rules match
    /// them and subjects are named. All other functions expect requests in this form.
    ///
    /// ```
    /// # use spillgate_core::{Policy, Request};
    /// let request = Request::new().with("ip", "2001:DB8::7");
    /// let typed = Policy::default().typed(&request);
    /// assert_eq!(typed.attribute("ip"), Some(b"2001:db8::/64".as_slice()));
    /// ```
    #[inline]
    #[doc(hidden)]
    pub fn typed<'r, 'a>(&self, request: &'r Request<'a>) -> TypedRequest<'r, 'a> {
        self.types.apply(request)
    }

    /// Returns the rules that match a request, in file order, without those that are off.
    #[doc(hidden)]
    pub fn matched<'p>(&'p self, request: &Request<'_>) -> SmallVec<[Matched<'p>; 4]> {
        let mut all = SmallVec::new();
        self.each_match(request, |matched| all.push(matched));
        all
    }

    /// Calls `act` with each rule of [`Policy::matched`].
    #[inline]
    #[doc(hidden)]
    pub fn each_match<'p>(&'p self, request: &Request<'_>, mut act: impl FnMut(Matched<'p>)) {
        let candidates;
        // A domain of few patterns needs no index.
        let rules = match self.index.unindexed(request.domain()) {
            Some(rules) => rules,
            None => {
                candidates = self.index.candidates(request);
                &candidates
            }
        };
        for rule_index in rules {
            let rule = &self.rules[*rule_index as usize];
            if rule.is_matched_by(request) {
                act(self.matched_as(*rule_index, rule, request));
            }
        }
    }

    /// Returns a rule as it applies to a subject with all key attributes, even if the rule is off.
    #[doc(hidden)]
    pub fn matched_by_subject<'p>(
        &'p self,
        rule: &'p Rule,
        subject: &Request<'_>,
    ) -> Option<Matched<'p>> {
        let rule_index = *self.places_by_name.get(rule.name())?;
        Some(self.matched_as(rule_index, rule, subject))
    }

    /// Returns the limits of a rule, and those that overrides give this subject. Each of them may
    /// have state.
    #[doc(hidden)]
    pub fn limits_ever_in_force(&self, rule: &Rule, subject: &Request<'_>) -> Vec<NamedLimit> {
        let place = self.places_by_name.get(rule.name());
        let overridden = [&self.overrides, &self.runtime].into_iter().filter_map(|overrides| {
            let found = overrides.get(*place?, rule, subject)?;
            Some(overrides.limits(found.limits))
        });
        rule.named_limits().iter().chain(overridden.flatten()).cloned().collect()
    }

    /// Returns whether the limits with this index come from a runtime change.
    #[doc(hidden)]
    pub fn is_set_while_running(&self, overridden: u32) -> bool {
        overridden >= self.overrides.places()
    }

    /// Returns the rule at an index.
    #[doc(hidden)]
    pub fn rule_at(&self, place: u32) -> &Rule {
        &self.rules[place as usize]
    }

    /// Returns the limit in force at a place.
    #[inline]
    #[doc(hidden)]
    pub fn named_limit(&self, place: LimitPlace) -> &NamedLimit {
        let rule = &self.rules[place.rule as usize];
        &self.limits_in_force(rule, place.overridden)[place.limit as usize]
    }

    /// Returns the cached header text of a rule's own limit, if it is written under this name: the
    /// rule's, or the rule's and the limit's if the rule has several.
    #[doc(hidden)]
    pub fn header_text(
        &self,
        place: LimitPlace,
        limit_is_named: bool,
    ) -> Option<&std::sync::OnceLock<Bytes>> {
        let rule = &self.rules[place.rule as usize];
        let is_own =
            place.overridden.is_none() && limit_is_named == (rule.named_limits().len() > 1);
        is_own.then(|| &rule.header_texts[place.limit as usize])
    }

    #[inline(always)] // else the result is moved into the list of `matched`
    fn matched_as<'p>(
        &'p self,
        rule_index: u32,
        rule: &'p Rule,
        request: &Request<'_>,
    ) -> Matched<'p> {
        let overridden = self.override_of(rule_index, rule, request);
        Matched { rule, rule_index, overridden, limits: self.limits_in_force(rule, overridden) }
    }

    /// Returns the override that applies to a subject. The one with more attributes wins, then the
    /// smaller network of the same attribute, then a runtime change. Indexes of runtime changes
    /// follow those of the file.
    fn override_of(&self, rule_index: u32, rule: &Rule, request: &Request<'_>) -> Option<u32> {
        let written = self.overrides.get(rule_index, rule, request);
        let runtime = self.runtime.get(rule_index, rule, request);
        match (written, runtime) {
            (Some(written), Some(runtime)) if written.is_narrower_than(&runtime) => {
                Some(written.limits)
            }
            (_, Some(runtime)) => Some(self.overrides.places() + runtime.limits),
            (written, None) => written.map(|found| found.limits),
        }
    }

    #[inline]
    fn limits_in_force<'p>(&'p self, rule: &'p Rule, overridden: Option<u32>) -> &'p [NamedLimit] {
        let Some(place) = overridden else { return rule.named_limits() };
        // Indexes from `places()` on belong to runtime changes.
        match place.checked_sub(self.overrides.places()) {
            None => self.overrides.limits(place),
            Some(place) => self.runtime.limits(place),
        }
    }

    /// Parses the text. The result may be used only if no problem was noted. The text is read
    /// twice, first the rules and then the overrides, so that either may come first and only one
    /// piece is held as a tree.
    fn read(text: &str, piece_bytes: usize, problems: &mut Problems<'_>) -> Policy {
        let pieces = pieces(text, piece_bytes);
        if let Some(problem) = unreadable(text, &pieces) {
            problems.note(problem);
            return Policy::default();
        }
        let types = read_types(&pieces, problems);
        let mut rules = Rules::default();
        for piece in &pieces {
            rules.read(piece, &types, problems);
        }
        if let Some(at) = rules.none_at.filter(|_| !rules.in_order.is_empty()) {
            problems.note(not_empty(at, rules.in_order.len()));
        }
        if !problems.is_empty() {
            return Policy::default();
        }
        let mut reading = overrides::Reading::new(&rules.in_order, &rules.places_by_name, &types);
        for piece in &pieces {
            read_overrides(piece, &mut reading, &mut rules.fingerprint, problems);
        }
        let overrides = reading.finish(problems);
        rules.into_policy(types, overrides)
    }
}

impl Rules {
    fn read(&mut self, piece: &Piece<'_>, types: &Types, problems: &mut Problems<'_>) {
        let Some(tree) = piece.parse(problems) else { return };
        self.fingerprint.add("rule", tree.get_ref());
        self.fingerprint.add("attribute", tree.get_ref());
        let file = Table::of_piece(&tree, piece);
        file.refuse_unknown(&SECTIONS, problems);
        if file.has(NO_RULES) {
            match file.list(NO_RULES, problems) {
                Some(list) if !list.is_empty() => problems.note(file.wrong(NO_RULES, ONLY_EMPTY)),
                _ => self.none_at = Some(file.place_of(NO_RULES)),
            }
        }
        for table in file.entries("rule", |fields| Place::Rule(text_in(fields, "name")), problems) {
            if problems.are_plenty() {
                return;
            }
            self.check(&table, types, problems);
        }
    }

    /// Adds the rule of a table, or notes its problems.
    fn check(&mut self, table: &Table<'_>, types: &Types, problems: &mut Problems<'_>) {
        let Some(rule) = Rule::check(table, types, problems) else { return };
        let place = self.in_order.len() as u32;
        if self.places_by_name.insert(rule.shared_name(), place).is_some() {
            problems.note(
                table.wrong("name", "another rule further up has this name; give each its own"),
            );
        }
        if rule.is_tried_always() {
            self.tried_always += 1;
            if self.tried_always > TRIED_ALWAYS_MAX {
                problems.note(table.wrong("match", too_many_tried_always()));
            }
        }
        self.in_order.push(rule);
    }

    fn into_policy(self, types: Types, overrides: Overrides) -> Policy {
        let index = Arc::new(Index::from_rules(&self.in_order));
        let written: Arc<[Rule]> = self.in_order.into();
        let limit_count = written.iter().map(|rule| rule.limits().len()).sum();
        Policy {
            rules: Arc::clone(&written),
            written,
            places_by_name: Arc::new(self.places_by_name),
            types: Arc::new(types),
            index,
            overrides: Arc::new(overrides),
            limit_count,
            is_empty_on_purpose: self.none_at.is_some(),
            fingerprint: self.fingerprint.finish(),
            runtime: Arc::default(),
        }
    }
}

impl fmt::Debug for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let counts = (self.rules.len(), self.overrides.count());
        f.debug_struct("Policy")
            .field("rules", &counts.0)
            .field("overrides", &counts.1)
            .finish_non_exhaustive()
    }
}

/// Reads the types of attributes, which rules need while they are read. Only pieces that can have
/// one are parsed.
fn read_types(pieces: &[Piece<'_>], problems: &mut Problems<'_>) -> Types {
    let (mut types, mut declared) = (Types::default(), Vec::new());
    for piece in pieces.iter().filter(|piece| piece.has(types::SECTION)) {
        // The piece is parsed again for its rules, and its syntax reported then.
        if let Some(tree) = piece.parse(&mut Problems::in_text("")) {
            types.read(&Table::of_piece(&tree, piece), &mut declared, problems);
        }
    }
    types
}

fn read_overrides(
    piece: &Piece<'_>,
    reading: &mut overrides::Reading<'_>,
    fingerprint: &mut Fingerprint,
    problems: &mut Problems<'_>,
) {
    let Some(tree) = piece.parse(problems) else { return };
    fingerprint.add("override", tree.get_ref());
    let file = Table::of_piece(&tree, piece);
    for table in
        file.entries("override", |fields| Place::Override(text_in(fields, "rule")), problems)
    {
        if problems.are_plenty() {
            return;
        }
        reading.read(&table, problems);
    }
}

/// Returns the problem of a text that cannot be read as TOML, or would take too much memory as a tree.
fn unreadable(text: &str, pieces: &[Piece<'_>]) -> Option<Problem> {
    if text.len() > TEXT_MAX {
        let message = format!("longer than {TEXT_MAX} bytes; leave some overrides out");
        return Some(Problem::of_file(0, message));
    }
    if let Some(problem) = other_format(text) {
        return Some(problem);
    }
    if let Some(piece) = pieces.iter().find(|piece| piece.is_too_long()) {
        return Some(piece.too_long());
    }
    first_dot_too_many(text).map(|at| Problem::of_file(at, TOO_NESTED))
}

fn not_empty(at: usize, rules: usize) -> Problem {
    let message = format!(
        "an empty list means that the file has no rules on purpose, but it has {rules}; leave out the list or the rules"
    );
    Problem { field: NO_RULES.to_owned(), ..Problem::of_file(at, message) }
}

fn too_many_tried_always() -> String {
    format!(
        "nothing here finds the rule by a value: not, absent and a * at the start are tried for every request, and {TRIED_ALWAYS_MAX} rules of this kind are the most; add an attribute with a value, a beginning or a network"
    )
}

/// The most names that a misspelt one is compared with.
const COMPARED_MAX: usize = 256;
/// The attributes that middleware sends with each request, and the one that Envoy's listener adds.
const SENT_UNASKED: [&str; 5] = ["envoy.entries", "host", "ip", "method", "path"];
/// The tables of a file: the policy's and the service's.
const SECTIONS: [&str; 7] =
    ["attribute", "rule", NO_RULES, "override", "server", "store", "telemetry"];
/// The most rules that are tried for every request. They take some 10 µs.
const TRIED_ALWAYS_MAX: usize = 256;
/// The field whose empty list declares that a file has no rules on purpose.
const NO_RULES: &str = "rules";
const ONLY_EMPTY: &str = "only an empty list is accepted here, which means that the file has no rules on \
                          purpose; write each rule in a table of its own, below [[rule]]";
const TOO_NESTED: &str = "the keys of this file have too many dots for its length; each makes a table within \
                          another, and rules need one at most: match.path = \"/a\"";
/// The longest file. Byte offsets fit into 32 bits, and a wrong file cannot fill the memory.
const TEXT_MAX: usize = 1 << 30;
/// The size of a piece: a few hundred entries, which read fast and take little memory as a tree.
const PIECE_BYTES: usize = 1 << 16;

#[cfg(test)]
mod tests;
