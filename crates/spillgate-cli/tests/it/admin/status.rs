//! `spillgate status`: one screen, and an exit code by level.

use serde_json::Value;
use spillgate_testkit::{RedisServer, eventually, free_port};

use super::commands::{done, ended, url};
use super::outage::start_on;
use crate::server::{Server, TempFile, run};

fn status(url: &str, added: &[&str]) -> (i32, String, String) {
    ended(&run(&[&["status", "--url", url], added].concat()))
}

/// Returns the status once its screen begins so. An instance looks at modes and shards once a second.
#[track_caller]
fn status_once(url: &str, level: &str) -> (i32, String) {
    let begin = format!("{url}: {level}\n");
    let mut last = (0, String::new());
    eventually(|| {
        let (code, screen, errors) = status(url, &[]);
        assert_eq!(errors, "");
        last = (code, screen);
        last.1.starts_with(&begin)
    });
    last
}

fn two_rules() -> TempFile {
    let rule = |name: &str| {
        format!("[[rule]]\nname = \"{name}\"\nkey = [\"ip\"]\nlimits = [\"5/minute\"]\n")
    };
    TempFile::new("limits.toml", &(rule("api") + &rule("login")))
}

#[test]
fn the_exit_code_is_0_if_healthy_1_with_a_rule_off_and_2_without_the_store() {
    let file = two_rules();
    let mut store = RedisServer::start();
    let server = start_on(&store, file.path());
    let (url, redis) = (url(&server), store.url());
    let version = env!("CARGO_PKG_VERSION");
    let healthy = format!(
        "{url}: ok\nrules     2 enforced, 0 in shadow, 0 off\nstore     {redis}\n\
         shard     {redis}: no trouble\n\
         fleet     1 instance; 0 allowed and 0 denied in the last minute\nversion   {version}\n"
    );
    eventually(|| status(&url, &[]) == (0, healthy.clone(), String::new()));

    done(&["mode", "login", "off", "--url", &url]);
    let (code, screen) = status_once(&url, "warning, rule off");
    assert_eq!(code, 1);
    let lines: Vec<&str> = screen.lines().collect();
    assert_eq!(lines[1], "warning   login is off and limits no request, set by an operator");
    assert!(lines[2].starts_with("          since 2") && lines[2].ends_with('s'), "{screen}");
    assert_eq!(lines[3], "          next: when it is no longer needed, set login to enforce");
    assert_eq!(lines[4], "rules     1 enforced, 0 in shadow, 1 off");
    done(&["mode", "login", "file", "--url", &url]);
    assert_eq!(status_once(&url, "ok").0, 0);

    store.kill();
    server.check(r#"{"attributes":{"ip":"192.0.2.1"}}"#);
    let (code, screen) = status_once(&url, "critical, degraded");
    assert_eq!(code, 2, "{screen}");
    assert!(screen.contains("critical  decisions are made without redis://"), "{screen}");
    assert!(screen.contains("next: bring the store back"), "{screen}");
    assert!(screen.contains(&format!("\nshard     {redis}: ")), "{screen}");
    assert!(!screen.contains("no trouble"), "{screen}");
    eventually(|| {
        let (code, json, _) = status(&url, &["--json"]);
        let json: Value = serde_json::from_str(&json).unwrap();
        let (level, word) = (&json["level"], &json["word"]);
        assert_eq!((code, level, word), (2, &"critical".into(), &"degraded".into()));
        json["conditions"][0]["since_ms"].is_u64()
    });
}

#[test]
fn a_rule_in_shadow_by_the_file_is_a_note_and_no_alarm() {
    let rules = std::fs::read_to_string(two_rules().path()).unwrap();
    let file = TempFile::new("limits.toml", &format!("{rules}mode = \"shadow\"\n"));
    let server = Server::start(&["--config", file.path()]);
    let url = url(&server);
    eventually(|| {
        let (code, screen, _) = status(&url, &[]);
        assert_eq!(code, 0, "{screen}");
        let note = format!("{url}: ok\nnote      login is in shadow: it counts and denies no");
        screen.starts_with(&note) && screen.contains("\nrules     1 enforced, 1 in shadow, 0 off\n")
    });
}

#[test]
fn a_server_that_does_not_answer_or_refuses_the_token_is_an_error_with_code_2() {
    let gone = format!("http://127.0.0.1:{}", free_port());
    let (code, output, errors) = status(&gone, &[]);
    assert_eq!((code, &*output), (2, ""), "{errors}");
    assert!(errors.starts_with(&format!("spillgate: {gone}: ")), "{errors}");
    let tokens = TempFile::new("tokens", "ann:viewer:0123456789abcdef\n");
    let settings = format!("[server]\nadmin_token_file = \"{}\"\n", tokens.path());
    let file = TempFile::new("limits.toml", &settings);
    let server = Server::start(&["--config", file.path()]);
    let (code, _, errors) = status(&url(&server), &[]);
    assert!(code == 2 && errors.contains("no token or a wrong one"), "{errors}");
    let (code, screen, _) = status(&url(&server), &["--token-file", tokens.path()]);
    assert!(code == 1 && screen.contains(": warning, no rules\n"), "a viewer reads it: {screen}");
}
