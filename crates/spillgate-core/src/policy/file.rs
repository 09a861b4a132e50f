//! Reads the policy file as TOML. Tables keep their places, so that every problem has a line.
//!
//! Longer than 450 lines because a table of the file has one method for each kind of value.

use std::borrow::Cow;
use std::fmt;
use std::ops::Range;

use toml::Spanned;
use toml::de::{DeArray, DeTable, DeValue};

use super::problem::{Problem, Problems, longer, nearest};
use crate::algorithm::Share;

/// A part of the file that is TOML by itself.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Piece<'t> {
    at: usize,
    text: &'t str,
}

/// Cuts the file before lines that start with `[[rule]]` or `[[override]]`. As a tree a file takes
/// a hundred times its size, so a large one is read piece by piece. Such a line can mean something
/// else only inside a multi-line text, so nothing is cut after the first triple quote.
pub fn pieces(text: &str, bytes: usize) -> Vec<Piece<'_>> {
    let mut pieces = Vec::new();
    let mut at = 0;
    while at < text.len() {
        let end =
            end_of_piece(&text.as_bytes()[at..], bytes).map_or(text.len(), |length| at + length);
        pieces.push(Piece { at, text: &text[at..end] });
        at = end;
    }
    pieces
}

fn end_of_piece(rest: &[u8], bytes: usize) -> Option<usize> {
    let begins_entry =
        |at: &usize| HEADS.iter().any(|head| rest[*at..].starts_with(head.as_bytes()));
    let far_enough = rest.get(bytes..)?.iter().enumerate().filter(|(_, byte)| **byte == b'\n');
    let end = far_enough.map(|(i, _)| bytes + i + 1).find(begins_entry)?;
    let triple_quoted = |three: &[u8]| three == b"\"\"\"" || three == b"'''";
    (!rest[..end].windows(3).any(triple_quoted)).then_some(end)
}

impl<'t> Piece<'t> {
    /// Returns whether a text occurs in the piece.
    pub(crate) fn has(&self, text: &str) -> bool {
        self.text.contains(text)
    }

    pub(crate) fn is_too_long(&self) -> bool {
        self.text.len() > TREE_MAX
    }

    pub(crate) fn too_long(&self) -> Problem {
        let message = format!(
            "no line in {TREE_MAX} bytes begins with {}; write each in a table of its own, and strings in one pair of quotes, not three",
            HEADS.join(" or ")
        );
        Problem::of_file(self.at, message)
    }

    /// Parses the piece; returns `None` if it is not TOML.
    pub(crate) fn parse(&self, problems: &mut Problems<'_>) -> Option<Spanned<DeTable<'t>>> {
        let (tree, mut errors) = DeTable::parse_recoverable(self.text);
        let start = |error: &toml::de::Error| error.span().unwrap_or_default().start;
        errors.sort_by_key(start);
        let (mut line_end, mut reported_in_line) = (0, Vec::new());
        for error in &errors {
            if start(error) >= line_end {
                line_end = self.line_end(start(error));
                reported_in_line.clear();
            }
            // One mistake can cause a hundred equal errors after it.
            let is_known = reported_in_line.contains(&error.message()) && !is_duplicate(error);
            if !is_known && !problems.are_plenty() {
                reported_in_line.push(error.message());
                problems.note(self.syntax(error));
            }
        }
        errors.is_empty().then_some(tree)
    }

    /// Returns the start of the next line.
    fn line_end(&self, at: usize) -> usize {
        let rest = self.text.as_bytes().get(at..).unwrap_or_default();
        at + rest.iter().position(|byte| *byte == b'\n').map_or(rest.len(), |newline| newline + 1)
    }

    fn syntax(&self, error: &toml::de::Error) -> Problem {
        let span = error.span().unwrap_or_default();
        let at = self.at + span.start;
        if is_duplicate(error) {
            let field = self.text[span].trim_matches(['"', '\'']).to_owned();
            let message = "given twice in one table; keep one of them";
            return Problem { field, ..Problem::of_file(at, message) };
        }
        let field = self.key_of_line(span.start).to_owned();
        let message = format!(
            "not TOML: {}; put strings in quotes, lists in brackets, and each field on a line of its own",
            error.message()
        );
        Problem { field, ..Problem::of_file(at, message) }
    }

    /// Returns the text before the `=` of a line, if it looks like a field.
    fn key_of_line(&self, at: usize) -> &'t str {
        let before = self.text.get(..at).unwrap_or_default();
        let line = &self.text[before.rfind('\n').map_or(0, |newline| newline + 1)..];
        let line = line.lines().next().unwrap_or_default();
        let key = line.split_once('=').map_or("", |(key, _)| key.trim());
        let plain = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'-' | b'.');
        if key.bytes().all(plain) { key } else { "" }
    }
}

