//! Reads `[[override]]` tables into the overrides of known rules.

use std::collections::HashMap;
use std::sync::Arc;

use smallvec::SmallVec;
use toml::Spanned;
use toml::de::DeValue;

use super::{Covered, NoSubject, Override, Overrides, SETS_MAX, TooManySets, ties};
use crate::limit::NamedLimit;
use crate::policy::file::{Place, Table};
use crate::policy::limits;
use crate::policy::matching::read_literal;
use crate::policy::problem::{Problem, Problems, nearest};
use crate::policy::rule::Rule;
use crate::policy::types::Types;

/// The overrides while they are read.
#[derive(Debug)]
pub struct Reading<'r> {
    rules: &'r [Rule],
    rules_by_name: &'r HashMap<Arc<str>, u32>,
    types: &'r Types,
    overrides: Overrides,
    /// For each rule, the index of its limits by their source text.
    limits_by_wording: Vec<HashMap<Box<str>, u32>>,
}

impl<'r> Reading<'r> {
    pub fn new(
        rules: &'r [Rule],
        rules_by_name: &'r HashMap<Arc<str>, u32>,
        types: &'r Types,
    ) -> Reading<'r> {
        let overrides =
            Overrides { by_rule: vec![SmallVec::new(); rules.len()], ..Overrides::default() };
        Reading {
            rules,
            rules_by_name,
            types,
            overrides,
            limits_by_wording: vec![HashMap::new(); rules.len()],
        }
    }

    /// Reads one `[[override]]`.
    pub fn read(&mut self, table: &Table<'_>, problems: &mut Problems<'_>) {
        table.refuse_unknown(&FIELDS, problems);
        for (field, example) in REQUIRED {
            table.require(field, example, problems);
        }
        let Some(rule_index) = self.read_rule(table, problems) else { return };
        let rule = &self.rules[rule_index as usize];
        let subject = read_subject(table, rule, self.types, problems);
        let limits = self.read_limits(table, rule_index, problems);
        if let (Some(subject), Some(limits)) = (subject, limits) {
            let inserted = self.insert(table, rule_index, subject, limits, problems);
            problems.noting(inserted);
        }
    }

    /// Returns all overrides, and notes their ties.
    pub fn finish(mut self, problems: &mut Problems<'_>) -> Overrides {
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
        subject: Covered,
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

/// Reads the subjects that an override covers; without attributes, every subject of the rule.
fn read_subject(
    table: &Table<'_>,
    rule: &Rule,
    types: &Types,
    problems: &mut Problems<'_>,
) -> Option<Covered> {
    let entries = table.attributes(FIELD, problems)?;
    let mut named = Vec::with_capacity(entries.len());
    for (attribute, value) in &entries {
        let text = problems.noting(read_value(table, attribute, value))?;
        named.push((*attribute, text.as_bytes(), types.type_of(attribute)));
    }
    let subject = Covered::new(rule, named).map_err(|NoSubject { attribute, message }| {
        let at = entries.iter().find(|(name, _)| *name == attribute);
        let at = at.map_or(table.place_of(FIELD), |(_, value)| table.at(value.span()));
        table.wrong_at(at, FIELD, message)
    });
    problems.noting(subject)
}

/// Reads one value. A `*` is only allowed in the literal form.
fn read_value<'t>(
    table: &Table<'t>,
    attribute: &str,
    value: &'t Spanned<DeValue<'t>>,
) -> Result<&'t str, Problem> {
    if let DeValue::Table(_) = value.get_ref() {
        return read_literal(table, FIELD, attribute, value);
    }
    let text = table.text_of(FIELD, value)?.text;
    if text.contains('*') {
        let message = format!(
            "an override is for exact values and networks, and {text:?} has a *; write {{ exact = {text:?} }} to take it literally"
        );
        return Err(table.wrong_at(table.at(value.span()), FIELD, message));
    }
    Ok(text)
}

/// Returns the rule's limits, with those of the override in their places.
fn read_limits(
    table: &Table<'_>,
    rule: &Rule,
    problems: &mut Problems<'_>,
) -> Option<Box<[NamedLimit]>> {
    let written = limits::read(table, problems)?;
    let limits = limits::in_place_of_rules(rule, written.iter().map(|limit| &limit.spec));
    problems.noting(limits.map_err(|(position, error)| written[position].not_built(&error)))
}

const FIELD: &str = "subject";
const FIELDS: [&str; 3] = ["rule", FIELD, "limits"];
const REQUIRED: [(&str, &str); 3] = [
    ("rule", "rule = \"login\""),
    ("subject", "subject = { tenant = \"acme\" }"),
    ("limits", "limits = [\"1000/second\"]"),
];
