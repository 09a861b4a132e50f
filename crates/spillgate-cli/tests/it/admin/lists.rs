//! The lists of `spillgate admin`: rules, overrides and the audit.

use serde_json::Value;
use spillgate_testkit::{RedisServer, eventually};

use super::api_rule;
use super::commands::{done, url};
use crate::server::{Server, TempFile, on_both_engines};

/// Returns the cells of each line, which two spaces or more separate.
fn cells(table: &str) -> Vec<Vec<&str>> {
    let lines = table.lines();
    let of = lines.map(|line| line.split("  ").map(str::trim).filter(|cell| !cell.is_empty()));
    of.map(Iterator::collect).collect()
}

#[test]
fn rules_are_listed_with_the_mode_in_force_that_of_the_file_and_who_set_another() {
    let file = TempFile::new(
        "limits.toml",
        "[[rule]]\nname = \"api\"\nkey = [\"tenant\"]\n\
         limits = [\"100/minute\", { name = \"daily\", quota = \"1000/day\" }]\n\
         [[rule]]\nname = \"login\"\nkey = [\"ip\"]\nlimits = [\"5/minute\"]\n\
         [[rule]]\nname = \"new\"\nkey = [\"ip\"]\nmode = \"shadow\"\nlimits = [\"9/minute\"]\n",
    );
    on_both_engines(&["--config", file.path()], |server| {
        let url = url(server);
        let act = |words: &[&str]| done(&[words, &["--url", &url]].concat());
        let until = ["--until", "2199-01-01T00:00:00Z", "--reason", "incident 4711"];
        act(&[&["mode", "login", "off"][..], &until].concat());
        let rules = act(&["rules"]);
        let expected = [
            vec!["rule", "mode", "in the file", "set while running", "limits"],
            vec!["api", "enforce", "enforce", "-", "100/minute, daily=1000/day"],
            vec![
                "login",
                "off",
                "enforce",
                "off until 2199-01-01T00:00:00Z by local (incident 4711)",
                "5/minute",
            ],
            vec!["new", "shadow", "shadow", "-", "9/minute"],
        ];
        assert_eq!(cells(&rules), expected, "{rules}");
        let json: Value = serde_json::from_str(&act(&["rules", "--json"])).unwrap();
        assert_eq!(json["rules"][1]["mode"]["in_force"], "off");
    });
}

#[test]
fn overrides_are_listed_by_rule_and_by_part_of_a_value() {
    let file = api_rule();
    let rules = std::fs::read_to_string(file.path()).unwrap();
    let other = "[[rule]]\nname = \"login\"\nkey = [\"tenant\"]\nlimits = [\"5/minute\"]\n";
    let file = TempFile::new("limits.toml", &format!("{rules}{other}"));
    on_both_engines(&["--config", file.path()], |server| {
        let url = url(server);
        let act = |words: &[&str]| done(&[words, &["--url", &url]].concat());
        assert_eq!(act(&["overrides"]), "no overrides\n");
        act(&["override", "api", "tenant=acme-eu", "user=ann", "--quota", "9/hour"]);
        act(&["override", "login", "tenant=acme-us", "--quota", "7/hour", "--reason", "ticket 88"]);
        act(&["block", "api", "tenant=globex", "--until", "2199-01-01T00:00:00Z"]);
        let head = vec!["rule", "subject", "limits", "expires", "by", "reason"];
        let eu = vec!["api", "tenant=acme-eu user=ann", "9/hour", "never", "local"];
        let us = vec!["login", "tenant=acme-us", "7/hour", "never", "local", "ticket 88"];
        let globex = vec!["api", "tenant=globex", "block", "2199-01-01T00:00:00Z", "local"];
        let all = [&eu, &us, &globex];
        for (filter, expected) in [
            (&[][..], &all[..]),
            (&["tenant=acme"], &all[..2]),
            (&["tenant=acme", "user=ann"], &all[..1]),
            (&["tenant=acme", "--rule", "login"], &all[1..2]),
            (&["--rule", "api"], &[&eu, &globex]),
        ] {
            let table = act(&[&["overrides"], filter].concat());
            let expected: Vec<_> = [&head].into_iter().chain(expected.iter().copied()).collect();
            assert_eq!(cells(&table).iter().collect::<Vec<_>>(), expected, "{filter:?}: {table}");
            let exported = act(&[&["overrides", "--export"], filter].concat());
            assert_eq!(exported.lines().count(), expected.len() - 1, "{filter:?}: {exported}");
            let json = act(&[&["overrides", "--json"], filter].concat());
            let json: Value = serde_json::from_str(&json).unwrap();
            assert_eq!(json["overrides"].as_array().unwrap().len(), expected.len() - 1);
        }
        assert_eq!(act(&["overrides", "user=acme"]), "no overrides\n");
    });
}

#[test]
fn overrides_and_modes_of_a_rule_that_is_gone_are_listed_as_not_in_force() {
    let store = RedisServer::start();
    let api = std::fs::read_to_string(api_rule().path()).unwrap();
    let login = "[[rule]]\nname = \"login\"\nkey = [\"ip\"]\nlimits = [\"5/minute\"]\n";
    let both = TempFile::new("limits.toml", &format!("{api}{login}"));
    let server = Server::start_on(&store, &["--config", both.path()]);
    done(&["block", "login", "ip=203.0.113.7", "--url", &url(&server)]);
    done(&["mode", "login", "off", "--url", &url(&server)]);
    assert!(server.stop().success());

    let one = TempFile::new("limits.toml", &api);
    let server = Server::start_on(&store, &["--config", one.path()]);
    let lists = |command: &str, line: &str| {
        let list = done(&[command, "--url", &url(&server)]);
        list.lines().any(|listed| listed.starts_with(line))
    };
    let not_in_force =
        "login ip=203.0.113.7 block is not in force: rule: there is no rule \"login\"";
    eventually(|| lists("overrides", not_in_force));
    eventually(|| lists("rules", "  login  off"));
    let rules = done(&["rules", "--url", &url(&server)]);
    let gone = vec!["login", "off", "-", "off by local", "not in the policy file"];
    assert_eq!(cells(&rules)[2], gone, "{rules}");
}

#[test]
fn the_audit_is_exported_with_the_oldest_first_and_goes_on_after_the_last_line() {
    let file = api_rule();
    let server = Server::start(&["--config", file.path()]);
    let url = url(&server);
    let act = |words: &[&str]| done(&[words, &["--url", &url]].concat());
    // More than the 20 that the list shows.
    for number in 0..25 {
        act(&["mode", "api", "shadow", "--reason", &number.to_string()]);
    }
    assert_eq!(act(&["audit"]).lines().count(), 20);
    let export = |since: &[&str]| -> Vec<Value> {
        let lines = act(&[&["audit", "--export"], since].concat());
        lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    };
    let all = export(&[]);
    let reasons: Vec<&str> = all.iter().map(|change| change["reason"].as_str().unwrap()).collect();
    let expected: Vec<String> = (0..25).map(|number| number.to_string()).collect();
    assert_eq!(reasons, expected);
    assert_eq!(all[0]["actor"], "local");
    let last = all[24]["at"].as_str().unwrap();
    assert!(export(&["--since", last]).is_empty());
    act(&["mode", "api", "file"]);
    let news = export(&["--since", last]);
    assert_eq!((news.len(), &news[0]["action"]), (1, &Value::from("clear-mode")));
    assert_eq!(export(&["--since", "1h"]).len(), 26);
    assert_eq!(act(&["audit", "--since", all[20]["at"].as_str().unwrap()]).lines().count(), 5);
}
