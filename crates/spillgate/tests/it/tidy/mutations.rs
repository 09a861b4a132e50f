//! The bugs that `./evidence mutations` plants: each patch still applies to its code, and has a row with the
//! test that must catch it.

use std::collections::BTreeSet;

use super::tree::{SourceFile, TREE};
use super::{assert_clean, files};

#[test]
fn every_planted_bug_still_applies() {
    let mut findings = Vec::new();
    for patch in files("patch").filter(|file| file.path.starts_with(FOLDER)) {
        let hunks = hunks(&patch.text);
        if hunks.is_empty() {
            findings.push(format!("{}: it changes nothing", patch.path));
        }
        for (path, old) in hunks {
            let file = TREE.files.iter().find(|file| file.path == path);
            if !file.is_some_and(|file| file.text.contains(&old)) {
                findings.push(format!(
                    "{}: {path} no longer has these lines; plant the bug in their replacement, and write the patch with `git diff -U2`:\n{old}",
                    patch.path
                ));
            }
        }
    }
    assert_clean(&findings);
}

#[test]
fn every_planted_bug_has_a_row_with_its_test() {
    let table = TREE.files.iter().find(|file| file.path == format!("{FOLDER}table"));
    let rows = table.expect("the table of planted bugs").text.lines();
    let rows: Vec<Vec<&str>> = rows
        .filter(|line| !line.starts_with('#'))
        .map(|line| line.split('|').map(str::trim).collect())
        .collect();
    let is_whole = |row: &Vec<&str>| {
        row.len() == 5 && ["lib", "it", "sim"].contains(&row[1]) && !row[2].is_empty()
    };
    assert!(rows.iter().all(is_whole), "a row has five columns: {rows:?}");
    let named: BTreeSet<&str> = rows.iter().map(|row| row[0]).collect();
    let name = |file: &'static SourceFile| file.path.strip_prefix(FOLDER)?.strip_suffix(".patch");
    let planted: BTreeSet<&str> = files("patch").filter_map(name).collect();
    assert_eq!(named, planted, "rows of tests/mutations/table, and patches beside it");
    assert!(planted.len() >= BUGS_MIN, "{planted:?}");
}

/// Returns what each hunk of a patch looks for: the file, and its lines before the change.
fn hunks(patch: &str) -> Vec<(&str, String)> {
    let (mut hunks, mut path): (Vec<(&str, String)>, &str) = (Vec::new(), "");
    for line in patch.lines() {
        if let Some(named) = line.strip_prefix("--- a/") {
            path = named;
        } else if line.starts_with("@@") {
            hunks.push((path, String::new()));
        } else if let (Some((_, old)), false) = (hunks.last_mut(), line.starts_with(['+', '\\'])) {
            // An empty line of context may have lost its blank.
            old.push_str(line.get(1..).unwrap_or_default());
            old.push('\n');
        }
    }
    hunks
}

#[test]
fn a_hunk_is_the_lines_before_the_change() {
    let patch =
        "--- a/x.rs\n+++ b/x.rs\n@@ -1,3 +1,3 @@ fn\n one\n-two\n+three\n \n@@ -9 +9 @@\n-four\n";
    let expected = [("x.rs", "one\ntwo\n\n".to_owned()), ("x.rs", "four\n".to_owned())];
    assert_eq!(hunks(patch), expected);
}

const FOLDER: &str = "tests/mutations/";
/// One for each known way in which limiters have failed.
const BUGS_MIN: usize = 12;
