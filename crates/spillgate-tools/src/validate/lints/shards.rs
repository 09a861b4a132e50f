//! Decisions that take more than one shard.

use spillgate::Mode;

use super::super::rules::{can_meet, each_of, tag};
use super::{Found, Looked};

pub(super) fn spans_shards(looked: &Looked<'_>) -> Vec<Found> {
    if !looked.service.has_several_shards {
        return Vec::new();
    }
    let rules = looked.compared();
    let rules: Vec<_> = rules.iter().filter(|written| written.rule.mode() != Mode::Off).collect();
    let mut found = Vec::new();
    for (at, written) in rules.iter().enumerate() {
        let rule = written.rule;
        let apart = rules[..at]
            .iter()
            .filter(|other| can_meet(rule, other.rule) && tag(rule) != tag(other.rule));
        let names: Vec<&str> = apart.map(|other| other.rule.name()).collect();
        if let [first, rest @ ..] = &names[..] {
            let others = match rest.len() {
                0 => String::new(),
                more => format!(" and {more} more"),
            };
            let what = format!(
                "its tiers lie {} by themselves, on another shard than those of rule {first:?}{others}, so such a request takes one round trip after the other",
                each_of(&tag(rule))
            );
            let remedy = "give both an anchor that they share, or parallel = true where latency counts for more than who is charged for a moment";
            found.push(written.note(written.entry.line, what, remedy));
        }
    }
    found
}
