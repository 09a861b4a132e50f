//! Types and functions that several commands share.

use std::error::Error;
use std::fmt;
use std::io::{self, Write};

/// The reason why a command failed; its text is for people.
pub type Failure = Box<dyn Error>;

/// Writes a line of the result to the standard output. A reader that has left, such as `head`, is no error: it has read
/// all that it wants, and the command still ends with its own exit code.
///
/// # Errors
///
/// If the output is full or cannot be written for another reason.
pub fn say(line: &impl fmt::Display) -> io::Result<()> {
    write(&format_args!("{line}\n"))
}

/// Writes a text to the standard output as it is. See [`say`].
///
/// # Errors
///
/// If the output is full or cannot be written for another reason.
pub fn write(text: &impl fmt::Display) -> io::Result<()> {
    write_to(&mut io::stdout().lock(), format_args!("{text}"))
}

fn write_to(output: &mut impl Write, text: fmt::Arguments<'_>) -> io::Result<()> {
    match output.write_fmt(text) {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        result => result,
    }
}

/// Returns a number with commas between thousands: `1,234,567`.
pub(crate) fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let groups = digits.as_bytes().rchunks(3).rev();
    let groups: Vec<&str> = groups.filter_map(|group| std::str::from_utf8(group).ok()).collect();
    groups.join(",")
}

/// Returns the rows of a table, each after a line break, in columns as wide as their content: the first `left_columns`
/// of them aligned left, the others right. All rows have as many cells as the first.
pub fn table(rows: &[impl AsRef<[String]>], left_columns: usize) -> String {
    let columns = rows.first().map_or(0, |row| row.as_ref().len());
    let length = |row: &[String], column: usize| row[column].chars().count();
    let widths: Vec<usize> = (0..columns)
        .map(|column| rows.iter().map(|row| length(row.as_ref(), column)).max().unwrap_or(0))
        .collect();
    let mut text = String::new();
    for row in rows {
        let mut line = String::new();
        for (column, (cell, width)) in row.as_ref().iter().zip(&widths).enumerate() {
            line.push_str(&match column < left_columns {
                true => format!("  {cell:width$}"),
                false => format!("  {cell:>width$}"),
            });
        }
        text.push('\n');
        text.push_str(line.trim_end());
    }
    text
}

/// Returns a number and its noun, in the plural unless it is one: `1 rule`, `2 rules`.
pub fn counted(number: usize, noun: &str) -> String {
    format!("{number} {noun}{}", if number == 1 { "" } else { "s" })
}

/// Replaces control characters, also those that change the direction of text or are invisible, so that a value that a
/// caller sent cannot steer the terminal or look like another.
pub fn printable(value: &str) -> String {
    let steers = |c: char| {
        let formats = matches!(c, '\u{ad}' | '\u{61c}' | '\u{180e}' | '\u{200b}'..='\u{200f}'
            | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}' | '\u{fff9}'..='\u{fffb}'
            | '\u{e0000}'..='\u{e007f}');
        c.is_control() || formats
    };
    value.chars().map(|c| if steers(c) { '\u{FFFD}' } else { c }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn characters_that_turn_or_hide_text_are_replaced_and_letters_stay() {
        assert_eq!(
            printable("a\u{202e}b\u{2066}c\u{200b}d\u{feff}e\u{1b}"),
            "a\u{FFFD}b\u{FFFD}c\u{FFFD}d\u{FFFD}e\u{FFFD}"
        );
        assert_eq!(printable("שלום – zürich 東京"), "שלום – zürich 東京");
    }

    struct Failing(io::ErrorKind);

    impl Write for Failing {
        fn write(&mut self, _: &[u8]) -> io::Result<usize> {
            Err(self.0.into())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn columns_are_as_wide_as_their_content() {
        let rows = [["rule", "count"], ["é", "12,345"]].map(|row| row.map(str::to_owned));
        assert_eq!(table(&rows, 1), "\n  rule   count\n  é     12,345");
    }

    #[test]
    fn a_reader_that_left_is_no_error_and_a_full_disk_is_one() {
        let write = |kind| write_to(&mut Failing(kind), format_args!("a line\n"));
        assert!(write(io::ErrorKind::BrokenPipe).is_ok());
        assert!(write(io::ErrorKind::StorageFull).is_err());
    }
}
