//! Counts and lists of names in sentences.

/// Returns a number and its noun, in the plural unless it is one: `1 rule`, `2 rules`.
pub(crate) fn counted(number: usize, noun: &str) -> String {
    format!("{number} {noun}{}", if number == 1 { "" } else { "s" })
}

/// Returns the first four names, and the number of the others: `a, b, c, d and 2 more`.
pub(crate) fn first_names(names: &[&str]) -> String {
    let (first, others) = names.split_at(names.len().min(NAMED_MAX));
    match others.len() {
        0 => first.join(", "),
        more => format!("{} and {more} more", first.join(", ")),
    }
}

/// Enough names to recognise the group.
const NAMED_MAX: usize = 4;
