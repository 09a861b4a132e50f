//! Runtime changes while the store is down, at two instances.

use serde_json::{Value, json};
use spillgate_testkit::{RedisServer, eventually};

use super::{api_rule, decision, expect_ok};
use crate::server::{LISTENING, Server, spillgate};

/// Starts an instance that notices an outage soon.
pub(super) fn start_on(store: &RedisServer, file: &str) -> Server {
    let store = store.url();
    let arguments = ["serve", "--redis", &store, "--config", file];
    let mut command = spillgate(&[&arguments[..], &LISTENING].concat());
    Server::start_command(command.env("SPILLGATE_STORE__TIMEOUT", "100ms"))
}

/// Makes a change, and returns the status, and whether the answer says why it is not saved.
#[track_caller]
fn change(server: &Server, method: &str, path: &str, body: &Value) -> (u16, bool) {
    let body = if body.is_null() { String::new() } else { body.to_string() };
    let reply = server.operator().send(method, path, body.as_bytes()).unwrap();
    let answer = reply.json();
    assert_eq!(answer["result"], "done", "{method} {path}: {reply:?}");
    (reply.status, answer["unsaved"].as_str().is_some_and(|why| !why.is_empty()))
}

#[test]
fn a_kill_switch_and_a_block_are_accepted_with_the_reason_and_reach_the_other_instance() {
    let file = api_rule();
    for is_hung in [false, true] {
        let mut store = RedisServer::start();
        let (one, other) = (start_on(&store, file.path()), start_on(&store, file.path()));
        match is_hung {
            true => store.pause(),
            false => store.kill(),
        }
        let pending = (202, true);
        let block = json!({"rule": "api", "subject": {"tenant": "acme"}, "limits": ["block"]});
        assert_eq!(change(&one, "PUT", "/admin/v1/overrides", &block), pending);
        assert_eq!(decision(&one), "blocked");
        assert_ne!(decision(&other), "blocked");
        let mode = "/admin/v1/rules/api/mode";
        assert_eq!(change(&one, "PUT", mode, &json!({"mode": "off"})), pending);
        assert_eq!(decision(&one), "allowed");
        match is_hung {
            true => store.resume(),
            false => store.restart(),
        }
        eventually(|| {
            expect_ok(&other, "GET", "/admin/v1/rules", &Value::Null)["rules"][0]["mode"]["in_force"]
                == "off"
        });
        assert_eq!(change(&other, "DELETE", mode, &Value::Null), (200, false));
        eventually(|| decision(&one) == "blocked" && decision(&other) == "blocked");
    }
}

#[test]
fn an_instance_that_stops_in_an_outage_logs_the_changes_that_are_lost() {
    let file = api_rule();
    let mut store = RedisServer::start();
    let server = start_on(&store, file.path());
    let globex = json!({"rule": "api", "subject": {"tenant": "globex"}, "limits": ["block"]});
    assert_eq!(change(&server, "PUT", "/admin/v1/overrides", &globex).0, 200);
    store.kill();
    let acme = json!({"rule": "api", "subject": {"tenant": "acme"}, "limits": ["block"]});
    assert_eq!(change(&server, "PUT", "/admin/v1/overrides", &acme).0, 202);
    let off = json!({"mode": "off"});
    assert_eq!(change(&server, "PUT", "/admin/v1/rules/api/mode", &off).0, 202);
    let log = server.rest_of_log();
    let lost: Vec<&str> = log.lines().filter(|line| line.contains("make it again")).collect();
    assert_eq!(lost.len(), 2, "the store has the first block: {log}");
    let [block, mode] = lost[..] else { unreachable!() };
    assert!(block.contains("warning: ") && block.contains("set-override"), "{block}");
    assert!(block.contains(r#""tenant":"(not logged)""#) && block.contains("block"), "{block}");
    assert!(mode.contains("set-mode") && mode.contains(r#""mode":"off""#), "{mode}");
    assert!(!log.contains("acme"), "{log}");

    // A change that reached the store is not lost.
    store.restart();
    let server = start_on(&store, file.path());
    assert_eq!(change(&server, "PUT", "/admin/v1/rules/api/mode", &off).0, 200);
    assert!(!server.rest_of_log().contains("make it again"));
}
