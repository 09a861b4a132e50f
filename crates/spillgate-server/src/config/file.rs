//! Reads the settings of a file: the fields of the tables that are not the policy's, each with its line.

use std::borrow::Cow;

use spillgate::policy::first_dot_too_many;
use toml::Spanned;
use toml::de::{DeTable, DeValue, Error};

use super::{Given, Origin, Problem, SECTIONS};

/// Returns every field of the settings' tables; a field of an inner table is named `server.tls.cert`.
///
/// # Errors
///
/// If the text is no TOML, or would take too much memory as a tree.
pub(super) fn settings_in(file: &str, text: &str) -> Result<Vec<Given>, Problem> {
    if let Some(at) = first_dot_too_many(text) {
        let line = 1 + text.bytes().take(at).filter(|byte| *byte == b'\n').count();
        let message = format!("{file}:{line}: too many dots in keys for the length of the file");
        return Err(Problem::File(message));
    }
    whole_settings_in(file, &without_entries(text))
}

/// Returns every field of the settings' tables, and parses the whole text, also rules and overrides. See
/// [`settings_in`].
pub(super) fn whole_settings_in(file: &str, text: &str) -> Result<Vec<Given>, Problem> {
    if text.bytes().filter(|byte| *byte != b'\n').count() > TREE_MAX {
        let message = format!(
            "{file}: more than {TREE_MAX} bytes outside of rules and overrides; leave some out"
        );
        return Err(Problem::File(message));
    }
    let reader = Reader { file, lines: Lines::new(text) };
    let table = DeTable::parse(text).map_err(|error| reader.syntax(&error))?;
    let mut given = Vec::new();
    for (key, value) in table.get_ref() {
        if SECTIONS.contains(&key.get_ref().as_ref()) {
            reader.read(key.get_ref(), key, value, &mut given);
        }
    }
    // The parser yields the fields of a table by name.
    given.sort_by_key(|given| given.origin.line());
    Ok(given)
}

/// Returns the text with its rules and overrides blanked, line for line: as a tree, a million of them would take
/// gigabytes. The text is returned whole if its lines do not show where tables begin: a multi-line string may hold a
/// line that looks like the head of a table, and so may a list of quoted texts.
fn without_entries(text: &str) -> Cow<'_, str> {
    let is_unclear = text.contains("\"\"\"") || text.contains("'''");
    if is_unclear || text.lines().any(may_be_quoted_head) {
        return Cow::Borrowed(text);
    }
    let mut in_entry = false;
    let kept = text.split_inclusive('\n').map(|line| {
        in_entry = match in_entry {
            true => !is_other_head(line),
            false => ENTRIES.iter().any(|head| line.starts_with(head)),
        };
        if in_entry { "\n" } else { line }
    });
    Cow::Owned(kept.collect())
}

/// Returns whether a line is the head of a table that belongs to no entry. A line of a list is none, because the texts
/// in a list have quotes.
fn is_other_head(line: &str) -> bool {
    let name = after_brackets(line).and_then(|rest| rest.split([']', '.', ' ', '\t']).next());
    name.is_some_and(|name| OTHERS.contains(&name))
}

/// Returns whether a line may be the head of such a table with its name in quotes.
fn may_be_quoted_head(line: &str) -> bool {
    let name = after_brackets(line).and_then(|rest| rest.strip_prefix(['"', '\'']));
    // An escape may stand for a letter of the name.
    name.is_some_and(|name| {
        name.contains('\\') || OTHERS.iter().any(|other| name.starts_with(other))
    })
}

/// Returns the text after the brackets that a line begins with.
fn after_brackets(line: &str) -> Option<&str> {
    let rest = line.trim_start_matches(BLANKS).strip_prefix('[')?;
    Some(rest.strip_prefix('[').unwrap_or(rest).trim_start_matches(BLANKS))
}

struct Reader<'a> {
    file: &'a str,
    lines: Lines,
}

impl Reader<'_> {
    fn read(
        &self,
        name: &str,
        key: &Spanned<impl Sized>,
        value: &Spanned<DeValue<'_>>,
        given: &mut Vec<Given>,
    ) {
        match value.get_ref() {
            DeValue::Table(table) => {
                for (key, value) in table {
                    self.read(&format!("{name}.{}", key.get_ref()), key, value, given);
                }
            }
            DeValue::Array(tables) if holds_tables(tables) => {
                for (index, table) in tables.iter().enumerate() {
                    self.read(&format!("{name}.{index}"), table, table, given);
                }
            }
            plain => {
                let line = self.lines.line(key.span().start);
                let origin = Origin::Line { file: self.file.to_owned(), line };
                given.push(Given { name: name.to_owned(), value: as_text(plain), origin });
            }
        }
    }

    fn syntax(&self, error: &Error) -> Problem {
        let start = error.span().map_or(0, |span| span.start);
        let (file, line) = (self.file, self.lines.line(start));
        // Only the message is shown: the whole error quotes the line, which may hold a password.
        Problem::File(format!("{file}:{line}: no TOML: {}", error.message()))
    }
}

