//! The checks of this crate's parsers. The fuzzing program calls them, and the gate calls them with
//! every input of the corpora. Each check is in a file beside its parser.

pub use crate::policy::fuzzed::holds as policy;

/// A fuzzed parser: the name of its corpus, and the check of every input.
pub type Target = (&'static str, fn(&[u8]));

/// The parsers, by the names of their corpora.
pub const TARGETS: [Target; 1] = [("policy", policy)];

#[cfg(test)]
#[path = "../../../fuzz/replay.rs"]
mod replay;

#[cfg(test)]
mod tests {
    #[test]
    fn the_corpus_passes_every_check() {
        super::replay::all(&super::TARGETS);
    }
}
