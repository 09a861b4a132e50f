//! What a document says about the code: the names it puts in back quotes.

use super::source::in_word;
use super::tree::TREE;

/// What stands in back quotes outside fenced blocks, with its line.
pub(super) fn quoted_spans(markdown: &str) -> Vec<(usize, String)> {
    let mut fenced = false;
    let mut spans = Vec::new();
    for (number, line) in (1..).zip(markdown.lines()) {
        if line.trim_start().starts_with("```") {
            fenced = !fenced;
        } else if !fenced {
            spans.extend(line.split('`').skip(1).step_by(2).map(|span| (number, span.to_owned())));
        }
    }
    spans
}

/// A name with an extension of ours, or one with a slash that ends in one or starts with a folder of ours.
pub(super) fn is_path(span: &str) -> bool {
    let spelled =
        |character: char| character.is_ascii_alphanumeric() || "._-/*".contains(character);
    if span.starts_with('/') || !span.chars().all(spelled) {
        return false;
    }
    let Some((first, rest)) = span.split_once('/') else {
        return span.ends_with(".rs") || span.ends_with(".lua");
    };
    let is_file = [".rs", ".lua", ".toml", ".md"].iter().any(|extension| span.ends_with(extension));
    is_file || rest.is_empty() || TREE.has_folder(first)
}

/// `Limiter::check(request)` claims `Limiter` and `check`, `step()` claims `step`; other people's
/// names, and anything else, claim nothing.
pub(super) fn claimed_names(span: &str) -> Vec<&str> {
    let (path, is_call) = match span.split_once('(') {
        Some((path, rest)) if rest.find(')') == Some(rest.len() - 1) => (path, true),
        Some(_) => return Vec::new(),
        None => (span, false),
    };
    let names: Vec<&str> = path.split("::").collect();
    let is_name = |name: &&str| !name.is_empty() && name.chars().all(in_word);
    let ours = !["std", "core", "alloc", "tokio", "redis", "axum"].contains(&names[0]);
    if ours && (is_call || names.len() > 1) && names.iter().all(is_name) {
        names
    } else {
        Vec::new()
    }
}

#[test]
fn names_are_told_from_other_quoted_text() {
    let markdown =
        "See `a/b.rs`.\n```\n`not/this.rs`\n```\nThen `Limiter::check(request)`, `step()`.\n";
    let spans: Vec<String> = quoted_spans(markdown).into_iter().map(|(_, span)| span).collect();
    assert_eq!(spans, ["a/b.rs", "Limiter::check(request)", "step()"]);

    for path in
        ["crates/x/src/lib.rs", "docs/", "check.lua", "crates/spillgate", "src/*.rs", ".ci/run"]
    {
        assert!(is_path(path), "{path} is a path");
    }
    for other in ["100/second", "POST /v1/check", "/v1/check", "application/json", "check", "1/2.5"]
    {
        assert!(!is_path(other), "{other} is no path");
    }

    assert_eq!(claimed_names("Limiter::check(request)"), ["Limiter", "check"]);
    assert_eq!(claimed_names("step()"), ["step"]);
    for other in
        ["step", "Vec<u8>", "std::fs::read()", "tokio::spawn", "sg1:{tag}:id", "f(x) + g(y)"]
    {
        assert!(claimed_names(other).is_empty(), "{other} claims nothing of ours");
    }
}
