//! Reads the `limits` of a rule or override: quotas, or tables with more fields.

use toml::Spanned;
use toml::de::DeValue;

use super::file::{LimitLabel, Table, text_in};
use super::problem::{Problem, Problems};
use super::rule::Rule;
use crate::limit::{Limit, LimitError, LimitSpec, NamedLimit};

/// One limit of the list, with its place.
#[derive(Debug)]
pub struct WrittenLimit<'t> {
    pub(crate) spec: LimitSpec,
    at: usize,
    shape: Shape,
    /// The limit's own table, or the one with the list that has the quota.
    table: Table<'t>,
}

#[derive(Clone, Copy, Debug)]
enum Shape {
    /// `"5/minute"`
    Quota,
    /// `{ quota = "5/minute", … }`
    Table,
}

/// Reads the limits of a table; returns `None` if any of them is invalid.
pub fn read<'t>(table: &Table<'t>, problems: &mut Problems<'_>) -> Option<Vec<WrittenLimit<'t>>> {
    if let Some(name) = table.table_without_list("limits") {
        let message = format!(
            "this is one table; write a list, such as limits = [\"5/minute\"], or [[{name}.limits]] with two brackets above each limit"
        );
        problems.note(table.wrong("limits", message));
        return None;
    }
    let list = table.list("limits", problems)?;
    if list.is_empty() {
        problems.note(table.wrong(
            "limits",
            "an empty list; write for example limits = [\"5/minute\"], or \"unlimited\" for no limit",
        ));
        return None;
    }
    if list.len() > LIMITS_MAX {
        let message =
            format!("{} limits, and a decision holds {LIMITS_MAX}; leave some out", list.len());
        problems.note(table.wrong("limits", message));
        return None;
    }
    let limits: Vec<WrittenLimit<'t>> = (0..)
        .zip(list.iter())
        .filter_map(|(position, value)| read_one(table, position, value, problems))
        .collect();
    (limits.len() == list.len()).then_some(limits)
}

fn read_one<'t>(
    table: &Table<'t>,
    position: usize,
    value: &'t Spanned<DeValue<'t>>,
    problems: &mut Problems<'_>,
) -> Option<WrittenLimit<'t>> {
    let at = table.at(value.span());
    let place = LimitLabel::At(position);
    match value.get_ref() {
        DeValue::String(quota) => {
            let spec = LimitSpec::new(quota.as_ref());
            Some(WrittenLimit { spec, at, shape: Shape::Quota, table: table.at_limit(place) })
        }
        DeValue::Table(fields) => {
            let place = text_in(fields, "name").map_or(place, LimitLabel::Named);
            let table = table.of_limit(fields, value.span(), place);
            let spec = read_spec(&table, problems)?;
            Some(WrittenLimit { spec, at, shape: Shape::Table, table })
        }
        _ => {
            let message = "this is neither a string nor a table; write \"5/minute\" or { quota = \"5/minute\" }";
            problems.note(table.at_limit(place).wrong_at(at, "limits", message));
            None
        }
    }
}

fn read_spec(table: &Table<'_>, problems: &mut Problems<'_>) -> Option<LimitSpec> {
    let all_known = table.refuse_unknown(&FIELDS, problems);
    table.require("quota", "quota = \"5/minute\"", problems);
    let mut owned = |field: &str| table.text(field, problems).map(str::to_owned);
    let [quota, name, algorithm, unit, time_zone, max_hold] =
        ["quota", "name", "algorithm", "unit", "time_zone", "max_hold"].map(&mut owned);
    let burst = table.whole_number("burst", 200, problems);
    if !all_known {
        // The unknown field may stand for one that the limit lacks: what else is wrong shows once it has its right name.
        return None;
    }
    Some(LimitSpec { quota: quota?, burst, name, algorithm, unit, time_zone, max_hold })
}

