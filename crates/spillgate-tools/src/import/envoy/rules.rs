//! Writes rules and overrides for the limits of a configuration.

use std::fmt::Write;

use super::Note;
use super::tree::{Entry, Limit, Node, Tree, Value};

/// Returns the policy in TOML.
pub fn write(tree: &Tree, notes: &mut Vec<Note>) -> String {
    let nodes: Vec<&Node> = tree.nodes.iter().filter(|node| is_expressible(node, notes)).collect();
    for (place, node) in nodes.iter().enumerate() {
        note_hidden(&nodes, place, node, notes);
    }
    // First the most general node of each path, then the others as overrides of it.
    let mut rules: Vec<Rule<'_>> = Vec::new();
    for node in &nodes {
        if !nodes.iter().any(|other| is_base_of(other, node)) {
            rules.push(Rule::new(node, &rules));
        }
    }
    for node in &nodes {
        let Some(base) = rules.iter_mut().find(|rule| is_base_of(rule.node, node)) else {
            continue;
        };
        if let Err(reason) = base.add_override(node) {
            let message = format!(
                "{} becomes a rule of its own, so both it and rule {:?} are charged and each can deny, where \
                 envoyproxy/ratelimit charges one: {reason}",
                path(&node.entries),
                base.name
            );
            notes.push(Note::difference(node.line, message));
            rules.push(Rule::new(node, &rules));
        }
    }
    for rule in &rules {
        for node in &rule.overrides {
            note_other_rules(&rules, rule, node, notes);
        }
    }
    let mut policy = String::from(HEAD);
    for (name, difference, same) in TYPED {
        let node = nodes.iter().find(|node| node.entries.iter().any(|entry| entry.key == name));
        let Some(node) = node else { continue };
        policy += &format!("\n[attribute.{name}]\ntype = \"string\"\n");
        let message = format!(
            "{name} is compared as text, and each {difference} has a counter of its own, as in envoyproxy/ratelimit; \
             leave [attribute.{name}] out to count {same}"
        );
        notes.push(Note::remark(node.line, message));
    }
    rules.iter().for_each(|rule| rule.write(&tree.domain, &mut policy));
    policy
}

/// Notes each further rule that matches an override's values, since the override replaces the limits of one rule only.
fn note_other_rules(rules: &[Rule<'_>], own: &Rule<'_>, node: &Node, notes: &mut Vec<Note>) {
    let others = rules.iter().filter(|rule| rule.name != own.name && is_base_of(rule.node, node));
    notes.extend(others.map(|rule| {
        let message = format!(
            "{} becomes an override of rule {:?}, and rule {:?} is charged too and can deny, where envoyproxy/ratelimit charges one",
            path(&node.entries),
            own.name,
            rule.name
        );
        Note::difference(node.line, message)
    }));
}

/// Returns whether a rule can match the node's values, and notes the limit that is left out if none can.
fn is_expressible(node: &Node, notes: &mut Vec<Note>) -> bool {
    let wildcard = node.entries.iter().find_map(|entry| match &entry.value {
        Value::WildKey(written) => Some(written),
        Value::Any | Value::Exact(_) | Value::Prefix { .. } | Value::Glob { .. } => None,
    });
    let Some(written) = wildcard else { return true };
    let lost = if node.limit == Limit::Unlimited { "exemption" } else { "limit" };
    let message = format!(
        "the {lost} of {} is left out: {written} has a *, and a rule names its attributes; write an entry for each key",
        path(&node.entries)
    );
    notes.push(Note::difference(node.line, message));
    false
}

/// A node that becomes a rule, and the nodes that become its overrides.
struct Rule<'t> {
    node: &'t Node,
    name: String,
    overrides: Vec<&'t Node>,
}

