//! Reads `[[override]]` tables into the overrides of known rules.

use std::collections::HashMap;
use std::sync::Arc;

use smallvec::SmallVec;
use toml::Spanned;
use toml::de::DeValue;

use super::{Attributes, Override, Overrides, SETS_MAX, Subject, TooManySets, ties};
use crate::limit::{LimitSpec, NamedLimit};
use crate::policy::file::{Place, Table};
use crate::policy::limits;
use crate::policy::matching::{Pattern, read_literal};
use crate::policy::problem::{Problem, Problems, nearest};
use crate::policy::rule::Rule;

/// The overrides while they are read.
#[derive(Debug)]
pub(in crate::policy) struct Reading<'r> {
    rules: &'r [Rule],
    rules_by_name: &'r HashMap<Arc<str>, u32>,
    overrides: Overrides,
    /// For each rule, the index of its limits by their source text.
    limits_by_wording: Vec<HashMap<Box<str>, u32>>,
}

impl<'r> Reading<'r> {
    pub(in crate::policy) fn new(
        rules: &'r [Rule],
        rules_by_name: &'r HashMap<Arc<str>, u32>,
    ) -> Reading<'r> {
        let overrides =
            Overrides { by_rule: vec![SmallVec::new(); rules.len()], limits: Vec::new() };
        Reading {
            rules,
            rules_by_name,
            overrides,
            limits_by_wording: vec![HashMap::new(); rules.len()],
        }
    }

    /// Reads one `[[override]]`.
    pub(in crate::policy) fn read(&mut self, table: &Table<'_>, problems: &mut Problems<'_>) {
        table.refuse_unknown(&FIELDS, problems);
        for (field, example) in REQUIRED {
            table.require(field, example, problems);
        }
        let Some(rule_index) = self.read_rule(table, problems) else { return };
        let rule = &self.rules[rule_index as usize];
        let subject = read_subject(table, rule, problems);
        let limits = self.read_limits(table, rule_index, problems);
        if let (Some(subject), Some(limits)) = (subject, limits) {
            let inserted = self.insert(table, rule_index, subject, limits, problems);
            problems.noting(inserted);
        }
    }

    /// Returns all overrides, and notes their ties.
    pub(in crate::policy) fn finish(mut self, problems: &mut Problems<'_>) -> Overrides {
        self.overrides.sort();
        for (rule, sets) in self.rules.iter().zip(&self.overrides.by_rule) {
            for tie in ties(sets) {
                let message = format!(
                    "ties with the override of line {}: both name as many attributes, and one subject can have all of them; name more attributes in one, or take it out",
                    problems.line_of(tie.earlier as usize)
                );
                let place = Place::Override(Some(rule.name())).to_string();
                problems.note(Problem {
                    at: tie.later as usize,
                    place,
                    field: "subject".to_owned(),
                    message,
                });
            }
        }
        self.overrides
    }

    fn read_rule(&self, table: &Table<'_>, problems: &mut Problems<'_>) -> Option<u32> {
        let name = table.text("rule", problems)?;
        let known = self.rules_by_name.get(name).copied();
        let unknown = || {
            let names: Vec<&str> = self.rules.iter().map(Rule::name).collect();
            let way_out = match nearest(name, &names) {
                Some(nearest) => format!("did you mean {nearest:?}?"),
                None => "write the name of a rule of this file".to_owned(),
            };
            table.wrong("rule", format!("there is no rule {name:?}; {way_out}"))
        };
        problems.noting(known.ok_or_else(unknown))
    }

    /// Returns the index of the override's limits, which equal source texts share.
    fn read_limits(
        &mut self,
        table: &Table<'_>,
        rule_index: u32,
        problems: &mut Problems<'_>,
    ) -> Option<u32> {
        let alike = &mut self.limits_by_wording[rule_index as usize];
        let wording = table.as_written("limits");
        if let Some(known) = wording.and_then(|wording| alike.get(wording)) {
            return Some(*known);
        }
        let limits = read_limits(table, &self.rules[rule_index as usize], problems)?;
        let place = self.overrides.add_limits(limits);
        alike.extend(wording.map(|wording| (wording.into(), place)));
        Some(place)
    }

    fn insert(
        &mut self,
        table: &Table<'_>,
        rule_index: u32,
        subject: Subject,
        limits: u32,
        problems: &Problems<'_>,
    ) -> Result<(), Problem> {
        // `Policy` has checked that the file is shorter than 4 GiB.
        let at = table.place_of("subject") as u32;
        match self.overrides.insert(rule_index, &subject, Override { limits, at }) {
            Ok(None) => Ok(()),
            Ok(Some(earlier)) => {
                let line = problems.line_of(earlier.at as usize);
                Err(table.wrong(
                    "subject",
                    format!("line {line} has an override of the same subject; keep one of them"),
                ))
            }
            Err(TooManySets) => {
                let message = format!(
                    "{SETS_MAX} sets of attributes are named by this rule's overrides already, and each is looked up in turn; name the attributes that another override names"
                );
                Err(table.wrong("subject", message))
            }
        }
    }
}

