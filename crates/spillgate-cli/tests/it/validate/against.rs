//! `--against`: the predicted effect on the state is the real one on Redis.

use serde_json::{Value, json};
use spillgate_testkit::RedisServer;

use crate::server::{Server, TempFile, run};

/// A rule; its used quota shows in the remaining quota.
const OLD: &str = r#"
[[rule]]
name = "r"
key = ["user", "tenant"]
limits = [{ quota = "10/hour", name = "n" }]
"#;

/// The new file's version of a limit, and the effect on its state: `None` if it stays.
const CHANGES: &[(&str, &str, Option<&str>)] = &[
    ("10/hour", "10/hour", None),
    ("10/hour", "20/hour", Some("read-again")),
    ("10/hour", "9/minute", Some("read-again")),
    ("\"user\", \"tenant\"", "\"tenant\", \"user\"", None),
    ("\"user\", \"tenant\"", "\"user\"", Some("starts-full")),
    ("key =", "anchor = [\"tenant\"]\nkey =", Some("starts-full")),
    ("key =", "anchor = [\"tenant\", \"user\"]\nkey =", None),
    ("key =", "mode = \"enforce\"\nkey =", None),
    ("key =", "match = { tenant = \"*\" }\nkey =", None),
    ("key =", "domain = \"other\"\nkey =", Some("starts-full")),
    ("name = \"r\"", "name = \"s\"", Some("starts-full")),
    ("name = \"n\"", "name = \"m\"", Some("starts-full")),
    (", name = \"n\"", "", Some("starts-full")),
    ("name = \"n\"", "name = \"n\", algorithm = \"fixed-window\"", Some("starts-full")),
    ("name = \"n\"", "name = \"n\", algorithm = \"sliding-log\"", Some("starts-full")),
    ("name = \"n\"", "name = \"n\", burst = 30", Some("read-again")),
    ("name = \"n\"", "name = \"n\", unit = \"tokens\"", Some("read-again")),
];

#[test]
fn state_starts_full_or_stays_as_predicted() {
    let redis = RedisServer::start();
    let old_file = TempFile::new("old.toml", OLD);
    let before = Server::start_on(&redis, &["--config", old_file.path()]);
    for (number, (from, to, expected)) in CHANGES.iter().enumerate() {
        let new = OLD.replacen(from, to, 1);
        let new_file = TempFile::new("new.toml", &new);
        let changes = changes(&old_file, &new_file);
        let named =
            |change: &Value| change["effect"] == json!(expected) && change["reason"].is_string();
        match expected {
            None => assert!(changes.is_empty(), "{new}: {changes:?}"),
            Some(_) => assert!(changes.iter().any(named), "{new}: {changes:?}"),
        }

        let attributes = json!({"user": format!("u{number}"), "tenant": "t"});
        before.check(&json!({"attributes": attributes, "cost": 7}).to_string());
        let after = Server::start_on(&redis, &["--config", new_file.path()]);
        let domain = if new.contains("domain") { "other" } else { "default" };
        let peek = json!({"domain": domain, "attributes": attributes, "cost": 0});
        let limit = &after.check(&peek.to_string())["limits"][0];
        let used = limit["capacity"].as_u64().unwrap() - limit["remaining"].as_u64().unwrap();
        let starts_full = *expected == Some("starts-full");
        assert_eq!(used == 0, starts_full, "{new}: {used} used; {changes:?}");
    }
}

#[test]
fn removed_and_new_rules_are_reported_too() {
    let old = TempFile::new("old.toml", &format!("{OLD}\n{}", OLD.replace("\"r\"", "\"gone\"")));
    let new = OLD.replace("limits = [", "limits = [{ quota = \"5/day\", name = \"second\" }, ");
    let new = TempFile::new("new.toml", &format!("{new}\n{}", OLD.replace("\"r\"", "\"renamed\"")));
    let found: Vec<String> = changes(&old, &new)
        .iter()
        .map(|change| format!("{} {} {}", change["rule"], change["limit"], change["effect"]))
        .collect();
    assert_eq!(
        found,
        [
            "\"r\" \"second\" \"starts-full\"",
            "\"renamed\" null \"starts-full\"",
            "\"gone\" null \"ends\""
        ]
    );
    let output = run(&["validate", "--against", old.path(), new.path()]);
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.contains("if it is \"gone\" renamed, the old name keeps the state"), "{text}");
}

#[test]
fn under_another_secret_all_rules_count_apart() {
    let file = |secret: &str| {
        let store = format!("[store]\nurl = \"redis://a\"\nkey_secret_file = {secret:?}\n");
        TempFile::new("store.toml", &format!("{store}{OLD}"))
    };
    let (old, new) = (file("one"), file("two"));
    assert!(changes(&old, &old).is_empty());
    let found = changes(&old, &new);
    assert_eq!((found.len(), &found[0]["effect"]), (1, &Value::from("counts-apart")));
    assert!(found[0]["rule"].is_null() && found[0]["limit"].is_null(), "{found:?}");
    let reason = found[0]["reason"].as_str().unwrap();
    assert!(reason.contains("each subject") && reason.contains("twice its limit"), "{reason}");
}

#[test]
fn an_old_file_that_does_not_load_is_exit_code_2() {
    let (old, new) = (TempFile::new("old.toml", "[[rule]]\n"), TempFile::new("new.toml", OLD));
    let output = run(&["validate", "--against", old.path(), new.path()]);
    assert_eq!(output.status.code(), Some(2));
    assert!(String::from_utf8(output.stderr).unwrap().contains("old.toml:1: "));
}

fn changes(old: &TempFile, new: &TempFile) -> Vec<Value> {
    let output = run(&["validate", "--json", "--against", old.path(), new.path()]);
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stdout));
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    report["against"].as_array().unwrap().clone()
}
