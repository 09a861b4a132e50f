//! Checks that hold for any input of the tools: one function for each parser, in a file beside it, which panics if a
//! check fails. The fuzz targets call them with generated input, the tests with the corpora.

pub use crate::import::fuzzed::holds as import;

/// The name of a corpus, and the check of its inputs.
pub type Target = (&'static str, fn(&[u8]));

/// The targets, by the names of their corpora.
pub const TARGETS: [Target; 1] = [("import", import)];

#[cfg(test)]
#[path = "../../../fuzz/replay.rs"]
mod replay;

#[cfg(test)]
mod tests {
    #[test]
    fn corpora_hold_within_bounds() {
        super::replay::all(&super::TARGETS);
    }
}
