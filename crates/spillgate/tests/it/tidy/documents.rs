//! Names in documents: text in back quotes, and links.

use super::tree::{SourceFile, TREE};

/// Returns the text in back quotes outside fenced blocks, with its line.
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

/// Returns the links of a document within the project that have no target, with their lines.
pub(super) fn lost_links(document: &SourceFile) -> Vec<(usize, String)> {
    let mut fenced = false;
    let mut lost = Vec::new();
    for (number, line) in (1..).zip(document.text.lines()) {
        fenced ^= line.trim_start().starts_with("```");
        if fenced {
            continue;
        }
        let links = line.split("](").skip(1).filter_map(|rest| rest.split(')').next());
        let ours = links.filter(|link| !link.contains("://") && !link.contains("::"));
        lost.extend(
            ours.filter(|link| !leads(&document.path, link)).map(|link| (number, link.to_owned())),
        );
    }
    lost
}

fn leads(from: &str, link: &str) -> bool {
    let (path, anchor) = link.split_once('#').unwrap_or((link, ""));
    let path = if path.is_empty() { from.to_owned() } else { joined(from, path) };
    let document = TREE.files.iter().find(|file| file.path == path);
    let has_anchor =
        || document.is_some_and(|file| headings(&file.text).any(|name| name == anchor));
    TREE.has(&path) && (anchor.is_empty() || has_anchor())
}

/// Returns the path of a link in a file.
fn joined(from: &str, link: &str) -> String {
    let mut parts: Vec<&str> = from.split('/').collect();
    parts.pop();
    for part in link.split('/') {
        match part {
            ".." => drop(parts.pop()),
            "." | "" => {}
            name => parts.push(name),
        }
    }
    parts.join("/")
}

/// Headings as links name them: lower-case, spaces as `-`, without punctuation.
fn headings(markdown: &str) -> impl Iterator<Item = String> {
    markdown.lines().filter_map(|line| {
        let title =
            line.trim_start_matches('#').strip_prefix(' ').filter(|_| line.starts_with('#'))?;
        let kept = title.to_lowercase().replace(' ', "-");
        Some(kept.chars().filter(|c| c.is_alphanumeric() || "-_".contains(*c)).collect())
    })
}

/// Returns whether this is a path: a name with one of our extensions, or a name with a slash that ends in one
/// or starts with one of our folders.
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

#[test]
fn names_are_distinguished_from_other_quoted_text() {
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
        assert!(!is_path(other), "{other} is not a path");
    }
}

#[test]
fn finds_links_to_missing_files_and_headings() {
    let text = "[a](learn/rust-service.md) [b](none.md) [c](../README.md#documentation) [d](#here)\n\
                [e](#there) [f](https://example.org/x)\n```\n[g](no.md)\n```\n## Here!\n";
    let document = SourceFile { path: "docs/x.md".to_owned(), text: text.to_owned() };
    let lost = lost_links(&document);
    // The page itself is not in the tree.
    let expected = [(1, "none.md"), (1, "#here"), (2, "#there")];
    assert_eq!(lost, expected.map(|(line, link)| (line, link.to_owned())));
    assert!(headings(text).eq(["here"]));
}
