//! The library's documentation: every public item has an example, or names a call that an example shows; and examples
//! show every method of the types that an application calls first.

use std::collections::BTreeMap;
use std::fs;

use super::page::{read, spans};
use crate::glossary::api::{Item, exported, files};

/// The types that applications make and call. Results are shown with the calls that return them.
const CALLED_FIRST: [&str; 12] = [
    "ByIp",
    "Decision",
    "Limiter",
    "LimiterBuilder",
    "ManualClock",
    "PaceLayer",
    "RateLimitLayer",
    "Receipt",
    "Request",
    "Reserve",
    "RuleSpec",
    "Usage",
];

#[test]
fn every_public_item_has_an_example_or_names_a_call_that_has_one() {
    let items = exported();
    let examples = examples();
    let mut findings = Vec::new();
    for (name, item) in items.iter().filter(|(_, item)| !has_example(item)) {
        let names_one = spans(&item.docs).any(|span| is_shown(span, &items, &examples));
        if !names_one {
            findings.push(format!(
                "{name}: write an example, or name the call that returns or takes it"
            ));
        }
    }
    assert!(findings.is_empty(), "{} to fix:\n{}", findings.len(), findings.join("\n"));
}

#[test]
fn examples_show_every_method_of_the_types_that_applications_call_first() {
    let items = exported();
    let examples = examples();
    let mut findings = Vec::new();
    for name in CALLED_FIRST {
        let methods = items[name].parts.keys();
        let hidden = methods.filter(|method| !calls(&examples, method));
        findings.extend(hidden.map(|method| format!("{name}::{method}: no example shows it")));
    }
    assert!(findings.is_empty(), "{} to fix:\n{}", findings.len(), findings.join("\n"));
}

/// Returns whether the item, or one of its methods, has an example of its own.
fn has_example(item: &Item) -> bool {
    item.docs.contains("```") || item.parts.values().any(|docs| docs.contains("```"))
}

/// Returns whether a name is a type with an example, or a call of one such as `Limiter::explain` in any example.
fn is_shown(name: &str, items: &BTreeMap<String, Item>, examples: &str) -> bool {
    match name.split_once("::") {
        Some((item, method)) => items.contains_key(item) && calls(examples, method),
        None => items.get(name).is_some_and(has_example),
    }
}

fn calls(examples: &str, method: &str) -> bool {
    [".", "::"].iter().any(|before| examples.contains(&format!("{before}{method}(")))
}

/// The code of all examples, in doc comments and on the pages of the crate and of its layers.
fn examples() -> String {
    let mut examples = String::new();
    for file in files() {
        let text = fs::read_to_string(&file).unwrap();
        let lines = text.lines().map(str::trim_start);
        let docs = lines.filter_map(|line| line.strip_prefix("///").or(line.strip_prefix("//!")));
        examples.push_str(&code(docs));
    }
    for page in ["lib.md", "tower.md"] {
        examples.push_str(&code(read(&format!("crates/spillgate/src/{page}")).lines()));
    }
    examples
}

/// The lines between fences.
fn code<'t>(lines: impl Iterator<Item = &'t str>) -> String {
    let mut is_code = false;
    let mut code = String::new();
    for line in lines {
        if line.trim_start().starts_with("```") {
            is_code = !is_code;
        } else if is_code {
            code.push_str(line);
            code.push('\n');
        }
    }
    code
}
