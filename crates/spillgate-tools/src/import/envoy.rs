//! From the configuration of envoyproxy/ratelimit (domain, nested descriptors, YAML) to rules.
//!
//! A path of keys through its tree is a rule: it holds for descriptors with just these entries, which
//! the attribute `envoy.entries` tells. Nodes on the same path that name values are overrides of the
//! node that does not. Nothing here knows the rest of the program, so that it can be fuzzed alone.

use std::fmt;

mod copies;
mod rules;
mod tree;

/// The policy, and what of it is not as it was.
#[derive(Debug)]
pub(crate) struct Imported {
    pub(crate) policy: String,
    pub(crate) notes: Vec<Note>,
}

/// A remark on a line of the file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Note {
    line: usize,
    message: String,
}

/// The rules that a file says, or what is wrong with it.
pub(crate) fn import(text: &str) -> Result<Imported, Note> {
    let mut notes = Vec::new();
    let tree = tree::read(text, &mut notes)?;
    let policy = rules::write(&tree, &mut notes);
    notes.sort_by_key(|note| note.line);
    Ok(Imported { policy, notes })
}

impl Note {
    fn new(line: usize, message: impl Into<String>) -> Note {
        Note { line, message: message.into() }
    }
}

impl fmt::Display for Note {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.line, self.message)
    }
}
