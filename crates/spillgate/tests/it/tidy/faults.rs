//! The table of docs/internals/faults.md: every fault that needs a test has a row with the name of an
//! existing test.

use std::collections::{BTreeMap, BTreeSet};

use super::documents::quoted_spans;
use super::tree::TREE;
use super::{assert_clean, files};

#[test]
fn every_fault_has_an_existing_test_in_the_table() {
    let tests = tests();
    let (mut findings, mut tested) = (Vec::new(), BTreeMap::new());
    for (number, row) in rows(table()) {
        let named = quoted_spans(row[3]);
        for (_, test) in &named {
            if !tests.contains(test.as_str()) {
                findings.push(format!(
                    "docs/internals/faults.md:{number}: there is no test `{test}`: name its replacement"
                ));
            }
        }
        for fault in faults(row[0]) {
            *tested.entry(fault).or_default() |= !named.is_empty();
        }
    }
    for fault in required() {
        match tested.get(&fault) {
            Some(true) => {}
            Some(false) => {
                findings.push(format!("docs/internals/faults.md: no test is named for {fault}"))
            }
            None => findings.push(format!("docs/internals/faults.md: {fault} has no row")),
        }
    }
    for fault in NOT_BUILT {
        let is_stated = rows(table())
            .any(|(_, row)| faults(row[0]).any(|it| it == fault) && row[2].contains("not built"));
        if !is_stated {
            findings.push(format!(
                "docs/internals/faults.md: {fault} is not implemented, and no row states that"
            ));
        }
    }
    assert_clean(&findings);
}

#[test]
fn the_faults_of_a_row_are_its_first_words() {
    let of = |cell| faults(cell).collect::<Vec<_>>();
    assert_eq!(of("30, 32, A8 keys across slots, or all in one"), ["30", "32", "A8"]);
    assert_eq!(of("F9 a primary hands over 3 times"), ["F9"]);
    assert_eq!(of("fault"), [""; 0]);
}

fn table() -> &'static str {
    let file = TREE.files.iter().find(|file| file.path == "docs/internals/faults.md");
    &file.expect("docs/internals/faults.md is there").text
}

/// The cells of each row, with its line: fault, effect, our answer, test.
fn rows(text: &'static str) -> impl Iterator<Item = (usize, Vec<&'static str>)> {
    let cells =
        |line: &'static str| line.trim_matches('|').split('|').map(str::trim).collect::<Vec<_>>();
    let lines = (1..).zip(text.lines()).filter(|(_, line)| line.starts_with("| "));
    lines.map(move |(number, line)| (number, cells(line))).filter(|(_, row)| row.len() == 4)
}

/// `F9` and `A8` of FAULTS and ACCIDENTS, or a number of ACCIDENTS.
fn faults(cell: &str) -> impl Iterator<Item = String> {
    let words = cell.split(' ').map(|word| word.trim_end_matches(',').to_owned());
    words.take_while(|word| {
        let digits = word.trim_start_matches(['F', 'A']);
        !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit())
    })
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

fn required() -> impl Iterator<Item = String> {
    let faults = (1..=30).map(|number| format!("F{number}"));
    let accidents = (40..=48).map(|number| number.to_string());
    let others = ["A8", "A11", "A12", "A13", "30", "32", "34"].map(str::to_owned);
    faults.filter(|fault| !NOT_BUILT.contains(&fault.as_str())).chain(accidents).chain(others)
}

const NOT_BUILT: [&str; 3] = ["F2", "F11", "F23"];
