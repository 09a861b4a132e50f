//! A document of the project as its blocks and tables.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

pub(crate) struct Page {
    pub(super) text: String,
}

impl Page {
    /// Reads `docs/NAME.md`.
    #[track_caller]
    pub(crate) fn of(name: &str) -> Page {
        Page { text: read(&format!("docs/{name}.md")) }
    }

    /// Returns the part under a heading of the second level.
    #[track_caller]
    pub(super) fn section(&self, title: &str) -> Page {
        let head = format!("\n## {title}\n");
        let Some((_, rest)) = self.text.split_once(&head) else { panic!("no section {title:?}") };
        Page { text: rest.split("\n## ").next().unwrap().to_owned() }
    }

    /// Returns the fenced blocks with their languages, in order.
    pub(super) fn all_blocks(&self) -> impl Iterator<Item = (&str, &str)> {
        let fenced = self.text.split("\n```").skip(1).step_by(2);
        fenced.map(|block| block.split_once('\n').unwrap())
    }

    pub(crate) fn blocks(&self, language: &str) -> impl Iterator<Item = &str> {
        self.all_blocks().filter(move |(of, _)| *of == language).map(|(_, block)| block)
    }

    /// Returns the rows of its tables, without their heads.
    pub(super) fn rows(&self) -> Vec<Vec<&str>> {
        let mut rows = Vec::new();
        let mut lines = self.text.lines().peekable();
        while let Some(line) = lines.next() {
            let is_head = lines.peek().is_some_and(|next| next.starts_with("|---"));
            if !line.starts_with('|') || line.starts_with("|---") || is_head {
                continue;
            }
            // A bar within a cell has a backslash before it.
            rows.push(line.trim_matches('|').split(" |").map(str::trim).collect());
        }
        rows
    }
}

/// Returns the texts in back quotes.
pub(super) fn spans(text: &str) -> impl Iterator<Item = &str> {
    text.split('`').skip(1).step_by(2)
}

/// Asserts that a page lists exactly the things that the program has.
#[track_caller]
pub(super) fn assert_same<P: Into<String>, K: Into<String>>(
    place: &str,
    page: impl IntoIterator<Item = P>,
    program: impl IntoIterator<Item = K>,
) {
    let page: BTreeSet<String> = page.into_iter().map(Into::into).collect();
    let program: BTreeSet<String> = program.into_iter().map(Into::into).collect();
    assert!(!program.is_empty(), "{place}: this test finds nothing in the program");
    let gone: Vec<&String> = page.difference(&program).collect();
    let missing: Vec<&String> = program.difference(&page).collect();
    assert!(
        gone.is_empty() && missing.is_empty(),
        "{place}: only on the page: {gone:?}; only in the program: {missing:?}"
    );
}

/// Returns the root of the project.
pub(super) fn root() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."))
}

/// Reads a file of the project.
#[track_caller]
pub(super) fn read(path: &str) -> String {
    fs::read_to_string(root().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

#[test]
fn a_page_is_split_into_sections_blocks_and_rows() {
    let text = "# A\n\n## B\n\n```sh\none\n```\n\n```text\ntwo\n```\n\n| h | i |\n|---|---|\n| `a` | b |\n| `c \\| d` | |\n\n## C\n";
    let page = Page { text: text.to_owned() }.section("B");
    assert_eq!(page.all_blocks().collect::<Vec<_>>(), [("sh", "one"), ("text", "two")]);
    assert_eq!(page.rows(), [["`a`", "b"], ["`c \\| d`", ""]]);
}
