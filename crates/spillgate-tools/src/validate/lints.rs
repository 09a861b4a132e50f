//! The lints. Each one checks a file that loads, and returns its findings.

use spillgate::policy::FileSetting;
use spillgate::{Policy, Rule};

use super::Service;
use super::finding::{Finding, Level};
use super::source::{Entry, Source};

mod apis;
mod binding;
mod calendar;
mod files;
mod leases;
mod matching;
mod outage;
mod overrides;
mod shards;
mod subjects;
mod texts;

/// Returns all findings, in the order of the file.
pub fn findings(checked: &Checked<'_>) -> Vec<Finding> {
    let found = LINTS.into_iter().flat_map(|(code, lint)| {
        lint(checked).into_iter().map(move |finding| Finding { code, ..finding })
    });
    let mut findings: Vec<Finding> = found.collect();
    findings.sort_by_key(|finding| (finding.line, finding.level, finding.code));
    findings
}

/// A lint leaves the code of its findings empty.
type Lint = fn(&Checked<'_>) -> Vec<Finding>;

/// The lints by their codes.
const LINTS: [(&str, Lint); 23] = [
    ("limit-never-binds", binding::never_binds),
    ("rule-shadowed", binding::shadowed),
    ("limits-nothing", binding::limits_nothing),
    ("never-matches", matching::never_matches),
    ("pattern-as-text", texts::pattern_as_text),
    ("nothing-enforced", matching::nothing_enforced),
    ("no-rules", matching::no_rules),
    ("address-alone", subjects::address_alone),
    ("attribute-absent", subjects::attribute_absent),
    ("address-of-proxy", apis::address_of_proxy),
    ("trusts-everyone", apis::trusts_everyone),
    ("auth-without-rules", apis::auth_without_rules),
    ("not-sent-by-proxies", apis::not_sent_by_proxies),
    ("permits-end-at-max-hold", apis::permits_end_at_max_hold),
    ("file-unreadable", files::unreadable),
    ("fails-open", outage::fails_open),
    ("shares-above-limit", outage::shares_above_limit),
    ("spans-shards", shards::spans_shards),
    ("lease-of-nothing", leases::of_nothing),
    ("month-of-30-days", calendar::nominal_months),
    ("year-of-365-days", calendar::nominal_years),
    ("override-never-matches", overrides::never_matches),
    ("rules-not-compared", matching::not_compared),
];

/// A file that loads, with everything that lints need.
pub struct Checked<'a> {
    pub(crate) policy: &'a Policy,
    pub(crate) service: Service,
    /// The settings of the file, with their lines.
    pub(crate) set: &'a [FileSetting],
    /// The settings that name a file that cannot be read here, each with the file and the reason.
    pub(crate) unreadable: &'a [(&'static str, String)],
    pub(crate) source: &'a Source,
}

/// A rule, and its entry in the file.
#[derive(Clone, Copy)]
struct Written<'a> {
    rule: &'a Rule,
    entry: &'a Entry,
}

impl<'a> Checked<'a> {
    /// Returns the rules in the order of the file.
    fn rules(&self) -> impl Iterator<Item = Written<'a>> {
        self.policy.rules().zip(&self.source.rules).map(|(rule, entry)| Written { rule, entry })
    }

    /// Returns the rules that are compared with each other.
    fn compared(&self) -> Vec<Written<'a>> {
        self.rules().take(COMPARED_MAX).collect()
    }

    /// Returns the overrides of a rule as written.
    fn overrides_of(&self, rule: &Rule) -> impl Iterator<Item = &'a Entry> + use<'a> {
        self.source.overrides.get(rule.name()).into_iter().flatten()
    }

    /// Returns the line of the first setting with this name or within this table.
    fn line_set(&self, name: &str) -> Option<usize> {
        let is_within = |set: &str| {
            set.strip_prefix(name).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
        };
        self.set.iter().find(|set| is_within(&set.name)).map(|set| set.line)
    }
}

impl Written<'_> {
    fn warning(
        &self,
        line: usize,
        problem: impl Into<String>,
        remedy: impl Into<String>,
    ) -> Finding {
        Finding {
            code: "",
            level: Level::Warning,
            line,
            rule: Some(self.rule.name().to_owned()),
            problem: problem.into(),
            remedy: remedy.into(),
        }
    }

    fn note(&self, line: usize, problem: impl Into<String>, remedy: impl Into<String>) -> Finding {
        Finding { level: Level::Note, ..self.warning(line, problem, remedy) }
    }
}

/// Rules are compared pair by pair, and two million pairs take a second.
const COMPARED_MAX: usize = 2_000;
