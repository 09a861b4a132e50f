//! The rules in force, and the kill switch.

use serde_json::{Value, json};

use super::{api_rule, decision, expect_ok, refused};
use crate::server::{Server, TempFile, on_both_engines};

/// A dashboard asks every few seconds, and thousands of rules and overrides are megabytes.
#[test]
fn a_list_that_did_not_change_is_not_sent_again() {
    let file = api_rule();
    let server = Server::start(&["--config", file.path()]);
    let get = |path: &str, known: &str| {
        let headers = [("Host", "localhost"), ("If-None-Match", known)];
        server.operator().send_with("GET", path, &headers, b"").unwrap()
    };
    let lists = ["/admin/v1/rules", "/admin/v1/overrides"];
    let first = lists.map(|path| get(path, "").header("etag").unwrap().to_owned());
    for (path, known) in lists.iter().zip(&first) {
        let again = get(path, known);
        assert_eq!((again.status, again.body.len()), (304, 0), "{path}");
    }
    expect_ok(&server, "PUT", "/admin/v1/rules/api/mode", &json!({"mode": "off"}));
    let block = json!({"rule": "api", "subject": {"tenant": "acme"}, "limits": ["block"]});
    expect_ok(&server, "PUT", "/admin/v1/overrides", &block);
    for (path, known) in lists.iter().zip(&first) {
        let changed = get(path, known);
        assert_eq!(changed.status, 200, "{path}");
        assert_ne!(changed.header("etag"), Some(&**known), "{path}");
    }
}

#[test]
fn rules_are_listed_with_limits_and_modes() {
    let file = TempFile::new(
        "limits.toml",
        "[[rule]]\nname = \"a/b\"\ndomain = \"web\"\nkey = [\"ip\"]\non_outage = \"deny\"\nmode = \"shadow\"\n\
         limits = [\"5/minute\", { name = \"daily\", quota = \"100/day\", algorithm = \"sliding-log\", unit = \"tokens\" }]\n",
    );
    let server = Server::start(&["--config", file.path()]);
    let rules = json!({
        "rules": [{
            "name": "a/b", "domain": "web", "match": {}, "key": ["ip"], "anchor": null, "on_outage": "deny",
            "mode": {"rule": "a/b", "in_force": "shadow", "written": "shadow", "runtime": null, "expires_at": null,
                "actor": null, "reason": null},
            "limits": [
                {"name": "0", "quota": "5/minute", "algorithm": "token-bucket", "unit": "requests",
                    "capacity": 5, "refill_ms": 60_000, "window_ms": 60_000},
                {"name": "daily", "quota": "100/day", "algorithm": "sliding-log", "unit": "tokens",
                    "capacity": 100, "refill_ms": 86_400_000, "window_ms": 86_400_000},
            ],
        }],
        "without_rule": [],
    });
    assert_eq!(expect_ok(&server, "GET", "/admin/v1/rules", &Value::Null), rules);
}

/// The dashboard fills the examples in, so that an operator need not know the `match` of a rule.
#[test]
fn rules_list_their_match_with_a_value_that_fits() {
    let file = TempFile::new(
        "limits.toml",
        "[[rule]]\nname = \"api\"\nkey = [\"user\"]\nlimits = [\"5/minute\"]\n\
         match = { path = \"/v1/{id}/*\", route = [\"/login\", \"/signup\"], ip = \"10.0.0.0/8\", plan = { not = [\"paid\"] }, \
         region = [\"eu\", { absent = true }] }\n",
    );
    let server = Server::start(&["--config", file.path()]);
    let rules = expect_ok(&server, "GET", "/admin/v1/rules", &Value::Null);
    let matched = json!({
        "ip": {"wants": ["in 10.0.0.0/8"], "example": "10.0.0.0"},
        "path": {"wants": ["\"/v1/{..}/*\""], "example": "/v1/{..}/*"},
        "plan": {"wants": ["anything but \"paid\""], "example": null},
        "region": {"wants": ["\"eu\"", "absent"], "example": null},
        "route": {"wants": ["\"/login\"", "\"/signup\""], "example": "/login"},
    });
    assert_eq!(rules["rules"][0]["match"], matched);
    let request = "attr.user=ann&attr.ip=10.0.0.0&attr.path=/v1/%7B..%7D/*&attr.route=/login";
    let path = format!("/admin/v1/explain?{request}");
    let explained = expect_ok(&server, "GET", &path, &Value::Null);
    assert_eq!(explained["rules"][0]["matched"], true, "{explained}");
}

