//! The history of an instance.

use serde_json::{Value, json};
use spillgate_testkit::{RedisServer, eventually};

use super::{api_rule, decision, expect_ok, refused};
use crate::server::{Server, on_both_engines};

#[track_caller]
fn history(server: &Server, query: &str) -> Value {
    expect_ok(server, "GET", &format!("/admin/v1/history{query}"), &Value::Null)
}

fn sum(list: &Value) -> u64 {
    list.as_array().unwrap().iter().map(|count| count.as_u64().unwrap()).sum()
}

fn texts(history: &Value) -> Vec<&str> {
    history["events"].as_array().unwrap().iter().map(|it| it["text"].as_str().unwrap()).collect()
}

#[test]
fn points_have_the_decisions_of_known_traffic() {
    let file = api_rule();
    on_both_engines(&["--config", file.path()], |server| {
        for _ in 0..5 {
            decision(server);
        }
        server.check("{}");
        let is_counted = |range: &str| {
            let found = history(server, &format!("?range={range}"));
            let (requests, of_rules) = (&found["totals"]["requests"], &found["decisions"]);
            let counts = [
                sum(&requests["allowed"]),
                sum(&requests["denied"]),
                sum(&requests["unmatched"]),
                sum(&of_rules["allowed"]),
                sum(&of_rules["limit-exceeded"]),
            ];
            counts == [3, 3, 1, 2, 3]
        };
        for range in ["3m", "15m", "1h", "24h", "48h"] {
            eventually(|| is_counted(range));
        }
        let found = history(server, "?range=24h");
        assert_eq!(
            found["rules"],
            json!([{"rule": "api", "allowed": 2, "denied": 3, "would_deny": 0}]),
            "{found}"
        );
        let past = history(server, "?range=24h&until=2026-01-01T00:00:00Z");
        assert_eq!((&past["at_ms"], &past["rules"]), (&json!([]), &json!([])), "{past}");
        let api = history(server, "?range=24h&rule=api");
        assert_eq!(api["rules"], Value::Null, "they are for all rules");
        assert_eq!((&api["kept"], &api["kept_since_ms"]), (&json!(true), &Value::Null));
        assert_eq!(api["totals"], Value::Null);
        assert_eq!(sum(&api["decisions"]["limit-exceeded"]), 3);
        let points = api["at_ms"].as_array().unwrap().len();
        for list in ["lasted_ms", "near_limit"] {
            assert_eq!(api[list].as_array().unwrap().len(), points, "{list}");
        }
    });
}

#[test]
fn events_are_the_changes_with_their_times() {
    let file = api_rule();
    let server = Server::start(&["--config", file.path()]);
    eventually(|| texts(&history(&server, "")).len() == 1);
    let off = json!({"mode": "off", "reason": "incident 4711"});
    expect_ok(&server, "PUT", "/admin/v1/rules/api/mode", &off);
    let changed = history(&server, "");
    assert_eq!(texts(&changed)[1], "local set api to off (incident 4711)", "{changed}");
    let rules = std::fs::read_to_string(file.path()).unwrap();
    std::fs::write(file.path(), "[[rule]\n").unwrap();
    let refused =
        |found: &Value| texts(found).iter().any(|it| it.starts_with("policy file refused"));
    eventually(|| refused(&history(&server, "")));
    std::fs::write(file.path(), rules.replace("2/hour", "3/hour")).unwrap();
    let applied = |found: &Value| texts(found).iter().any(|it| it.ends_with(": 1 rule in force"));
    eventually(|| applied(&history(&server, "?range=24h&rule=api")));
    let found = history(&server, "?range=24h");
    let kinds = found["events"].as_array().unwrap().iter().map(|event| &event["kind"]);
    assert_eq!(kinds.collect::<Vec<_>>(), ["start", "change", "reload-refused", "reload"]);
    assert_eq!(found["events"][1]["rule"], "api");
    assert!(found["events"][0]["at"].as_str().unwrap().ends_with('Z'), "{found}");
}

#[test]
fn an_invalid_query_names_its_field() {
    let file = api_rule();
    let server = Server::start(&["--config", file.path()]);
    let long = format!("?range={}", "9".repeat(5_000));
    for (query, status, field, part) in [
        ("?range=5m", 400, "range", "write 3m, 15m, 1h, 24h or 48h"),
        ("?range=", 400, "range", "write 3m"),
        ("?range=-1", 400, "range", "write 3m"),
        ("?range=15M", 400, "range", "write 3m"),
        ("?range=%00", 400, "range", "write 3m"),
        (long.as_str(), 400, "range", "write 3m"),
        ("?range=3m&range=3m", 400, "range", "given twice"),
        ("?rule=api&rule=api", 400, "rule", "given twice"),
        ("?until=yesterday", 400, "until", "\"yesterday\" is not a valid instant"),
        ("?since=0", 400, "since", "there are range, until, rule and of"),
        ("?of=all", 400, "of", "expected fleet or instance, got \"all\""),
        ("?rule=none", 404, "rule", "there is no rule"),
        ("?rule=", 404, "rule", "there is no rule"),
    ] {
        let path = format!("/admin/v1/history{query}");
        let (answered, named, detail) = refused(&server, "GET", &path, "");
        assert_eq!((answered, named.as_str()), (status, field), "{query:.40}: {detail}");
        assert!(detail.contains(part), "{query:.40}: {detail}");
    }
}

#[test]
fn the_fleet_has_the_events_of_its_instances_and_in_memory_the_instance_is_the_fleet() {
    let file = api_rule();
    let redis = RedisServer::start();
    let store = ["--config", file.path(), "--redis", &redis.url()];
    let (one, other) = (Server::start(&store), Server::start(&store));
    let starts = |server: &Server| {
        let found = history(server, "?range=1h&of=fleet");
        assert_eq!((&found["of"], &found["step_ms"]), (&json!("fleet"), &json!(60_000)), "{found}");
        assert_eq!(found["totals"]["store"], Value::Null, "{found}");
        texts(&found).iter().filter(|text| text.ends_with(": started")).count()
    };
    // Both have the name of this machine.
    eventually(|| starts(&one) == 2 && starts(&other) == 2);
    drop(other);
    let off = json!({"mode": "off"});
    expect_ok(&one, "PUT", "/admin/v1/rules/api/mode", &off);
    drop(one);
    let restarted = Server::start(&store);
    let is_kept = || {
        let found = history(&restarted, "?range=1h&of=fleet&rule=api");
        let texts = texts(&found);
        texts.contains(&"local set api to off")
    };
    eventually(|| is_kept() && starts(&restarted) >= 1);
    let alone = Server::start(&["--config", file.path()]);
    let found = history(&alone, "?of=fleet");
    assert_eq!((&found["of"], &found["step_ms"]), (&json!("instance"), &json!(1_000)), "{found}");
}
