//! A minimal reader of Rust text that separates code from comments and finds names.

/// Returns the text with comments, strings and character literals blanked. Every line stays in place.
pub(super) fn code_only(text: &str) -> String {
    let mut code = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        let prose = prose_length(rest, code.chars().next_back().is_some_and(in_word));
        let taken = if prose > 0 { prose } else { first.len_utf8() };
        let (token, after) = rest.split_at(taken);
        if prose > 0 {
            code.extend(token.chars().map(|character| if character == '\n' { '\n' } else { ' ' }));
        } else {
            code.push(first);
        }
        rest = after;
    }
    code
}

/// Does the same for Lua in our style: no block comments, and strings are kept.
pub(super) fn lua_code_only(text: &str) -> String {
    text.lines().flat_map(|line| [line.split("--").next().unwrap_or(line), "\n"]).collect()
}

/// Returns the text before a `mod tests` that closes the file.
pub(super) fn without_trailing_tests(text: &str) -> &str {
    let Some(start) = text.rfind("\n#[cfg(test)]\nmod tests {\n") else {
        return text;
    };
    let closes_the_file = text[start..].find("\n}\n") == Some(text.len() - start - "\n}\n".len());
    if closes_the_file { &text[..=start] } else { text }
}

/// Returns every path that `use` statements with braces import, spelled out, with the line of the statement.
pub(super) fn imports(code: &str) -> Vec<(usize, String)> {
    let mut imports = Vec::new();
    for (at, _) in code.match_indices("use ") {
        let starts_a_word = !code[..at].chars().next_back().is_some_and(in_word);
        let statement = &code[at..at + code[at..].find(';').unwrap_or(0)];
        if starts_a_word && statement.contains('{') {
            let number = code[..at].matches('\n').count() + 1;
            imports.extend(alternatives(statement).into_iter().map(|path| (number, path)));
        }
    }
    imports
}

/// `a/{b,c}.rs` gives `a/b.rs` and `a/c.rs`; without braces the text itself.
pub(super) fn alternatives(text: &str) -> Vec<String> {
    let Some(open) = text.find('{') else {
        return vec![text.to_owned()];
    };
    let mut depth = 0;
    let mut start = open + 1;
    let mut choices = Vec::new();
    for (at, character) in text.char_indices().skip_while(|(at, _)| *at < open) {
        match character {
            '{' => depth += 1,
            '}' => depth -= 1,
            _ => {}
        }
        if depth == 0 || (depth == 1 && character == ',') {
            choices.push(text[start..at].trim());
            start = at + 1;
        }
        if depth == 0 {
            break;
        }
    }
    let (before, after) = (&text[..open], &text[start..]);
    choices.iter().flat_map(|choice| alternatives(&format!("{before}{choice}{after}"))).collect()
}

/// Returns whether `word`, which may be a path, occurs in `line` and is not part of a longer word.
pub(super) fn has_word(line: &str, word: &str) -> bool {
    line.match_indices(word).any(|(at, _)| {
        let before = line[..at].chars().next_back();
        let after = line[at + word.len()..].chars().next();
        !before.is_some_and(in_word) && !after.is_some_and(in_word)
    })
}

pub(super) fn in_word(character: char) -> bool {
    character.is_alphanumeric() || character == '_'
}

/// Returns the length of the comment, string or character literal at the start of `rest`, or 0.
fn prose_length(rest: &str, inside_word: bool) -> usize {
    if rest.starts_with("//") {
        return rest.find('\n').unwrap_or(rest.len());
    }
    if rest.starts_with("/*") {
        return block_comment_length(rest);
    }
    if let Some(body) = rest.strip_prefix('"') {
        return 1 + quoted_length(body, '"');
    }
    if let Some(body) = rest.strip_prefix('\'') {
        // Otherwise it is a lifetime.
        let is_character = body.starts_with('\\') || body.chars().nth(1) == Some('\'');
        return if is_character { 1 + quoted_length(body, '\'') } else { 0 };
    }
    if inside_word { 0 } else { raw_string_length(rest) }
}

fn block_comment_length(rest: &str) -> usize {
    let mut depth = 0;
    for (at, _) in rest.char_indices() {
        if rest[at..].starts_with("/*") {
            depth += 1;
        } else if rest[at..].starts_with("*/") {
            depth -= 1;
            if depth == 0 {
                return at + 2;
            }
        }
    }
    rest.len()
}

/// Returns the length up to and including the closing `quote`.
fn quoted_length(body: &str, quote: char) -> usize {
    let mut escaped = false;
    for (at, character) in body.char_indices() {
        if character == quote && !escaped {
            return at + 1;
        }
        escaped = character == '\\' && !escaped;
    }
    body.len()
}

fn raw_string_length(rest: &str) -> usize {
    let Some(marked) = ["r", "br", "cr"].iter().find_map(|start| rest.strip_prefix(start)) else {
        return 0;
    };
    let body = marked.trim_start_matches('#');
    let hashes = marked.len() - body.len();
    if !body.starts_with('"') {
        return 0;
    }
    let end = format!("\"{}", "#".repeat(hashes));
    let opened = rest.len() - body.len() + 1;
    rest[opened..].find(&end).map_or(rest.len(), |at| opened + at + end.len())
}

#[test]
fn comments_and_literals_are_blanked_and_code_is_kept() {
    for (text, code) in [
        ("a // b\nc", "a     \nc"),
        ("a /* b /* c */ d */ e", "a                   e"),
        (r#"a("b \" // c", d)"#, "a(           , d)"),
        ("r#\"a\" b\"# c", "          c"),
        ("br\"\\\" c", "      c"),
        ("var\"a\"", "var   "),
        ("'a' '\\'' &'a str", "         &'a str"),
        ("\"a\nb\" c", "  \n   c"),
    ] {
        assert_eq!(code_only(text), code, "{text}");
    }
}

#[test]
fn only_tests_at_the_end_of_a_file_are_left_out() {
    let tests = "#[cfg(test)]\nmod tests {\n    fn a() {\n    }\n}\n";
    assert_eq!(without_trailing_tests(&format!("fn b() {{}}\n\n{tests}")), "fn b() {}\n\n");
    let followed = format!("fn b() {{}}\n\n{tests}\nfn c() {{\n}}\n");
    assert_eq!(without_trailing_tests(&followed), followed);
}

#[test]
fn imports_in_braces_are_spelled_out() {
    let code = "fuse {a};\npub use crate::{engine::{Memory, Redis as R}, limit};\nuse std::fs;\n";
    let paths = ["use crate::engine::Memory", "use crate::engine::Redis as R", "use crate::limit"];
    assert_eq!(imports(code), paths.map(|path| (2, path.to_owned())));
}

#[test]
fn a_word_is_not_part_of_a_longer_one() {
    assert!(has_word("use crate::engine::Memory;", "crate::engine"));
    assert!(!has_word("use crate::engines;", "crate::engine"));
    assert!(!has_word("outdoor", "door"));
}
