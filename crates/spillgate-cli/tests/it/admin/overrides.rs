//! Overrides that operators set at run time.

use std::time::Duration;

use serde_json::{Value, json};
use spillgate_testkit::eventually;

use super::{ann, api_rule, decision, expect_ok, refused};
use crate::client::Reply;
use crate::server::{Server, TempFile, on_both_engines, run};

const PATH: &str = "/admin/v1/overrides";

/// As the dashboard's Undo does: it must not overwrite what another operator has set since.
#[test]
fn a_change_that_names_the_version_it_replaces_overwrites_no_newer_one() {
    let file = api_rule();
    on_both_engines(&["--config", file.path()], |server| {
        let send = |method: &str, path: &str, body: &str, seen: Option<&str>| {
            let mut headers = vec![("Host", "localhost")];
            headers.extend(seen.map(|seen| ("If-Match", seen)));
            server.operator().send_with(method, path, &headers, body.as_bytes()).unwrap()
        };
        let version = |reply: &Reply| {
            assert_eq!(reply.status, 200, "{}", reply.body);
            reply.header("etag").unwrap().to_owned()
        };
        let mode = "/admin/v1/rules/api/mode";
        let subject = "/admin/v1/overrides?rule=api&attr.tenant=acme";
        let limit = |quota: &str| {
            format!(r#"{{"rule":"api","subject":{{"tenant":"acme"}},"limits":["{quota}"]}}"#)
        };
        for (set, unset, one, other) in [
            (PATH, subject, limit("block"), limit("9/hour")),
            (mode, mode, r#"{"mode":"off"}"#.to_owned(), r#"{"mode":"shadow"}"#.to_owned()),
        ] {
            let first = version(&send("PUT", set, &one, None));
            let second = version(&send("PUT", set, &other, None));
            for (method, path, body) in [("DELETE", unset, ""), ("PUT", set, &*one)] {
                let reply = send(method, path, body, Some(&first));
                let detail = reply.json()["detail"].to_string();
                assert_eq!(reply.status, 409, "{detail}");
                assert!(detail.contains("9/hour") || detail.contains("shadow"), "{detail}");
            }
            let removal = version(&send("DELETE", unset, "", Some(&second)));
            version(&send("PUT", set, &one, Some(&removal)));
            assert_eq!(send("PUT", set, &other, Some(&removal)).status, 409);
            for wrong in ["\"no instant\"".to_owned(), format!("{first}, {second}")] {
                let refused = send("DELETE", unset, "", Some(&wrong));
                assert_eq!(refused.status, 400, "{wrong}");
                assert!(refused.body.contains("or * for any version"), "{}", refused.body);
            }
            let third = version(&send("PUT", set, &other, Some("*")));
            let weak = format!("W/{first}");
            assert_eq!(send("PUT", set, &one, Some(&weak)).status, 409);
            version(&send("PUT", set, &one, Some(&format!("W/{third}"))));
        }
    });
}

#[test]
fn a_subject_is_blocked_raised_listed_and_unblocked() {
    let file = api_rule();
    on_both_engines(&["--config", file.path()], |server| {
        let set = |limits: Value| {
            let body = json!({
                "rule": "api", "subject": {"tenant": "acme"}, "limits": limits, "reason": "ticket 17",
            });
            assert_eq!(
                expect_ok(server, "PUT", PATH, &body),
                json!({"result": "done", "subject": {"tenant": "acme"}, "unsaved": null})
            );
        };
        set(json!(["block"]));
        assert_eq!(decision(server), "blocked");
        set(json!([{"quota": "3/hour", "burst": 5}]));
        assert_eq!(
            expect_ok(
                server,
                "GET",
                "/admin/v1/state?rule=api&attr.tenant=acme&attr.user=ann",
                &Value::Null
            )["capacity"],
            5
        );

        let listed = expect_ok(server, "GET", PATH, &Value::Null);
        let [entry] = listed["overrides"].as_array().unwrap().as_slice() else {
            panic!("{listed}")
        };
        assert_eq!(
            (&entry["rule"], &entry["subject"]),
            (&json!("api"), &json!({"tenant": "acme"}))
        );
        assert_eq!(entry["limits"], json!([{"quota": "3/hour", "burst": 5}]));
        assert_eq!((&entry["expires_at"], &entry["not_in_force"]), (&Value::Null, &Value::Null));
        assert_eq!((&entry["actor"], &entry["reason"]), (&json!("local"), &json!("ticket 17")));
        assert!(entry["written_at"].as_str().unwrap().ends_with('Z'), "{entry}");

        expect_ok(server, "DELETE", &format!("{PATH}?rule=api&attr.tenant=acme"), &Value::Null);
        assert_eq!(expect_ok(server, "GET", PATH, &Value::Null), json!({"overrides": []}));
        let (status, ..) =
            refused(server, "DELETE", &format!("{PATH}?rule=api&attr.tenant=acme"), "");
        assert_eq!(status, 404);
    });
}

#[test]
fn a_dry_run_shows_the_limits_before_and_after_and_sets_nothing() {
    let file = api_rule();
    on_both_engines(&["--config", file.path()], |server| {
        let dry_run = |limits: Value| json!({"rule": "api", "subject": {"user": "ann"}, "limits": limits, "dry_run": true});
        let limit = |quota: &str, capacity: u64| json!([{"limit": "0", "quota": quota, "unit": "requests", "capacity": capacity}]);
        let found = expect_ok(server, "PUT", PATH, &dry_run(json!(["4/hour"])));
        let raised = json!({
            "result": "valid", "subject": {"user": "ann"}, "notes": [],
            "before": limit("2/hour", 2), "after": limit("4/hour", 4),
        });
        assert_eq!(found, raised);
        let lowered = expect_ok(server, "PUT", PATH, &dry_run(json!(["1/hour"])));
        assert_eq!(lowered["notes"], json!(["the capacity of the limit \"0\" falls from 2 to 1"]));
        let blocked = expect_ok(server, "PUT", PATH, &dry_run(json!(["block"])));
        assert_eq!(blocked["after"], limit("block", 0));
        let wrong = dry_run(json!(["5/fortnight"])).to_string();
        let (status, field, detail) = refused(server, "PUT", PATH, &wrong);
        assert_eq!((status, field.as_str()), (400, "limits"), "{detail}");
        assert!(detail.contains("fortnight"), "{detail}");
        let set = expect_ok(server, "GET", PATH, &Value::Null);
        assert_eq!(set["overrides"], json!([]));
    });
}

#[test]
fn the_overrides_that_cover_a_subject_are_listed_in_the_order_in_which_they_apply() {
    let config = "[[rule]]\nname = \"login\"\nkey = [\"ip\", \"user\"]\nlimits = [\"5/minute\"]\n";
    let file = TempFile::new("limits.toml", config);
    let server = Server::start(&["--config", file.path()]);
    let subjects = [
        json!({}),
        json!({"ip": "203.0.113.0/24"}),
        json!({"ip": "203.0.113.7", "user": "ann"}),
        json!({"ip": "203.0.0.0/16"}),
        json!({"ip": "198.51.100.0/24"}),
    ];
    for subject in &subjects {
        let block = json!({"rule": "login", "subject": subject, "limits": ["block"]});
        expect_ok(&server, "PUT", PATH, &block);
    }
    let covering = |subject: &str| {
        let path = format!("{PATH}?rule=login&{subject}");
        let found = expect_ok(&server, "GET", &path, &Value::Null);
        let listed = found["overrides"].as_array().unwrap().iter();
        listed.map(|one| one["subject"].clone()).collect::<Vec<Value>>()
    };
    let order = [2, 1, 3, 0].map(|place: usize| subjects[place].clone());
    assert_eq!(covering("attr.ip=203.0.113.7&attr.user=ann"), order);
    assert_eq!(covering("attr.ip=203.0.113.8&attr.user=ann"), order[1..]);
    assert_eq!(covering("attr.ip=203.0.113.0/24"), order[1..]);
    // It names as many attributes as the networks, so the one that was set last applies.
    let user = json!({"user": "ann"});
    let raise = json!({"rule": "login", "subject": user, "limits": ["50/minute"]});
    expect_ok(&server, "PUT", PATH, &raise);
    let order = [user, order[1].clone(), order[2].clone(), order[3].clone()];
    assert_eq!(covering("attr.ip=203.0.113.8&attr.user=ann"), order);
    let (status, field, _) = refused(&server, "GET", &format!("{PATH}?rule=login&all=true"), "");
    assert_eq!((status, field.as_str()), (400, "all"));
}

#[test]
fn a_subject_with_the_longest_name_is_blocked_and_charged() {
    let name = "n".repeat(1024);
    let rule = format!("[[rule]]\nname = \"api\"\nkey = [\"{name}\"]\nlimits = [\"5/hour\"]\n");
    let file = TempFile::new("limits.toml", &rule);
    on_both_engines(&["--config", file.path()], |server| {
        let charge = json!({"rule": "api", "subject": {&name: "acme"}, "charge": 2});
        let charged = expect_ok(server, "POST", "/admin/v1/state", &charge);
        assert_eq!(charged["remaining"], 3, "{charged}");
        let block = json!({"rule": "api", "subject": {&name: "acme"}, "limits": ["block"]});
        expect_ok(server, "PUT", PATH, &block);
        let explained =
            expect_ok(server, "GET", &format!("/admin/v1/explain?attr.{name}=acme"), &Value::Null);
        assert_eq!(explained["reason"], "blocked", "{explained}");
        let long = json!({"rule": "api", "subject": {"n".repeat(1025): "a"}, "limits": ["block"]});
        let (status, _, detail) = refused(server, "PUT", PATH, &long.to_string());
        assert_eq!(status, 400, "{detail}");
        assert!(detail.contains("names have 1 to 1024"), "{detail}");
    });
}

#[test]
fn an_override_expires() {
    let file = api_rule();
    on_both_engines(&["--config", file.path()], |server| {
        let soon = jiff::Timestamp::now() + Duration::from_secs(2);
        let body = json!({"rule": "api", "subject": ann(), "limits": ["block"], "expires_at": soon.to_string()});
        expect_ok(server, "PUT", PATH, &body);
        assert_eq!(decision(server), "blocked");
        eventually(|| decision(server) != "blocked");
    });
}

#[test]
fn an_invalid_override_names_its_field() {
    let file = api_rule();
    let server = Server::start(&["--config", file.path()]);
    let tenant = r#""subject":{"tenant":"acme"}"#;
    for (body, status, field, part) in [
        (format!(r#"{{"rule":"api",{tenant}}}"#), 400, "limits", "missing field"),
        (
            format!(r#"{{"rule":"api",{tenant},"limits":"block"}}"#),
            400,
            "limits",
            "write [\"block\"]",
        ),
        (
            format!(r#"{{"rule":"api",{tenant},"limits":[]}}"#),
            400,
            "limits",
            "0 limits; write 1 to 64",
        ),
        (format!(r#"{{"rule":"api",{tenant},"limits":[7]}}"#), 400, "limits[0]", "a quota such as"),
        (
            format!(r#"{{"rule":"api",{tenant},"limits":["5/fortnight"]}}"#),
            400,
            "limits",
            "fortnight",
        ),
        (format!(r#"{{"rule":"api",{tenant},"limits":["1/s","1/s"]}}"#), 400, "limits", "limit"),
        (
            format!(r#"{{"rule":"api",{tenant},"limits":[{{"quota":"1/s","bust":1}}]}}"#),
            400,
            "limits[0].bust",
            "unknown field",
        ),
        (
            format!(r#"{{"rule":"apu",{tenant},"limits":["block"]}}"#),
            404,
            "rule",
            "did you mean \"api\"?",
        ),
        (
            r#"{"rule":"api","subject":{"ip":"x"},"limits":["block"]}"#.to_owned(),
            400,
            "subject",
            "not in the rule's key",
        ),
    ] {
        let (answered, named, detail) = refused(&server, "PUT", PATH, &body);
        assert_eq!((answered, named.as_str()), (status, field), "{body}: {detail}");
        assert!(detail.contains(part), "{body}: {detail}");
        assert!(!detail.starts_with("limit \"0\": limits"), "{body}: {detail}");
    }
}

#[test]
fn a_removal_that_finds_no_override_names_the_mistake() {
    let file = api_rule();
    let server = Server::start(&["--config", file.path()]);
    let block = json!({"rule": "api", "subject": {"tenant": "acme"}, "limits": ["block"]});
    expect_ok(&server, "PUT", PATH, &block);
    for (query, status, field, part) in [
        ("rule=apu&attr.tenant=acme", 404, "rule", "did you mean \"api\"?"),
        ("rule=api&attr.tenat=acme", 400, "subject", "\"tenat\" is not in the rule's key"),
        ("rule=api&attr.tenant=other", 404, "", "`spillgate admin overrides`"),
        ("rule=api&attr.tenant=acme&attr.user=ann", 404, "", "covers it: tenant=\"acme\";"),
        ("rule=api&attr.tenant=acme&all=true", 400, "all", "leave it out"),
    ] {
        let (answered, named, detail) = refused(&server, "DELETE", &format!("{PATH}?{query}"), "");
        assert_eq!((answered, named.as_str()), (status, field), "{query}: {detail}");
        assert!(detail.contains(part), "{query}: {detail}");
    }
    assert_eq!(decision(&server), "blocked");
}

#[test]
fn a_block_on_a_rule_that_is_not_enforced_is_noted() {
    let file = api_rule();
    let server = Server::start(&["--config", file.path()]);
    let url = format!("http://127.0.0.1:{}", server.admin_port.unwrap());
    let block = json!({"rule": "api", "subject": {"tenant": "acme"}, "limits": ["block"]});
    assert!(expect_ok(&server, "PUT", PATH, &block)["note"].is_null());
    for (mode, part) in [("shadow", "is in shadow mode, so it denies nothing"), ("off", "is off")] {
        expect_ok(&server, "PUT", "/admin/v1/rules/api/mode", &json!({"mode": mode}));
        let set = expect_ok(&server, "PUT", PATH, &block);
        assert!(set["note"].as_str().is_some_and(|note| note.contains(part)), "{set}");
        let output = run(&["admin", "block", "api", "tenant=acme", "--url", &url]);
        let printed = String::from_utf8(output.stdout).unwrap();
        assert!(output.status.success(), "{printed}");
        assert!(printed.contains("\n  note: rule \"api\" ") && printed.contains(part), "{printed}");
    }
}
