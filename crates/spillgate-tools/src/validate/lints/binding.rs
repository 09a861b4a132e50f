//! Limits that refuse nobody, because another refuses first.

use spillgate::{Limit, Rule};

use super::super::rules::{covers, decides};
use super::{Found, Looked, Written};

pub(super) fn never_binds(looked: &Looked<'_>) -> Vec<Found> {
    let rules = looked.compared();
    let mut found = Vec::new();
    for (at, written) in rules.iter().enumerate() {
        let shadowed = is_shadowed(looked, &rules, at);
        for (position, limit) in written.rule.limits().enumerate() {
            // What the file calls unlimited is meant so.
            if limit.capacity().is_none() || shadowed {
                continue;
            }
            let others = Others::All;
            if let Some((binding, other)) = refuses_first(looked, &rules, at, position, others) {
                let what = format!(
                    "limit {limit} ({}) never refuses, for {other} ({}){} refuses first",
                    limit.algorithm(),
                    other.algorithm(),
                    of_rule(binding, *written)
                );
                let line = written.entry.line_of_limit(position);
                found.push(written.warning(line, what, "leave it out, or lower it"));
            }
        }
    }
    found
}

pub(super) fn shadowed(looked: &Looked<'_>) -> Vec<Found> {
    let rules = looked.compared();
    let shadowed = (0..rules.len()).filter(|at| is_shadowed(looked, &rules, *at)).map(|at| {
        let by = refuses_first(looked, &rules, at, 0, Others::OfOtherRules);
        let by = by.map_or("", |(by, _)| by.rule.name());
        let what = format!(
            "it never refuses: whatever meets it meets rule {by:?} too, which refuses first"
        );
        rules[at].warning(rules[at].entry.line, what, "lower its limits, or leave the rule out")
    });
    shadowed.collect()
}

pub(super) fn limits_nothing(looked: &Looked<'_>) -> Vec<Found> {
    let unlimited = |written: &Written<'_>| {
        written.rule.limits().all(|limit| limit.capacity().is_none())
            && looked.overrides_of(written.rule).next().is_none()
    };
    let rules = looked.rules().filter(|written| decides(written.rule)).filter(unlimited);
    rules
        .map(|written| {
            let what = "it is unlimited for everybody, and no override of this file says otherwise";
            let remedy = "write a limit, or leave the rule out unless operators set overrides";
            written.warning(written.entry.line_of("limits"), what, remedy)
        })
        .collect()
}

/// Which limits may be the ones that refuse first.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Others {
    All,
    OfOtherRules,
}

fn is_shadowed(looked: &Looked<'_>, rules: &[Written<'_>], at: usize) -> bool {
    let rule = rules[at].rule;
    let mut limits = rule.limits().enumerate();
    rule.limits().any(|limit| limit.capacity().is_some())
        && limits.all(|(position, limit)| {
            let others = Others::OfOtherRules;
            limit.capacity().is_none()
                || refuses_first(looked, rules, at, position, others).is_some()
        })
        && looked.overrides_of(rule).next().is_none()
}

/// A limit that has no room whenever this one has none, and its rule.
fn refuses_first<'a>(
    looked: &Looked<'_>,
    rules: &[Written<'a>],
    at: usize,
    position: usize,
    others: Others,
) -> Option<(Written<'a>, Limit)> {
    let this = rules[at];
    let limit = this.rule.limits().nth(position)?;
    if !is_plain(this.rule) || this.rule.request_limit() {
        return None;
    }
    for (other_at, other) in rules.iter().enumerate() {
        let own = other_at == at;
        if own && others == Others::OfOtherRules || !own && !sees_all_of(other.rule, this.rule) {
            continue;
        }
        for (other_position, other_limit) in other.rule.limits().enumerate() {
            let itself = own && other_position == position;
            if itself || !limit.never_refuses_beside(other_limit) {
                continue;
            }
            // Of two that say the same the first stays.
            let later = (other_at, other_position) > (at, position);
            let mutual = other_limit.never_refuses_beside(limit)
                && (own || sees_all_of(this.rule, other.rule));
            let goes = later && mutual;
            if !goes && !is_overridden(looked, *other, other_position) {
                return Some((*other, other_limit.clone()));
            }
        }
    }
    None
}

/// Whether each charge of `rule` is charged to one subject of `other` for each of its own.
fn sees_all_of(other: &Rule, rule: &Rule) -> bool {
    is_plain(other)
        && covers(other, rule, None)
        && other.key().all(|attribute| rule.key().any(|own| own == attribute))
}

/// Whether it refuses by its numbers alone, and nothing but time gives back.
fn is_plain(rule: &Rule) -> bool {
    decides(rule) && !rule.postpaid() && !rule.negative_hits()
}

/// Whether some subjects have another limit in its place.
fn is_overridden(looked: &Looked<'_>, written: Written<'_>, position: usize) -> bool {
    looked.overrides_of(written.rule).any(|entry| {
        entry.limits.iter().enumerate().any(|(at, wording)| match &wording.name {
            None => at == position,
            Some(name) => written.rule.limits().nth(position).is_some_and(|limit| {
                limit.name().map_or(**name == position.to_string(), |own| *own == **name)
            }),
        })
    })
}

fn of_rule(binding: Written<'_>, written: Written<'_>) -> String {
    match binding.rule.name() == written.rule.name() {
        true => String::new(),
        false => format!(" of rule {:?}", binding.rule.name()),
    }
}
