//! Converts a configuration of envoyproxy/ratelimit (domain, nested descriptors, YAML) to rules.
//!
//! A path of keys through the descriptors becomes a rule. It matches requests with exactly these keys, which the
//! attribute `envoy.entries` lists. A path with the same keys and given values becomes an override of that rule.
//!
//! No construct is dropped without a note: each one is translated, or a note names its line.

use std::fmt;

mod copies;
#[cfg(test)]
mod differential;
mod rules;
mod tree;

/// The policy, and notes on lines of the configuration.
#[derive(Debug)]
pub struct Imported {
    /// The rules as TOML.
    pub policy: String,
    /// In the order of their lines.
    pub notes: Vec<Note>,
}

/// A note on a line of the configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Note {
    line: usize,
    kind: Kind,
    message: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// The translation is exact, and may surprise.
    Remark,
    /// A construct is left out, or will be decided differently.
    Difference,
    /// The configuration is invalid.
    Error,
}

/// Returns the policy of a configuration.
///
/// # Errors
///
/// If the text is not a valid configuration; the note names the line.
pub fn import(text: &str) -> Result<Imported, Note> {
    let mut notes = Vec::new();
    let tree = tree::read(text, &mut notes)?;
    let policy = rules::write(&tree, &mut notes);
    notes.sort_by_key(|note| note.line);
    Ok(Imported { policy, notes })
}

impl Note {
    fn remark(line: usize, message: impl Into<String>) -> Note {
        Note { line, kind: Kind::Remark, message: message.into() }
    }

    fn difference(line: usize, message: impl Into<String>) -> Note {
        Note { line, kind: Kind::Difference, message: message.into() }
    }

    fn error(line: usize, message: impl Into<String>) -> Note {
        Note { line, kind: Kind::Error, message: message.into() }
    }

    /// Returns whether the policy differs from the configuration here.
    pub fn is_difference(&self) -> bool {
        self.kind == Kind::Difference
    }
}

impl fmt::Display for Note {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = match self.kind {
            Kind::Remark => "note: ",
            Kind::Difference => "difference: ",
            Kind::Error => "",
        };
        write!(f, "{}: {kind}{}", self.line, self.message)
    }
}
