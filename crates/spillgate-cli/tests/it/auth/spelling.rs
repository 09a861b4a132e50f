//! Paths, hosts and methods are normalised, so that no client gets a second limit by another spelling.

use super::{HOST, RULES, ask};
use crate::server::{Server, TempFile};

/// Paths, and whether they equal `/login` once normalised.
const PATHS: &[(&str, bool)] = &[
    ("/login", true),
    ("/login?x=1", true),
    ("//login", true),
    ("/%6cogin", true),
    ("/%6C%6Fgin", true),
    ("/x/../login", true),
    ("/./login", true),
    ("/x/%2e%2E/login", true),
    ("/../../login", true),
    ("https://example.org/login", true),
    ("/%2flogin", true),
    ("/x%2f..%2Flogin", true),
    ("/.%2flogin", true),
    ("/login%0a", true),
    ("/x%2fy/../%6cogin%0A", true),
    ("/login/", false),
    ("/Login", false),
    ("/login%2f", false),
    ("/login;x=1", false),
    ("/x/login", false),
    ("/%256cogin", false),
    ("/%252flogin", false),
    ("/%5clogin", false),
];

#[test]
fn a_path_matches_in_every_spelling() {
    for (original, header) in [("x-forwarded", "X-Forwarded-Uri"), ("x-original", "X-Original-URI")]
    {
        for (path, is_login) in PATHS.iter().chain(&[("/x#/../login", true)]) {
            matches_only_if(*is_login, original, "/v1/auth", &[HOST, (header, path)]);
        }
    }
    for (path, is_login) in PATHS.iter().filter(|(path, _)| path.starts_with('/')) {
        matches_only_if(*is_login, "request", &format!("/v1/auth{path}"), &[HOST]);
    }
}

/// Makes one request; the rule's own numbers show whether it matched.
#[track_caller]
fn matches_only_if(expected: bool, original: &str, path: &str, headers: &[(&str, &str)]) {
    let server = server(original);
    let reply = ask(server, "GET", path, headers);
    assert_eq!(reply.status, 200, "{original}: {path} {headers:?}");
    let policy = reply.header("ratelimit-policy").unwrap();
    assert_eq!(policy.contains("\"login\""), expected, "{original}: {path} {headers:?}: {policy}");
}

/// Starts one server for each source, since no test uses up a limit.
fn server(original: &str) -> &'static Server {
    use std::sync::OnceLock;
    static SERVERS: [OnceLock<Server>; 3] = [const { OnceLock::new() }; 3];
    let place = match original {
        "x-forwarded" => 0,
        "x-original" => 1,
        _ => 2,
    };
    SERVERS[place].get_or_init(|| {
        let rules = RULES.replace("2/hour", "1000/hour");
        let file = TempFile::new(
            "auth.toml",
            &format!(
                "[server]\ntrusted_proxies = [\"127.0.0.1\"]\n[server.auth]\noriginal = \"{original}\"\n{rules}"
            ),
        );
        Server::start(&["--config", file.path()])
    })
}

#[test]
fn a_host_matches_in_any_case_with_and_without_a_port() {
    for (host, met) in [
        ("admin.example", true),
        ("ADMIN.Example", true),
        ("admin.example:8443", true),
        ("admin.example.", true),
        ("admin.example.:443", true),
        ("xadmin.example", false),
        ("admin.example.evil", false),
    ] {
        for (original, header) in [
            ("x-forwarded", "X-Forwarded-Host"),
            ("x-original", "X-Original-Host"),
            ("request", "Host"),
        ] {
            let lines = [HOST, (header, host)];
            let lines = if header == "Host" { &lines[1..] } else { &lines[..] };
            let status = ask(server(original), "GET", "/v1/auth/", lines).status;
            assert_eq!(status, if met { 403 } else { 200 }, "{original}: {host}");
        }
    }
}

#[test]
fn a_method_matches_in_any_case() {
    for method in ["DELETE", "delete", "Delete"] {
        let lines = [HOST, ("X-Forwarded-Method", method)];
        assert_eq!(ask(server("x-forwarded"), "GET", "/v1/auth", &lines).status, 403, "{method}");
        assert_eq!(ask(server("request"), method, "/v1/auth/", &[HOST]).status, 403, "{method}");
    }
}
