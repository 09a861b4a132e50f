//! What commands share: why one fails, and where its lines go.

use std::error::Error;
use std::fmt;
use std::io::{self, Write};

/// Why a command did not do what it was asked; its text is for people.
pub type Failure = Box<dyn Error>;

/// Writes a line of the result to the standard output.
///
/// # Errors
///
/// If the output is closed or full.
pub fn say(line: &impl fmt::Display) -> io::Result<()> {
    writeln!(io::stdout(), "{line}")
}

/// Returns a number and its noun, in the plural unless it is one: `1 rule`, `2 rules`.
pub fn counted(number: usize, noun: &str) -> String {
    format!("{number} {noun}{}", if number == 1 { "" } else { "s" })
}
