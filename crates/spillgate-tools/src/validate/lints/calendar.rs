//! Finds quotas whose month or year is not the calendar's.

use spillgate::{Algorithm, Rule};

use super::super::source::Wording;
use super::{Checked, Finding, Written};

pub fn nominal_months(checked: &Checked<'_>) -> Vec<Finding> {
    nominal(checked, "/month", "a month is 30 days here")
}

pub fn nominal_years(checked: &Checked<'_>) -> Vec<Finding> {
    nominal(checked, "/year", "a year is 365 days here")
}

/// Only the windows of `fixed-window` follow the calendar.
fn nominal(checked: &Checked<'_>, unit: &str, problem: &str) -> Vec<Finding> {
    let mut found = Vec::new();
    for written in checked.rules() {
        let own = written
            .entry
            .limits
            .iter()
            .zip(written.rule.limits())
            .map(|(wording, limit)| (wording, limit.algorithm()));
        let overriding = checked.overrides_of(written.rule).flat_map(|entry| {
            entry
                .limits
                .iter()
                .enumerate()
                .map(|(at, wording)| (wording, algorithm_of(written.rule, wording, at)))
        });
        let nominal = own.chain(overriding).filter(|(wording, algorithm)| {
            wording.quota.ends_with(unit) && !algorithm.profile().has_calendar
        });
        found.extend(nominal.map(|(wording, _)| note(written, wording, problem)));
    }
    found
}

/// Returns the algorithm of an override's limit: its own, or that of the rule's limit that it replaces.
fn algorithm_of(rule: &Rule, wording: &Wording, position: usize) -> Algorithm {
    let limits = rule.named_limits();
    let replaced = match &wording.name {
        Some(name) => limits.iter().find(|limit| *limit.name() == **name),
        None => limits.get(position),
    };
    let own = wording.algorithm.as_deref().and_then(Algorithm::named);
    own.or_else(|| replaced.map(|limit| limit.limit().algorithm()))
        .unwrap_or(Algorithm::TokenBucket)
}

fn note(written: Written<'_>, wording: &Wording, problem: &str) -> Finding {
    let remedy =
        "write algorithm = \"fixed-window\" for calendar windows, or write the number of days";
    written.note(wording.line, format!("{:?}: {problem}", wording.quota), remedy)
}
