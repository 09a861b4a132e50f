//! What holds of whatever a stranger, an operator in a hurry, or a store that is not ours may say: one
//! function for each parser, which panics if it does not hold. The fuzz targets call them with what
//! they make up, and the gate with what was worth keeping of that. Each stands beside its parser. Those of parsers in
//! the public interface are in `fuzz/public.rs`.

pub use crate::control::sealed::fuzzed::holds as sealed;
pub use crate::engine::redis::fuzzed::holds as replies;
pub use crate::refusal::fuzzed::holds as fields;

/// What is fuzzed: the name of its corpus, and what must hold of every input.
pub type Target = (&'static str, fn(&[u8]));

/// By the names of their corpora.
pub const TARGETS: [Target; 3] = [("fields", fields), ("replies", replies), ("sealed", sealed)];

#[cfg(test)]
#[path = "../../../fuzz/replay.rs"]
mod replay;

#[cfg(test)]
mod tests {
    #[test]
    fn what_was_worth_keeping_of_the_fuzzers_inputs_holds_within_bounds() {
        super::replay::all(&super::TARGETS);
    }
}
