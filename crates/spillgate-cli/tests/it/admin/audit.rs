//! The audit: who changed what, when and why.

use jiff::Timestamp;
use serde_json::{Value, json};
use spillgate_testkit::{RedisServer, eventually};

use super::{ann, api_rule, expect_ok, refused};
use crate::server::{Server, TempFile, on_both_engines, run};

const PATH: &str = "/admin/v1/audit";

/// Returns the changes of an answer without their times, which are checked to fall.
#[track_caller]
fn changes(server: &Server, query: &str) -> Vec<Value> {
    let mut answer = expect_ok(server, "GET", &format!("{PATH}{query}"), &Value::Null);
    assert_eq!(
        (&answer["incomplete"], &answer["sealed_with_another_secret"]),
        (&Value::Null, &json!(0))
    );
    let changes = answer["changes"].as_array_mut().unwrap();
    let time = |change: &mut Value| change.as_object_mut().unwrap().remove("at").unwrap();
    let times: Vec<jiff::Timestamp> =
        changes.iter_mut().map(|change| time(change).as_str().unwrap().parse().unwrap()).collect();
    assert!(times.is_sorted_by(|newer, older| newer >= older), "{times:?}");
    std::mem::take(changes)
}

#[test]
fn each_change_is_listed_with_actor_and_reason_the_newest_first() {
    let file = api_rule();
    on_both_engines(&["--config", file.path()], |server| {
        assert_eq!(changes(server, ""), Vec::<Value>::new());
        let block = json!({
            "rule": "api", "subject": ann(), "limits": ["block"],
            "expires_at": "2199-01-01T00:00:00Z", "reason": "scraper",
        });
        expect_ok(server, "PUT", "/admin/v1/overrides", &block);
        expect_ok(server, "PUT", "/admin/v1/rules/api/mode", &json!({"mode": "off"}));
        let refund = json!({"rule": "api", "subject": ann(), "refund": 2, "reason": "ticket 17"});
        expect_ok(server, "POST", "/admin/v1/state", &refund);
        let of_ann = "rule=api&attr.tenant=acme&attr.user=ann&reason=over%20now";
        expect_ok(server, "DELETE", &format!("/admin/v1/overrides?{of_ann}"), &Value::Null);
        let bare = json!({
            "actor": "local", "reason": null, "rule": "api", "subject": {}, "mode": null,
            "limits": null, "cost": null, "expires_at": null,
        });
        let with = |fields: Value| {
            let mut change = bare.clone();
            change.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
            change
        };
        let expected = [
            with(json!({"action": "remove-override", "subject": ann(), "reason": "over now"})),
            with(json!({
                "action": "refund", "subject": ann(), "cost": {"requests": 2},
                "reason": "ticket 17",
            })),
            with(json!({"action": "set-mode", "mode": "off"})),
            with(json!({
                "action": "set-override", "subject": ann(), "limits": [{"quota": "block"}],
                "expires_at": "2199-01-01T00:00:00Z", "reason": "scraper",
            })),
        ];
        assert_eq!(changes(server, ""), expected);
        assert_eq!(changes(server, "?rule=api&n=2"), expected[..2]);
        assert_eq!(changes(server, "?rule=other"), Vec::<Value>::new());
    });
}

