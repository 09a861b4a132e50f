//! Finds overrides without effect.

use spillgate::Request;
use spillgate::policy::{Network, Pattern};

use super::super::rules::holds;
use super::{Checked, Finding};

pub fn never_matches(checked: &Checked<'_>) -> Vec<Finding> {
    let mut found = Vec::new();
    for written in checked.rules() {
        for entry in checked.overrides_of(written.rule) {
            let misfit = entry.subject.iter().find(|(attribute, value)| {
                let wanted = written.rule.matches().find(|(name, _)| **name == **attribute);
                let request = Request::new().with(&**attribute, &**value);
                let named = checked.policy.named_subject(&request);
                wanted.is_some_and(|(_, patterns)| {
                    !patterns.into_iter().any(|pattern| can_hold(&pattern, &named[0].1))
                })
            });
            if let Some((attribute, value)) = misfit {
                let problem = format!(
                    "no request matches this override: the rule's match excludes {attribute} = {value:?}"
                );
                let line = entry.line_of("subject");
                found.push(written.warning(line, problem, "correct one of them, or leave it out"));
            }
        }
    }
    found
}

/// Returns whether a subject with this value, or within this network, can match the pattern.
fn can_hold(pattern: &Pattern<'_>, named: &[u8]) -> bool {
    match (pattern, Network::of_value(named)) {
        (Pattern::Exact(value), Some(network)) => {
            Network::of_value(value).is_some_and(|value| network.contains(value))
        }
        (Pattern::Network(wanted), Some(network)) => {
            wanted.contains(network) || network.contains(*wanted)
        }
        (Pattern::Not(_), _) => true,
        _ => holds(pattern, &Pattern::Exact(named)),
    }
}
