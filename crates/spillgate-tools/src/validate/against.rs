//! Compares a new policy with the one in force: which counters start empty, and which are read under new parameters.

use std::collections::HashMap;

use serde::Serialize;
use spillgate::{Limit, Policy, Rule};

use super::InForce;
use super::rules::tag;

/// The effect of a new file on one counter, on all counters of a rule, or on all counters.
#[derive(Debug, PartialEq, Eq, Serialize)]
pub struct StateChange {
    /// Absent if all rules are affected.
    pub(crate) rule: Option<String>,
    /// Absent if all limits of the rule are affected.
    pub(crate) limit: Option<String>,
    pub(crate) effect: Effect,
    pub(crate) reason: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Effect {
    /// Its quota is full.
    StartsFull,
    /// The quota that was used stays used, under new parameters.
    ReadAgain,
    /// It is counted no more, and its state expires.
    Ends,
    /// Instances with the new file count apart from those with the old one.
    CountsApart,
}

impl StateChange {
    pub fn for_people(&self) -> String {
        let rule =
            self.rule.as_ref().map_or("each rule".to_owned(), |rule| format!("rule {rule:?}"));
        let limit = self.limit.as_ref().map_or(String::new(), |limit| format!(", limit {limit:?}"));
        let effect = match self.effect {
            Effect::StartsFull => "starts full",
            Effect::ReadAgain => "is read again on live state",
            Effect::Ends => "ends",
            Effect::CountsApart => "counts apart",
        };
        format!("{rule}{limit} {effect}: {}", self.reason)
    }
}

/// Returns the changes in the order of the new file, those of all rules first; counters that end are last.
pub fn state_changes(old: &InForce<'_>, new: &Policy) -> Vec<StateChange> {
    let apart = old.apart.iter().map(|reason| StateChange {
        rule: None,
        limit: None,
        effect: Effect::CountsApart,
        reason: (*reason).to_owned(),
    });
    let mut changes: Vec<StateChange> = apart.collect();
    let old = old.policy;
    for rule in new.rules() {
        let of_all = |effect, reason| StateChange {
            rule: Some(rule.name().to_owned()),
            limit: None,
            effect,
            reason,
        };
        match old.rule(rule.name()) {
            None => changes.push(of_all(Effect::StartsFull, new_rule(old, new, rule))),
            Some(before) => match moved(before, rule) {
                Some(reason) => changes.push(of_all(Effect::StartsFull, reason)),
                None => changes.extend(of_limits(before, rule)),
            },
        }
    }
    let gone = old.rules().filter(|rule| new.rule(rule.name()).is_none());
    changes.extend(gone.map(|rule| {
        let reason = "the new file has no rule of that name".to_owned();
        let rule = Some(rule.name().to_owned());
        StateChange { rule, limit: None, effect: Effect::Ends, reason }
    }));
    changes
}

/// Returns why a rule's counters have other keys, so that none of its state is found; `None` if they have the same.
fn moved(old: &Rule, new: &Rule) -> Option<String> {
    let (old_key, new_key) = (old.key().collect::<Vec<_>>(), new.key().collect::<Vec<_>>());
    if old.domain() != new.domain() {
        return Some(format!("its domain was {:?} and is {:?}", old.domain(), new.domain()));
    }
    if old_key != new_key {
        return Some(format!("its key was {old_key:?} and is {new_key:?}"));
    }
    let (old_tag, new_tag) = (tag(old), tag(new));
    (old_tag != new_tag).then(|| {
        format!(
            "its anchor was {old_tag:?} and is {new_tag:?}, and with it the shard of each subject"
        )
    })
}

fn new_rule(old: &Policy, new: &Policy, rule: &Rule) -> String {
    let alike = old.rules().find(|before| {
        new.rule(before.name()).is_none()
            && before.domain() == rule.domain()
            && before.key().eq(rule.key())
            && before.limits().map(Limit::to_string).eq(rule.limits().map(Limit::to_string))
    });
    match alike {
        None => "the old file has no rule of that name".to_owned(),
        Some(before) => format!(
            "the old file has no rule of that name; if it is {:?} renamed, the old name keeps the state",
            before.name()
        ),
    }
}

fn of_limits(old: &Rule, new: &Rule) -> Vec<StateChange> {
    let before: HashMap<&str, &Limit> = named(old).collect();
    let after: HashMap<&str, &Limit> = named(new).collect();
    let change = |limit: &str, effect, reason| StateChange {
        rule: Some(new.name().to_owned()),
        limit: Some(limit.to_owned()),
        effect,
        reason,
    };
    let mut changes = Vec::new();
    for (name, limit) in named(new) {
        match before.get(name) {
            None => {
                let reason = "the old file's rule has no limit of that name".to_owned();
                changes.push(change(name, Effect::StartsFull, reason));
            }
            Some(earlier) => changes.extend(
                changed(earlier, limit).map(|(effect, reason)| change(name, effect, reason)),
            ),
        }
    }
    for (name, limit) in named(old).filter(|(_, limit)| keeps_state(limit)) {
        if !after.contains_key(name) {
            changes.push(change(name, Effect::Ends, format!("{limit} is not in the new file")));
        }
    }
    changes
}

fn changed(old: &Limit, new: &Limit) -> Option<(Effect, String)> {
    let described = |limit: &Limit| {
        let unit =
            if limit.unit() == "requests" { String::new() } else { format!(" {}", limit.unit()) };
        format!("{limit}{unit} {}", limit.algorithm())
    };
    let reason = format!("it was {} and is {}", described(old), described(new));
    match (keeps_state(old), keeps_state(new)) {
        (false, false) => None,
        (true, false) => Some((Effect::Ends, reason)),
        (false, true) => Some((Effect::StartsFull, reason)),
        (true, true) if old.algorithm() != new.algorithm() => Some((Effect::StartsFull, reason)),
        (true, true) if old == new => None,
        (true, true) if old.unit() != new.unit() => Some((
            Effect::ReadAgain,
            format!("{reason}: quota used of one unit counts as used of the other"),
        )),
        (true, true) => Some((Effect::ReadAgain, format!("{reason}; used quota stays used"))),
    }
}

/// Returns whether a limit keeps state; an unlimited one and one that blocks do not.
fn keeps_state(limit: &Limit) -> bool {
    limit.capacity().is_some_and(|capacity| capacity > 0)
}

/// Returns the limits by the names of their state: a limit without a name has its position.
fn named(rule: &Rule) -> impl Iterator<Item = (&str, &Limit)> {
    rule.named_limits().iter().map(|limit| (limit.name(), limit.limit()))
}
