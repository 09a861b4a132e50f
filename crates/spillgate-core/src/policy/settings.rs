//! Reads the tables of a file that are not the policy's, with the line of every field.

use std::collections::HashSet;

use toml::de::{DeTable, DeValue};

use super::file::{Table, pieces};
use super::problem::{LineCounter, Problem, Problems};
use super::{PIECE_BYTES, Policy, PolicyError, unreadable};

/// A field of a file's tables `server`, `store` and `telemetry`, which [`Policy::settings_in`]
/// returns.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileSetting {
    /// Its whole name, such as `server.tls.cert`.
    pub name: String,
    /// Its value as a string, with commas between the items of a list. `None` for a value of another
    /// kind, such as a date.
    pub value: Option<String>,
    /// Its line, from 1.
    pub line: usize,
}

#[doc(hidden)]
impl Policy {
    /// Returns the settings of the service that a policy file holds, in file order.
    ///
    /// # Errors
    /// Returns the first problem that keeps the file from being read as TOML. Problems of rules are
    /// not looked for.
    ///
    /// ```
    /// use spillgate_core::Policy;
    ///
    /// let settings = Policy::settings_in("limits.toml", "[store]\nurl = \"redis://10.0.0.1\"\n")?;
    /// assert_eq!((&settings[0].name[..], settings[0].line), ("store.url", 2));
    /// # Ok::<(), spillgate_core::PolicyError>(())
    /// ```
    pub fn settings_in(file_name: &str, text: &str) -> Result<Vec<FileSetting>, PolicyError> {
        in_pieces_of(PIECE_BYTES, file_name, text)
    }
}

/// Reads the settings of a file in pieces of `bytes`.
pub fn in_pieces_of(
    bytes: usize,
    file_name: &str,
    text: &str,
) -> Result<Vec<FileSetting>, PolicyError> {
    let mut problems = Problems::in_text(text);
    let pieces = pieces(text, bytes);
    let mut found = Found::new();
    if let Some(problem) = unreadable(text, &pieces) {
        problems.note(problem);
    } else {
        for piece in pieces.iter().filter(|piece| MARKS.iter().any(|mark| piece.has(mark))) {
            let Some(tree) = piece.parse(&mut problems) else { continue };
            let table = Table::of_piece(&tree, piece);
            add_fields("", tree.get_ref(), &table, &mut found);
        }
    }
    found.sort_by_key(|(at, ..)| *at);
    let mut names = HashSet::new();
    for (at, name, _) in &found {
        if !names.insert(name) {
            let message = "given twice in one table; keep one of them";
            problems.note(Problem { field: name.clone(), ..Problem::of_file(*at, message) });
        }
    }
    if let Some(first) = problems.into_errors(file_name).into_iter().next() {
        return Err(first);
    }
    let mut lines = LineCounter::new(text);
    let with_line = |(at, name, value)| FileSetting { name, value, line: lines.line_of(at) };
    Ok(found.into_iter().map(with_line).collect())
}

/// The fields found so far: place, name and value.
type Found = Vec<(usize, String, Option<String>)>;

fn add_fields(within: &str, fields: &DeTable<'_>, table: &Table<'_>, found: &mut Found) {
    for (key, value) in fields {
        let name = match within {
            "" if !SECTIONS.contains(&&**key.get_ref()) => continue,
            "" => key.get_ref().to_string(),
            within => format!("{within}.{}", key.get_ref()),
        };
        match value.get_ref() {
            DeValue::Table(fields) => add_fields(&name, fields, table, found),
            plain => found.push((table.at(key.span()), name, as_text(plain))),
        }
    }
}

/// Returns a value as an environment variable would hold it.
fn as_text(value: &DeValue<'_>) -> Option<String> {
    match value {
        DeValue::String(text) => Some(text.to_string()),
        DeValue::Boolean(truth) => Some(truth.to_string()),
        DeValue::Integer(number) => Some(number.to_string()),
        DeValue::Array(items) => {
            let texts = items.iter().map(|item| item.get_ref().as_str());
            let texts: Option<Vec<&str>> =
                texts.map(|text| text.filter(|text| !text.contains(','))).collect();
            Some(texts?.join(","))
        }
        _ => None,
    }
}

/// The tables that hold settings.
const SECTIONS: [&str; 3] = ["server", "store", "telemetry"];
/// A piece of the file without any of these has no such table. The name of a table may be escaped.
const MARKS: [&str; 4] = [SECTIONS[0], SECTIONS[1], SECTIONS[2], "\\"];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_are_found_between_rules_however_their_tables_are_written() {
        let rule = "[[rule]]\nname = \"a\"\nkey = [\"ip\"]\nlimits = [\"5/minute\"]\n";
        let list = "[rule.denial]\njson = { a = [\n[\"b\", 1],\n[\"store\", 2],\n] }\n";
        let numbers = "[rule.denial]\njson = { a = [\n[1],\n[[2]],\n] }\n";
        let store = "[store]\nurl = \"redis://a\"\n";
        for text in [
            format!("{rule}  [store]\n  url = \"redis://a\"\n"),
            format!("{rule}\t[ store ] # in memory\nurl = \"redis://a\"\n"),
            format!("{rule}[\"store\"]\nurl = \"redis://a\"\n"),
            format!("{rule}[\"st\\u006fre\"]\nurl = \"redis://a\"\n"),
            format!("{rule}[attribute.ip]\ntype = \"ip\"\n{rule}[[ override ]]\nx = 1\n{store}"),
            format!("{rule}{list}{store}"),
            format!("{rule}{numbers}{store}"),
            format!("[[rule]]\nname = \"\"\"\n[server]\nno = 1\n\"\"\"\n{store}"),
        ] {
            let line = text.lines().position(|line| line.trim().starts_with("url")).unwrap() + 1;
            let url = FileSetting {
                name: "store.url".to_owned(),
                value: Some("redis://a".to_owned()),
                line,
            };
            for bytes in [1, PIECE_BYTES] {
                let found = in_pieces_of(bytes, "f", &text);
                assert_eq!(found, Ok(vec![url.clone()]), "{text}");
            }
        }
    }

    #[test]
    fn a_field_that_is_given_twice_is_refused() {
        let rule = "[[rule]]\nname = \"a\"\n";
        let url = "[store]\nurl = \"redis://a\"\n";
        let error = in_pieces_of(1, "f", &format!("{url}{rule}{url}")).unwrap_err();
        assert_eq!((error.line(), error.field()), (6, "store.url"));
        assert_eq!(Policy::settings_in("f", "[store\n").unwrap_err().line(), 1);
    }
}
