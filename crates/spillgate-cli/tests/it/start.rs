//! The summary at the start of `spillgate serve`: rules, warnings about the file, and the dashboard.

use crate::server::{LISTENING, Server, TempFile, spillgate};

/// One rule, with the warning `attribute-absent`.
const ANONYMOUS: &str = include_str!("validate/corpus/anonymous-requests.toml");

#[test]
fn names_rules_warnings_and_a_dashboard_that_answers() {
    let file = TempFile::new("limits.toml", ANONYMOUS);
    let server = Server::start(&["--config", file.path()]);
    let (path, summary) = (file.path(), &server.before_ready);
    for line in [
        format!("spillgate: 1 rule in {path}, 1 warning; see: spillgate validate {path}\n"),
        format!("spillgate: dashboard: http://127.0.0.1:{}/\n", server.admin_port.unwrap()),
    ] {
        assert!(summary.contains(&line), "{line} {summary}");
    }
    let warning = format!("spillgate: warning: {path}:5: attribute-absent: rule \"api\": ");
    assert!(summary.contains(&warning), "{warning} {summary}");
    let page = server.operator().send("GET", "/", b"").unwrap();
    assert!(page.status == 200 && page.body.contains("<title>Spillgate</title>"), "{}", page.body);
}

#[test]
fn without_a_file_names_the_way_to_rules() {
    let server = Server::start_command(&mut spillgate(&["serve", "--http", "127.0.0.1:0"]));
    assert_eq!(
        server.before_ready,
        "spillgate: no rules: name a file of rules with --config, or send inline limits\n"
    );
}

#[test]
fn an_address_for_all_machines_is_shown_as_this_machine() {
    let token = TempFile::new("token", "ann:operator:0123456789abcdef0123456789abcdef\n");
    let mut command = spillgate(&["serve", "--http", "127.0.0.1:0", "--admin", "0.0.0.0:0"]);
    let server =
        Server::start_command(command.env("SPILLGATE_SERVER__ADMIN_TOKEN_FILE", token.path()));
    let dashboard = format!("dashboard: http://127.0.0.1:{}/\n", server.admin_port.unwrap());
    assert!(server.before_ready.contains(&dashboard), "{}", server.before_ready);
}

/// A check of a long file would delay the start.
#[test]
fn a_long_file_is_not_checked() {
    let long = format!("{ANONYMOUS}{}", "# a comment\n".repeat(30_000));
    let file = TempFile::new("limits.toml", &long);
    let server = Server::start(&["--config", file.path()]);
    let (path, summary) = (file.path(), &server.before_ready);
    assert!(summary.contains(&format!("1 rule in {path}; see: spillgate validate")), "{summary}");
    assert!(!summary.contains("warning"), "{summary}");
}

#[test]
fn a_json_log_has_the_summary_as_objects_and_a_quiet_log_has_none() {
    let file = TempFile::new("limits.toml", ANONYMOUS);
    let start = |name: &str, value: &str| {
        let arguments = [&["serve", "--config", file.path()], &LISTENING[..]].concat();
        Server::start_command(spillgate(&arguments).env(name, value))
    };
    let server = start("SPILLGATE_TELEMETRY__LOG__FORMAT", "json");
    let messages: Vec<String> = server
        .before_ready
        .lines()
        .map(|line| {
            let object: serde_json::Value = serde_json::from_str(line).unwrap();
            object["message"].as_str().unwrap().to_owned()
        })
        .collect();
    assert!(messages.iter().any(|message| message.starts_with("1 rule in ")), "{messages:?}");
    assert!(messages.iter().any(|message| message.starts_with("dashboard: ")), "{messages:?}");
    assert_eq!(start("SPILLGATE_TELEMETRY__LOG__LEVEL", "off").before_ready, "");
}

#[test]
fn a_failed_start_is_one_object_of_a_json_log() {
    let wrong_rule =
        "[telemetry.log]\nformat = \"json\"\n[[rule]]\nname = \"a\"\nkey = []\nlimits = [\"x\"]\n";
    let file = TempFile::new("limits.toml", wrong_rule);
    let by_file = spillgate(&["serve", "--config", file.path()]).output().unwrap();
    let by_environment = |arguments: &[&str]| {
        let mut command = spillgate(&[&["serve", "--http", "off"], arguments].concat());
        command.env("SPILLGATE_TELEMETRY__LOG__FORMAT", "json").output().unwrap()
    };
    for (output, part) in [
        (by_file, "limits.toml:6: "),
        (by_environment(&["--grpc", "off"]), "all listeners are off"),
        (
            by_environment(&["--config", "/nowhere.toml"]),
            "cannot read /nowhere.toml: No such file or directory (os error 2); name a file",
        ),
    ] {
        let log = String::from_utf8(output.stderr).unwrap();
        let object: serde_json::Value =
            serde_json::from_str(&log).unwrap_or_else(|_| panic!("{part}: {log}"));
        assert_eq!((output.status.code(), &object["level"]), (Some(2), &"ERROR".into()), "{log}");
        assert!(object["message"].as_str().unwrap().contains(part), "{part}: {log}");
    }
}