impl<'t> Rule<'t> {
    fn new(node: &'t Node, earlier: &[Rule<'_>]) -> Rule<'t> {
        let given = node.name.clone().filter(|name| !name.is_empty());
        let wanted = valid_name(&given.unwrap_or_else(|| path(&node.entries)));
        let numbered = (2..).map(|number| format!("{wanted}-{number}"));
        let mut names = std::iter::once(wanted.clone()).chain(numbered);
        let free = names.find(|name| earlier.iter().all(|rule| rule.name != *name));
        let name = free.expect("there are more numbers than rules");
        Rule { node, name, overrides: Vec::new() }
    }

    /// Makes a node an override of the rule, or returns why it cannot be one.
    fn add_override(&mut self, node: &'t Node) -> Result<(), &'static str> {
        let is_pattern = |entry: &Entry| !matches!(entry.value, Value::Any | Value::Exact(_));
        if node.entries.iter().any(is_pattern) {
            return Err("an override has exact values");
        }
        if self.node.entries.iter().any(|entry| entry.value.is_shared()) {
            return Err("the rule has one counter for all values");
        }
        // Shadow mode does not matter to an exemption.
        if node.shadow != self.node.shadow && node.limit != Limit::Unlimited {
            return Err("shadow mode is set for whole rules");
        }
        let ties = |other: &&&Node| {
            let (theirs, ours) = (exact_keys(other), exact_keys(node));
            theirs != ours && theirs.len() == ours.len()
        };
        if self.overrides.iter().any(|other| ties(&other)) {
            return Err("an override with as many other attributes has no precedence");
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
                Value::Any | Value::WildKey(_) => {}
                Value::Glob { text, .. } => {
                    matches.push(format!("{} = {}", quoted(name), quoted(text)));
                }
                Value::Exact(value) => {
                    matches.push(format!("{} = {}", quoted(name), literal(value)))
                }
                Value::Prefix { text, .. } => {
                    matches.push(format!("{} = {{ prefix = {} }}", quoted(name), quoted(text)));
                }
            }
            if !value.is_shared() {
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
                _ => None,
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

/// Returns whether `base` matches every descriptor that `node` matches, apart from precedence.
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
        (Value::Prefix { .. } | Value::Glob { .. }, Value::Exact(value)) => general.matches(value),
        (Value::Prefix { text, .. }, Value::Prefix { .. } | Value::Glob { .. }) => {
            special.ends().0.starts_with(text.as_str())
        }
        (general, special) => general == special,
    }
}

impl Value {
    /// Returns whether all values of the pattern share one counter.
    fn is_shared(&self) -> bool {
        matches!(self, Value::Prefix { shared: true, .. } | Value::Glob { shared: true, .. })
    }

    /// Returns the texts with which each value of the pattern begins and ends.
    fn ends(&self) -> (&str, &str) {
        match self {
            Value::Exact(text) => (text, text),
            Value::Prefix { text, .. } => (text, ""),
            Value::Glob { text, .. } => {
                let (head, rest) = text.split_once('*').unwrap_or((text, ""));
                (head, rest.rsplit('*').next().unwrap_or_default())
            }
            Value::Any | Value::WildKey(_) => ("", ""),
        }
    }

    /// Returns whether a value matches the pattern.
    fn matches(&self, value: &str) -> bool {
        let (head, tail) = self.ends();
        match self {
            Value::Any => true,
            Value::Exact(exact) => exact == value,
            Value::WildKey(_) => false,
            Value::Prefix { .. } => value.starts_with(head),
            Value::Glob { text, .. } => {
                let middle = text.get(head.len() + 1..text.len() - tail.len());
                let middle = middle.unwrap_or_default().split('*').filter(|part| !part.is_empty());
                let Some(mut rest) = value.strip_prefix(head) else { return false };
                // The first place of each part leaves most for those after it.
                for part in middle {
                    let Some((_, after)) = rest.split_once(part) else { return false };
                    rest = after;
                }
                rest.ends_with(tail)
            }
        }
    }
}

/// Notes the limits that the node at `place` hides in envoyproxy/ratelimit, and not in the policy.
///
/// At each level envoyproxy/ratelimit follows one descriptor: one with the exact value, else the first in the file whose
/// wildcard matches, else one without a value. Limits below the others do not apply to such a request. Rules apply
/// independently of each other, except that an override replaces the limits of its rule.
fn note_hidden(nodes: &[&Node], place: usize, node: &Node, notes: &mut Vec<Note>) {
    for (other_place, other) in nodes.iter().enumerate() {
        let differs = |(entry, base): (&Entry, &Entry)| entry != base;
        let Some(at) = node.entries.iter().zip(&other.entries).position(differs) else { continue };
        let (entry, hidden) = (&node.entries[at], &other.entries[at]);
        if entry.key != hidden.key || !precedes(&entry.value, &hidden.value, place < other_place) {
            continue;
        }
        // A node with the same entries below replaces the hidden limit: it is an override of it, or noted otherwise.
        let replaces = |known: &&&Node| {
            known.entries.starts_with(&node.entries[..=at])
                && known.entries[at + 1..] == other.entries[at + 1..]
        };
        // Two patterns that only overlap become two rules.
        if covers(&hidden.value, &entry.value) && nodes.iter().any(|known| replaces(&known)) {
            continue;
        }
        let note = Note::difference(
            node.line,
            format!(
                "{} also applies to descriptors with {}, where envoyproxy/ratelimit does not apply it; add an override \
                 \"unlimited\" for them if that matters",
                path(&other.entries),
                path(&node.entries[..=at])
            ),
        );
        if notes.iter().all(|known| known.message != note.message) {
            notes.push(note);
        }
    }
}

/// Returns whether envoyproxy/ratelimit prefers `value` to `other` for requests that match both.
fn precedes(value: &Value, other: &Value, is_earlier: bool) -> bool {
    match (value, other) {
        (Value::Exact(_) | Value::Prefix { .. } | Value::Glob { .. }, Value::Any) => true,
        (Value::Exact(value), Value::Prefix { .. } | Value::Glob { .. }) => other.matches(value),
        (Value::Prefix { .. } | Value::Glob { .. }, Value::Prefix { .. } | Value::Glob { .. }) => {
            let ((head, tail), (other_head, other_tail)) = (value.ends(), other.ends());
            let heads_agree = head.starts_with(other_head) || other_head.starts_with(head);
            let tails_agree = tail.ends_with(other_tail) || other_tail.ends_with(tail);
            is_earlier && heads_agree && tails_agree
        }
        _ => false,
    }
}

/// Returns the keys for which a node has exact values.
fn exact_keys(node: &Node) -> Vec<&str> {
    let exact = node.entries.iter().filter(|entry| matches!(entry.value, Value::Exact(_)));
    exact.map(|entry| entry.key.as_str()).collect()
}

fn limit(limit: &Limit) -> String {
    match limit {
        Limit::Unlimited => "\"unlimited\"".to_owned(),
        Limit::Block => "\"block\"".to_owned(),
        Limit::Count { count, window } => {
            format!("{{ quota = \"{count}/{window}\", algorithm = \"fixed-window\" }}")
        }
    }
}

/// Returns a path in one line: `message_type.marketing/to_number`.
fn path(entries: &[Entry]) -> String {
    let step = |entry: &Entry| match &entry.value {
        Value::Any | Value::WildKey(_) => entry.key.clone(),
        Value::Exact(value)
        | Value::Prefix { text: value, .. }
        | Value::Glob { text: value, .. } => {
            format!("{}.{value}", entry.key)
        }
    };
    entries.iter().map(step).collect::<Vec<_>>().join("/")
}

/// Replaces the characters that a rule's name may not have, and leaves room for a number behind it.
fn valid_name(name: &str) -> String {
    let fits = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '.' | '/' | '-');
    name.chars().map(|c| if fits(c) { c } else { '_' }).take(NAME_MAX).collect()
}

