//! Bounds the nesting of keys in a file before it becomes a tree.

use toml_parser::Source;
use toml_parser::lexer::TokenKind;

/// Returns the byte offset of the first dot in a key beyond the bound for the text's length, or
/// `None` if the file is within the bound.
///
/// The bound is 512 dots, and one more for every 8 bytes of text. No file that an operator needs
/// reaches it. Each dot of a key makes a table, and a table with one field takes 1.4 kB. A file of
/// 2.7 MB with lines `a.a.a.a = 1` took 1.5 GB as a tree. Dots in strings and comments make no
/// table and are not counted.
pub fn first_dot_too_many(text: &str) -> Option<usize> {
    let dots_max = DOTS_ALWAYS + text.len() / BYTES_PER_DOT;
    let mut dots = Source::new(text).lex().filter(|token| token.kind() == TokenKind::Dot);
    dots.nth(dots_max).map(|dot| dot.span().start())
}

/// Enough to write every setting with dots, and to report a line of dots as the problem that it is.
const DOTS_ALWAYS: usize = 512;
/// The bytes for each further dot. A rule with all conditions in the form `match.path = "/a"` has
/// one dot in 18 bytes.
const BYTES_PER_DOT: usize = 8;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::Policy;

    #[test]
    fn a_file_of_nested_keys_is_rejected_before_it_takes_memory() {
        let text: String = (0..18_000).map(|n| format!("k{n}{} = 1\n", ".a".repeat(70))).collect();
        let taken = allocation_counter::measure(|| {
            let problems = Policy::problems_in("f", &text);
            assert_eq!(problems.len(), 1, "{:?}", problems.first());
            assert!(problems[0].message().contains("dots"), "{}", problems[0]);
        });
        println!("{} bytes of memory for {} bytes of text", taken.bytes_max, text.len());
        assert!(taken.bytes_max < text.len() as u64, "{} bytes of memory", taken.bytes_max);
    }

    #[test]
    fn names_the_first_dot_beyond_the_bound() {
        assert_eq!(first_dot_too_many("match.path = \"/a\""), None);
        assert_eq!(first_dot_too_many(&"a.a.a.a = 1\n".repeat(1_000)), Some(8_045));
    }

    #[test]
    fn counts_only_the_dots_that_make_tables() {
        let strings = "name = \"................\" # ................\n".repeat(100);
        assert_eq!(first_dot_too_many(&strings), None);
        let rule = "[[rule]]\nmatch.path = \"/a\"\nmatch.method = \"GET\"\n";
        assert_eq!(first_dot_too_many(&rule.repeat(1_000)), None);
        assert_eq!(
            first_dot_too_many(&".".repeat(1_000)),
            Some(DOTS_ALWAYS + 1_000 / BYTES_PER_DOT)
        );
    }
}
