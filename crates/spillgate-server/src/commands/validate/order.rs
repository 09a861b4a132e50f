//! In which order rules are judged where they lie on several shards.

use std::cmp::Reverse;
use std::collections::HashMap;

use serde::Serialize;
use spillgate::{Policy, Rule};

use super::rules::{each_of, tag};

/// A rule in its place.
#[derive(Serialize)]
pub(super) struct Placed<'a> {
    rule: &'a str,
    domain: &'a str,
    key: Vec<&'a str>,
    limits: Vec<String>,
    /// The rule before it, if that one's subject is as wide: then their places in the file decide.
    ties_with: Option<&'a str>,
    /// The rules that are judged with it, in one call: their tiers lie on one shard.
    together_with: Vec<&'a str>,
}

impl Placed<'_> {
    pub(super) fn for_people(&self) -> String {
        let tie = match self.ties_with {
            None => String::new(),
            Some(rule) => format!(" (as wide as {rule}, which comes first in the file)"),
        };
        let together = match &self.together_with[..] {
            [] => String::new(),
            rules => format!(", in one call with {}", rules.join(", ")),
        };
        let Placed { rule, domain, key, limits, .. } = self;
        let limits = limits.join(", ");
        format!("{rule}, domain {domain}, {}: {limits}{together}{tie}", each_of(key))
    }
}

/// Rules whose tiers of one request share a shard.
struct Group<'a> {
    domain: &'a str,
    /// With their places in the file.
    rules: Vec<(usize, &'a Rule)>,
}

impl Group<'_> {
    /// As wide as its widest rule: fewer key attributes are wider, and of two that are as wide the later in
    /// the file.
    fn width(&self) -> (Reverse<usize>, usize) {
        let widths = self.rules.iter().map(|(place, rule)| (Reverse(rule.key().len()), *place));
        widths.max().unwrap_or_default()
    }
}

/// Domain by domain, the widest group last, as a request meets them.
pub(super) fn order(policy: &Policy) -> Vec<Placed<'_>> {
    let mut groups = groups(policy);
    groups.sort_by_key(|group| (group.domain, group.width()));
    let mut order: Vec<Placed<'_>> = Vec::new();
    for (at, group) in groups.iter().enumerate() {
        let width = group.width().0;
        let before = at.checked_sub(1).map(|at| &groups[at]);
        let tie = before.filter(|one| one.domain == group.domain && one.width().0 == width);
        let ties_with = tie.and_then(|group| widest(group));
        for (_, rule) in &group.rules {
            let others = group.rules.iter().map(|(_, rule)| rule.name());
            order.push(Placed {
                rule: rule.name(),
                domain: rule.domain(),
                key: rule.key().collect(),
                limits: rule
                    .limits()
                    .map(|limit| format!("{limit} {}", limit.algorithm()))
                    .collect(),
                ties_with,
                together_with: others.filter(|name| *name != rule.name()).collect(),
            });
        }
    }
    order
}

fn groups(policy: &Policy) -> Vec<Group<'_>> {
    let mut groups: Vec<Group<'_>> = Vec::new();
    let mut places: HashMap<(&str, Vec<&str>), usize> = HashMap::new();
    for (place, rule) in policy.rules().enumerate() {
        let at = *places.entry((rule.domain(), tag(rule))).or_insert_with(|| {
            groups.push(Group { domain: rule.domain(), rules: Vec::new() });
            groups.len() - 1
        });
        groups[at].rules.push((place, rule));
    }
    groups
}

fn widest<'a>(group: &Group<'a>) -> Option<&'a str> {
    let widest = group.rules.iter().max_by_key(|(place, rule)| (Reverse(rule.key().len()), *place));
    widest.map(|(_, rule)| rule.name())
}
