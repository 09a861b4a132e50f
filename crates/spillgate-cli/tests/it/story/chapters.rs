//! The chapters of the story. Each has rules of its own, found by the path.

use std::thread::sleep;
use std::time::Duration;

use serde_json::{Value, json};
use spillgate_testkit::eventually;

use super::Scene;

pub(crate) const RULES: &str = r#"
[server]
trusted_proxies = ["127.0.0.1"]

[[rule]]
name = "exhaust"
match = { path = "/exhaust" }
key = ["ip"]
limits = ["2/4s"]

[[rule]]
name = "counters"
match = { path = "/counters" }
key = ["ip"]
limits = ["2/hour", { name = "daily", quota = "100/day" }]

[[rule]]
name = "units"
match = { path = "/units" }
key = ["ip"]
limits = ["10/hour", { quota = "100/hour", unit = "tokens" }]

[[rule]]
name = "peek"
match = { path = "/peek" }
key = ["ip"]
limits = ["2/hour"]

[[rule]]
name = "operated"
match = { path = "/operated" }
key = ["ip"]
limits = ["2/hour"]

[[rule]]
name = "reload"
match = { path = "/reload" }
key = ["ip"]
limits = ["2/hour"]

[[rule]]
name = "shadow"
match = { path = "/shadow" }
key = ["ip"]
mode = "shadow"
limits = ["1/hour"]
"#;

type Chapter = fn(&Scene<'_>);

pub(crate) const CHAPTERS: &[(&str, Chapter)] = &[
    ("exhaust, deny, wait, allow", exhaust),
    ("two counters, one exhausted", two_counters),
    ("costs in two units", two_units),
    ("peek", peek),
    ("reset", reset),
    ("reload", reload),
    ("override with expiry", override_with_expiry),
    ("shadow", shadow),
    ("kill switch", kill_switch),
];

fn exhaust(scene: &Scene<'_>) {
    let mut admitted = 0;
    let denied = loop {
        let answer = scene.ask("/exhaust");
        if answer.decision == "denied" {
            break answer;
        }
        admitted += 1;
        assert!(admitted < 100, "never denied");
    };
    assert!(admitted >= 2, "denied after {admitted}");
    let wait_ms = denied.retry_after_ms.unwrap();
    assert!((1..=2_000).contains(&wait_ms), "{denied:?}");
    // The claim is that this wait is enough.
    sleep(Duration::from_millis(wait_ms));
    assert_eq!(scene.decision("/exhaust"), "allowed");
}

fn two_counters(scene: &Scene<'_>) {
    let decisions: Vec<&str> = (0..4).map(|_| scene.decision("/counters")).collect();
    assert_eq!(decisions, ["allowed", "allowed", "denied", "denied"]);
    let state = operate(scene, "GET", &of_client(scene, "counters"), &Value::Null);
    let remaining: Vec<&Value> =
        state["limits"].as_array().unwrap().iter().map(|limit| &limit["remaining"]).collect();
    // The denials charged neither counter.
    assert_eq!(remaining, [0, 98]);
}

fn two_units(scene: &Scene<'_>) {
    let cost = [("requests", 1), ("tokens", 60)];
    assert_eq!(scene.ask_at("/units", &cost).decision, "allowed");
    assert_eq!(scene.ask_at("/units", &cost).decision, "denied");
    assert_eq!(scene.ask_at("/units", &[("requests", 1), ("tokens", 40)]).decision, "allowed");
    assert_eq!(
        scene.ask_at("/units", &[("requests", 1), ("tokens", 101)]).decision,
        "denied for good"
    );
    let state = operate(scene, "GET", &of_client(scene, "units"), &Value::Null);
    assert_eq!(
        (&state["limits"][0]["remaining"], &state["limits"][1]["remaining"]),
        (&json!(8), &json!(0))
    );
}

fn peek(scene: &Scene<'_>) {
    let look = || scene.ask_at("/peek", &[("requests", 0)]);
    for _ in 0..3 {
        assert_eq!((look().decision, look().remaining), ("allowed", Some(2)));
    }
    scene.ask("/peek");
    assert_eq!((look().decision, look().remaining), ("allowed", Some(1)));
    scene.ask("/peek");
    assert_eq!((look().decision, look().remaining), ("denied", Some(0)));
}

fn reset(scene: &Scene<'_>) {
    exhausted(scene, "/operated");
    operate(scene, "DELETE", &of_client(scene, "operated"), &Value::Null);
    assert_eq!(scene.decision("/operated"), "allowed");
}

fn reload(scene: &Scene<'_>) {
    exhausted(scene, "/reload");
    let text = std::fs::read_to_string(scene.rules.path()).unwrap();
    let (before, rule) = text.split_once("name = \"reload\"").unwrap();
    let raised = rule.replacen("2/hour", "5/hour", 1);
    std::fs::write(scene.rules.path(), format!("{before}name = \"reload\"{raised}")).unwrap();
    eventually(|| scene.decision("/reload") == "allowed");
    // Two of five were used, and one just now.
    let decisions: Vec<&str> = (0..3).map(|_| scene.decision("/reload")).collect();
    assert_eq!(decisions, ["allowed", "allowed", "denied"]);
}

fn override_with_expiry(scene: &Scene<'_>) {
    operate(scene, "DELETE", &of_client(scene, "operated"), &Value::Null);
    let end = jiff::Timestamp::now() + Duration::from_secs(2);
    let block = json!({"rule": "operated", "subject": {"ip": scene.ip}, "limits": ["block"], "expires_at": end.to_string()});
    operate(scene, "PUT", "/admin/v1/overrides", &block);
    let decision = scene.decision("/operated");
    // A machine that stalled for as long has seen its end.
    assert!(decision == "denied for good" || jiff::Timestamp::now() >= end, "{decision}");
    eventually(|| scene.decision("/operated") == "allowed");
}

fn shadow(scene: &Scene<'_>) {
    for _ in 0..4 {
        assert_eq!(scene.decision("/shadow"), "allowed");
    }
}

fn kill_switch(scene: &Scene<'_>) {
    exhausted(scene, "/operated");
    let mode = "/admin/v1/rules/operated/mode";
    operate(scene, "PUT", mode, &json!({"mode": "off"}));
    assert_eq!(scene.decision("/operated"), "allowed");
    operate(scene, "DELETE", mode, &Value::Null);
    assert_eq!(scene.decision("/operated"), "denied");
}

#[track_caller]
fn exhausted(scene: &Scene<'_>, path: &str) {
    let calls = (1..=10).find(|_| scene.decision(path) == "denied");
    assert!(calls.is_some(), "{path} is never denied");
}

fn of_client(scene: &Scene<'_>, rule: &str) -> String {
    format!("/admin/v1/state?rule={rule}&attr.ip={}", scene.ip)
}

#[track_caller]
fn operate(scene: &Scene<'_>, method: &str, path: &str, body: &Value) -> Value {
    let body = if body.is_null() { String::new() } else { body.to_string() };
    let reply = scene.server.operator().send(method, path, body.as_bytes()).unwrap();
    assert_eq!(reply.status, 200, "{method} {path} {body}: {}", reply.body);
    reply.json()
}
