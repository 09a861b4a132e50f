//! Checks the import of any configuration of envoyproxy/ratelimit.

use spillgate::Policy;
use spillgate_tools::import::envoy;

/// Panics if two imports differ, if a note names no line, or if the policy is not TOML.
pub fn holds(input: &[u8]) {
    let Ok(text) = std::str::from_utf8(input) else { return };
    let again = envoy::import(text);
    match envoy::import(text) {
        Ok(imported) => {
            assert!(again.is_ok_and(|again| again.policy == imported.policy));
            // The policy may refuse a rule that this version cannot express, but never the syntax.
            if let Err(error) = Policy::from_toml(&imported.policy) {
                assert!(!error.message().starts_with("not TOML"), "{error}\n{}", imported.policy);
            }
            imported.notes.iter().for_each(|note| has_a_line(&note.to_string()));
        }
        Err(note) => has_a_line(&note.to_string()),
    }
}

fn has_a_line(note: &str) {
    let (line, message) = note.split_once(": ").expect("a note is a line and a message");
    assert!(line.parse::<usize>().is_ok() && !message.is_empty(), "{note}");
}
