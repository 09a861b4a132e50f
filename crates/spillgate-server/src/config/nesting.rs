//! Bounds how deep the keys of a file nest, before the file is parsed into a tree.

use toml_parser::Source;
use toml_parser::lexer::TokenKind;

/// Returns the offset of the first dot beyond the number that a text of this length may have; `None` for every file
/// that an operator needs.
///
/// Each dot of a key makes a table, and a table of one field takes 1.4 kB: a megabyte of dots would take a gigabyte as
/// a tree. The library bounds the rules of a file by the same rule. Dots in strings and comments make no table and are
/// not counted.
pub(super) fn first_dot_too_many(text: &str) -> Option<usize> {
    let dots_max = DOTS_ALWAYS + text.len() / BYTES_PER_DOT;
    let mut dots = Source::new(text).lex().filter(|token| token.kind() == TokenKind::Dot);
    dots.nth(dots_max).map(|dot| dot.span().start())
}

/// Enough to write every setting with dots.
const DOTS_ALWAYS: usize = 512;
/// A rule whose conditions are written with dots, such as `match.path = "/a"`, has one dot in 18 bytes.
const BYTES_PER_DOT: usize = 8;
