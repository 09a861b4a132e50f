//! `--against`: what is said of the state is what becomes of it on a real Redis.

use serde_json::{Value, json};
use spillgate_testkit::RedisServer;

use crate::server::{Server, TempFile, run};

/// A rule and what is asked of it; what was used is seen by what remains.
const OLD: &str = r#"
[[rule]]
name = "r"
key = ["user", "tenant"]
limits = [{ quota = "10/hour", name = "n" }]
"#;

/// What the new file says instead, and what becomes of the limit: nothing if it goes on as it is.
const CHANGES: &[(&str, &str, Option<&str>)] = &[
    ("10/hour", "10/hour", None),
    ("10/hour", "20/hour", Some("read-again")),
    ("10/hour", "9/minute", Some("read-again")),
    ("\"user\", \"tenant\"", "\"tenant\", \"user\"", None),
    ("\"user\", \"tenant\"", "\"user\"", Some("starts-afresh")),
    ("key =", "anchor = [\"tenant\"]\nkey =", Some("starts-afresh")),
    ("key =", "anchor = [\"tenant\", \"user\"]\nkey =", None),
    ("key =", "mode = \"enforce\"\nkey =", None),
    ("key =", "match = { tenant = \"*\" }\nkey =", None),
    ("key =", "domain = \"other\"\nkey =", Some("starts-afresh")),
    ("name = \"r\"", "name = \"s\"", Some("starts-afresh")),
    ("name = \"n\"", "name = \"m\"", Some("starts-afresh")),
    (", name = \"n\"", "", Some("starts-afresh")),
    ("name = \"n\"", "name = \"n\", algorithm = \"fixed-window\"", Some("starts-afresh")),
    ("name = \"n\"", "name = \"n\", algorithm = \"sliding-log\"", Some("starts-afresh")),
    ("name = \"n\"", "name = \"n\", burst = 30", Some("read-again")),
    ("name = \"n\"", "name = \"n\", unit = \"tokens\"", Some("read-again")),
];

#[test]
fn what_is_said_to_start_afresh_does_and_the_rest_goes_on() {
    let redis = RedisServer::start();
    let old_file = TempFile::new("old.toml", OLD);
    let before = Server::start_on(&redis, &["--config", old_file.path()]);
    for (number, (from, to, expected)) in CHANGES.iter().enumerate() {
        let new = OLD.replacen(from, to, 1);
        let new_file = TempFile::new("new.toml", &new);
        let fates = fates(&old_file, &new_file);
        let named = |fate: &Value| fate["fate"] == json!(expected) && fate["why"].is_string();
        match expected {
            None => assert!(fates.is_empty(), "{new}: {fates:?}"),
            Some(_) => assert!(fates.iter().any(named), "{new}: {fates:?}"),
        }

        let attributes = json!({"user": format!("u{number}"), "tenant": "t"});
        before.check(&json!({"attributes": attributes, "cost": 7}).to_string());
        let after = Server::start_on(&redis, &["--config", new_file.path()]);
        let domain = if new.contains("domain") { "other" } else { "default" };
        let peek = json!({"domain": domain, "attributes": attributes, "cost": 0});
        let tier = &after.check(&peek.to_string())["limits"][0];
        let used = tier["capacity"].as_u64().unwrap() - tier["remaining"].as_u64().unwrap();
        let afresh = *expected == Some("starts-afresh");
        assert_eq!(used == 0, afresh, "{new}: {used} used; {fates:?}");
    }
}

#[test]
fn what_is_gone_and_what_is_new_is_told_too() {
    let old = TempFile::new("old.toml", &format!("{OLD}\n{}", OLD.replace("\"r\"", "\"gone\"")));
    let new = OLD.replace("limits = [", "limits = [{ quota = \"5/day\", name = \"second\" }, ");
    let new = TempFile::new("new.toml", &format!("{new}\n{}", OLD.replace("\"r\"", "\"renamed\"")));
    let told: Vec<String> = fates(&old, &new)
        .iter()
        .map(|fate| format!("{} {} {}", fate["rule"], fate["limit"], fate["fate"]))
        .collect();
    assert_eq!(
        told,
        [
            "\"r\" \"second\" \"starts-afresh\"",
            "\"renamed\" null \"starts-afresh\"",
            "\"gone\" null \"ends\""
        ]
    );
    let output = run(&["validate", "--against", old.path(), new.path()]);
    let said = String::from_utf8(output.stdout).unwrap();
    assert!(said.contains("if it is \"gone\" renamed, the old name keeps the state"), "{said}");
}

#[test]
fn an_old_file_that_does_not_load_is_exit_code_2() {
    let (old, new) = (TempFile::new("old.toml", "[[rule]]\n"), TempFile::new("new.toml", OLD));
    let output = run(&["validate", "--against", old.path(), new.path()]);
    assert_eq!(output.status.code(), Some(2));
    assert!(String::from_utf8(output.stderr).unwrap().contains("old.toml:1: "));
}

fn fates(old: &TempFile, new: &TempFile) -> Vec<Value> {
    let output = run(&["validate", "--json", "--against", old.path(), new.path()]);
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stdout));
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    report["against"].as_array().unwrap().clone()
}
