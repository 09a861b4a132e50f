//! Access to the admin API.

use std::process::Stdio;

use spillgate_testkit::Process;

use crate::server::{Server, TempFile, run, spillgate};

const TOKEN: &str = "0123456789abcdef0123456789abcdef";
const GUARDED: [(&str, &str); 7] = [
    ("GET", "/admin/v1/rules"),
    ("PUT", "/admin/v1/rules/api/mode"),
    ("GET", "/admin/v1/state"),
    ("POST", "/admin/v1/state"),
    ("GET", "/admin/v1/overrides"),
    ("DELETE", "/admin/v1/overrides"),
    ("GET", "/admin/v1/whoami"),
];

#[test]
fn without_a_token_foreign_pages_are_refused_and_local_programs_are_not() {
    let server = Server::start(&[]);
    let port = server.admin_port.unwrap();
    let status = |method: &str, path: &str, headers: &[(&str, &str)]| {
        server.operator().send_with(method, path, headers, b"").unwrap().status
    };
    for (method, path) in GUARDED {
        let here = format!("127.0.0.1:{port}");
        let own = format!("http://{here}");
        assert_ne!(status(method, path, &[("Host", &here)]), 403, "{method} {path}");
        assert_ne!(status(method, path, &[("Host", &here), ("Origin", &own)]), 403);
        for headers in [
            &[("Host", "evil.example")] as &[_],
            &[("Host", "evil.example"), ("Origin", "http://evil.example")],
            &[("Host", &here), ("Origin", "http://evil.example")],
            &[("Host", &here), ("Origin", "http://127.0.0.1:1")],
            &[("Host", &here), ("Origin", "null")],
        ] {
            assert_eq!(status(method, path, headers), 403, "{method} {path} {headers:?}");
        }
    }
    for path in ["/livez", "/readyz", "/metrics"] {
        assert_eq!(status("GET", path, &[("Host", "spillgate.monitoring.svc")]), 200, "{path}");
    }
}

#[test]
fn with_a_token_only_health_and_metrics_answer_without_it() {
    let token = TempFile::new("token", &format!("ann:operator:{TOKEN}\n"));
    let server = Server::start_command(
        spillgate(&["serve", "--http", "127.0.0.1:0", "--admin", "127.0.0.1:0"])
            .env("SPILLGATE_SERVER__ADMIN_TOKEN_FILE", token.path()),
    );
    let status = |method: &str, path: &str, authorization: &str| {
        let headers = [("Host", "spillgate.example"), ("Authorization", authorization)];
        server.operator().send_with(method, path, &headers, b"").unwrap().status
    };
    for (method, path) in GUARDED {
        assert_ne!(status(method, path, &format!("Bearer {TOKEN}")), 401, "{method} {path}");
        for wrong in ["", "Bearer wrong", &format!("Basic {TOKEN}")] {
            assert_eq!(status(method, path, wrong), 401, "{method} {path} {wrong:?}");
        }
    }
    for path in ["/livez", "/readyz", "/metrics"] {
        assert_eq!(status("GET", path, ""), 200, "{path}");
    }
}

