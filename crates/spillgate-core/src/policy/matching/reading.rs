//! Reads the patterns of a rule's `match`.

use toml::Spanned;
use toml::de::DeValue;

use super::{AnyOf, Condition};
use crate::policy::file::{Entry, Table};
use crate::policy::glob::Glob;
use crate::policy::problem::{Problem, Problems};
use crate::policy::types::{AttributeType, Named, Types};

/// The attribute whose patterns are read.
#[derive(Clone, Copy)]
struct Reader<'r, 't> {
    table: &'r Table<'t>,
    attribute: &'t str,
    of_type: AttributeType,
}

type Written<'t> = &'t Spanned<DeValue<'t>>;

/// Reads the conditions of a rule from its field `match`.
pub fn read_conditions(
    table: &Table<'_>,
    types: &Types,
    problems: &mut Problems<'_>,
) -> Vec<Condition> {
    let attributes = table.attributes(FIELD, problems).unwrap_or_default();
    let condition = |(attribute, value)| {
        let of_type = types.type_of(attribute);
        let any_of = Reader { table, attribute, of_type }.any_of(value, problems);
        Condition { attribute: attribute.into(), any_of }
    };
    attributes.into_iter().map(condition).collect()
}

impl<'t> Reader<'_, 't> {
    /// Reads a pattern, or a list of patterns of which one must hold.
    fn any_of(self, value: Written<'t>, problems: &mut Problems<'_>) -> AnyOf {
        let mut any_of = AnyOf::default();
        for value in problems.noting(self.items(value, "a value")).unwrap_or_default() {
            let read = self.pattern(value, &mut any_of, problems);
            problems.noting(read);
        }
        any_of.exact.sort_unstable();
        any_of
    }

    fn pattern(
        self,
        value: Written<'t>,
        any_of: &mut AnyOf,
        problems: &mut Problems<'_>,
    ) -> Result<(), Problem> {
        let entry = match value.get_ref() {
            DeValue::Table(table) if table.len() == 1 => table.iter().next(),
            DeValue::Table(_) => None,
            _ => return self.text(value, any_of),
        };
        match entry.map(|(key, value)| (&**key.get_ref(), value)) {
            Some(("exact", exact)) => {
                let text = self.table.text_of(FIELD, exact)?.text;
                any_of.exact.push(self.value(exact, text)?);
            }
            Some(("prefix", prefix)) => {
                let text = self.table.text_of(FIELD, prefix)?.text;
                if let AttributeType::Ip(_) = self.of_type {
                    return Err(self.wrong(prefix, no_prefix(text)));
                }
                any_of.globs.push(match self.of_type {
                    AttributeType::Path(form) => Glob::of_prefix(&form.cased(text)),
                    _ => Glob::of_prefix(text),
                });
            }
            Some(("cidr", networks)) => self.networks(networks, any_of)?,
            Some(("absent", truth)) => match truth.get_ref() {
                DeValue::Boolean(true) => any_of.absent = true,
                _ => {
                    let message = format!("write {:?} = {{ absent = true }}", self.attribute);
                    return Err(self.wrong(truth, message));
                }
            },
            Some(("not", not)) => any_of.not.push(self.any_of(not, problems)),
            _ => return Err(no_pattern(self.table, FIELD, self.attribute, value, &KINDS)),
        }
        Ok(())
    }

    /// Reads a text, in which a `*` stands for any bytes.
    fn text(self, value: Written<'t>, any_of: &mut AnyOf) -> Result<(), Problem> {
        let text = self.table.text_of(FIELD, value)?.text;
        if is_regex(text) {
            let message = format!(
                "{text:?} looks like a regular expression, and patterns are not; write * for any text, as in \"/api/*\", a list for alternatives, or {{ exact = {text:?} }} to take it literally"
            );
            return Err(self.wrong(value, message));
        }
        let is_path = matches!(self.of_type, AttributeType::Path(_));
        let has_gaps = text.contains('*') || is_path && text.contains('{');
        if !has_gaps {
            return self.add(value, text, any_of);
        }
        let glob = match self.of_type {
            AttributeType::Ip(_) if text == "*" => Glob::of_text(text),
            AttributeType::Ip(_) => return Err(self.wrong(value, no_prefix(text))),
            AttributeType::Path(form) => form.glob(text),
            AttributeType::Text => Glob::of_text(text),
        };
        let wrong = || match is_path {
            true => self.wrong(value, format!("{text:?} {NO_PATH}")),
            false => {
                let message = format!(
                    "{text:?} has two * side by side; write one of them, or {{ exact = {text:?} }} to take them literally"
                );
                self.wrong(value, message)
            }
        };
        any_of.globs.push(glob.ok_or_else(wrong)?);
        Ok(())
    }

    /// Reads `cidr = ["10.0.0.0/8"]`.
    fn networks(self, value: Written<'t>, any_of: &mut AnyOf) -> Result<(), Problem> {
        if !matches!(self.of_type, AttributeType::Ip(_)) {
            let message = format!(
                "{:?} has no addresses; declare them: [attribute.{:?}] with type = \"ip\"",
                self.attribute, self.attribute
            );
            return Err(self.wrong(value, message));
        }
        for value in self.items(value, "a network")? {
            let text = self.table.text_of(FIELD, value)?.text;
            self.add(value, text, any_of)?;
        }
        Ok(())
    }

    /// Returns the values of a list, or the value itself if it is none.
    fn items(self, value: Written<'t>, what: &str) -> Result<&'t [Spanned<DeValue<'t>>], Problem> {
        let list = value.get_ref().as_array();
        if list.is_some_and(|list| list.is_empty()) {
            let message = format!(
                "an empty list, which nothing matches; write {what}, or leave {:?} out",
                self.attribute
            );
            return Err(self.wrong(value, message));
        }
        Ok(list.map_or(std::slice::from_ref(value), |list| list))
    }

    /// Adds a value or a network.
    fn add(self, value: Written<'t>, text: &str, any_of: &mut AnyOf) -> Result<(), Problem> {
        match self.named(value, text)? {
            Named::Value(exact) => any_of.exact.push(exact),
            Named::Network(network) => {
                any_of.networks.insert(network, ());
            }
        }
        Ok(())
    }

    /// Returns one value in its one spelling.
    fn value(self, value: Written<'t>, text: &str) -> Result<Box<[u8]>, Problem> {
        match self.named(value, text)? {
            Named::Value(value) => Ok(value),
            Named::Network(_) => {
                Err(self
                    .wrong(value, format!("{text:?} is a network; write {{ cidr = [{text:?}] }}")))
            }
        }
    }

    fn named(self, value: Written<'t>, text: &str) -> Result<Named, Problem> {
        // A rule matches by either reading of a path, so a pattern keeps its `%2F`.
        if let AttributeType::Path(form) = self.of_type {
            return Ok(Named::Value(form.exact(text)));
        }
        let named = self.of_type.named(text.as_bytes());
        named.map_err(|problem| self.wrong(value, problem.message(text.as_bytes())))
    }

    fn wrong(self, value: Written<'t>, message: impl Into<String>) -> Problem {
        self.table.wrong_at(self.table.at(value.span()), FIELD, message)
    }
}

