//! Rules and overrides out of the limits of a tree.

use std::fmt::Write;

use super::Note;
use super::tree::{Entry, Limit, Node, Tree, Value};

pub(super) fn write(tree: &Tree, notes: &mut Vec<Note>) -> String {
    let mut rules: Vec<Rule<'_>> = Vec::new();
    for node in &tree.nodes {
        note_what_it_hides(node, &tree.nodes, notes);
        if !tree.nodes.iter().any(|other| is_base_of(other, node)) {
            rules.push(Rule::new(node, &rules));
        }
    }
    for node in &tree.nodes {
        let Some(base) = rules.iter_mut().find(|rule| is_base_of(rule.node, node)) else {
            continue;
        };
        if let Err(why) = base.add_override(node) {
            let message = format!("{why}, so this is a rule of its own, and both count");
            notes.push(Note::new(node.line, message));
            rules.push(Rule::new(node, &rules));
        }
    }
    let mut policy = String::from(HEAD);
    rules.iter().for_each(|rule| rule.write(&tree.domain, &mut policy));
    policy
}

/// A node that is a rule, and those on the same path that name values.
struct Rule<'t> {
    node: &'t Node,
    name: String,
    overrides: Vec<&'t Node>,
}

impl<'t> Rule<'t> {
    fn new(node: &'t Node, earlier: &[Rule<'_>]) -> Rule<'t> {
        let given = node.name.clone().filter(|name| !name.is_empty());
        let wanted = fitting(&given.unwrap_or_else(|| path(&node.entries)));
        let numbered = (2..).map(|number| format!("{wanted}-{number}"));
        let mut names = std::iter::once(wanted.clone()).chain(numbered);
        let free = names.find(|name| earlier.iter().all(|rule| rule.name != *name));
        let name = free.expect("there are more numbers than rules");
        Rule { node, name, overrides: Vec::new() }
    }

    fn add_override(&mut self, node: &'t Node) -> Result<(), &'static str> {
        let is_prefix = |entry: &Entry| matches!(entry.value, Value::Prefix { .. });
        let is_shared = |entry: &Entry| matches!(entry.value, Value::Prefix { shared: true, .. });
        if node.entries.iter().any(is_prefix) {
            return Err("an override names whole values");
        }
        if self.node.entries.iter().any(is_shared) {
            return Err("values that share one limit are not told apart");
        }
        if node.shadow != self.node.shadow {
            return Err("only whole rules are watched");
        }
        let ties = |other: &&&Node| {
            let (theirs, ours) = (named(other), named(node));
            theirs != ours && theirs.len() == ours.len()
        };
        if self.overrides.iter().any(|other| ties(&other)) {
            return Err("another value elsewhere on this path weighs the same");
        }
        self.overrides.push(node);
        Ok(())
    }

    fn write(&self, domain: &str, policy: &mut String) {
        let entries = &self.node.entries;
        let keys: Vec<&str> = entries.iter().map(|entry| entry.key.as_str()).collect();
        let mut matches = vec![format!("\"{ENTRIES}\" = {}", literal(&keys.join(",")))];
        let mut key = Vec::new();
        for Entry { key: name, value } in entries {
            match value {
                Value::Any => {}
                Value::Exact(value) => {
                    matches.push(format!("{} = {}", quoted(name), literal(value)))
                }
                Value::Prefix { text, .. } => {
                    matches.push(format!("{} = {{ prefix = {} }}", quoted(name), quoted(text)));
                }
            }
            if !matches!(value, Value::Prefix { shared: true, .. }) {
                key.push(quoted(name));
            }
        }
        let mode = if self.node.shadow { "mode = \"shadow\"\n" } else { "" };
        policy.extend([
            format!("\n[[rule]]\nname = {}\ndomain = {}\n", quoted(&self.name), quoted(domain)),
            format!("match = {{ {} }}\nkey = [{}]\n", matches.join(", "), key.join(", ")),
            format!("limits = [{}]\n{mode}", limit(&self.node.limit)),
        ]);
        for node in &self.overrides {
            let exact = |entry: &Entry| match &entry.value {
                Value::Exact(value) => Some(format!("{} = {}", quoted(&entry.key), literal(value))),
                Value::Any | Value::Prefix { .. } => None,
            };
            let subject: Vec<String> = node.entries.iter().filter_map(exact).collect();
            policy.extend([
                format!("\n[[override]]\nrule = {}\n", quoted(&self.name)),
                format!("subject = {{ {} }}\n", subject.join(", ")),
                format!("limits = [{}]\n", limit(&node.limit)),
            ]);
        }
    }
}

