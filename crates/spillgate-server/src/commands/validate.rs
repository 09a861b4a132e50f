//! `spillgate validate`: whether a file loads, what is odd about it, and in which order its rules are
//! judged.

use std::path::Path;
use std::process::ExitCode;

use serde::Serialize;
use spillgate::{Mode, OnOutage, Policy, Rule};

use super::{Failure, counted, say};
use crate::cli::ValidateArgs;
use crate::config::{self, ConfigError, Looked, Problem};

mod against;
mod bytes;
mod finding;
mod lints;
mod order;
mod rules;
mod source;

use against::{Fate, fates};
use bytes::Bytes;
use finding::{Finding, Level};
use order::{Placed, order};
use source::Source;

pub(super) fn run(args: &ValidateArgs) -> Result<ExitCode, Failure> {
    let Some(file) = args.file.as_deref() else {
        // Without a file the schema is asked for: the command line sees to it.
        say(&SCHEMA.trim_end())?;
        return Ok(ExitCode::SUCCESS);
    };
    let name = file.display().to_string();
    let text = config::read(file).map_err(ConfigError::from)?;
    match config::look(&name, &text) {
        Ok(looked) => {
            let old = args.against.as_deref().map(old_policy).transpose()?;
            let report = Report::of(&name, &text, &looked, old.as_ref(), args.subjects);
            if args.json {
                say(&serde_json::to_string(&report)?)?
            } else {
                report.tell()?
            }
            let fails = args.deny.is_some() && report.findings.iter().any(is_warning);
            Ok(if fails { ExitCode::from(DENIED) } else { ExitCode::SUCCESS })
        }
        Err(problems) => tell_problems(&problems, args.json),
    }
}

/// The file that is in force now: it has to load to say anything.
fn old_policy(file: &Path) -> Result<Policy, Failure> {
    let text = config::read(file).map_err(ConfigError::from)?;
    Ok(config::check(&file.display().to_string(), &text).map_err(ConfigError::of)?)
}

/// All that is told of a file that loads.
#[derive(Serialize)]
struct Report<'a> {
    ok: bool,
    #[serde(skip)]
    file: &'a str,
    rules: usize,
    overrides: usize,
    findings: Vec<Finding>,
    order: Vec<Placed<'a>>,
    on_outage: AtOutage<'a>,
    not_enforced: NotEnforced<'a>,
    #[serde(skip_serializing_if = "Option::is_none")]
    bytes: Option<Vec<Bytes<'a>>>,
    #[serde(skip)]
    subjects: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    against: Option<Vec<Fate>>,
}

/// What each rule comes to while the store is out of reach, by its name.
#[derive(Serialize)]
struct AtOutage<'a> {
    allow: Vec<&'a str>,
    deny: Vec<&'a str>,
    local: Vec<&'a str>,
}

/// Rules that refuse nobody.
#[derive(Serialize)]
struct NotEnforced<'a> {
    shadow: Vec<&'a str>,
    off: Vec<&'a str>,
}

impl<'a> Report<'a> {
    fn of(
        file: &'a str,
        text: &str,
        looked: &'a Looked,
        old: Option<&Policy>,
        subjects: Option<u64>,
    ) -> Report<'a> {
        let Looked { policy, settings, set } = looked;
        let source = Source::of(text);
        let findings = lints::findings(&lints::Looked { policy, settings, set, source: &source });
        let names = |is_one: &dyn Fn(&Rule) -> bool| -> Vec<&'a str> {
            policy.rules().filter(|rule| is_one(rule)).map(Rule::name).collect()
        };
        let at_outage =
            |said| names(&|rule: &Rule| rule.mode() == Mode::Enforce && rule.on_outage() == said);
        Report {
            ok: true,
            file,
            rules: policy.rules().len(),
            overrides: policy.override_count(),
            findings,
            order: order(policy),
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
                .map(|subjects| policy.rules().map(|rule| Bytes::of(rule, subjects)).collect()),
            subjects: subjects.unwrap_or_default(),
            against: old.map(|old| fates(old, policy)),
        }
    }

    fn tell(&self) -> Result<(), Failure> {
        let (rules, overrides) = (counted(self.rules, "rule"), counted(self.overrides, "override"));
        say(&format!("{}: ok, {rules}, {overrides}", self.file))?;
        if !self.order.is_empty() {
            say(&"Judged in this order, the widest subject last:")?;
        }
        for (place, rule) in self.order.iter().enumerate() {
            say(&format!("{:>3}. {}", place + 1, rule.for_people()))?;
        }
        tell_names("Open while the store is out of reach (allow)", &self.on_outage.allow)?;
        tell_names("Closed while the store is out of reach (deny)", &self.on_outage.deny)?;
        tell_names("Only watching (shadow)", &self.not_enforced.shadow)?;
        tell_names("Off", &self.not_enforced.off)?;
        if let Some(bytes) = &self.bytes {
            let subjects = self.subjects;
            say(&format!("State of {subjects} subjects of each rule, all of its limits in use:"))?;
            bytes.iter().try_for_each(|bytes| say(&format!("  {}", bytes.for_people())))?;
        }
        match self.against.as_deref() {
            None => {}
            Some([]) => say(&"All state goes on as it is.")?,
            Some(fates) => {
                say(&"What becomes of the state:")?;
                fates.iter().try_for_each(|fate| say(&format!("  {}", fate.for_people())))?;
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

fn tell_names(what: &str, names: &[&str]) -> Result<(), Failure> {
    if !names.is_empty() {
        say(&format!("{what}: {}", names.join(", ")))?;
    }
    Ok(())
}

fn tell_problems(problems: &[Problem], json: bool) -> Result<ExitCode, Failure> {
    if json {
        let problems = problems.iter().map(|problem| ShownProblem {
            line: problem.line(),
            field: problem.field(),
            message: problem.to_string(),
        });
        say(&serde_json::to_string(&Fails { ok: false, problems: problems.collect() })?)?;
    } else {
        problems.iter().try_for_each(say)?;
    }
    Ok(ExitCode::from(DENIED))
}

#[derive(Serialize)]
struct Fails<'a> {
    ok: bool,
    problems: Vec<ShownProblem<'a>>,
}

#[derive(Serialize)]
struct ShownProblem<'a> {
    line: Option<usize>,
    field: &'a str,
    /// As people read it, with its place.
    message: String,
}

/// What editors complete and check the file by.
const SCHEMA: &str = include_str!("validate/schema.json");

/// The exit code of a file that does not load, or has warnings where these are denied.
const DENIED: u8 = 1;