/// The offsets at which the lines of a text end. Fields come ordered by name, so counting lines from the beginning for
/// each field would take quadratic time.
struct Lines(Vec<usize>);

impl Lines {
    fn new(text: &str) -> Lines {
        Lines(text.match_indices('\n').map(|(at, _)| at).collect())
    }

    fn line(&self, offset: usize) -> usize {
        1 + self.0.partition_point(|end| *end < offset)
    }
}

fn holds_tables(items: &[Spanned<DeValue<'_>>]) -> bool {
    items.iter().any(|item| matches!(item.get_ref(), DeValue::Table(_)))
}

/// Returns a value as the environment would write it; `None` for a kind of value that no setting has.
fn as_text(value: &DeValue<'_>) -> Option<String> {
    match value {
        DeValue::String(text) => Some(text.to_string()),
        DeValue::Boolean(value) => Some(value.to_string()),
        DeValue::Integer(number) => Some(number.to_string()),
        DeValue::Array(items) => {
            let items = items.iter().map(|item| match item.get_ref() {
                DeValue::String(text) if !text.contains(',') => Some(text.as_ref()),
                _ => None,
            });
            Some(items.collect::<Option<Vec<_>>>()?.join(","))
        }
        _ => None,
    }
}

/// The most bytes that are parsed into a tree: a larger text may take gigabytes.
const TREE_MAX: usize = 4 << 20;
/// The heads of the policy's tables.
const ENTRIES: [&str; 4] = ["[[rule]]", "[[override]]", "[rule.", "[override."];
/// The tables that belong to no rule or override.
const OTHERS: [&str; 4] = [SECTIONS[0], SECTIONS[1], SECTIONS[2], "attribute"];
/// The characters that may stand before a head and within it.
const BLANKS: [char; 2] = [' ', '\t'];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_are_blanked_and_lines_keep_their_numbers() {
        let text =
            "[server]\na = 1\n[[rule]]\nname = \"x\"\n[store]\nb = 2\n[[override]]\nrule = \"x\"";
        assert_eq!(without_entries(text), "[server]\na = 1\n\n\n[store]\nb = 2\n\n\n");
    }

    #[test]
    fn rules_are_blanked_up_to_the_next_head_and_lists_are_no_heads() {
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
        ] {
            let read = |given: Result<Vec<Given>, Problem>| {
                let given = given.unwrap_or_else(|problem| panic!("{problem}: {text}"));
                let field = |given: Given| (given.name, given.value, given.origin.line());
                given.into_iter().map(field).collect::<Vec<_>>()
            };
            let given = read(settings_in("f", &text));
            assert_eq!(given, read(whole_settings_in("f", &text)), "{text}");
            assert_eq!(given[0].0, "store.url", "{text}");
        }
        let without = without_entries(&format!("{rule}{numbers}{store}")).into_owned();
        assert_eq!(without, format!("{}{store}", "\n".repeat(9)));
    }

    #[test]
    fn refuses_a_file_that_is_too_large_before_it_parses_it() {
        let text = "[server]\n".to_owned() + &"....\n".repeat(TREE_MAX / 4);
        let taken = allocation_counter::measure(|| assert!(settings_in("f", &text).is_err()));
        assert!(taken.bytes_max < 4 * TREE_MAX as u64, "{} bytes", taken.bytes_max);
        let rules = "[[rule]]\nname = 'a'\n".repeat(TREE_MAX / 10);
        assert!(settings_in("f", &rules).is_ok_and(|given| given.is_empty()));
    }

    #[test]
    fn a_file_with_texts_of_several_lines_is_read_whole() {
        let text = "[[rule]]\nname = \"\"\"\n[server]\nno = 1\n\"\"\"\n[store]\nurl = \"a\"\n";
        let given = settings_in("f", text).unwrap_or_default();
        assert_eq!(
            given.iter().map(|given| given.name.as_str()).collect::<Vec<_>>(),
            ["store.url"]
        );
    }
}
