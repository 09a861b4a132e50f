//! The texts of a running program: keys, values and sentences.

use serde_json::Value;
use spillgate_testkit::{RedisServer, Reply};

use super::Seen;
use crate::server::{Server, TempFile, run};

const RULES: &str = r#"
[[rule]]
name = "login"
key = ["ip"]
limits = ["2/hour", { name = "streams", quota = "9", algorithm = "concurrency", max_hold = "30s" }]

[[rule]]
name = "blocked"
match = { plan = "free" }
key = []
limits = ["block"]

[[rule]]
name = "watched"
key = ["ip"]
mode = "shadow"
limits = ["1/hour"]
"#;

pub(super) fn openapi() -> Vec<Seen> {
    let server = Server::start(&[]);
    let body = server.client().send("GET", "/v1/openapi.json", b"").unwrap().body;
    of_json("OpenAPI", &body)
}

pub(super) fn schema() -> Vec<Seen> {
    of_json("schema", &stdout(&["validate", "--schema"]))
}

/// The output of each command that has `--json`, for requests that meet every reason.
pub(super) fn json_of_commands() -> Vec<Seen> {
    let file = TempFile::new("limits.toml", RULES);
    let redis = RedisServer::start();
    let server = Server::start_on(&redis, &["--config", file.path()]);
    let url = server.url();
    let admin = format!("http://127.0.0.1:{}", server.admin_port.unwrap());
    let mut seen = Vec::new();
    let mut add = |arguments: &[&str]| {
        let command = format!("{} --json", arguments[0]);
        seen.extend(of_json(&command, &stdout(&[arguments, &["--json"]].concat())));
    };
    let requests: [&[&str]; 5] = [
        &["ip=192.0.2.1"],
        &["ip=192.0.2.1", "--cost", "9"],
        &["ip=192.0.2.1", "--cost", "2"],
        &["plan=free"],
        &["x=y"],
    ];
    for request in requests {
        add(&[&["check", "--url", &url], request].concat());
        add(&[&["explain", "--url", &admin], request].concat());
    }
    add(&["explain", "--redis", &redis.url(), "--config", file.path(), "ip=192.0.2.1"]);
    let changes: [&[&str]; 8] = [
        &["mode", "watched", "enforce", "--for", "1h"],
        &["mode", "watched", "file"],
        &["override", "login", "ip=192.0.2.1", "--limit", "3/hour", "--reason", "a customer asked"],
        &["unblock", "login", "ip=192.0.2.1"],
        &["block", "login", "ip=192.0.2.0/24"],
        &["refund", "login", "ip=192.0.2.1"],
        &["reset", "login", "ip=192.0.2.1"],
        &["audit"],
    ];
    for change in changes {
        add(&[&["admin", change[0], "--url", &admin], &change[1..]].concat());
    }
    add(&["top", "--url", &admin]);
    add(&["doctor", "--redis", &redis.url()]);
    for policy in crate::validate::policies() {
        add(&["validate", "--subjects", "1000", policy.to_str().unwrap()]);
    }
    let old = TempFile::new("old.toml", &RULES.replace("login", "sign-in"));
    add(&["validate", "--against", old.path(), file.path()]);
    let requests = "1,192.0.2.1,free\n".repeat(9);
    let log = TempFile::new("access.csv", &format!("time,ip,plan\nsoon,,\n{requests}"));
    let simulated = [log.path(), "--fail-if", "malformed>1"];
    add(&[&["simulate", "--config", file.path(), "--against", old.path()], &simulated[..]].concat());
    add(&["bench", "--rate", "500", "--duration", "200ms", "--timeout", "30s"]);
    seen
}