impl WrittenLimit<'_> {
    /// Makes a problem of this limit as a whole.
    pub fn wrong(&self, message: impl Into<String>) -> Problem {
        self.table.wrong_at(self.at, "limits", message)
    }

    /// Makes the limit as written.
    pub fn build(&self) -> Result<Limit, Problem> {
        self.spec.build().map_err(|error| self.not_built(&error))
    }

    /// Makes the problem that the limit cannot be made.
    pub fn not_built(&self, error: &LimitError) -> Problem {
        match self.shape {
            Shape::Quota => self.wrong(error.message()),
            Shape::Table => self.table.wrong(error.field(), error.message()),
        }
    }
}

/// Returns the rule's limits, with those of an override in their places. An error has the position of
/// the wrong limit.
pub fn in_place_of_rules<'s>(
    rule: &Rule,
    specs: impl Iterator<Item = &'s LimitSpec>,
) -> Result<Box<[NamedLimit]>, (usize, LimitError)> {
    let mut limits = rule.named_limits().to_vec();
    let mut replaced = vec![false; limits.len()];
    for (position, spec) in specs.enumerate() {
        let wrong = |error| (position, error);
        let place = place_in(rule, position, spec).map_err(wrong)?;
        if std::mem::replace(&mut replaced[place], true) {
            let message = format!(
                "another limit replaces the rule's limit {:?} already; keep one of them",
                limits[place].name()
            );
            return Err(wrong(LimitError::new("limits", message)));
        }
        let limit = build_in_place_of(spec, &rule.specs()[place]).map_err(wrong)?;
        limits[place] = NamedLimit::in_place_of(&rule.named_limits()[place], limit);
    }
    Ok(limits.into())
}

/// Returns the index of the rule's limit that is replaced: the one with that name, else the one at
/// that position.
fn place_in(rule: &Rule, position: usize, written: &LimitSpec) -> Result<usize, LimitError> {
    let limits = rule.named_limits();
    let place = match &written.name {
        Some(name) => limits.iter().position(|limit| limit.name() == name),
        None => Some(position).filter(|position| *position < limits.len()),
    };
    place.ok_or_else(|| {
        let names: Vec<&str> = limits.iter().map(NamedLimit::name).collect();
        let message = match &written.name {
            Some(name) => format!("the rule has no limit {name:?}; name one of {names:?}"),
            None => format!(
                "the rule has no limit in this position; name one of {names:?}, or leave it out"
            ),
        };
        LimitError::new("limits", message)
    })
}

/// Makes the limit in place of a rule's. Unset fields are inherited, except those that another
/// algorithm or period cannot use. A burst keeps its ratio to the rate.
fn build_in_place_of(written: &LimitSpec, replaced: &LimitSpec) -> Result<Limit, LimitError> {
    let algorithm = written.algorithm.as_ref().or(replaced.algorithm.as_ref());
    let same_algorithm =
        written.algorithm.is_none() || written.algorithm_name() == replaced.algorithm_name();
    let kept = |field: &Option<String>| field.clone().filter(|_| same_algorithm);
    let spec = LimitSpec {
        quota: written.quota.clone(),
        burst: written
            .burst
            .or_else(|| replaced.burst_for(&written.quota).filter(|_| same_algorithm)),
        name: replaced.name.clone(),
        algorithm: algorithm.cloned(),
        unit: written.unit.clone().or_else(|| replaced.unit.clone()),
        time_zone: written.time_zone.clone().or_else(|| kept(&replaced.time_zone)),
        max_hold: written.max_hold.clone().or_else(|| kept(&replaced.max_hold)),
    };
    match spec.build() {
        Err(error) if error.field() == "time_zone" && written.time_zone.is_none() => {
            LimitSpec { time_zone: None, ..spec }.build()
        }
        built => built,
    }
}

const FIELDS: [&str; 7] = ["name", "quota", "burst", "algorithm", "unit", "time_zone", "max_hold"];
/// The most limits of a rule: as many as a decision has counters.
pub const LIMITS_MAX: usize = 64;
