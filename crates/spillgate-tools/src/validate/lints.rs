//! The lints: each is a question to a file that loads, and answers with what it finds.

use spillgate::{Policy, Rule};

use super::Service;
use super::finding::{Finding, Level};
use super::source::{Entry, Source};

mod binding;
mod doors;
mod leases;
mod matching;
mod memory;
mod outage;
mod overrides;
mod shards;
mod who;
mod words;

/// All that is found, in the order of the file.
pub(super) fn findings(looked: &Looked<'_>) -> Vec<Finding> {
    let found = LINTS
        .iter()
        .flat_map(|(code, lint)| lint(looked).into_iter().map(|found| found.under(code)));
    let mut findings: Vec<Finding> = found.collect();
    findings.sort_by_key(|finding| (finding.line, finding.level, finding.code));
    findings
}

type Lint = fn(&Looked<'_>) -> Vec<Found>;

/// By the codes of what they find.
const LINTS: [(&str, Lint); 21] = [
    ("limit-never-binds", binding::never_binds),
    ("rule-shadowed", binding::shadowed),
    ("limits-nothing", binding::limits_nothing),
    ("never-matches", matching::never_matches),
    ("pattern-covered", matching::pattern_covered),
    ("nothing-enforced", matching::nothing_enforced),
    ("address-alone", who::address_alone),
    ("attribute-absent", who::attribute_absent),
    ("address-of-proxy", doors::address_of_proxy),
    ("auth-without-rules", doors::auth_without_rules),
    ("permits-end-at-max-hold", doors::permits_end_at_max_hold),
    ("fails-open", outage::fails_open),
    ("shares-above-limit", outage::shares_above_limit),
    ("spans-shards", shards::spans_shards),
    ("lease-of-nothing", leases::of_nothing),
    ("log-memory", memory::log_memory),
    ("month-of-30-days", words::nominal_months),
    ("year-of-365-days", words::nominal_years),
    ("override-never-met", overrides::never_met),
    ("override-changes-nothing", overrides::changes_nothing),
    ("rules-not-compared", matching::not_compared),
];

/// A finding whose lint is known by whom it came from.
struct Found {
    level: Level,
    line: usize,
    rule: Option<String>,
    what: String,
    remedy: String,
}

impl Found {
    fn under(self, code: &'static str) -> Finding {
        let Found { level, line, rule, what, remedy } = self;
        Finding { code, level, line, rule, what, remedy }
    }
}

/// A file that loads, as the lints look at it.
pub(super) struct Looked<'a> {
    pub(super) policy: &'a Policy,
    pub(super) service: Service,
    /// The settings that the file gives, with their lines.
    pub(super) set: &'a [(String, usize)],
    pub(super) source: &'a Source,
}

/// A rule with the words that it was made of.
#[derive(Clone, Copy)]
struct Written<'a> {
    rule: &'a Rule,
    entry: &'a Entry,
}

impl<'a> Looked<'a> {
    /// In the order of the file.
    fn rules(&self) -> impl Iterator<Item = Written<'a>> {
        self.policy.rules().zip(&self.source.rules).map(|(rule, entry)| Written { rule, entry })
    }

    /// Those that are compared with each other.
    fn compared(&self) -> Vec<Written<'a>> {
        self.rules().take(COMPARED_MAX).collect()
    }

    /// The overrides of a rule, as written.
    fn overrides_of(&self, rule: &Rule) -> impl Iterator<Item = &'a Entry> + use<'a> {
        self.source.overrides.get(rule.name()).into_iter().flatten()
    }

    /// The line of the first setting that is this one or within it.
    fn line_set(&self, name: &str) -> Option<usize> {
        let is_it = |set: &str| {
            set.strip_prefix(name).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
        };
        self.set.iter().find(|(set, _)| is_it(set)).map(|(_, line)| *line)
    }
}

impl Written<'_> {
    fn warning(&self, line: usize, what: impl Into<String>, remedy: impl Into<String>) -> Found {
        let rule = Some(self.rule.name().to_owned());
        Found { level: Level::Warning, line, rule, what: what.into(), remedy: remedy.into() }
    }

    fn note(&self, line: usize, what: impl Into<String>, remedy: impl Into<String>) -> Found {
        Found { level: Level::Note, ..self.warning(line, what, remedy) }
    }
}

/// Each with each: two million pairs take a second.
const COMPARED_MAX: usize = 2_000;
