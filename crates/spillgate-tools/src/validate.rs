//! `spillgate validate`: reports on a file that loads: lints, rules that an outage opens or closes, and the effect
//! on stored state.

use std::io;

use serde::Serialize;
use spillgate::policy::FileSetting;
use spillgate::{Mode, OnOutage, Policy, Rule};

use crate::{counted, say};

mod against;
mod bytes;
mod finding;
mod lints;
mod rules;
mod source;

use against::{StateChange, state_changes};
use bytes::Bytes;
use finding::{Finding, Level};
use source::Source;

/// A file of rules and settings that loads.
#[derive(Clone)]
pub struct Loaded<'a> {
    /// The name of the file, as messages show it.
    pub name: &'a str,
    /// The text of the file.
    pub text: &'a str,
    /// The rules of the file.
    pub policy: &'a Policy,
    /// The settings that the file sets, each with its line.
    pub settings: &'a [FileSetting],
    /// The settings that name a file that cannot be read here, each with the file and the reason.
    pub unreadable: &'a [(&'static str, String)],
    /// The parts of the service that lints depend on.
    pub service: Service,
}

/// The parts of the service that lints depend on.
#[derive(Clone, Debug)]
pub struct Service {
    /// How many attributes a request may have.
    pub attributes_max: usize,
    /// Whether the store keeps subjects on several shards: a Cluster or a ring.
    pub has_several_shards: bool,
    /// The number of instances that the settings expect, if they name one.
    pub expected_instances: Option<u32>,
    /// Whether clients are trusted like proxies.
    pub trusts_everyone: bool,
    /// The attributes that a request of forward auth may have.
    pub auth_attributes: Vec<String>,
}

/// The file in force, to compare a new one with.
pub struct InForce<'a> {
    /// The rules of the file.
    pub policy: &'a Policy,
    /// Why subjects have other counters on the new file's store.
    pub apart: Vec<&'static str>,
}

/// The report on a file that loads; it serializes to the JSON of `spillgate validate --json`.
#[derive(Serialize)]
pub struct Report<'a> {
    ok: bool,
    #[serde(skip)]
    file: &'a str,
    rules: usize,
    overrides: usize,
    findings: Vec<Finding>,
    on_outage: AtOutage<'a>,
    not_enforced: NotEnforced<'a>,
    #[serde(skip_serializing_if = "Option::is_none")]
    bytes: Option<Vec<Bytes<'a>>>,
    #[serde(skip)]
    subjects: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    against: Option<Vec<StateChange>>,
}

/// The names of the rules by what they do while the store is out of reach.
#[derive(Serialize)]
struct AtOutage<'a> {
    allow: Vec<&'a str>,
    deny: Vec<&'a str>,
    local: Vec<&'a str>,
}

/// The names of the rules that deny no request.
#[derive(Serialize)]
struct NotEnforced<'a> {
    shadow: Vec<&'a str>,
    off: Vec<&'a str>,
}

impl<'a> Report<'a> {
    /// Reports on a file. `old` is the file in force now: with it, the report describes the effect on its state.
    /// With `subjects`, it estimates the bytes that the state of that many subjects takes, rule by rule.
    pub fn new(file: Loaded<'a>, old: Option<InForce<'_>>, subjects: Option<u64>) -> Report<'a> {
        let Loaded { name, text, policy, settings, unreadable, service } = file;
        let source = Source::parse(text);
        let checked =
            lints::Checked { policy, service, set: settings, unreadable, source: &source };
        let findings = lints::findings(&checked);
        let names = |is_one: &dyn Fn(&Rule) -> bool| -> Vec<&'a str> {
            policy.rules().filter(|rule| is_one(rule)).map(Rule::name).collect()
        };
        let at_outage = |choice| {
            names(&|rule: &Rule| rule.mode() == Mode::Enforce && rule.on_outage() == choice)
        };
        Report {
            ok: true,
            file: name,
            rules: policy.rules().len(),
            overrides: policy.override_count(),
            findings,
            on_outage: AtOutage {
                allow: at_outage(OnOutage::Allow),
                deny: at_outage(OnOutage::Deny),
                local: at_outage(OnOutage::Local),
            },
            not_enforced: NotEnforced {
                shadow: names(&|rule: &Rule| rule.mode() == Mode::Shadow),
                off: names(&|rule: &Rule| rule.mode() == Mode::Off),
            },
            bytes: subjects
                .map(|subjects| policy.rules().map(|rule| Bytes::new(rule, subjects)).collect()),
            subjects: subjects.unwrap_or_default(),
            against: old.map(|old| state_changes(&old, policy)),
        }
    }

    /// Returns whether the report holds a warning.
    pub fn has_warnings(&self) -> bool {
        self.findings.iter().any(is_warning)
    }

    /// Returns the warnings of the report, one line each.
    pub fn warnings(&self) -> impl Iterator<Item = String> {
        let warnings = self.findings.iter().filter(|finding| is_warning(finding));
        warnings.map(|finding| finding.for_log(self.file))
    }

    /// Prints the report on the standard output, for people.
    ///
    /// # Errors
    ///
    /// If the output is closed or full.
    pub fn print(&self) -> io::Result<()> {
        let (rules, overrides) = (counted(self.rules, "rule"), counted(self.overrides, "override"));
        say(&format!("{}: ok, {rules}, {overrides}", self.file))?;
        print_names("Open while the store is down (allow)", &self.on_outage.allow)?;
        print_names("Closed while the store is down (deny)", &self.on_outage.deny)?;
        print_names("Not enforced (shadow)", &self.not_enforced.shadow)?;
        print_names("Off", &self.not_enforced.off)?;
        if let Some(bytes) = &self.bytes {
            let subjects = self.subjects;
            say(&format!("State of {subjects} subjects of each rule, all of its limits in use:"))?;
            bytes.iter().try_for_each(|bytes| say(&format!("  {}", bytes.for_people())))?;
        }
        match self.against.as_deref() {
            None => {}
            Some([]) => say(&"All state stays in use, unchanged.")?,
            Some(changes) => {
                say(&"Effect on stored state:")?;
                changes.iter().try_for_each(|change| say(&format!("  {}", change.for_people())))?;
            }
        }
        for finding in &self.findings {
            say(&finding.for_people(self.file))?;
        }
        let warnings = self.findings.iter().filter(|finding| is_warning(finding)).count();
        if !self.findings.is_empty() {
            let notes = self.findings.len() - warnings;
            say(&format!("{}, {}", counted(warnings, "warning"), counted(notes, "note")))?;
        }
        Ok(())
    }
}

fn is_warning(finding: &Finding) -> bool {
    finding.level == Level::Warning
}

fn print_names(heading: &str, names: &[&str]) -> io::Result<()> {
    if !names.is_empty() {
        say(&format!("{heading}: {}", names.join(", ")))?;
    }
    Ok(())
}