fn is_duplicate(error: &toml::de::Error) -> bool {
    error.message() == "duplicate key"
}

/// The kind and name of a table, for messages.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Place<'t> {
    File,
    /// A rule, with its name if it has one.
    Rule(Option<&'t str>),
    /// An override, with the rule's name if it has one.
    Override(Option<&'t str>),
    /// The type of an attribute.
    Attribute(&'t str),
}

/// A limit of a rule or override, by its name or else its position.
#[derive(Clone, Copy, Debug)]
pub(crate) enum LimitLabel<'t> {
    Named(&'t str),
    At(usize),
}

/// One table of the file, with its place.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Table<'t> {
    fields: &'t DeTable<'t>,
    /// The place to report for a missing field.
    head: usize,
    piece: Piece<'t>,
    place: Place<'t>,
    limit: Option<LimitLabel<'t>>,
}

/// A text of the file, with its place.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Text<'t> {
    pub(crate) at: usize,
    pub(crate) text: &'t str,
}

/// A key of the file, with its value.
pub type Entry<'t> = (&'t str, &'t Spanned<DeValue<'t>>);

impl<'t> Table<'t> {
    /// Makes the table of a whole piece.
    pub(crate) fn of_piece(tree: &'t Spanned<DeTable<'t>>, piece: &Piece<'t>) -> Table<'t> {
        Table {
            fields: tree.get_ref(),
            head: piece.at,
            piece: *piece,
            place: Place::File,
            limit: None,
        }
    }

    /// Makes a table that was built in code.
    pub(crate) fn without_file(fields: &'t DeTable<'t>, place: Place<'t>) -> Table<'t> {
        Table { fields, head: 0, piece: Piece { at: 0, text: "" }, place, limit: None }
    }

    /// Makes the table of one limit in this table's list.
    pub(crate) fn of_limit(
        self,
        fields: &'t DeTable<'t>,
        span: Range<usize>,
        limit: LimitLabel<'t>,
    ) -> Table<'t> {
        Table { fields, head: self.piece.at + span.start, limit: Some(limit), ..self }
    }

    /// Returns this table, with problems reported for one of its limits.
    pub(crate) fn at_limit(self, limit: LimitLabel<'t>) -> Table<'t> {
        Table { limit: Some(limit), ..self }
    }

    /// Returns the tables `[[name]]` of the file.
    pub(crate) fn entries(
        self,
        name: &'static str,
        place: fn(&'t DeTable<'t>) -> Place<'t>,
        problems: &mut Problems<'_>,
    ) -> Vec<Table<'t>> {
        let Some(value) = self.fields.get(name) else { return Vec::new() };
        let message = match value.get_ref() {
            DeValue::Table(_) => format!(
                "this is one table; write [[{name}]], with two brackets, above the fields of each"
            ),
            _ => format!("write each in a table of its own, below [[{name}]]"),
        };
        let wrong = self.wrong(name, message);
        let entries: Option<Vec<Table<'t>>> = value.get_ref().as_array().and_then(|array| {
            let entry = |value: &'t Spanned<DeValue<'t>>| {
                let fields = value.get_ref().as_table()?;
                let head = self.piece.at + value.span().start;
                Some(Table { fields, head, place: place(fields), ..self })
            };
            array.iter().map(entry).collect()
        });
        problems.noting(entries.ok_or(wrong)).unwrap_or_default()
    }

    /// Returns the tables `[name.KEY]` of the file, by their keys.
    pub(crate) fn tables(
        self,
        name: &'static str,
        place: fn(&'t str) -> Place<'t>,
        problems: &mut Problems<'_>,
    ) -> Vec<(&'t str, Table<'t>)> {
        let Some(value) = self.fields.get(name) else { return Vec::new() };
        let wrong = self.wrong(name, format!("write a table for each, such as [{name}.client]"));
        let tables: Option<Vec<_>> = value.get_ref().as_table().and_then(|table| {
            let of_key = |(key, value): (&'t Spanned<Cow<'t, str>>, &'t Spanned<DeValue<'t>>)| {
                let (key, head): (&'t str, _) = (key.get_ref(), self.at(key.span()));
                let fields = value.get_ref().as_table()?;
                Some((key, Table { fields, head, place: place(key), ..self }))
            };
            table.iter().map(of_key).collect()
        });
        problems.noting(tables.ok_or(wrong)).unwrap_or_default()
    }

    /// Makes a problem of a field, at the field, or at the table if it is missing.
    pub(crate) fn wrong(&self, field: &str, message: impl Into<String>) -> Problem {
        self.wrong_at(self.place_of(field), field, message)
    }

    /// Makes a problem of a part of a field.
    pub(crate) fn wrong_at(&self, at: usize, field: &str, message: impl Into<String>) -> Problem {
        let place = match self.limit {
            None => self.place.to_string(),
            Some(limit) => format!("{}, limit {limit}", self.place),
        };
        Problem { at, place, field: field.to_owned(), message: message.into() }
    }

    /// Makes the problem that a field has a value of the wrong type.
    fn wrong_kind(
        &self,
        field: &str,
        value: &Spanned<DeValue<'_>>,
        instead: fmt::Arguments<'_>,
    ) -> Problem {
        let message = format!("this is {}; write {instead}", kind(value.get_ref()));
        self.wrong_at(self.at(value.span()), field, message)
    }

    /// Reads a field with the function for its type, or notes what to write `instead`.
    fn read<T>(
        &self,
        field: &str,
        instead: fmt::Arguments<'_>,
        of: impl FnOnce(&'t DeValue<'t>) -> Option<T>,
        problems: &mut Problems<'_>,
    ) -> Option<T> {
        let value = self.fields.get(field)?;
        let wrong = || self.wrong_kind(field, value, instead);
        problems.noting(of(value.get_ref()).ok_or_else(wrong))
    }

    /// Returns the place of a field, or of the table if it is missing.
    pub(crate) fn place_of(&self, field: &str) -> usize {
        self.fields.get_key_value(field).map_or(self.head, |(key, _)| self.at(key.span()))
    }

    /// Returns the place in the file of a span in this piece.
    pub(crate) fn at(&self, span: Range<usize>) -> usize {
        self.piece.at + span.start
    }

    /// Returns the source text of a field, unless it is spread over tables of its own.
    pub(crate) fn as_written(&self, field: &str) -> Option<&'t str> {
        let text = self.piece.text.get(self.fields.get(field)?.span())?;
        (!text.starts_with("[[")).then_some(text)
    }

    /// Notes each field that is not in `known`. Returns whether there is none.
    pub(crate) fn refuse_unknown(&self, known: &[&str], problems: &mut Problems<'_>) -> bool {
        let fields = self.fields.keys().map(|key| key.get_ref().as_ref());
        let unknown: Vec<&str> = fields.filter(|field| !known.contains(field)).collect();
        for field in &unknown {
            let meant = nearest(field, known).or_else(|| longer(field, known));
            let way_out = match meant {
                Some(nearest) => format!("there is no such field; did you mean `{nearest}`?"),
                None => format!(
                    "there is no such field; those that exist here are {}",
                    known.join(", ")
                ),
            };
            problems.note(self.wrong(field, way_out));
        }
        unknown.is_empty()
    }

    /// Notes a missing field, unless a similar name exists, which is reported itself.
    pub(crate) fn require(&self, field: &str, example: &str, problems: &mut Problems<'_>) {
        let mut names = self.fields.keys().map(|key| key.get_ref().as_ref());
        if !names.any(|name| nearest(name, &[field]).is_some()) {
            problems.note(self.wrong(field, format!("missing; write for example {example}")));
        }
    }

    pub(crate) fn has(&self, field: &str) -> bool {
        self.fields.contains_key(field)
    }

    pub(crate) fn text(&self, field: &str, problems: &mut Problems<'_>) -> Option<&'t str> {
        let value = self.fields.get(field)?;
        problems.noting(self.text_of(field, value)).map(|text| text.text)
    }

    /// Reads a whole number. `example` is one that fits.
    pub(crate) fn whole_number(
        &self,
        field: &str,
        example: u16,
        problems: &mut Problems<'_>,
    ) -> Option<u64> {
        let value = self.fields.get(field)?;
        let number = match value.get_ref() {
            DeValue::Integer(digits) => u64::from_str_radix(digits.as_str(), digits.radix()).ok(),
            _ => None,
        };
        let wrong = || {
            let got = self.as_written(field).filter(|text| text.len() <= SHOWN_MAX);
            let got = got.filter(|text| !text.contains('\n')).unwrap_or(kind(value.get_ref()));
            let message = format!(
                "expected a whole number from 0 up, got {got}; write for example {field} = {example}"
            );
            self.wrong(field, message)
        };
        problems.noting(number.ok_or_else(wrong))
    }

    /// Reads a boolean.
    pub(crate) fn truth(&self, field: &str, problems: &mut Problems<'_>) -> Option<bool> {
        self.read(field, format_args!("true or false"), DeValue::as_bool, problems)
    }

    /// Reads a number in its source form, with or without a fraction.
    pub(crate) fn decimal(&self, field: &str, problems: &mut Problems<'_>) -> Option<&'t str> {
        let number = |value: &'t DeValue<'t>| match value {
            DeValue::Float(number) => Some(number.as_str()),
            DeValue::Integer(number) => Some(number.as_str()),
            _ => None,
        };
        self.read(field, format_args!("a number such as 0.25"), number, problems)
    }

    pub(crate) fn share(&self, field: &str, problems: &mut Problems<'_>) -> Option<Share> {
        let text = self.decimal(field, problems)?;
        let share = Share::parse(text);
        if share.is_none() {
            let message = format!(
                "must be greater than 0 and at most 1, with at most six decimal places, got {text}; write for example 0.25"
            );
            problems.note(self.wrong(field, message));
        }
        share
    }

    pub(crate) fn choice<T: Copy>(
        &self,
        field: &str,
        choices: &[(&str, T)],
        problems: &mut Problems<'_>,
    ) -> Option<T> {
        let word = self.text(field, problems)?;
        if let Some((_, choice)) = choices.iter().find(|(known, _)| *known == word) {
            return Some(*choice);
        }
        let words: Vec<&str> = choices.iter().map(|(word, _)| *word).collect();
        problems.note(
            self.wrong(
                field,
                format!("{word:?} is none of {}; write one of these", words.join(", ")),
            ),
        );
        None
    }

    pub(crate) fn list(&self, field: &str, problems: &mut Problems<'_>) -> Option<&'t DeArray<'t>> {
        let example = match self.fields.get(field).map(Spanned::get_ref) {
            Some(DeValue::String(text))
                if STRING_LISTS.contains(&field) && text.len() <= SHOWN_MAX =>
            {
                format!("{text:?}")
            }
            _ => "...".to_owned(),
        };
        self.read(field, format_args!("a list: {field} = [{example}]"), DeValue::as_array, problems)
    }

    /// Returns the section of this table, such as `rule`, if the field is one table where a list is expected.
    pub(crate) fn table_without_list(&self, field: &str) -> Option<&'static str> {
        self.fields.get(field)?.get_ref().as_table()?;
        Some(if let Place::Override(_) = self.place { "override" } else { "rule" })
    }

    /// Reads a table inside this one.
    pub(crate) fn table(
        &self,
        field: &str,
        example: &str,
        problems: &mut Problems<'_>,
    ) -> Option<Table<'t>> {
        let fields =
            self.read(field, format_args!("a table: {example}"), DeValue::as_table, problems)?;
        Some(Table { fields, head: self.at(self.fields.get(field)?.span()), ..*self })
    }

    /// Returns the keys of this table with their values.
    pub(crate) fn members(self) -> impl Iterator<Item = Entry<'t>> {
        self.fields.iter().map(|(key, value)| (&**key.get_ref(), value))
    }

    /// Reads a list of texts.
    pub(crate) fn texts(&self, field: &str, problems: &mut Problems<'_>) -> Option<Vec<Text<'t>>> {
        let list = self.list(field, problems)?;
        let texts = list.iter().filter_map(|value| problems.noting(self.text_of(field, value)));
        Some(texts.collect()).filter(|texts: &Vec<_>| texts.len() == list.len())
    }

    /// Reads a table of attributes: valid names and their values.
    pub(crate) fn attributes(
        &self,
        field: &str,
        problems: &mut Problems<'_>,
    ) -> Option<Vec<Entry<'t>>> {
        let table = self.read(
            field,
            format_args!("a table of attributes: {field} = {{ ip = \"203.0.113.7\" }}"),
            DeValue::as_table,
            problems,
        )?;
        let mut entries = Vec::with_capacity(table.len());
        for (key, value) in table {
            let name =
                self.attribute_name(field, Text { at: self.at(key.span()), text: key.get_ref() });
            entries.extend(problems.noting(name).map(|name| (name, value)));
        }
        Some(entries)
    }

    /// Returns the name of an attribute if a request can have it.
    pub(crate) fn attribute_name(&self, field: &str, name: Text<'t>) -> Result<&'t str, Problem> {
        if (1..=ATTRIBUTE_NAME_MAX).contains(&name.text.len()) {
            return Ok(name.text);
        }
        let message = format!(
            "the name of an attribute has 1 to {ATTRIBUTE_NAME_MAX} bytes, and this one has {}; write it as requests have it",
            name.text.len()
        );
        Err(self.wrong_at(name.at, field, message))
    }

    pub(crate) fn text_of(
        &self,
        field: &str,
        value: &'t Spanned<DeValue<'t>>,
    ) -> Result<Text<'t>, Problem> {
        match value.get_ref() {
            DeValue::String(text) => Ok(Text { at: self.at(value.span()), text }),
            _ => Err(self.wrong_kind(field, value, format_args!("a string, in quotes"))),
        }
    }
}

