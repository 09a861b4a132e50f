//! Counts in sentences.

/// Returns a number and its noun, in the plural unless it is one: `1 rule`, `2 rules`.
pub(crate) fn counted(number: usize, noun: &str) -> String {
    format!("{number} {noun}{}", if number == 1 { "" } else { "s" })
}
