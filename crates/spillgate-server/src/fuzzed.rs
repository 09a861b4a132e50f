//! Claims about every input that a client or an operator may send: one function for each parser, which panics if its
//! claim fails. The fuzz targets call these functions with generated inputs, `./check` with the kept corpus. Each
//! function stands beside its parser.

pub use crate::config::fuzzed::holds as settings;
pub use crate::listener::admin::fuzzed::holds as admin;
pub use crate::listener::auth::fuzzed::holds as auth;
pub use crate::listener::envoy::fuzzed::holds as envoy;
pub use crate::listener::http::fuzzed::holds as http;
pub use crate::listener::resp::fuzzed::holds as resp;

/// A fuzz target: the name of its corpus, and the claim that must hold for every input.
pub type Target = (&'static str, fn(&[u8]));

/// All targets, ordered by the names of their corpora.
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
    fn every_kept_input_of_the_fuzzers_passes_within_bounds() {
        super::replay::all(&super::TARGETS);
    }
}
