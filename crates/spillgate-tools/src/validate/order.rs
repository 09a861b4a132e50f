//! The order in which rules on several shards are evaluated.

use std::cmp::Reverse;
use std::collections::HashMap;

use serde::Serialize;
use spillgate::{Policy, Rule};

use super::rules::{each_of, tag};

/// A rule in the order of evaluation.
#[derive(Serialize)]
pub(super) struct Placed<'a> {
    rule: &'a str,
    domain: &'a str,
    key: Vec<&'a str>,
    limits: Vec<String>,
    /// The rule before it, if both subjects are equally wide; their order in the file decides then.
    ties_with: Option<&'a str>,
    /// The first [`NAMED_MAX`] rules that are evaluated in the same call, since their counters are on the same shard.
    together_with: Vec<&'a str>,
    /// The number of further rules in that call.
    together_with_more: usize,
}

impl Placed<'_> {
    pub(super) fn for_people(&self) -> String {
        let tie = match self.ties_with {
            None => String::new(),
            Some(rule) => format!(" (as wide as {rule}, which comes first in the file)"),
        };
        let together = match (&self.together_with[..], self.together_with_more) {
            ([], _) => String::new(),
            (rules, 0) => format!(", in one call with {}", rules.join(", ")),
            (rules, more) => format!(", in one call with {} and {more} more", rules.join(", ")),
        };
        let Placed { rule, domain, key, limits, .. } = self;
        let limits = limits.join(", ");
        format!("{rule}, domain {domain}, {}: {limits}{together}{tie}", each_of(key))
    }
}

/// Rules whose counters of one request share a shard.
struct Group<'a> {
    domain: &'a str,
    /// The rules with their positions in the file.
    rules: Vec<(usize, &'a Rule)>,
}

impl Group<'_> {
    /// Returns the width of its widest rule: fewer key attributes are wider, and among equals the later one in the
    /// file.
    fn width(&self) -> (Reverse<usize>, usize) {
        let widths = self.rules.iter().map(|(place, rule)| (Reverse(rule.key().len()), *place));
        widths.max().unwrap_or_default()
    }
}

/// Returns the rules domain by domain, the widest group last, in the order of evaluation.
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
            let together_with: Vec<&str> =
                others.filter(|name| *name != rule.name()).take(NAMED_MAX).collect();
            let together_with_more = group.rules.len() - 1 - together_with.len();
            order.push(Placed {
                rule: rule.name(),
                domain: rule.domain(),
                key: rule.key().collect(),
                limits: rule
                    .limits()
                    .map(|limit| format!("{limit} {}", limit.algorithm()))
                    .collect(),
                ties_with,
                together_with,
                together_with_more,
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

/// The number of companions that a rule names. With all of them, memory and output would grow by the square of the
/// rules: 10,000 rules of one key took 1.6 GB and printed 690 MB.
const NAMED_MAX: usize = 8;

#[cfg(test)]
mod tests {
    use super::*;

    fn rules(count: usize) -> Policy {
        let rule = |number: usize| {
            format!(
                "[[rule]]\nname = \"r{number}\"\nmatch = {{ path = \"/{}*\" }}\nkey = [\"user\"]\n\
                 limits = [\"5/minute\"]\n",
                "a".repeat(number % 200)
            )
        };
        Policy::from_toml(&(0..count).map(rule).collect::<String>()).unwrap()
    }

    #[test]
    fn takes_memory_by_the_number_of_rules_and_not_by_its_square() {
        let policy = rules(10_000);
        let taken = allocation_counter::measure(|| {
            let order = order(&policy);
            assert_eq!(order.len(), 10_000);
            let shown = order.iter().map(|placed| placed.for_people().len());
            let shown: usize = shown.sum();
            let json = serde_json::to_vec(&order).unwrap().len();
            println!("{shown} bytes of text, {json} bytes of JSON");
            assert!(shown < 10_000 * 256 && json < 10_000 * 512, "{shown} and {json}");
        });
        println!("{} bytes of memory", taken.bytes_max);
        assert!(taken.bytes_max < 10_000 * 1_024, "{} bytes of memory", taken.bytes_max);
    }

    #[test]
    fn names_the_first_companions_and_counts_the_others() {
        let policy = rules(11);
        let placed = &order(&policy)[9];
        assert_eq!(placed.together_with, ["r0", "r1", "r2", "r3", "r4", "r5", "r6", "r7"]);
        assert_eq!(placed.together_with_more, 2);
        let text = placed.for_people();
        assert!(
            text.ends_with("in one call with r0, r1, r2, r3, r4, r5, r6, r7 and 2 more"),
            "{text}"
        );
    }
}
