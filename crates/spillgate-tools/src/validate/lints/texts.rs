//! Finds texts in `match` that surely were meant as patterns, and that match themselves alone.

use spillgate::policy::Network;
use spillgate::{Policy, Request};

use super::{Checked, Finding};

pub fn pattern_as_text(checked: &Checked<'_>) -> Vec<Finding> {
    let mut found = Vec::new();
    for written in checked.rules() {
        for (attribute, text) in &written.entry.match_texts {
            let Some(pattern) = meant_by(checked.policy, attribute, text) else { continue };
            let problem = format!("{attribute} = {text:?} matches this very text and nothing else");
            let remedy = format!("write {pattern}, or {{ exact = {text:?} }} if you mean the text");
            found.push(written.warning(written.entry.line_of("match"), problem, remedy));
        }
    }
    found
}

/// Returns how to write the pattern that a text surely stands for; `None` if the text may well be a value.
fn meant_by(policy: &Policy, attribute: &str, text: &str) -> Option<String> {
    if text == "absent" {
        return Some("{ absent = true }".to_owned());
    }
    if let Some(excluded) = text.strip_prefix('!').filter(|rest| !rest.is_empty()) {
        return Some(format!("{{ not = {excluded:?} }}"));
    }
    if text.starts_with('{') && text.ends_with('}') && text.contains('=') {
        return Some(format!("{text} without quotes around it"));
    }
    let is_network = text.contains('/') && Network::parse(text).is_some();
    (is_network && !has_addresses(policy, attribute))
        .then(|| format!("type = \"ip\" under [attribute.{attribute:?}]"))
}

/// Returns whether the attribute has type ip: any text that is no address then counts as `unknown`.
fn has_addresses(policy: &Policy, attribute: &str) -> bool {
    let odd = Request::new().with(attribute, "no address");
    policy.typed(&odd).attribute(attribute) == Some(b"unknown")
}
