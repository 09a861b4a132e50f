//! What holds of whatever a stranger, or an operator in a hurry, may send: one function for each
//! parser, which panics if it does not hold. The fuzz targets call them with what they make up, and
//! the gate with what was worth keeping of that. Each stands beside its parser.

pub use crate::config::fuzzed::holds as settings;
pub use crate::door::admin::fuzzed::holds as admin;
pub use crate::door::auth::fuzzed::holds as auth;
pub use crate::door::envoy::fuzzed::holds as envoy;
pub use crate::door::http::fuzzed::holds as http;
pub use crate::door::resp::fuzzed::holds as resp;

/// What is fuzzed: the name of its corpus, and what must hold of every input.
pub type Target = (&'static str, fn(&[u8]));

/// By the names of their corpora.
pub const TARGETS: [Target; 6] = [
    ("admin", admin),
    ("auth", auth),
    ("envoy", envoy),
    ("http", http),
    ("resp", resp),
    ("settings", settings),
];

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
