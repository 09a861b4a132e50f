//! The table of docs/internals/faults.md names existing tests.

use std::collections::BTreeSet;

use super::documents::quoted_spans;
use super::tree::TREE;
use super::{assert_clean, files};

#[test]
fn the_table_of_faults_names_existing_tests() {
    let page = TREE.files.iter().find(|file| file.path == "docs/internals/faults.md");
    let page = &page.expect("docs/internals/faults.md is there").text;
    let tests = tests();
    let (mut findings, mut rows) = (Vec::new(), 0);
    for (number, line) in (1..).zip(page.lines()) {
        // Fault, effect, reaction, test.
        let cells: Vec<&str> = line.trim_matches('|').split('|').collect();
        let [_, _, _, named] = cells[..] else { continue };
        rows += 1;
        for (_, test) in quoted_spans(named) {
            if !tests.contains(test.as_str()) {
                findings.push(format!(
                    "docs/internals/faults.md:{number}: there is no test `{test}`: name its replacement"
                ));
            }
        }
    }
    assert!(rows > 30, "only {rows} rows were found");
    assert_clean(&findings);
}

/// The names of all functions after `#[test]`.
fn tests() -> BTreeSet<&'static str> {
    let mut tests = BTreeSet::new();
    for file in files("rs") {
        for after in file.text.split("#[test]").skip(1) {
            let name = after.split("fn ").nth(1).and_then(|rest| rest.split('(').next());
            tests.extend(name);
        }
    }
    tests
}