/// The answers to commands that are right and to commands that are wrong.
pub(super) fn resp() -> Vec<Seen> {
    let file = TempFile::new("limits.toml", RULES);
    let server = Server::start(&["--config", file.path()]);
    let mut connection = server.resp();
    let mut seen = Vec::new();
    let mut ask = |command: &str| {
        let words: Vec<&str> = command.split(' ').collect();
        let reply = connection.command(&words).unwrap();
        add_reply(&format!("RESP, {command}"), &reply, &mut seen);
        reply
    };
    for command in [
        "PING",
        "INFO",
        "HELLO 2",
        "HELLO 9",
        "CLIENT SETNAME a",
        "CLIENT NOTHING a",
        "COMMAND",
        "COMMAND DOCS",
        "SELECT 1",
        "AUTH x",
        "NOTHING",
        "CL.THROTTLE k 1 1 60",
        "CL.THROTTLE k 1 1 60 9",
        "CL.THROTTLE k x 1 60",
        "CL.THROTTLE k",
        "SG.CHECK default 1 ip a",
        "SG.CHECK default 9 ip a",
        "SG.CHECK default 2 ip a",
        "SG.CHECK default 1 plan free",
        "SG.CHECK default x ip a",
        "SG.CHECK default 1 ip",
        "SG.RESERVE default x 1 -",
        "SG.SETTLE x 1",
        "SG.RENEW x 1",
    ] {
        ask(command);
    }
    let Reply::Array(reserved) = ask("SG.RESERVE default 1 60000 id ip b") else {
        panic!("no array")
    };
    let receipt = reserved.last().unwrap().text().to_owned();
    for command in
        ["SG.RENEW {} 60000", "SG.RELEASE {}", "SG.SETTLE {} 1", "SG.SETTLE {} 2", "SG.CANCEL {}"]
    {
        ask(&command.replace("{}", &receipt));
    }
    ask("SG.RESERVE default 1 60000 id ip b");
    seen
}

/// Adds the texts of a reply. Receipts have no spaces and are longer than any word.
fn add_reply(place: &str, reply: &Reply, seen: &mut Vec<Seen>) {
    let text = match reply {
        Reply::Array(replies) => {
            return replies.iter().for_each(|reply| add_reply(place, reply, seen));
        }
        Reply::Status(text) | Reply::Error(text) => text.clone(),
        Reply::Bulk(bytes) => String::from_utf8_lossy(bytes).into_owned(),
        Reply::Integer(_) | Reply::Nil => return,
    };
    if text.contains(' ') || text.len() < 40 {
        seen.extend(
            text.lines().map(|line| Seen { place: place.to_owned(), text: line.to_owned() }),
        );
    }
}

pub(super) fn metrics() -> Vec<Seen> {
    let file = TempFile::new("limits.toml", RULES);
    let redis = RedisServer::start();
    let arguments = ["--config", file.path()];
    let mut seen = Vec::new();
    for server in [Server::start(&arguments), Server::start_on(&redis, &arguments)] {
        server.check(r#"{"attributes":{"ip":"192.0.2.1"}}"#);
        server.check(r#"{"attributes":{"ip":"192.0.2.1"},"cost":9}"#);
        let text = server.metrics();
        for line in text.lines().filter(|line| !line.starts_with("# TYPE")) {
            // A name, its labels and their values, each by itself; or the sentence of a help text.
            let texts: Vec<&str> = match line.strip_prefix("# HELP ") {
                Some(help) => vec![help],
                None => line.split(['{', '}', '"', '=', ',', ' ']).collect(),
            };
            let see = |text: &&str| Seen { place: "metrics".to_owned(), text: (*text).to_owned() };
            seen.extend(texts.iter().map(see));
        }
    }
    seen
}

/// Every key and every text of a JSON document.
fn of_json(place: &str, json: &str) -> Vec<Seen> {
    let value: Value =
        serde_json::from_str(json).unwrap_or_else(|error| panic!("{place}: {error}: {json}"));
    let mut seen = Vec::new();
    walk(place, &value, &mut seen);
    seen
}

fn walk(place: &str, value: &Value, seen: &mut Vec<Seen>) {
    match value {
        Value::Object(fields) => {
            for (key, value) in fields {
                seen.push(Seen { place: place.to_owned(), text: key.clone() });
                walk(&format!("{place}/{key}"), value, seen);
            }
        }
        Value::Array(values) => values.iter().for_each(|value| walk(place, value, seen)),
        Value::String(text) => seen.push(Seen { place: place.to_owned(), text: text.clone() }),
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}

#[track_caller]
fn stdout(arguments: &[&str]) -> String {
    let output = run(arguments);
    let printed = String::from_utf8(output.stdout).unwrap();
    assert!(!printed.is_empty(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    printed
}
