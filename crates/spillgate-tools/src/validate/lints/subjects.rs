//! Finds subjects that are too easy to change, and requests that no rule limits.

use super::super::rules::{can_match_together, covers, decides, is_always_present};
use super::{Checked, Finding};

/// A client with many addresses has as many quotas, unless another rule limits it too.
pub fn address_alone(checked: &Checked<'_>) -> Vec<Finding> {
    let rules = checked.compared();
    let alone = rules.iter().filter(|written| {
        let rule = written.rule;
        let by_address = |mut key: Box<dyn Iterator<Item = &str> + '_>| {
            let first = key.next();
            first.is_some_and(is_address) && key.all(is_address)
        };
        let otherwise = rules.iter().map(|other| other.rule).any(|other| {
            decides(other) && !by_address(Box::new(other.key())) && can_match_together(rule, other)
        });
        decides(rule) && by_address(Box::new(rule.key())) && !otherwise
    });
    let found = alone.map(|written| {
        let problem = "only addresses are limited here, so a client with many addresses has as many quotas";
        let remedy =
            "add a rule by account or key, or one for all requests (key = []) that the service can take";
            written.note(written.entry.line_of("key"), problem, remedy)
    });
    found.collect()
}

pub fn attribute_absent(checked: &Checked<'_>) -> Vec<Finding> {
    let rules = checked.compared();
    let mut found = Vec::new();
    for written in rules.iter().filter(|written| decides(written.rule)) {
        let rule = written.rule;
        let matched = |attribute: &str| rule.matches().any(|(name, _)| name == attribute);
        for attribute in rule.key().filter(|key| !matched(key) && !is_always_present(key)) {
            let covered = rules
                .iter()
                .any(|other| decides(other.rule) && covers(other.rule, rule, Some(attribute)));
            if !covered {
                let problem = format!(
                    "a request without {attribute:?} does not match it, may match no other rule, and is allowed"
                );
                let remedy = "add a rule that needs less, such as one by ip, or one for all requests (key = [])";
                found.push(written.warning(written.entry.line_of("key"), problem, remedy));
            }
        }
    }
    found
}

/// Attributes that hold the address of a client, by the names of Spillgate, the middleware and Envoy.
const ADDRESSES: [&str; 4] = ["ip", "client_ip", "remote_address", "masked_remote_address"];

fn is_address(attribute: &str) -> bool {
    ADDRESSES.contains(&attribute)
}