/// Reads the text of `{ exact = "..." }`.
pub fn read_literal<'t>(
    table: &Table<'t>,
    field: &str,
    attribute: &str,
    value: Written<'t>,
) -> Result<&'t str, Problem> {
    let literal = value.get_ref().as_table().into_iter().flatten();
    let entries: Vec<Entry<'t>> =
        literal.map(|(key, value)| (key.get_ref().as_ref(), value)).collect();
    match entries[..] {
        [("exact", value)] => Ok(table.text_of(field, value)?.text),
        _ => Err(no_pattern(table, field, attribute, value, &["exact"])),
    }
}

/// Returns whether a pattern has signs that hardly any value has, but most regular expressions.
fn is_regex(text: &str) -> bool {
    let anchored = text.starts_with('^') || REGEX_ENDS.iter().any(|end| text.ends_with(end));
    anchored || REGEX_PARTS.iter().any(|part| text.contains(part))
}

fn no_prefix(text: &str) -> String {
    format!(
        "{text:?} is a part of an address, and addresses are matched by network; write for example {{ cidr = [\"10.0.0.0/8\"] }}"
    )
}

/// Makes the problem that a table is no pattern.
fn no_pattern(
    table: &Table<'_>,
    field: &str,
    attribute: &str,
    value: &Spanned<DeValue<'_>>,
    kinds: &[&str],
) -> Problem {
    let mut keys = value.get_ref().as_table().into_iter().flatten().map(|(key, _)| key.get_ref());
    let message = match (keys.next(), keys.next()) {
        (Some(key), None) if !kinds.contains(&&**key) => format!(
            "the value of {attribute:?} is a table; write one of {} in it, or put the attribute's name in quotes if it has a dot: {:?}",
            kinds.join(", "),
            format!("{attribute}.{key}")
        ),
        _ => format!(
            "the value of {attribute:?} is a table; write one of {} in it, and nothing else",
            kinds.join(", ")
        ),
    };
    table.wrong_at(table.at(value.span()), field, message)
}

const FIELD: &str = "match";
const KINDS: [&str; 5] = ["exact", "prefix", "cidr", "absent", "not"];
const REGEX_ENDS: [&str; 5] = ["/.*", "*$", "+$", ")$", "]$"];
const REGEX_PARTS: [&str; 9] =
    ["\\d+", "\\d*", "\\d{", "\\w+", "\\w*", "[0-9]", "[a-z", "[^", "(?"];
const NO_PATH: &str = "matches no path: paths begin with /, have no query and no //, and are not escaped without need; \
                       write {name} for one whole segment and * for any text";
