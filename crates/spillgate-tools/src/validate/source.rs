//! Finds the lines and the wording of rules in a file, which a policy does not keep.
//!
//! The file is known to load, so an unexpected value is simply left out.

use std::collections::HashMap;
use std::ops::Range;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

/// The rules of a file, in its order, and its overrides.
#[derive(Debug, Default)]
pub struct Source {
    pub(crate) rules: Vec<Entry>,
    /// The overrides by the names of their rules.
    pub(crate) overrides: HashMap<Box<str>, Vec<Entry>>,
}

/// One `[[rule]]` or `[[override]]`.
#[derive(Debug)]
pub struct Entry {
    pub(crate) line: usize,
    /// The fields and their lines.
    fields: Vec<(Box<str>, usize)>,
    pub(crate) limits: Vec<Wording>,
    /// The attributes of a rule's `match`, each with its texts outside a table such as `{ exact = "a*" }`.
    pub(crate) match_texts: Vec<(Box<str>, Box<str>)>,
    /// The attributes and values of an override.
    pub(crate) subject: Vec<(Box<str>, Box<str>)>,
}

/// A limit as written.
#[derive(Debug, Default)]
pub struct Wording {
    pub(crate) line: usize,
    pub(crate) quota: Box<str>,
    pub(crate) name: Option<Box<str>>,
    pub(crate) algorithm: Option<Box<str>>,
}

impl Source {
    pub fn parse(text: &str) -> Source {
        let mut source = Source::default();
        let mut line = 1;
        for piece in pieces(text) {
            if let Ok(tree) = DeTable::parse(piece) {
                let mut lines = Lines { piece, at: 0, line };
                source
                    .rules
                    .extend(entries(tree.get_ref(), "rule", &mut lines).map(|(_, entry)| entry));
                for (rule, entry) in entries(tree.get_ref(), "override", &mut lines) {
                    source.overrides.entry(rule).or_default().push(entry);
                }
            }
            line += newlines(piece);
        }
        source
    }
}

impl Entry {
    /// Returns the line of a field, or of the entry's beginning.
    pub fn line_of(&self, field: &str) -> usize {
        let found = self.fields.iter().find(|(name, _)| **name == *field);
        found.map_or(self.line, |(_, line)| *line)
    }

    /// Returns the line of a limit.
    pub fn line_of_limit(&self, position: usize) -> usize {
        self.limits.get(position).map_or_else(|| self.line_of("limits"), |limit| limit.line)
    }
}

/// Splits a text into its entries, since a parsed file takes fifty times its size. A multi-line string may contain
/// text that looks like a head, so a file with such strings stays whole.
fn pieces(text: &str) -> Vec<&str> {
    if text.contains("\"\"\"") || text.contains("'''") {
        return vec![text];
    }
    let heads = HEADS.iter().flat_map(|head| text.match_indices(head)).map(|(at, _)| at + 1);
    let mut cuts: Vec<usize> = heads.chain([0, text.len()]).collect();
    cuts.sort_unstable();
    cuts.windows(2).map(|cut| &text[cut[0]..cut[1]]).collect()
}

/// Returns the entries with the names of their rules.
fn entries(
    table: &DeTable<'_>,
    name: &str,
    lines: &mut Lines<'_>,
) -> impl Iterator<Item = (Box<str>, Entry)> {
    let tables = table.get(name).and_then(|value| value.get_ref().as_array());
    let entry = |value: &Spanned<DeValue<'_>>| {
        let fields = value.get_ref().as_table()?;
        let rule = fields.get("rule").map(written).unwrap_or_default();
        Some((rule, entry(fields, lines.line_at(value.span()), lines)))
    };
    let entries: Vec<_> = tables.into_iter().flatten().filter_map(entry).collect();
    entries.into_iter()
}

fn entry(table: &DeTable<'_>, line: usize, lines: &mut Lines<'_>) -> Entry {
    let mut fields: Vec<_> = table.keys().map(|key| (key.get_ref(), key.span())).collect();
    fields.sort_by_key(|(_, span)| span.start);
    let fields = fields.into_iter().map(|(name, span)| (name.as_ref().into(), lines.line_at(span)));
    let fields = fields.collect();
    let limits = table.get("limits").and_then(|value| value.get_ref().as_array());
    let subject = table.get("subject").and_then(|value| value.get_ref().as_table());
    let subject = subject.into_iter().flatten();
    let matches = table.get("match").and_then(|value| value.get_ref().as_table());
    let texts = matches.into_iter().flatten().flat_map(|(attribute, value)| {
        let attribute: &str = attribute.get_ref();
        texts(value).into_iter().map(move |text| (attribute.into(), text))
    });
    Entry {
        line,
        fields,
        limits: limits.into_iter().flatten().map(|limit| wording(limit, lines)).collect(),
        match_texts: texts.collect(),
        subject: subject
            .map(|(key, value)| (key.get_ref().as_ref().into(), written(value)))
            .collect(),
    }
}