fn read_subject(table: &Table<'_>, rule: &Rule, problems: &mut Problems<'_>) -> Option<Subject> {
    let mut attributes = Attributes::default();
    let mut key_values: SmallVec<[&[u8]; 4]> = rule.key().map(|_| &[][..]).collect();
    let entries = table.attributes("subject", problems)?;
    if entries.is_empty() {
        problems.note(table.wrong("subject", "no attribute is named; write for example subject = { tenant = \"acme\" }, or change the rule's own limits"));
        return None;
    }
    for (attribute, value) in entries {
        let Some(place) = rule.key().position(|known| known == attribute) else {
            let key: Vec<&str> = rule.key().collect();
            let message =
                format!("{attribute:?} is not in the rule's key; name one or more of {key:?}");
            problems.note(table.wrong_at(table.at(value.span()), "subject", message));
            continue;
        };
        attributes = attributes.with(place);
        key_values[place] = problems.noting(read_value(table, attribute, value))?;
    }
    Some((attributes, attributes.encode(&key_values)))
}

/// Reads an exact value. A `*` is only allowed in the literal form.
fn read_value<'t>(
    table: &Table<'t>,
    attribute: &str,
    value: &'t Spanned<DeValue<'t>>,
) -> Result<&'t [u8], Problem> {
    let wrong = |message: String| Err(table.wrong_at(table.at(value.span()), "subject", message));
    if let DeValue::Table(_) = value.get_ref() {
        return match read_literal(table, "subject", attribute, value)? {
            Pattern::Exact(value) => Ok(value),
            Pattern::Prefix(_) => {
                wrong("an override is for exact values; write { exact = \"...\" }".to_owned())
            }
        };
    }
    let text = table.text_of("subject", value)?.text;
    if text.contains('*') {
        return wrong(format!(
            "an override is for exact values, and {text:?} has a *; write {{ exact = {text:?} }} to take it literally"
        ));
    }
    Ok(text.as_bytes())
}

/// Returns the rule's limits, with those of the override in their places.
fn read_limits(
    table: &Table<'_>,
    rule: &Rule,
    problems: &mut Problems<'_>,
) -> Option<Box<[NamedLimit]>> {
    let mut limits = rule.named_limits().to_vec();
    let mut replaced = vec![false; limits.len()];
    for (position, written) in limits::read(table, problems)?.iter().enumerate() {
        let place = place_in(rule, position, &written.spec);
        let place = problems.noting(place.map_err(|message| written.wrong(message)))?;
        if replaced[place] {
            let message = format!(
                "another limit of this override replaces the rule's limit {:?} already; keep one of them",
                limits[place].name()
            );
            problems.note(written.wrong(message));
        }
        replaced[place] = true;
        let limit = problems.noting(written.build_in_place_of(&rule.specs()[place]))?;
        limits[place] = NamedLimit::in_place_of(&rule.named_limits()[place], limit);
    }
    Some(limits.into())
}

/// Returns the index of the rule's limit that is replaced: the one with that name, else the one at
/// that position.
pub(in crate::policy) fn place_in(
    rule: &Rule,
    position: usize,
    written: &LimitSpec,
) -> Result<usize, String> {
    let limits = rule.named_limits();
    let names = || limits.iter().map(NamedLimit::name).collect::<Vec<_>>();
    match &written.name {
        Some(name) => limits
            .iter()
            .position(|limit| limit.name() == name)
            .ok_or_else(|| format!("the rule has no limit {name:?}; name one of {:?}", names())),
        None if position < limits.len() => Ok(position),
        None => Err(format!(
            "the rule has no limit in this position; name one of {:?}, or leave it out",
            names()
        )),
    }
}

const FIELDS: [&str; 3] = ["rule", "subject", "limits"];
const REQUIRED: [(&str, &str); 3] = [
    ("rule", "rule = \"login\""),
    ("subject", "subject = { tenant = \"acme\" }"),
    ("limits", "limits = [\"1000/second\"]"),
];
