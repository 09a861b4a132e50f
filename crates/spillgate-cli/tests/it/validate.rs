//! `spillgate validate`: every problem with its place, or the findings of the linter.

mod against;
mod bytes;
mod corpus;
mod schema;

pub(crate) use schema::knows as schema_knows;
use serde_json::Value;

use crate::server::{TempFile, run};

const GOOD: &str = r#"
[server]
http = "127.0.0.1:0"

[[rule]]
name = "all"
key = []
limits = ["1000/second"]

[[rule]]
name = "login"
key = ["ip"]
limits = ["5/minute"]

[[rule]]
name = "user"
key = ["user"]
limits = ["9/minute"]

[[rule]]
name = "tenant"
key = ["tenant", "user"]
limits = ["7/minute"]

[[override]]
rule = "login"
subject = { ip = "203.0.113.7" }
limits = ["50/minute"]
"#;

#[test]
fn a_good_file_is_ok() {
    let (code, printed) = validate(&[], GOOD);
    assert_eq!(code, Some(0), "{printed}");
    assert!(printed.ends_with("limits.toml: ok, 4 rules, 1 override\n"), "{printed}");
    assert_eq!(printed.lines().count(), 1);
}

#[test]
fn an_address_to_which_the_service_does_not_start_does_not_load() {
    for (store, part) in [
        ("url = \"redis://127.0.0.1:70000\"", "the port must be a number up to 65535"),
        ("cluster = [\"redis://a\", \"redis://b/x\"]", "field `store.cluster`"),
        ("ring = { nodes = [\"a=redis://a:x\"] }", "field `store.ring`"),
        (
            "sentinel = { master = \"m\", urls = [\"redis://a\", \"redis://:x@a:6379\"] }",
            "field `store.sentinel.urls`: store address \"redis://a:6379\": this sentinel is listed twice",
        ),
        ("url = \"redis://me:hunter2?x@a:6379\"", "store address \"redis://***@a:6379\": "),
    ] {
        let text = format!("{GOOD}\n[store]\n{store}\n");
        let (code, printed) = validate(&[], &text);
        assert!(code == Some(1) && printed.contains(part), "{store}: {printed}");
    }
    let (code, printed) = validate(&[], &format!("{GOOD}\n[store]\nurl = \"redis://a:1/2\"\n"));
    assert_eq!(code, Some(0), "{printed}");
}

#[test]
fn a_good_file_is_ok_as_json_too() {
    let (code, printed) = validate(&["--json"], GOOD);
    let report: Value = serde_json::from_str(&printed).unwrap();
    assert_eq!(code, Some(0));
    assert_eq!(
        (&report["ok"], &report["rules"], &report["overrides"]),
        (&true.into(), &4.into(), &1.into())
    );
}

#[test]
fn every_problem_has_its_place() {
    let bad = "[server]\nhttp = \"here\"\n[store]\ntimeout = \"soon\"\n[[rule]]\nname = \"a\"\nkey = []\nlimits = [\"5/fortnight\"]\n";
    let (code, printed) = validate(&[], bad);
    assert_eq!(code, Some(1), "{printed}");
    let places: Vec<&str> =
        printed.lines().map(|line| line.split("limits.toml").nth(1).unwrap()).collect();
    assert_eq!(places.len(), 3, "{printed}");
    for (place, start) in
        places.iter().zip([":2: field `server.http`: ", ":4: field `store.timeout`: ", ":8: "])
    {
        assert!(place.starts_with(start), "{printed}");
    }

    let (code, printed) = validate(&["--json"], bad);
    let report: Value = serde_json::from_str(&printed).unwrap();
    assert_eq!((code, &report["ok"]), (Some(1), &false.into()));
    let lines: Vec<&Value> =
        report["problems"].as_array().unwrap().iter().map(|problem| &problem["line"]).collect();
    assert_eq!(lines, [2, 4, 8]);
    assert_eq!(report["problems"][0]["field"], "server.http");
}

#[test]
fn a_file_without_rules_has_a_warning_unless_it_is_meant() {
    let (code, printed) = validate(&[], "");
    assert_eq!(code, Some(0));
    assert!(printed.contains(": ok, 0 rules, 0 overrides\n"), "{printed}");
    assert!(printed.contains(":1: warning no-rules: it has no rules, so only"), "{printed}");
    assert_eq!(validate(&["--deny", "warnings"], "").0, Some(1));
    let (code, printed) = validate(&["--deny", "warnings"], "rules = []\n");
    assert_eq!(code, Some(0));
    assert!(printed.ends_with(": ok, 0 rules, 0 overrides\n"), "{printed}");
}

