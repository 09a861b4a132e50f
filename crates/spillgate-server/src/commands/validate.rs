//! `spillgate validate`: whether a file loads, and in which order its rules are judged.

use std::cmp::Reverse;
use std::process::ExitCode;

use serde::Serialize;
use spillgate::{Policy, Rule};

use super::{Failure, counted, say};
use crate::cli::ValidateArgs;
use crate::config::{self, ConfigError, Problem};

pub(super) fn run(args: &ValidateArgs) -> Result<ExitCode, Failure> {
    let file = args.file.display().to_string();
    let text = config::read(&args.file).map_err(ConfigError::from)?;
    match config::check(&file, &text) {
        Ok(policy) => tell_order(&file, &policy, args.json),
        Err(problems) => tell_problems(&problems, args.json),
    }
}

fn tell_order(file: &str, policy: &Policy, json: bool) -> Result<ExitCode, Failure> {
    let order = order(policy);
    let (rules, overrides) = (order.len(), policy.override_count());
    if json {
        say(&serde_json::to_string(&Loads { ok: true, rules, overrides, order })?)?;
        return Ok(ExitCode::SUCCESS);
    }
    say(&format!("{file}: ok, {}, {}", counted(rules, "rule"), counted(overrides, "override")))?;
    if !order.is_empty() {
        say(&"Judged in this order, the widest subject last:")?;
    }
    for (place, rule) in order.iter().enumerate() {
        say(&format!("{:>3}. {}", place + 1, rule.for_people()))?;
    }
    Ok(ExitCode::SUCCESS)
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
    Ok(ExitCode::from(DOES_NOT_LOAD))
}

#[derive(Serialize)]
struct Loads<'a> {
    ok: bool,
    rules: usize,
    overrides: usize,
    order: Vec<Placed<'a>>,
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

/// A rule in its place.
#[derive(Serialize)]
struct Placed<'a> {
    rule: &'a str,
    domain: &'a str,
    key: Vec<&'a str>,
    limits: Vec<String>,
    /// The rule before it, if that one's subject is as wide.
    ties_with: Option<&'a str>,
}

impl Placed<'_> {
    fn for_people(&self) -> String {
        let subject = match self.key.as_slice() {
            [] => "for all together".to_owned(),
            key => format!("for each {}", key.join(", ")),
        };
        let tie = match self.ties_with {
            None => String::new(),
            Some(rule) => format!(" (as wide as {rule}, which comes first in the file)"),
        };
        format!("{}, domain {}, {subject}: {}{tie}", self.rule, self.domain, self.limits.join(", "))
    }
}

/// Domain by domain, as a request meets them: fewer key attributes are a wider subject, and of two
/// that are as wide the later in the file counts as the wider.
fn order(policy: &Policy) -> Vec<Placed<'_>> {
    let mut rules: Vec<&Rule> = policy.rules().collect();
    rules.sort_by_key(|rule| (rule.domain(), Reverse(rule.key().count())));
    let before = std::iter::once(None).chain(rules.iter().map(Some));
    rules.iter().zip(before).map(|(rule, before)| placed(rule, before.copied())).collect()
}

fn placed<'a>(rule: &'a Rule, before: Option<&'a Rule>) -> Placed<'a> {
    let key: Vec<&str> = rule.key().collect();
    let ties =
        |before: &&Rule| before.domain() == rule.domain() && before.key().count() == key.len();
    Placed {
        rule: rule.name(),
        domain: rule.domain(),
        limits: rule.limits().map(|limit| format!("{limit} {}", limit.algorithm())).collect(),
        ties_with: before.filter(ties).map(Rule::name),
        key,
    }
}

/// The exit code of a file that does not load.
const DOES_NOT_LOAD: u8 = 1;
