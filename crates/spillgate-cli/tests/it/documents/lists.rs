//! Pages that list everything of a kind: commands with their options, events of the log, errors of the library.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use super::openapi::arguments;
use super::page::{Page, assert_same, read, root, spans};
use crate::glossary::api::exported;
use crate::server::run;

#[test]
fn the_page_on_the_command_line_lists_every_command_and_option() {
    let page = Page::of("reference/cli");
    let commands = page.rows();
    let options = page.section("Options");
    let help = String::from_utf8(run(&["help"]).stdout).unwrap();
    let list = help.split_once("Commands:\n").unwrap().1.split("\n\n").next().unwrap();
    let names: Vec<&str> = list.lines().filter_map(|line| line.split_whitespace().next()).collect();
    assert!(names.len() > 8, "{names:?}");
    for name in names.into_iter().filter(|name| *name != "help") {
        let quoted = format!("`{name}`");
        assert!(commands.iter().any(|row| row[0] == quoted), "no command {name}");
        let rows = options.rows();
        let row = rows.iter().find(|row| row[0] == quoted);
        let row = row.unwrap_or_else(|| panic!("no options of {name}"))[1];
        let listed: BTreeSet<&str> =
            row.split([' ', ',', '`']).filter(|word| word.starts_with("--")).collect();
        let help = String::from_utf8(run(&[name, "--help"]).stdout).unwrap();
        let known: BTreeSet<&str> = help
            .lines()
            .map(str::trim_start)
            .filter(|line| line.starts_with('-'))
            .filter_map(|line| line.split([' ', ',']).find(|word| word.starts_with("--")))
            .filter(|option| *option != "--help")
            .collect();
        assert_eq!(listed, known, "{name}");
    }
}

#[test]
fn every_event_of_the_page_on_the_log_is_in_the_source() {
    let sources = sources();
    let page = Page::of("reference/log");
    let rows = page.rows();
    assert!(rows.len() > 15, "{}", rows.len());
    for row in rows {
        let event = row[0].trim_matches('`');
        assert!(sources.contains(event), "nothing logs {event:?}");
    }
    assert!(read("docs/reference/log.md").contains("A test holds"));
}

#[test]
fn every_event_of_the_source_is_on_the_page_on_the_log() {
    let page = Page::of("reference/log");
    let rows = page.rows();
    let listed: Vec<&str> = rows.iter().map(|row| row[0].trim_matches('`')).collect();
    let sources = sources();
    let events = events(&sources);
    assert!(events.len() > 20, "{events:?}");
    let is_missing = |event: &&String| !listed.iter().any(|part| event.contains(part));
    let missing: Vec<&String> = events.iter().filter(is_missing).collect();
    assert!(missing.is_empty(), "docs/reference/log.md has no row for {missing:#?}");
}

/// The texts that the sources log, except those that consist of a value.
fn events(sources: &str) -> Vec<String> {
    let calls = ["info", "warn", "error"].into_iter().flat_map(|level| {
        let call = format!("tracing::{level}!(");
        let found = sources.match_indices(&call).map(|(at, call)| at + call.len());
        found.collect::<Vec<usize>>()
    });
    let texts = calls.map(|at| {
        // The message is the last text of the call. A backslash joins its lines.
        let text = arguments(&sources[at..]).rsplit('"').nth(1).unwrap();
        let lines = text.split("\\\n").map(str::trim_start);
        lines.collect::<String>()
    });
    texts.filter(|text| has_words_of_its_own(text)).collect()
}

/// Returns whether a format text has letters outside its placeholders.
fn has_words_of_its_own(text: &str) -> bool {
    let mut parts = text.split('{');
    let first = parts.next().unwrap_or_default();
    let after = parts.filter_map(|part| part.split_once('}')).map(|(_, after)| after);
    std::iter::once(first).chain(after).any(|part| part.contains(char::is_alphabetic))
}

#[test]
fn every_message_of_the_page_on_errors_is_in_the_source() {
    let sources = sources();
    let page = Page::of("reference/errors").section("Start-up errors");
    for row in page.rows() {
        let message = spans(row[0]).next().unwrap();
        assert!(sources.contains(message), "no error contains {message:?}");
    }
}

#[test]
fn the_page_on_errors_has_the_errors_of_the_library_with_their_variants() {
    let page = Page::of("reference/errors").section("Errors of the library");
    let listed = page.rows().into_iter().flat_map(|row| {
        let error = row[0].trim_matches('`');
        let variants = spans(row[1]).map(move |variant| format!("{error}::{variant}"));
        std::iter::once(error.to_owned()).chain(variants)
    });
    let errors = exported().into_iter().filter(|(name, _)| name.ends_with("Error"));
    let known = errors.flat_map(|(name, item)| {
        let variants = item.parts.keys().filter(|part| part.starts_with(char::is_uppercase));
        let variants: Vec<String> = variants.map(|part| format!("{name}::{part}")).collect();
        std::iter::once(name).chain(variants)
    });
    assert_same("errors of the library", listed, known);
}

/// The sources of all crates, without their integration tests.
fn sources() -> String {
    let mut sources = String::new();
    for folder in fs::read_dir(root().join("crates")).unwrap() {
        gather(&folder.unwrap().path().join("src"), &mut sources);
    }
    sources
}

fn gather(folder: &Path, sources: &mut String) {
    for entry in fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()) {
        if entry.is_dir() {
            gather(&entry, sources);
        } else if entry.extension().is_some_and(|end| end == "rs") {
            sources.push_str(&fs::read_to_string(&entry).unwrap());
        }
    }
}