/// Whether every descriptor that `node` is for would meet `base` as well, were it not for `node`.
fn is_base_of(base: &Node, node: &Node) -> bool {
    base.entries != node.entries
        && base.entries.len() == node.entries.len()
        && base
            .entries
            .iter()
            .zip(&node.entries)
            .all(|(base, entry)| base.key == entry.key && covers(&base.value, &entry.value))
}

fn covers(general: &Value, special: &Value) -> bool {
    match (general, special) {
        (Value::Any, _) => true,
        (Value::Prefix { text, .. }, Value::Exact(value) | Value::Prefix { text: value, .. }) => {
            value.starts_with(text.as_str())
        }
        (general, special) => general == special,
    }
}

/// There a value that has a node of its own hides what lies below the same key without a value.
fn note_what_it_hides(node: &Node, nodes: &[Node], notes: &mut Vec<Note>) {
    for other in nodes {
        let differs = |(entry, base): (&Entry, &Entry)| entry != base;
        let Some(at) = node.entries.iter().zip(&other.entries).position(differs) else { continue };
        let (entry, base) = (&node.entries[at], &other.entries[at]);
        let keys_below = |entries: &[Entry]| -> Vec<String> {
            entries[at + 1..].iter().map(|entry| entry.key.clone()).collect()
        };
        let has_its_own = |known: &Node| {
            known.entries.starts_with(&node.entries[..=at])
                && keys_below(&known.entries) == keys_below(&other.entries)
        };
        let hides = entry.key == base.key && base.value == Value::Any;
        if hides && !nodes.iter().any(has_its_own) {
            let (value, general) = (path(&node.entries[..=at]), path(&other.entries));
            let note = Note::new(
                node.line,
                format!(
                    "{value} hides {general} there, and not here: for that, write an override \
                     that says \"unlimited\""
                ),
            );
            if notes.iter().all(|known| known.message != note.message) {
                notes.push(note);
            }
        }
    }
}

/// The keys whose values a node names.
fn named(node: &Node) -> Vec<&str> {
    let exact = node.entries.iter().filter(|entry| matches!(entry.value, Value::Exact(_)));
    exact.map(|entry| entry.key.as_str()).collect()
}

fn limit(limit: &Limit) -> String {
    match limit {
        Limit::Unlimited => "\"unlimited\"".to_owned(),
        Limit::Nothing => "\"block\"".to_owned(),
        Limit::Count { count, window } => {
            format!("{{ quota = \"{count}/{window}\", algorithm = \"fixed-window\" }}")
        }
    }
}

/// `message_type.marketing/to_number`.
fn path(entries: &[Entry]) -> String {
    let step = |entry: &Entry| match &entry.value {
        Value::Any => entry.key.clone(),
        Value::Exact(value) | Value::Prefix { text: value, .. } => format!("{}.{value}", entry.key),
    };
    entries.iter().map(step).collect::<Vec<_>>().join("/")
}

/// What may be a rule's name, with room for a number behind it.
fn fitting(name: &str) -> String {
    let fits = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '.' | '/' | '-');
    name.chars().map(|c| if fits(c) { c } else { '_' }).take(NAME_MAX).collect()
}

/// A text that is compared whole, stars and all.
fn literal(text: &str) -> String {
    match text.contains('*') {
        true => format!("{{ exact = {} }}", quoted(text)),
        false => quoted(text),
    }
}

/// A TOML string.
fn quoted(text: &str) -> String {
    let mut quoted = String::from("\"");
    for c in text.chars() {
        match c {
            '"' | '\\' => quoted.extend(['\\', c]),
            c if c.is_control() => {
                // Writing to a String does not fail.
                let _ = write!(quoted, "\\u{:04X}", u32::from(c));
            }
            c => quoted.push(c),
        }
    }
    quoted + "\""
}

const HEAD: &str = "\
# The rules of a configuration of envoyproxy/ratelimit. `envoy.entries` lists the keys of a
# descriptor, so each rule is for descriptors with just its entries.
";
/// What the gRPC door calls the keys of a descriptor's entries.
const ENTRIES: &str = "envoy.entries";
/// Names have 64 bytes.
const NAME_MAX: usize = 56;
