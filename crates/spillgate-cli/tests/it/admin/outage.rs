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

/// Makes a change, and returns the status and the names of the pending shards.
#[track_caller]
fn change(server: &Server, method: &str, path: &str, body: &Value) -> (u16, Vec<String>) {
    let reply = server.operator().send(method, path, body.to_string().as_bytes()).unwrap();
    let answer = reply.json();
    assert_eq!(answer["result"], "done", "{method} {path}: {reply:?}");
    let pending = answer["pending_shards"].as_array().unwrap();
    let name = |shard: &Value| shard["shard"].as_str().unwrap().to_owned();
    (reply.status, pending.iter().map(name).collect())
}

#[test]
fn a_kill_switch_and_a_block_are_accepted_with_the_pending_shard_and_reach_the_other_instance() {
    let file = api_rule();
    for is_hung in [false, true] {
        let mut store = RedisServer::start();
        let (one, other) = (start_on(&store, file.path()), start_on(&store, file.path()));
        match is_hung {
            true => store.pause(),
            false => store.kill(),
        }
        let pending = (202, vec![store.url()]);
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
        assert_eq!(change(&other, "DELETE", mode, &Value::Null), (200, Vec::new()));
        eventually(|| decision(&one) == "blocked" && decision(&other) == "blocked");
    }
}
