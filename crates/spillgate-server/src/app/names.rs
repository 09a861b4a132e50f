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
    pub(super) logged: Logged,
}

/// A name, by its hash, with the sentence about it.
type Place = OnceLock<(u64, Arc<str>)>;

/// The hash of each name, its kind and domain, and the sentence about it. Reading them takes no lock, since requests with
/// an unused name may be most of all.
pub(super) struct Logged {
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
        if let Some((_, limit)) = request.inline_limit() {
            return self.require_units_of(request, limit);
        }
        self.require_domain(request.domain())?;
        // Nearly all requests end here, and none of them takes a share of the policy.
        if self.limiter().uses_all_names(request) {
            return Ok(Vec::new());
        }
        let (policy, domain) = (self.limiter().policy(), request.domain());
        let mut unused = Vec::new();
        for (kind, name) in policy.unused_names(request) {
            let sentence = || sentence(&policy, domain, kind, name);
            unused.push(self.report((domain, kind, name), kind, sentence)?);
        }
        Ok(unused)
    }

    /// Checks whether a settlement is answered, by its units. Returns a sentence about each unit that no rule counts, and
    /// logs it once.
    ///
    /// A receipt names neither a domain nor units, so the rules of every domain count.
    pub(crate) fn require_units(&self, usage: &Usage<'_>) -> Result<Vec<Arc<str>>, UnknownName> {
        let policy = self.limiter().policy();
        let unused = usage.units().filter(|unit| *unit != REQUESTS && !policy.counts_unit(unit));
        let report = |unit: &str| {
            let sentence = || format!("no rule uses the unit {unit:?}");
            self.report(("a settlement", unit), NameKind::Unit, sentence)
        };
        unused.map(report).collect()
    }

    /// Checks whether a request with an inline limit is answered, by its units.
    fn require_units_of(
        &self,
        request: &Request<'_>,
        limit: &Limit,
    ) -> Result<Vec<Arc<str>>, UnknownName> {
        let counted = limit.unit();
        let mut unused = Vec::new();
        for (unit, _) in request.cost().amounts() {
            // Requests are charged one if no unit is named, so that unit is no mistake.
            if unit == counted || unit == REQUESTS {
                continue;
            }
            let sentence = || format!("the inline limit counts {counted:?}, not the unit {unit:?}");
            let name = ("an inline limit", counted, unit);
            unused.push(self.report(name, NameKind::Unit, sentence)?);
        }
        Ok(unused)
    }

    /// Logs a name that nothing uses, once, and returns the sentence about it.
    ///
    /// # Errors
    ///
    /// If only known names of this kind are answered.
    fn report(
        &self,
        name: impl Hash,
        kind: NameKind,
        sentence: impl Fn() -> String,
    ) -> Result<Arc<str>, UnknownName> {
        let sentence = self.names.logged.once(name, sentence);
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
    fn once(&self, name: impl Hash, sentence: impl Fn() -> String) -> Arc<str> {
        let hash = self.hasher.hash_one(name);
        for place in &self.places {
            let (known, sentence) = place.get_or_init(|| {
                let sentence = sentence();
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

/// Returns the sentence about a name that no rule of the domain uses, with the nearest one.
fn sentence(policy: &Policy, domain: &str, kind: NameKind, name: &str) -> String {
    let kind_name = match kind {
        NameKind::Attribute => "attribute",
        NameKind::Unit => "unit",
    };
    let nearest = policy.nearest_name(domain, kind, name);
    let nearest = nearest.map_or(String::new(), |nearest| format!("; did you mean {nearest:?}?"));
    format!("no rule of the domain {domain:?} uses the {kind_name} {name:?}{nearest}")
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
