//! Pages that list everything of a kind: each command with its options, call, and event of the log.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use serde_json::Value;

use super::page::{Page, read, root};
use crate::server::{Server, run};

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
fn the_page_on_http_lists_every_call_and_field() {
    let page = Page::of("reference/http").text;
    let server = Server::start(&[]);
    let described = server.client().send("GET", "/v1/openapi.json", b"").unwrap().body;
    let described: Value = serde_json::from_str(&described).unwrap();
    let paths = described["paths"].as_object().unwrap();
    for path in paths.keys().filter(|path| path.starts_with("/v1/")) {
        assert!(page.contains(&format!("{path}`")), "no call {path}");
    }
    let schemas = &described["components"]["schemas"];
    for name in ["Check", "Reservation", "Answer"] {
        for field in schemas[name]["properties"].as_object().unwrap().keys() {
            assert!(page.contains(&format!("`{field}`")), "no field {field} of {name}");
        }
    }
}

#[test]
fn every_event_of_the_page_on_the_log_is_in_the_source() {
    let mut sources = String::new();
    for folder in ["crates/spillgate/src", "crates/spillgate-server/src"] {
        gather(&root().join(folder), &mut sources);
    }
    let page = Page::of("reference/log");
    let rows = page.rows();
    assert!(rows.len() > 15, "{}", rows.len());
    for row in rows {
        let event = row[0].trim_matches('`');
        assert!(sources.contains(event), "nothing logs {event:?}");
    }
    assert!(read("docs/reference/log.md").contains("A test holds"));
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
