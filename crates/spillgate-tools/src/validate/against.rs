//! What a new file does to the state that the old one left: which tiers start afresh, and which are read
//! again under new numbers.

use std::collections::HashMap;

use serde::Serialize;
use spillgate::{Limit, Policy, Rule};

use super::rules::tag;

/// What becomes of one tier, or of all tiers of a rule.
#[derive(Debug, PartialEq, Eq, Serialize)]
pub(super) struct Fate {
    pub(super) rule: String,
    /// Absent if it is about all limits of the rule.
    pub(super) limit: Option<String>,
    pub(super) fate: What,
    pub(super) why: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum What {
    /// Nobody has used anything of it yet.
    StartsAfresh,
    /// What was used stays used, under new numbers.
    ReadAgain,
    /// It is counted no more, and forgotten in its time.
    Ends,
}

impl Fate {
    pub(super) fn for_people(&self) -> String {
        let limit = self.limit.as_ref().map_or(String::new(), |limit| format!(", limit {limit:?}"));
        let fate = match self.fate {
            What::StartsAfresh => "starts afresh",
            What::ReadAgain => "is read again on live state",
            What::Ends => "ends",
        };
        format!("rule {:?}{limit} {fate}: {}", self.rule, self.why)
    }
}

/// What differs, in the order of the new file; what ends, last.
pub(super) fn fates(old: &Policy, new: &Policy) -> Vec<Fate> {
    let mut fates = Vec::new();
    for rule in new.rules() {
        let of_all =
            |fate, why: String| Fate { rule: rule.name().to_owned(), limit: None, fate, why };
        match old.rule(rule.name()) {
            None => fates.push(of_all(What::StartsAfresh, new_rule(old, new, rule))),
            Some(before) => match moved(before, rule) {
                Some(why) => fates.push(of_all(What::StartsAfresh, why)),
                None => fates.extend(of_limits(before, rule)),
            },
        }
    }
    let gone = old.rules().filter(|rule| new.rule(rule.name()).is_none());
    fates.extend(gone.map(|rule| {
        let why = "the new file has no rule of that name".to_owned();
        Fate { rule: rule.name().to_owned(), limit: None, fate: What::Ends, why }
    }));
    fates
}

/// Why none of a rule's state is found again, if none is.
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

fn of_limits(old: &Rule, new: &Rule) -> Vec<Fate> {
    let before: HashMap<String, &Limit> = named(old).collect();
    let after: HashMap<String, &Limit> = named(new).collect();
    let fate = |limit: String, fate, why| Fate {
        rule: new.name().to_owned(),
        limit: Some(limit),
        fate,
        why,
    };
    let mut fates = Vec::new();
    for (name, limit) in named(new) {
        match before.get(&name) {
            None => {
                let why = "the old file's rule has no limit of that name".to_owned();
                fates.push(fate(name, What::StartsAfresh, why));
            }
            Some(earlier) => {
                fates.extend(changed(earlier, limit).map(|(what, why)| fate(name, what, why)))
            }
        }
    }
    for (name, limit) in named(old).filter(|(_, limit)| keeps_state(limit)) {
        if !after.contains_key(&name) {
            fates.push(fate(name, What::Ends, format!("{limit} is not in the new file")));
        }
    }
    fates
}

fn changed(old: &Limit, new: &Limit) -> Option<(What, String)> {
    let described = |limit: &Limit| {
        let unit =
            if limit.unit() == "requests" { String::new() } else { format!(" {}", limit.unit()) };
        format!("{limit}{unit} {}", limit.algorithm())
    };
    let why = format!("it was {} and is {}", described(old), described(new));
    match (keeps_state(old), keeps_state(new)) {
        (false, false) => None,
        (true, false) => Some((What::Ends, why)),
        (false, true) => Some((What::StartsAfresh, why)),
        (true, true) if old.algorithm() != new.algorithm() => Some((What::StartsAfresh, why)),
        (true, true) if old == new => None,
        (true, true) if old.unit() != new.unit() => Some((
            What::ReadAgain,
            format!("{why}: what was used of one unit counts as used of the other"),
        )),
        (true, true) => Some((What::ReadAgain, format!("{why}; what was used stays used"))),
    }
}

/// `unlimited` and `block` keep no state.
fn keeps_state(limit: &Limit) -> bool {
    limit.capacity().is_some_and(|capacity| capacity > 0)
}

/// By the names that their state goes by: a limit without one goes by its position.
fn named(rule: &Rule) -> impl Iterator<Item = (String, &Limit)> {
    let limits = rule.limits().enumerate();
    limits.map(|(at, limit)| (limit.name().map_or_else(|| at.to_string(), str::to_owned), limit))
}
