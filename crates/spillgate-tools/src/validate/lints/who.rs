//! Whom rules limit, and who slips past them.

use super::super::rules::{can_meet, covers, decides};
use super::{Found, Looked};

/// Whoever has many addresses has as many allowances, unless something else limits them too.
pub(super) fn address_alone(looked: &Looked<'_>) -> Vec<Found> {
    let rules = looked.compared();
    let alone = rules.iter().filter(|written| {
        let rule = written.rule;
        let by_address = |mut key: Box<dyn Iterator<Item = &str> + '_>| {
            let first = key.next();
            first.is_some_and(is_address) && key.all(is_address)
        };
        let otherwise = rules.iter().map(|other| other.rule).any(|other| {
            decides(other) && !by_address(Box::new(other.key())) && can_meet(rule, other)
        });
        decides(rule) && by_address(Box::new(rule.key())) && !otherwise
    });
    let found = alone.map(|written| {
        let what = "only addresses are limited here, and who has many of them has as many allowances";
        let remedy =
            "add a rule by account or key, or one for all together (key = []) that the service stands";
        written.note(written.entry.line_of("key"), what, remedy)
    });
    found.collect()
}

pub(super) fn attribute_absent(looked: &Looked<'_>) -> Vec<Found> {
    let rules = looked.compared();
    let mut found = Vec::new();
    for written in rules.iter().filter(|written| decides(written.rule)) {
        let rule = written.rule;
        let asked_for = |attribute: &str| rule.matches().any(|(asked, _)| asked == attribute);
        for attribute in rule.key().filter(|key| !asked_for(key) && !ALWAYS_TOLD.contains(key)) {
            let covered = rules
                .iter()
                .any(|other| decides(other.rule) && covers(other.rule, rule, Some(attribute)));
            if !covered {
                let what = format!(
                    "a request without {attribute:?} does not meet it, nor surely any other rule, and is allowed"
                );
                let remedy = "add a rule that needs less, such as one by ip, or one for all together (key = [])";
                found.push(written.warning(written.entry.line_of("key"), what, remedy));
            }
        }
    }
    found
}

/// Attributes that hold the address of a client, as we, the middleware or Envoy call them.
const ADDRESSES: [&str; 4] = ["ip", "client_ip", "remote_address", "masked_remote_address"];
/// What forward auth tells of every request.
const ALWAYS_TOLD: [&str; 4] = ["ip", "method", "host", "path"];

fn is_address(attribute: &str) -> bool {
    ADDRESSES.contains(&attribute)
}
