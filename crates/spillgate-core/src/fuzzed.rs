//! What must hold of any input of the parsers of this crate: the fuzzing program calls these functions, and the gate
//! calls them with every input of the corpora. Each stands beside its parser.

pub use crate::policy::fuzzed::holds as policy;

/// The name of a corpus, and what must hold of every input.
pub type Target = (&'static str, fn(&[u8]));

/// By the names of their corpora.
pub const TARGETS: [Target; 1] = [("policy", policy)];

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
