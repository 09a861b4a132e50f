//! Problems of a policy file, with their places and remedies.

use std::fmt;

/// The reason why a policy is invalid: file, line, field, problem and remedy. A policy that was
/// built in code has neither file nor line.
///
/// ```
/// # use spillgate_core as spillgate;
/// use spillgate::Policy;
/// let text = "[[rule]]\nname = \"login\"\nkey = [\"ip\"]\nlimits = [\"5/fortnight\"]\n";
/// let error = Policy::from_toml_named("limits.toml", text).unwrap_err();
/// assert_eq!((error.file(), error.line(), error.field()), ("limits.toml", 4, "limits"));
/// assert!(error.to_string().starts_with("limits.toml:4: rule \"login\", limit \"0\", field `limits`: "));
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PolicyError {
    file: String,
    line: usize,
    place: String,
    field: String,
    message: String,
}

impl PolicyError {
    /// Makes the error of a file that cannot be read.
    pub(crate) fn unread(file: &str, error: &std::io::Error) -> PolicyError {
        let message = format!("{file}: cannot be read: {error}");
        PolicyError {
            file: file.to_owned(),
            line: 0,
            place: String::new(),
            field: String::new(),
            message,
        }
    }

    /// Returns the file, by the name that the caller gave. Empty if the policy was built in code.
    pub fn file(&self) -> &str {
        &self.file
    }

    /// Returns the line, from 1. For a missing field it is the start of its table. 0 if the policy
    /// was built in code, or its file cannot be read.
    pub fn line(&self) -> usize {
        self.line
    }

    /// Returns the wrong field. Empty if the file is not TOML and the field is unknown.
    pub fn field(&self) -> &str {
        &self.field
    }

    /// Returns the problem and its remedy.
    pub fn message(&self) -> &str {
        &self.message
    }
}

impl fmt::Display for PolicyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.line > 0 {
            write!(f, "{}:{}: ", self.file, self.line)?;
        }
        // An unknown field is whatever the file has, such as control characters for a terminal.
        let field = self.field.escape_debug();
        let field = if self.field.is_empty() { String::new() } else { format!("field `{field}`") };
        let parts = [self.place.as_str(), &field];
        let where_at: Vec<&str> = parts.into_iter().filter(|part| !part.is_empty()).collect();
        if !where_at.is_empty() {
            write!(f, "{}: ", where_at.join(", "))?;
        }
        f.write_str(&self.message)
    }
}

impl std::error::Error for PolicyError {}

/// A problem of the file, with its line not counted yet.
#[derive(Debug)]
pub(crate) struct Problem {
    /// The place in bytes from the start of the file.
    pub(crate) at: usize,
    /// The rule, override or limit, in the form of [`super::file::Place`]. Empty for the file
    /// itself.
    pub(crate) place: String,
    pub(crate) field: String,
    pub(crate) message: String,
}

impl Problem {
    /// Makes a problem of no field.
    pub(crate) fn of_file(at: usize, message: impl Into<String>) -> Problem {
        Problem { at, place: String::new(), field: String::new(), message: message.into() }
    }
}

/// All problems found. Reading goes on after a problem, so that a linter can report all at once.
/// The result is used only if there are none.
#[derive(Debug)]
pub(crate) struct Problems<'t> {
    text: &'t str,
    found: Vec<Problem>,
}

impl<'t> Problems<'t> {
    pub(crate) fn in_text(text: &'t str) -> Problems<'t> {
        Problems { text, found: Vec::new() }
    }

    pub(crate) fn note(&mut self, problem: Problem) {
        self.found.push(problem);
    }

    /// Returns the value, or notes the problem and returns `None`.
    pub(crate) fn noting<T>(&mut self, value: Result<T, Problem>) -> Option<T> {
        value.map_err(|problem| self.note(problem)).ok()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.found.is_empty()
    }

    /// Returns whether reading may stop, since more problems help no reader.
    pub(crate) fn are_plenty(&self) -> bool {
        self.found.len() >= PROBLEMS_PLENTY
    }

    pub(crate) fn line_of(&self, at: usize) -> usize {
        1 + newlines(&self.text.as_bytes()[..at])
    }

    /// Returns the errors in file order. Those of a policy without a file have no line.
    pub(crate) fn into_errors(mut self, file_name: &str) -> Vec<PolicyError> {
        self.found.sort_by_key(|problem| problem.at);
        let mut lines = LineCounter::new(self.text);
        let with_line = |Problem { at, place, field, message }| {
            let line = if file_name.is_empty() { 0 } else { lines.line_of(at) };
            PolicyError { file: file_name.to_owned(), line, place, field, message }
        };
        self.found.into_iter().map(with_line).collect()
    }
}

/// Counts the lines up to places in a file, which come in order.
pub struct LineCounter<'t> {
    text: &'t str,
    counted: usize,
    line: usize,
}

impl<'t> LineCounter<'t> {
    pub fn new(text: &'t str) -> LineCounter<'t> {
        LineCounter { text, counted: 0, line: 1 }
    }

    /// Returns the line of a place that is not before the last one.
    pub fn line_of(&mut self, at: usize) -> usize {
        self.line += newlines(&self.text.as_bytes()[self.counted..at]);
        self.counted = at;
        self.line
    }
}

/// Returns the known word that was probably meant: less than a third of it differs.
///
/// ```
/// use spillgate_core::policy::nearest;
///
/// assert_eq!(nearest("timout", &["timeout", "url"]), Some("timeout"));
/// assert_eq!(nearest("port", &["timeout", "url"]), None);
/// ```
pub fn nearest<'k>(word: &str, known: &[&'k str]) -> Option<&'k str> {
    let distances = known.iter().map(|known| (edits(word, known), *known));
    let (distance, nearest) = distances.min_by_key(|(distance, _)| *distance)?;
    (distance * 3 <= nearest.len()).then_some(nearest)
}

/// Returns the known name that has the word as one of its parts, if there is only one: `max_hold`
/// for `hold`.
pub fn longer<'k>(word: &str, known: &[&'k str]) -> Option<&'k str> {
    let mut longer = known.iter().filter(|known| known.split('_').any(|part| part == word));
    longer.next().copied().filter(|_| longer.next().is_none())
}

/// Returns the number of bytes to insert, remove or replace to turn one word into the other. A word
/// that is more than twice as long as the known one counts as unlike it.
fn edits(word: &str, known: &str) -> usize {
    if word.len() > 2 * known.len() {
        return usize::MAX / 3;
    }
    // The Levenshtein distance, computed with one row of its table.
    let mut row: Vec<usize> = (0..=known.len()).collect();
    for (i, a) in word.bytes().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, b) in known.bytes().enumerate() {
            let replaced = diagonal + usize::from(a != b);
            diagonal = row[j + 1];
            row[j + 1] = replaced.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row[known.len()]
}

fn newlines(bytes: &[u8]) -> usize {
    bytes.iter().filter(|byte| **byte == b'\n').count()
}

const PROBLEMS_PLENTY: usize = 100;