fn wording(limit: &Spanned<DeValue<'_>>, lines: &mut Lines<'_>) -> Wording {
    let line = lines.line_at(limit.span());
    let Some(table) = limit.get_ref().as_table() else {
        return Wording { line, quota: written(limit), ..Wording::default() };
    };
    let mut wording = Wording { line, ..Wording::default() };
    for (key, value) in table {
        match key.get_ref().as_ref() {
            "quota" => wording.quota = written(value),
            "name" => wording.name = Some(written(value)),
            "algorithm" => wording.algorithm = Some(written(value)),
            _ => {}
        }
    }
    wording
}

/// Returns a plain value as written, and the content of a table such as `{ exact = "a*" }`.
fn written(value: &Spanned<DeValue<'_>>) -> Box<str> {
    match value.get_ref() {
        DeValue::String(text) => text.as_ref().into(),
        DeValue::Integer(number) => number.as_str().into(),
        DeValue::Float(number) => number.as_str().into(),
        DeValue::Table(table) => table.values().next().map(written).unwrap_or_default(),
        _ => Box::default(),
    }
}

/// Returns the texts of a pattern, of a list of patterns, and of those in `{ not = ... }`.
fn texts(pattern: &Spanned<DeValue<'_>>) -> Vec<Box<str>> {
    match pattern.get_ref() {
        DeValue::String(text) => vec![text.as_ref().into()],
        DeValue::Array(patterns) => patterns.iter().flat_map(texts).collect(),
        DeValue::Table(table) => table.get("not").map(texts).unwrap_or_default(),
        _ => Vec::new(),
    }
}

/// Counts the lines of a piece. Calls in order count each line once.
struct Lines<'t> {
    piece: &'t str,
    at: usize,
    line: usize,
}

impl Lines<'_> {
    fn line_at(&mut self, span: Range<usize>) -> usize {
        let (from, to) = (self.at.min(span.start), self.at.max(span.start));
        let between = self.piece.get(from..to).map_or(0, newlines);
        self.line = if self.at <= span.start { self.line + between } else { self.line - between };
        self.at = span.start;
        self.line
    }
}

fn newlines(text: &str) -> usize {
    text.bytes().filter(|byte| *byte == b'\n').count()
}

const HEADS: [&str; 2] = ["\n[[rule]]", "\n[[override]]"];

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: &str = r#"
[server]
http = "off"

[[rule]]
name = "a"
limits = [
    "5/minute",
    { quota = "7/day", name = "daily", burst = 9 },
]
local_share = 0.25
[rule.match]
path = "/a"
user = ["x", { exact = "y" }, { not = ["z"] }]

[[override]]
subject = { tenant = { exact = "a*" } }
rule = "a"
limits = ["5/minute"]
"#;

    #[test]
    fn everything_has_its_line_and_its_wording() {
        for text in [FILE.to_owned(), format!("{FILE}# '''\n")] {
            let source = Source::parse(&text);
            let ([rule], [over]) = (&source.rules[..], &source.overrides["a"][..]) else {
                panic!("{source:?}")
            };
            assert_eq!((rule.line, rule.line_of("local_share"), rule.line_of("key")), (5, 11, 5));
            assert_eq!((rule.line_of_limit(0), rule.line_of_limit(1)), (8, 9));
            assert_eq!(
                (&*rule.limits[1].quota, rule.limits[1].name.as_deref()),
                ("7/day", Some("daily"))
            );
            assert_eq!((over.line, over.line_of("rule")), (16, 18));
            let texts: Vec<_> = rule.match_texts.iter().map(|(_, text)| &**text).collect();
            assert_eq!(texts, ["/a", "x", "z"]);
            assert_eq!(over.subject, [("tenant".into(), "a*".into())]);
            assert_eq!(over.limits[0].quota, rule.limits[0].quota);
        }
    }
}