#[test]
fn a_viewer_reads_and_an_operator_writes_too() {
    let [viewer, operator] = ["1111111111111111", "2222222222222222"];
    let tokens = format!("# on call\neve:viewer:{viewer}\nann:operator:{operator}\n");
    let tokens = TempFile::new("tokens", &tokens);
    let rule = "[[rule]]\nname = \"api\"\nkey = [\"user\"]\nlimits = [\"5/minute\"]\n";
    let file = format!("[server]\nadmin_token_file = \"{}\"\n{rule}", tokens.path());
    let file = TempFile::new("limits.toml", &file);
    let server = Server::start(&["--config", file.path()]);
    let send = |token: &str, method: &str, path: &str, body: &str| {
        let bearer = format!("Bearer {token}");
        let headers = [("Host", "spillgate.example"), ("Authorization", &*bearer)];
        server.operator().send_with(method, path, &headers, body.as_bytes()).unwrap()
    };
    let state = "/admin/v1/state?rule=api&attr.user=u";
    for path in ["/admin/v1/rules", "/admin/v1/overrides", state, "/admin/v1/top"] {
        assert_eq!(send(viewer, "GET", path, "").status, 200, "{path}");
    }
    for (token, name, role) in [(viewer, "eve", "viewer"), (operator, "ann", "operator")] {
        let holder = send(token, "GET", "/admin/v1/whoami", "").json();
        assert_eq!(holder, serde_json::json!({"name": name, "role": role}));
    }
    let block = r#"{"rule":"api","subject":{"user":"u"},"limits":["block"]}"#;
    for (method, path, body) in [
        ("PUT", "/admin/v1/rules/api/mode", r#"{"mode":"off"}"#),
        ("DELETE", "/admin/v1/rules/api/mode", ""),
        ("PUT", "/admin/v1/overrides", block),
        ("DELETE", "/admin/v1/overrides?rule=api&attr.user=u", ""),
        ("POST", "/admin/v1/state", r#"{"rule":"api","subject":{"user":"u"},"charge":1}"#),
        ("DELETE", state, ""),
    ] {
        let refused = send(viewer, method, path, body);
        assert_eq!(refused.status, 403, "{method} {path}: {refused:?}");
        let detail = refused.json()["detail"].as_str().unwrap().to_owned();
        assert!(detail.starts_with("the token eve is a viewer's, which may only read"), "{detail}");
        assert!(detail.contains(&format!("send {method} with a token")), "{detail}");
        assert_eq!(send(operator, method, path, body).status, 200, "{method} {path}");
    }
}

#[test]
fn a_file_without_names_and_roles_prevents_the_start_and_shows_the_form() {
    for (text, why) in [
        (TOKEN.to_owned(), "line 1: is not of the form name:role:token"),
        (
            format!("ann:operator:{TOKEN}\nbob:root:{TOKEN}0"),
            "line 2: the role is viewer or operator",
        ),
    ] {
        let tokens = TempFile::new("tokens", &text);
        let mut command = spillgate(&["serve", "--http", "127.0.0.1:0", "--admin", "127.0.0.1:0"]);
        let output = command.env("SPILLGATE_SERVER__ADMIN_TOKEN_FILE", tokens.path()).output();
        let output = output.unwrap();
        let errors = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{errors}");
        for part in ["field `server.admin_token_file`: ", tokens.path(), why, "ann:operator:TOKEN"]
        {
            assert!(errors.contains(part), "{part}: {errors}");
        }
        assert!(!errors.contains(TOKEN), "{errors}");
    }
}

#[test]
fn a_public_admin_address_needs_a_token_even_if_insecure() {
    let file = TempFile::new("settings.toml", "[server]\ninsecure = true\n");
    let arguments =
        ["serve", "--http", "127.0.0.1:0", "--admin", "0.0.0.0:0", "--config", file.path()];
    let output = run(&arguments);
    let errors = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2), "{errors}");
    assert!(
        errors.contains("field `server.admin`: 0.0.0.0:0 is open to other machines"),
        "{errors}"
    );
    assert!(errors.contains("admin_token_file"), "{errors}");

    let token = TempFile::new("token", &format!("ann:operator:{TOKEN}"));
    Server::start_command(
        spillgate(&arguments).env("SPILLGATE_SERVER__ADMIN_TOKEN_FILE", token.path()),
    );
}

#[test]
fn an_admin_api_that_is_off_does_not_listen() {
    let mut command = spillgate(&["serve", "--http", "127.0.0.1:0", "--admin", "off"]);
    let server = Server::start_command(&mut command);
    assert_eq!(server.admin_port, None);
    assert!(!server.ready.contains("admin"), "{}", server.ready);
}

#[test]
fn a_port_in_use_is_reported_with_a_remedy() {
    let server = Server::start(&[]);
    let taken = format!("127.0.0.1:{}", server.admin_port.unwrap());
    let mut command = spillgate(&["serve", "--http", "127.0.0.1:0", "--admin", &taken]);
    let mut process = Process::start(command.stderr(Stdio::piped()));
    let mut errors = String::new();
    std::io::Read::read_to_string(&mut process.stderr().unwrap(), &mut errors).unwrap();
    assert!(errors.contains("choose a free port with --admin 127.0.0.1:0"), "{errors}");
}