/// Returns a pattern that equals the whole text, with any `*` in it.
fn literal(text: &str) -> String {
    match text.contains('*') {
        true => format!("{{ exact = {} }}", quoted(text)),
        false => quoted(text),
    }
}

/// Returns a TOML string.
fn quoted(text: &str) -> String {
    let mut quoted = String::from("\"");
    for c in text.chars() {
        match c {
            '"' | '\\' => quoted.extend(['\\', c]),
            c if c.is_control() => {
                // Writing to a String cannot fail.
                let _ = write!(quoted, "\\u{:04X}", u32::from(c));
            }
            c => quoted.push(c),
        }
    }
    quoted + "\""
}

const HEAD: &str = "\
# The rules of a configuration of envoyproxy/ratelimit. `envoy.entries` lists the keys of a
# descriptor, so each rule matches descriptors with exactly its entries.
";
/// The attributes that have a type unless a policy declares them otherwise, with what the type counts together.
const TYPED: [(&str, &str, &str); 3] = [
    ("ip", "IPv6 address", "a client by its /64"),
    ("path", "spelling of a path", "all spellings of a path as one"),
    ("remote_address", "IPv6 address", "a client by its /64"),
];
/// The attribute of the gRPC API that lists the keys of a descriptor's entries.
const ENTRIES: &str = "envoy.entries";
/// A name may have 64 bytes.
const NAME_MAX: usize = 56;
