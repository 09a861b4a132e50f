//! Words of quotas that mean something else than they seem to.

use spillgate::{Algorithm, Limit};

use super::super::source::Wording;
use super::{Found, Looked, Written};

pub(super) fn nominal_months(looked: &Looked<'_>) -> Vec<Found> {
    nominal(looked, "/month", "a month is 30 days here")
}

pub(super) fn nominal_years(looked: &Looked<'_>) -> Vec<Found> {
    nominal(looked, "/year", "a year is 365 days here")
}

/// Only windows of the calendar are as long as theirs.
fn nominal(looked: &Looked<'_>, unit: &str, what: &str) -> Vec<Found> {
    let mut found = Vec::new();
    for written in looked.rules() {
        let limits: Vec<&Limit> = written.rule.limits().collect();
        let own = written
            .entry
            .limits
            .iter()
            .zip(&limits)
            .map(|(wording, limit)| (wording, limit.algorithm()));
        let overriding = looked.overrides_of(written.rule).flat_map(|entry| {
            entry
                .limits
                .iter()
                .enumerate()
                .map(|(at, wording)| (wording, algorithm_of(wording, at, &limits)))
        });
        let nominal = own.chain(overriding).filter(|(wording, algorithm)| {
            wording.quota.ends_with(unit) && *algorithm != Algorithm::FixedWindow
        });
        found.extend(nominal.map(|(wording, _)| note(written, wording, what)));
    }
    found
}

/// Of an override's limit: its own, or that of the rule's limit in whose place it is.
fn algorithm_of(wording: &Wording, position: usize, limits: &[&Limit]) -> Algorithm {
    let named = |name: &str| {
        let mut limits = limits.iter().enumerate();
        limits.find(|(at, limit)| limit.name().map_or(*name == at.to_string(), |own| own == name))
    };
    let replaced = match &wording.name {
        Some(name) => named(name).map(|(_, limit)| *limit),
        None => limits.get(position).copied(),
    };
    let own = wording.algorithm.as_deref().and_then(Algorithm::named);
    own.or_else(|| replaced.map(Limit::algorithm)).unwrap_or(Algorithm::TokenBucket)
}

fn note(written: Written<'_>, wording: &Wording, what: &str) -> Found {
    let remedy =
        "write algorithm = \"fixed-window\" for the calendar's, or a number of days to say so";
    written.note(wording.line, format!("{:?}: {what}", wording.quota), remedy)
}