#[test]
fn the_actor_is_the_name_of_the_token_at_every_instance_and_after_a_restart() {
    let token = "0123456789abcdef";
    let tokens = TempFile::new("tokens", &format!("ann@example.com:operator:{token}"));
    let rule = "[[rule]]\nname = \"api\"\nkey = [\"user\"]\nlimits = [\"5/minute\"]\n";
    let file = format!("[server]\nadmin_token_file = \"{}\"\n{rule}", tokens.path());
    let file = TempFile::new("limits.toml", &file);
    let store = RedisServer::start();
    let start = || Server::start_on(&store, &["--config", file.path()]);
    let send = |server: &Server, method: &str, path: &str, body: &str| {
        let bearer = format!("Bearer {token}");
        let headers = [("Host", "localhost"), ("Authorization", &*bearer)];
        let reply = server.operator().send_with(method, path, &headers, body.as_bytes()).unwrap();
        assert_eq!(reply.status, 200, "{method} {path}: {reply:?}");
        reply.json()
    };
    let (one, other) = (start(), start());
    let mode = "/admin/v1/rules/api/mode";
    send(&one, "PUT", mode, r#"{"mode":"off","reason":"incident 4711"}"#);
    send(&one, "DELETE", mode, "");
    let block =
        r#"{"rule":"api","subject":{"user":"eve"},"limits":["block"],"reason":"incident 4712"}"#;
    send(&one, "PUT", "/admin/v1/overrides", block);
    let known = |server: &Server| {
        let answer = send(server, "GET", PATH, "");
        let changes = answer["changes"].as_array().unwrap();
        let removal = changes.iter().find(|change| change["action"] == "clear-mode");
        let by = removal.map(|removal| removal["actor"].clone()).unwrap_or_default();
        let overrides = send(server, "GET", "/admin/v1/overrides", "");
        let [actor, reason] =
            ["actor", "reason"].map(|field| overrides["overrides"][0][field].clone());
        (by, actor, reason)
    };
    let both = (json!("ann@example.com"), json!("ann@example.com"), json!("incident 4712"));
    assert_eq!(known(&one), both);
    eventually(|| known(&other) == both);
    drop((one, other));
    let late = start();
    eventually(|| known(&late) == both);
}

#[test]
fn an_export_has_the_changes_of_all_instances_in_order_and_none_while_the_store_is_down() {
    let file = api_rule();
    let mut store = RedisServer::start();
    let start = || Server::start_on(&store, &["--config", file.path()]);
    let (one, other) = (start(), start());
    for number in 0..30 {
        let server = if number % 2 == 0 { &one } else { &other };
        let refund =
            json!({"rule": "api", "subject": ann(), "refund": 2, "reason": format!("{number}")});
        expect_ok(server, "POST", "/admin/v1/state", &refund);
    }
    drop((one, other));
    let late = start();
    let url = format!("http://127.0.0.1:{}", late.admin_port.unwrap());
    let export = run(&["admin", "audit", "--export", "--url", &url]);
    assert_eq!((export.status.code(), export.stderr.len()), (Some(0), 0));
    let lines = String::from_utf8(export.stdout).unwrap();
    let changes: Vec<Value> =
        lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let at = |change: &Value| change["at"].as_str().unwrap().parse::<Timestamp>().unwrap();
    assert!(changes.is_sorted_by_key(at));
    let of = |change: &Value| change["reason"].as_str().unwrap().parse::<u32>().unwrap();
    let numbers: Vec<u32> = changes.iter().map(of).collect();
    // Two instances know the store's time to within a call's latency, which is longer than these changes are apart.
    for server in 0..2 {
        let own: Vec<u32> = numbers.iter().copied().filter(|number| number % 2 == server).collect();
        assert_eq!(own, (0..30).filter(|number| number % 2 == server).collect::<Vec<_>>());
    }

    store.kill();
    let answer = expect_ok(&late, "GET", PATH, &Value::Null);
    assert!(answer["incomplete"].is_string(), "{answer}");
    let export = run(&["admin", "audit", "--export", "--url", &url]);
    assert_eq!((export.status.code(), export.stdout.len()), (Some(2), 0));
    let error = String::from_utf8_lossy(&export.stderr);
    assert!(error.contains("the store did not answer, so nothing is exported: "), "{error}");
    let listed = run(&["admin", "audit", "--url", &url]);
    let error = String::from_utf8_lossy(&listed.stderr);
    assert_eq!(
        (listed.status.code(), error.contains("only what the server knows")),
        (Some(0), true)
    );
}

#[test]
fn an_invalid_query_or_reason_names_its_field() {
    let file = api_rule();
    let server = Server::start(&["--config", file.path()]);
    let mode = "/admin/v1/rules/api/mode";
    let long = "x".repeat(501);
    for (method, path, body, field, part) in [
        ("GET", "/admin/v1/audit?n=0".to_owned(), String::new(), "n", "from 1 to 10000"),
        ("GET", "/admin/v1/audit?n=1&n=2".to_owned(), String::new(), "n", "once"),
        ("GET", "/admin/v1/top?rule=a&rule=b".to_owned(), String::new(), "rule", "once"),
        ("GET", "/admin/v1/audit?since=1".to_owned(), String::new(), "since", "rule and n"),
        (
            "PUT",
            mode.to_owned(),
            json!({"mode": "off", "reason": long}).to_string(),
            "reason",
            "500",
        ),
        ("PUT", mode.to_owned(), r#"{"mode":"off","reason":1}"#.to_owned(), "reason", "a string"),
        ("DELETE", format!("{mode}?reason={long}"), String::new(), "reason", "500 characters"),
        ("DELETE", format!("{mode}?why=x"), String::new(), "why", "there is reason"),
        ("DELETE", format!("{mode}?reason=a&reason=b"), String::new(), "reason", "once"),
    ] {
        let (status, named, detail) = refused(&server, method, &path, &body);
        assert_eq!((status, named.as_str()), (400, field), "{method} {path}: {detail}");
        assert!(detail.contains(part), "{method} {path}: {detail}");
    }
}