#[test]
fn warnings_fail_only_with_the_flag() {
    let odd = "[[rule]]\nname = \"a\"\nkey = []\nlimits = [\"unlimited\"]\n";
    let (code, printed) = validate(&[], odd);
    assert_eq!(code, Some(0), "{printed}");
    assert!(printed.contains(":4: warning limits-nothing: rule \"a\": "), "{printed}");
    assert!(printed.ends_with("1 warning, 0 notes\n"), "{printed}");
    assert_eq!(validate(&["--deny", "warnings"], odd).0, Some(1));
    assert_eq!(validate(&["--deny", "warnings", "--json"], odd).0, Some(1));
    // A note is no warning.
    let noted = "[[rule]]\nname = \"a\"\nkey = []\nlimits = [\"1/month\"]\n";
    let (code, printed) = validate(&["--deny", "warnings"], noted);
    assert_eq!(code, Some(0), "{printed}");
    assert!(printed.ends_with("0 warnings, 1 note\n"), "{printed}");
}

#[test]
fn rules_that_fail_open_and_closed_are_listed() {
    let rule = |name: &str, more: &str| {
        format!("[[rule]]\nname = \"{name}\"\nkey = []\nlimits = [\"9/s\"]\n{more}\n")
    };
    let file = [
        rule("a", "on_outage = \"allow\""),
        rule("b", "on_outage = \"deny\""),
        rule("c", ""),
        rule("d", "mode = \"shadow\"\non_outage = \"allow\""),
        rule("e", "mode = \"off\""),
    ];
    let (_, printed) = validate(&[], &file.concat());
    for line in [
        "Open while the store is down (allow): a",
        "Closed while the store is down (deny): b",
        "Not enforced (shadow): d",
        "Off: e",
    ] {
        assert!(printed.lines().any(|printed| printed == line), "{line}: {printed}");
    }
    let report: Value = serde_json::from_str(&validate(&["--json"], &file.concat()).1).unwrap();
    assert_eq!(report["on_outage"]["local"], serde_json::json!(["c"]));
}

#[test]
fn a_file_that_cannot_be_read_is_exit_code_2() {
    let output = run(&["validate", "/nowhere/limits.toml"]);
    assert_eq!(output.status.code(), Some(2));
    let printed = String::from_utf8(output.stderr).unwrap();
    assert!(printed.starts_with("spillgate: cannot read /nowhere/limits.toml: "), "{printed}");
}

/// A pipe without a writer would hang the command, and a device such as `/dev/zero` would fill the memory.
#[test]
fn a_pipe_is_read_and_a_device_without_an_end_is_not() {
    let output = std::process::Command::new("sh")
        .args([
            "-c",
            "cat \"$2\" | \"$1\" validate /dev/stdin",
            "sh",
            env!("CARGO_BIN_EXE_spillgate"),
        ])
        .arg(TempFile::new("limits.toml", GOOD).path())
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    let output = run(&["validate", "/dev/zero"]);
    let printed = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2), "{printed}");
    assert!(printed.contains("/dev/zero: is longer than"), "{printed}");
}

#[test]
fn a_file_of_a_secret_that_cannot_be_read_is_a_note_that_names_the_setting() {
    let secret = TempFile::new("secret", "000102030405060708090a0b0c0d0e0f");
    let of = |file: &str| format!("{GOOD}\n[store]\nkey_secret_file = \"{file}\"\n");
    let (code, printed) = validate(&["--deny", "warnings"], &of(secret.path()));
    assert_eq!(code, Some(0), "{printed}");
    let (code, printed) = validate(&[], &of("/nowhere/secret"));
    assert_eq!(code, Some(0), "{printed}");
    let problem = "note file-unreadable: store.key_secret_file cannot be read here";
    assert!(printed.contains(problem) && printed.contains("/nowhere/secret: "), "{printed}");
    assert_eq!(validate(&["--deny", "warnings"], &of("/nowhere/secret")).0, Some(0));
}

fn validate(flags: &[&str], text: &str) -> (Option<i32>, String) {
    let file = TempFile::new("limits.toml", text);
    let output = run(&[&["validate", file.path()], flags].concat());
    assert!(output.stderr.is_empty(), "{}", String::from_utf8_lossy(&output.stderr));
    (output.status.code(), String::from_utf8(output.stdout).unwrap())
}
