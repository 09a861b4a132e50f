//! The help texts, as users read them. `SPILLGATE_BLESS=1 cargo test … help` writes them again.

use std::fs;

use crate::server::run;

const COMMANDS: [&str; 19] = [
    "",
    "serve",
    "check",
    "explain",
    "admin",
    "admin mode",
    "admin override",
    "admin block",
    "admin unblock",
    "admin refund",
    "admin reset",
    "admin audit",
    "top",
    "validate",
    "simulate",
    "bench",
    "doctor",
    "import",
    "import envoy",
];

#[test]
fn the_help_of_every_command_equals_its_reviewed_text() {
    for command in COMMANDS {
        let name = if command.is_empty() { "spillgate" } else { command }.replace(' ', "-");
        let file = format!("{}/tests/it/help/{name}.txt", env!("CARGO_MANIFEST_DIR"));
        let now = help(command);
        if std::env::var_os("SPILLGATE_BLESS").is_some() {
            fs::write(&file, &now).unwrap();
        }
        let reviewed = fs::read_to_string(&file).unwrap_or_default();
        assert_eq!(now, reviewed, "{file}: review it, and accept it with SPILLGATE_BLESS=1");
    }
}

#[test]
fn every_command_has_a_reviewed_help() {
    let listed = help("");
    let commands = listed.split("Commands:\n").nth(1).unwrap().split("\n\n").next().unwrap();
    let names = commands.lines().filter_map(|line| line.split_whitespace().next());
    for name in names.filter(|name| *name != "help") {
        assert!(COMMANDS.contains(&name), "{name} has no reviewed help");
    }
}

#[test]
fn no_line_of_help_is_wider_than_a_terminal() {
    for command in COMMANDS {
        for line in help(command).lines() {
            assert!(line.chars().count() <= 100, "{command}: {line}");
        }
    }
}

fn help(command: &str) -> String {
    let arguments: Vec<&str> = command.split_whitespace().chain(["--help"]).collect();
    String::from_utf8(run(&arguments).stdout).unwrap()
}
