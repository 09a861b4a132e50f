//! Decides which domains, attributes and units are answered, by one rule for every listener.

use std::fmt;
use std::hash::{BuildHasher, Hash, RandomState};
use std::sync::{Arc, OnceLock};

use spillgate::policy::NameKind;
use spillgate::reservation::Usage;
use spillgate::{Limit, Policy, Request};

use super::App;
use crate::config::Names;

/// A domain, attribute or unit that is not answered.
#[derive(Debug)]
pub(crate) struct UnknownName {
    /// The field of a request that has the name.
    pub(crate) field: &'static str,
    message: String,
}

/// Which names are answered, and the unused ones that were logged.
#[derive(Default)]
pub(crate) struct NameRules {
    pub(crate) domains: Names,
    pub(crate) attributes: Names,
    pub(crate) units: Names,
    pub(crate) logged: Logged,
}

/// A name, by its hash, with the sentence about it.
type Place = OnceLock<(u64, Arc<str>)>;

/// The hash of each name, its kind and domain, and the sentence about it. Reading them takes no lock, since requests with
/// an unused name may be most of all.
pub struct Logged {
    hasher: RandomState,
    places: Box<[Place]>,
}

impl App {
    /// Checks whether requests of this domain are answered.
    pub(crate) fn require_domain(&self, domain: &str) -> Result<(), UnknownName> {
        if self.names.domains == Names::Open || self.limiter().policy().has_domain(domain) {
            return Ok(());
        }
        let message = format!(
            "no rule has the domain {domain:?}, and server.domains is \"known\"; correct the \
             domain, or write a rule for it"
        );
        Err(UnknownName { field: "domain", message })
    }

    /// Checks whether a request is answered. An inline limit needs no rule, so it has no domain to check.
    pub(crate) fn require_domain_of(&self, request: &Request<'_>) -> Result<(), UnknownName> {
        match request.inline_limit() {
            None => self.require_domain(request.domain()),
            Some(_) => Ok(()),
        }
    }

    /// Checks whether a request is answered: by its domain, its attributes and its units. Returns a sentence about each
    /// name that no rule and no inline limit uses, and logs it once.
    ///
    /// Forward auth does not call this: it sets attributes that not every policy uses.
    pub(crate) fn require_names(
        &self,
        request: &Request<'_>,
    ) -> Result<Vec<Arc<str>>, UnknownName> {
        self.require_domain_of(request)?;
        let unused = self.note_names(request);
        unused.into_iter().map(|(kind, sentence)| self.answer_unused(kind, sentence)).collect()
    }

    /// Returns a sentence about each attribute and unit of a request that no rule and no inline limit uses, and logs it
    /// once.
    pub(crate) fn note_names(&self, request: &Request<'_>) -> Vec<(NameKind, Arc<str>)> {
        if let Some((_, limit)) = request.inline_limit() {
            return self.note_units_beside(request, limit);
        }
        // Nearly all requests end here, and none of them takes a share of the policy.
        if self.limiter().uses_all_names(request) {
            return Vec::new();
        }
        let (policy, domain) = (self.limiter().policy(), request.domain());
        let note = |(kind, name)| {
            let sentence = || sentence(domain, kind, name);
            let advice = || nearest(&policy, domain, kind, name);
            (kind, self.names.logged.once((domain, kind, name), sentence, advice))
        };
        policy.unused_names(request).map(note).collect()
    }

    /// Returns a sentence about each unit of a settlement that no rule counts, and logs it once.
    ///
    /// A settlement is never refused for a unit, because only the record of the reservation knows which units it
    /// counts: the rules may have changed since. A receipt names no domain either, so the rules of every domain count.
    pub(crate) fn note_units(&self, usage: &Usage<'_>) -> Vec<Arc<str>> {
        let policy = self.limiter().policy();
        let unused = usage.units().filter(|unit| *unit != REQUESTS && !policy.counts_unit(unit));
        let note = |unit: &str| {
            let sentence = || {
                format!(
                    "no rule counts the unit {unit:?}, so it has an effect only if the \
                     reservation was charged in it"
                )
            };
            self.names.logged.once(("a settlement", unit), sentence, String::new)
        };
        unused.map(note).collect()
    }

    /// Returns a sentence about each unit of a request that its inline limit does not count.
    fn note_units_beside(&self, request: &Request<'_>, limit: &Limit) -> Vec<(NameKind, Arc<str>)> {
        let counted = limit.unit();
        // Requests are charged one if no unit is named, so that unit is no mistake.
        let units = request.cost().amounts().map(|(unit, _)| unit);
        let unused = units.filter(|unit| *unit != counted && *unit != REQUESTS);
        let note = |unit| {
            let sentence = || format!("the inline limit counts {counted:?}, not the unit {unit:?}");
            let name = ("an inline limit", counted, unit);
            (NameKind::Unit, self.names.logged.once(name, sentence, String::new))
        };
        unused.map(note).collect()
    }

    /// Returns the sentence about an unused name.
    ///
    /// # Errors
    ///
    /// If only known names of this kind are answered.
    fn answer_unused(&self, kind: NameKind, sentence: Arc<str>) -> Result<Arc<str>, UnknownName> {
        let (field, setting, answered) = match kind {
            NameKind::Attribute => ("attributes", "server.attributes", self.names.attributes),
            NameKind::Unit => ("cost", "server.units", self.names.units),
        };
        match answered {
            Names::Open => Ok(sentence),
            Names::Known => {
                let message = format!("{sentence}, and {setting} is \"known\"");
                Err(UnknownName { field, message })
            }
        }
    }
}

impl Default for Logged {
    fn default() -> Logged {
        let places = (0..LOGGED_MAX).map(|_| OnceLock::new()).collect();
        Logged { hasher: RandomState::new(), places }
    }
}

impl Logged {
    /// Returns the sentence about an unused name, and logs it the first time.
    ///
    /// The advice ends only sentences that are logged. It compares the name with hundreds of others, and a client may
    /// send 30,000 unused names in one batch.
    fn once(
        &self,
        name: impl Hash,
        sentence: impl Fn() -> String,
        advice: impl Fn() -> String,
    ) -> Arc<str> {
        let hash = self.hasher.hash_one(name);
        for place in &self.places {
            let (known, sentence) = place.get_or_init(|| {
                let sentence = sentence() + &advice();
                tracing::warn!(target: "spillgate", why = %sentence, "a request names what no rule uses");
                (hash, sentence.into())
            });
            if *known == hash {
                return Arc::clone(sentence);
            }
        }
        sentence().into()
    }
}

/// Returns the sentence about a name that no rule of the domain uses.
fn sentence(domain: &str, kind: NameKind, name: &str) -> String {
    let kind_name = match kind {
        NameKind::Attribute => "attribute",
        NameKind::Unit => "unit",
    };
    format!("no rule of the domain {domain:?} uses the {kind_name} {name:?}")
}

/// Returns the end of that sentence, with the nearest name if there is one.
fn nearest(policy: &Policy, domain: &str, kind: NameKind, name: &str) -> String {
    let nearest = policy.nearest_name(domain, kind, name);
    nearest.map_or(String::new(), |nearest| format!("; did you mean {nearest:?}?"))
}

impl fmt::Display for UnknownName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

/// The unit of a cost that names none.
const REQUESTS: &str = "requests";
/// The most names that are logged, each once.
const LOGGED_MAX: usize = 64;
