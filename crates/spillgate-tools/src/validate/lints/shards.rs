//! Finds decisions that need more than one shard.

use spillgate::Mode;

use super::super::rules::{can_match_together, each_of, tag};
use super::{Checked, Finding};

pub fn spans_shards(checked: &Checked<'_>) -> Vec<Finding> {
    if !checked.service.has_several_shards {
        return Vec::new();
    }
    let rules = checked.compared();
    let rules: Vec<_> = rules.iter().filter(|written| written.rule.mode() != Mode::Off).collect();
    let mut found = Vec::new();
    for (at, written) in rules.iter().enumerate() {
        let rule = written.rule;
        let apart = rules[..at]
            .iter()
            .filter(|other| can_match_together(rule, other.rule) && tag(rule) != tag(other.rule));
        let names: Vec<&str> = apart.map(|other| other.rule.name()).collect();
        if let [first, rest @ ..] = &names[..] {
            let others = match rest.len() {
                0 => String::new(),
                more => format!(" and {more} more"),
            };
            let problem = format!(
                "its counters are sharded {}, and those of rule {first:?}{others} otherwise, so such a request takes one round trip after the other",
                each_of(&tag(rule))
            );
            let remedy = "give both rules the same anchor";
            found.push(written.note(written.entry.line, problem, remedy));
        }
    }
    found
}
