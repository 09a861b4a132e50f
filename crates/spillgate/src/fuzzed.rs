//! The checks of the parsers that read input from clients, operators or stores: one function for
//! each, which panics on a violation.
//!
//! The fuzz targets call them with generated inputs, and the gate with the corpus. Each check is in
//! a file beside its parser. The checks of public parsers are in `fuzz/public.rs`.

pub use crate::control::sealed::fuzzed::holds as sealed;
pub use crate::denial_response::fuzzed::holds as fields;

/// A fuzzed parser: the name of its corpus, and the check of every input.
pub type Target = (&'static str, fn(&[u8]));

/// The parsers, by the names of their corpora.
pub const TARGETS: [Target; 2] = [("fields", fields), ("sealed", sealed)];

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
