//! The admin API, as operators and probes use it.

mod audit;
mod commands;
mod dashboard;
mod explain;
mod guard;
mod health;
mod history;
mod import;
mod lists;
mod metrics;
mod outage;
mod overrides;
mod rules;
mod scrapes;
mod state;
mod status;

use serde_json::{Value, json};

use crate::server::{Server, TempFile};

/// Calls the admin API, expects status 200, and returns the JSON of the answer.
#[track_caller]
fn expect_ok(server: &Server, method: &str, path: &str, body: &Value) -> Value {
    let body = if body.is_null() { String::new() } else { body.to_string() };
    let reply = server.operator().send(method, path, body.as_bytes()).unwrap();
    assert_eq!(reply.status, 200, "{method} {path} {body}: {}", reply.body);
    reply.json()
}

/// Calls the admin API, expects a problem, and returns its status, field and detail.
#[track_caller]
fn refused(server: &Server, method: &str, path: &str, body: &str) -> (u16, String, String) {
    let reply = server.operator().send(method, path, body.as_bytes()).unwrap();
    assert_eq!(
        reply.header("content-type"),
        Some("application/problem+json"),
        "{method} {path} {body}: {reply:?}"
    );
    let problem = reply.json();
    assert_eq!(problem["status"], reply.status);
    let text = |name: &str| problem[name].as_str().unwrap_or_default().to_owned();
    (reply.status, text("field"), text("detail"))
}

/// Returns `allowed`, or the reason of the denial, for a request of ann at acme.
#[track_caller]
fn decision(server: &Server) -> String {
    let answer = server.check(r#"{"attributes":{"tenant":"acme","user":"ann"}}"#);
    answer["reason"].as_str().unwrap_or("allowed").to_owned()
}

fn api_rule() -> TempFile {
    TempFile::new(
        "limits.toml",
        "[[rule]]\nname = \"api\"\nkey = [\"tenant\", \"user\"]\nlimits = [\"2/hour\"]\n",
    )
}

fn ann() -> Value {
    json!({"tenant": "acme", "user": "ann"})
}
