//! Rules that set their own response to denials, at forward auth.

use super::{HOST, ask};
use crate::client::Reply;
use crate::server::{Server, TempFile, on_both_engines, run};

const RULES: &str = r#"
[server]
trusted_proxies = ["127.0.0.1"]

[[rule]]
name = "login"
match = { path = "/login" }
key = ["path"]
limits = ["1/hour"]
[rule.denial]
status = 402
json = { error = "quota", retry = true }
headers = { X-Reason = "login" }

[[rule]]
name = "export"
match = { path = "/export" }
key = ["path"]
limits = ["1/hour"]
denial.problem = { title = "One export an hour" }

[[override]]
rule = "export"
subject = { path = "/export" }
limits = ["block"]

[[rule]]
name = "admin"
match = { path = "/admin" }
key = ["path"]
limits = ["block"]
denial = { status = 403, text = "For administrators." }

[[rule]]
name = "watched"
mode = "shadow"
match = { path = "/watched" }
key = ["path"]
limits = ["block"]
denial.status = 402
"#;

#[track_caller]
fn question(server: &Server, question: &str, path: &str) -> Reply {
    ask(server, "GET", question, &[HOST, ("X-Forwarded-Uri", path)])
}

#[test]
fn a_denied_request_gets_the_response_of_its_rule() {
    let file = TempFile::new("denials.toml", RULES);
    on_both_engines(&["--config", file.path()], |server| {
        let login = || question(server, "/v1/auth", "/login");
        let allowed = login();
        assert_eq!((allowed.status, allowed.header("x-reason")), (200, None));
        let denied = login();
        assert_eq!(
            (denied.status, denied.body.as_str()),
            (402, r#"{"error":"quota","retry":true}"#)
        );
        assert_eq!(denied.header("content-type"), Some("application/json"));
        assert_eq!(denied.header("x-reason"), Some("login"));
        assert!(denied.header("ratelimit").unwrap().starts_with("\"login\";r=0;t="), "{denied:?}");
        assert!(denied.header("retry-after").is_some(), "{denied:?}");

        let blocked = question(server, "/v1/auth", "/export");
        assert_eq!((blocked.status, blocked.json()["status"].as_u64()), (403, Some(403)));
        assert_eq!(blocked.json()["title"], "One export an hour");
        assert_eq!(question(server, "/v1/auth", "/watched").status, 200);
    });
}

#[test]
fn the_status_for_the_proxy_replaces_that_of_the_rule() {
    let file = TempFile::new("denials.toml", RULES);
    let server = Server::start(&["--config", file.path()]);
    while question(&server, "/v1/auth", "/login").status == 200 {}
    for (deny_status, status) in [("", 402), ("?deny_status=403", 403), ("?deny_status=401", 401)] {
        let reply = question(&server, &format!("/v1/auth{deny_status}"), "/login");
        assert_eq!((reply.status, reply.header("x-reason")), (status, Some("login")));
        assert_eq!(reply.body, r#"{"error":"quota","retry":true}"#);
    }
    // Every proxy understands 403.
    let admin = question(&server, "/v1/auth?deny_status=401", "/admin");
    assert_eq!((admin.status, admin.body.as_str()), (403, "For administrators."));
}

#[test]
fn a_changed_denial_is_in_force_after_a_reload() {
    let file = TempFile::new("denials.toml", RULES);
    let server = Server::start(&["--config", file.path()]);
    while question(&server, "/v1/auth", "/login").status == 200 {}
    std::fs::write(file.path(), RULES.replace("status = 402", "status = 420")).unwrap();
    spillgate_testkit::eventually(|| question(&server, "/v1/auth", "/login").status == 420);
}

#[test]
fn a_wrong_denial_prevents_the_start_with_its_line() {
    let file = TempFile::new("denials.toml", &RULES.replace("X-Reason", "Retry-After"));
    let output = run(&["serve", "--http", "127.0.0.1:0", "--config", file.path()]);
    let errors = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2), "{errors}");
    let expected = ":13: rule \"login\", field `headers`: \"Retry-After\" is a field that";
    assert!(errors.contains(expected), "{errors}");
}