#[test]
fn a_rule_is_switched_off_and_on_at_run_time() {
    let file = api_rule();
    on_both_engines(&["--config", file.path()], |server| {
        let mode = |rule: usize| {
            expect_ok(server, "GET", "/admin/v1/rules", &Value::Null)["rules"][rule]["mode"].clone()
        };
        while decision(server) == "allowed" {}
        let done = json!({"result": "done", "unsaved": null});
        let off =
            json!({"mode": "off", "expires_at": "2199-01-01T00:00:00Z", "reason": "incident 4711"});
        assert_eq!(expect_ok(server, "PUT", "/admin/v1/rules/api/mode", &off), done);
        assert_eq!(decision(server), "allowed");
        assert_eq!(
            mode(0),
            json!({"rule": "api", "in_force": "off", "written": "enforce", "runtime": "off",
                "expires_at": "2199-01-01T00:00:00Z", "actor": "local", "reason": "incident 4711"})
        );
        assert_eq!(expect_ok(server, "DELETE", "/admin/v1/rules/api/mode", &Value::Null), done);
        assert_eq!(
            (decision(server), mode(0)["in_force"].clone()),
            ("limit-exceeded".to_owned(), json!("enforce"))
        );
    });
}

#[test]
fn a_rule_with_a_slash_in_its_name_has_two_paths() {
    let file =
        TempFile::new("limits.toml", "[[rule]]\nname = \"a/b\"\nkey = []\nlimits = [\"1/hour\"]\n");
    let server = Server::start(&["--config", file.path()]);
    for path in ["/admin/v1/rules/a/b/mode", "/admin/v1/rules/a%2Fb/mode"] {
        expect_ok(&server, "PUT", path, &json!({"mode": "shadow"}));
        expect_ok(&server, "DELETE", path, &Value::Null);
    }
}

#[test]
fn an_invalid_mode_names_its_field() {
    let file = api_rule();
    let server = Server::start(&["--config", file.path()]);
    let path = "/admin/v1/rules/api/mode";
    for (path, body, status, field, part) in [
        (path, "{", 400, "", "is not JSON"),
        (path, "{}", 400, "mode", "missing field"),
        (
            path,
            r#"{"mode":"on"}"#,
            400,
            "mode",
            r#""on" is not a mode; write enforce, shadow or off"#,
        ),
        (path, r#"{"mode":"off","until":1}"#, 400, "until", "unknown field"),
        (
            path,
            r#"{"mode":"off","expires_at":"tomorrow"}"#,
            400,
            "expires_at",
            "\"tomorrow\" is not a valid instant",
        ),
        (
            path,
            r#"{"mode":"off","expires_at":"9999-12-31T00:00:00Z"}"#,
            400,
            "expires_at",
            "not a valid instant up to 9999-12-30T22:00:00Z",
        ),
        (path, r#"{"mode":"off","expires_at":"2001-01-01T00:00:00Z"}"#, 400, "expires_at", "past"),
        ("/admin/v1/rules/apy/mode", r#"{"mode":"off"}"#, 404, "rule", "did you mean \"api\"?"),
        ("/admin/v1/rules/api", r#"{"mode":"off"}"#, 404, "", "there is no /admin/v1/rules/api"),
        ("/admin/v1/rules/%ff/mode", r#"{"mode":"off"}"#, 404, "", "there is no"),
    ] {
        let (answered, named, detail) = refused(&server, "PUT", path, body);
        assert_eq!((answered, named.as_str()), (status, field), "{path} {body}: {detail}");
        assert!(detail.contains(part), "{path} {body}: {detail}");
    }
    let (status, _, detail) = refused(&server, "DELETE", path, "");
    assert_eq!(status, 404, "{detail}");
    assert!(
        detail.contains("\"api\" has no runtime mode; the policy file's, enforce,"),
        "{detail}"
    );
    let (status, field, detail) = refused(&server, "DELETE", "/admin/v1/rules/apy/mode", "");
    assert_eq!((status, field.as_str()), (404, "rule"), "{detail}");
    assert!(detail.contains("did you mean \"api\"?"), "{detail}");
}
