//! Finds limits that deny no request, because another limit denies first.

use spillgate::policy::RequestLimit;
use spillgate::{Limit, Rule};

use super::super::rules::{can_match_together, covers, decides};
use super::{Checked, Finding, Written};

pub fn never_binds(checked: &Checked<'_>) -> Vec<Finding> {
    let rules = checked.compared();
    let mut found = Vec::new();
    for (at, written) in rules.iter().enumerate() {
        let shadowed = is_shadowed(checked, &rules, at);
        for (position, limit) in written.rule.limits().enumerate() {
            // A limit that is unlimited is meant so.
            if limit.capacity().is_none() || shadowed {
                continue;
            }
            let others = Others::All;
            if let Some((binding, other)) = denies_first(checked, &rules, at, position, others) {
                let problem = format!(
                    "limit {limit} ({}) never denies, since {other} ({}){} denies first",
                    limit.algorithm(),
                    other.algorithm(),
                    of_rule(binding, *written)
                );
                let line = written.entry.line_of_limit(position);
                found.push(written.warning(line, problem, "leave it out, or lower it"));
            }
        }
    }
    found
}

pub fn shadowed(checked: &Checked<'_>) -> Vec<Finding> {
    let rules = checked.compared();
    let shadowed = (0..rules.len()).filter(|at| is_shadowed(checked, &rules, *at)).map(|at| {
        let by = denies_first(checked, &rules, at, 0, Others::OfOtherRules);
        let by = by.map_or("", |(by, _)| by.rule.name());
        let problem = format!(
            "it never denies: every request that matches it matches rule {by:?} too, which denies first"
        );
        rules[at].warning(rules[at].entry.line, problem, "lower its limits, or leave the rule out")
    });
    shadowed.collect()
}

pub fn limits_nothing(checked: &Checked<'_>) -> Vec<Finding> {
    let unlimited = |written: &Written<'_>| {
        written.rule.limits().all(|limit| limit.capacity().is_none())
            && checked.overrides_of(written.rule).next().is_none()
    };
    let compared = checked.compared();
    let limits_too = |written: &Written<'_>| {
        let rule = written.rule;
        compared.iter().map(|other| other.rule).find(|other| {
            decides(other)
                && other.limits().any(|limit| limit.capacity().is_some())
                && can_match_together(rule, other)
        })
    };
    let rules = checked.rules().filter(|written| decides(written.rule)).filter(unlimited);
    rules
        .map(|written| {
            let has_match = written.rule.matches().next().is_some();
            let (problem, remedy) = match limits_too(&written).filter(|_| has_match) {
                None => (
                    "it is unlimited for every subject, and the file has no override for it"
                        .to_owned(),
                    "write a limit, or leave the rule out unless operators set overrides"
                        .to_owned(),
                ),
                Some(other) => {
                    let exemption = written.rule.exemption();
                    let exemption = exemption.as_deref().unwrap_or("a `not` pattern in its match");
                    (
                        format!(
                            "it exempts its requests from no other rule: {:?} limits them too",
                            other.name()
                        ),
                        format!(
                            "leave it out; to exempt them, write {exemption} in rule {:?}",
                            other.name()
                        ),
                    )
                }
            };
            written.warning(written.entry.line_of("limits"), problem, remedy)
        })
        .collect()
}

/// The limits that a limit is compared with.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Others {
    All,
    OfOtherRules,
}

fn is_shadowed(checked: &Checked<'_>, rules: &[Written<'_>], at: usize) -> bool {
    let rule = rules[at].rule;
    let mut limits = rule.limits().enumerate();
    rule.limits().any(|limit| limit.capacity().is_some())
        && limits.all(|(position, limit)| {
            let others = Others::OfOtherRules;
            limit.capacity().is_none()
                || denies_first(checked, rules, at, position, others).is_some()
        })
        && checked.overrides_of(rule).next().is_none()
}

/// Returns a limit that has no room whenever this one has none, and its rule.
fn denies_first<'a>(
    checked: &Checked<'_>,
    rules: &[Written<'a>],
    at: usize,
    position: usize,
    others: Others,
) -> Option<(Written<'a>, Limit)> {
    let this = rules[at];
    let limit = this.rule.limits().nth(position)?;
    if !is_plain(this.rule) || this.rule.request_limit() != RequestLimit::Ignore {
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
            // Of two equal limits the first one stays.
            let later = (other_at, other_position) > (at, position);
            let mutual = other_limit.never_refuses_beside(limit)
                && (own || sees_all_of(this.rule, other.rule));
            let goes = later && mutual;
            if !goes && !is_overridden(checked, *other, other_position) {
                return Some((*other, other_limit.clone()));
            }
        }
    }
    None
}

/// Returns whether every charge of `rule` is also a charge of `other`, for one subject of `other` per subject of
/// `rule`, in outages too.
fn sees_all_of(other: &Rule, rule: &Rule) -> bool {
    is_plain(other)
        && (other.on_outage(), other.local_share()) == (rule.on_outage(), rule.local_share())
        && covers(other, rule, None)
        && other.key().all(|attribute| rule.key().any(|own| own == attribute))
}

/// Returns whether its numbers alone decide, and quota returns with time only.
fn is_plain(rule: &Rule) -> bool {
    let may_be_replaced = rule.request_limit() == RequestLimit::Replace;
    decides(rule) && !rule.postpaid() && !rule.negative_hits() && !may_be_replaced
}

/// Returns whether an override replaces the limit for some subjects.
fn is_overridden(checked: &Checked<'_>, written: Written<'_>, position: usize) -> bool {
    checked.overrides_of(written.rule).any(|entry| {
        entry.limits.iter().enumerate().any(|(at, wording)| match &wording.name {
            None => at == position,
            Some(name) => {
                let limit = written.rule.named_limits().get(position);
                limit.is_some_and(|limit| *limit.name() == **name)
            }
        })
    })
}

fn of_rule(binding: Written<'_>, written: Written<'_>) -> String {
    match binding.rule.name() == written.rule.name() {
        true => String::new(),
        false => format!(" of rule {:?}", binding.rule.name()),
    }
}