impl fmt::Display for Place<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Place::File => Ok(()),
            Place::Rule(None) => f.write_str("rule without a name"),
            Place::Rule(Some(name)) => write!(f, "rule {name:?}"),
            Place::Override(None) => f.write_str("override of no rule"),
            Place::Override(Some(rule)) => write!(f, "override of {rule:?}"),
            Place::Attribute(name) => write!(f, "attribute {name:?}"),
        }
    }
}

impl fmt::Display for LimitLabel<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            LimitLabel::Named(name) => write!(f, "{name:?}"),
            LimitLabel::At(position) => write!(f, "\"{position}\""),
        }
    }
}

/// Returns the text of a field if it is one, to name a table in messages.
pub fn text_in<'t>(fields: &'t DeTable<'t>, field: &str) -> Option<&'t str> {
    fields.get(field).and_then(|value| value.get_ref().as_str())
}

/// Returns the type of a value in the words of the documentation.
fn kind(value: &DeValue<'_>) -> &'static str {
    match value {
        DeValue::String(_) => "a string",
        DeValue::Integer(_) => "a whole number",
        DeValue::Float(_) => "a number with a fraction",
        DeValue::Boolean(_) => "true or false",
        DeValue::Datetime(_) => "a date or time",
        DeValue::Array(_) => "a list",
        DeValue::Table(_) => "a table",
    }
}

/// The lines before which a file may be cut.
const HEADS: [&str; 2] = ["[[rule]]", "[[override]]"];
/// The largest piece. An invalid one can take a thousand times its size as a tree and as errors.
pub const TREE_MAX: usize = 4 << 20;
/// The lists in which a string can stand alone.
const STRING_LISTS: [&str; 3] = ["anchor", "key", "limits"];
/// The longest value of the file that a message repeats.
const SHOWN_MAX: usize = 60;
/// The longest name of an attribute: Envoy Gateway joins those of its descriptors from the names of namespace, route,
/// rule and host.
const ATTRIBUTE_NAME_MAX: usize = 1024;
