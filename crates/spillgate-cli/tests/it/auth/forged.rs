//! A client's own header fields are not trusted: method, host and URI come from the one configured source, and the
//! address from the trusted hops.

use super::{HOST, ask, behind_a_proxy};
use crate::server::{Server, TempFile};

/// Header fields that would match a denying rule if they were trusted, and the source that trusts them.
const FORGED: &[(&str, &str, &str)] = &[
    ("x-forwarded", "X-Forwarded-Method", "DELETE"),
    ("x-forwarded", "X-Forwarded-Host", "admin.example"),
    ("x-forwarded", "X-Forwarded-Uri", "/x?key=stolen"),
    ("x-original", "X-Original-Method", "DELETE"),
    ("x-original", "X-Original-Host", "admin.example"),
    ("x-original", "X-Original-URI", "/x?key=stolen"),
    ("request", "Host", "admin.example"),
    ("none", "X-Original-URL", "https://admin.example/x?key=stolen"),
    ("none", "X-Forwarded-Path", "/x?key=stolen"),
    ("none", "X-Rewrite-URL", "/x?key=stolen"),
    ("none", "X-HTTP-Method-Override", "DELETE"),
    ("none", "X-Method-Override", "DELETE"),
    ("none", "X-Forwarded-Server", "admin.example"),
    ("none", "X-Host", "admin.example"),
    ("none", "Forwarded", "for=1.2.3.4;host=admin.example"),
];

#[test]
fn only_the_configured_source_is_trusted() {
    for original in ["x-forwarded", "x-original", "request"] {
        let server = behind_a_proxy(original, "");
        for (source, name, value) in FORGED {
            let lines = [HOST, (name, value)];
            let lines = if *name == "Host" { &lines[1..] } else { &lines[..] };
            let believed = *source == original;
            let status = ask(&server, "GET", "/v1/auth/other", lines).status;
            assert_eq!(status == 403, believed, "original = {original}: {name}: {value}");
        }
        // The request's own method and path.
        let own = original == "request";
        assert_eq!(ask(&server, "DELETE", "/v1/auth/x", &[HOST]).status == 403, own);
        assert_eq!(ask(&server, "GET", "/v1/auth/x?key=stolen", &[HOST]).status == 403, own);
    }
}

#[test]
fn the_nearest_proxys_line_counts() {
    let server = behind_a_proxy("x-forwarded", "");
    let status = |name: &str, lines: &[&str]| {
        let lines: Vec<_> =
            [HOST].into_iter().chain(lines.iter().map(|line| (name, *line))).collect();
        ask(&server, "GET", "/v1/auth", &lines).status
    };
    assert_eq!(status("X-Forwarded-Uri", &["/other", "/x?key=stolen"]), 403);
    assert_eq!(status("X-Forwarded-Uri", &["/x?key=stolen", "/other"]), 200);
    assert_eq!(status("X-Forwarded-Host", &["other.example, admin.example"]), 403);
    assert_eq!(status("X-Forwarded-Host", &["admin.example, other.example"]), 200);
}

#[test]
fn no_header_of_an_untrusted_peer_is_trusted() {
    for original in ["x-forwarded", "x-original", "request"] {
        let file = TempFile::new(
            "auth.toml",
            &format!(
                "[server]\ntrusted_proxies = [\"192.0.2.1\"]\n[server.auth]\noriginal = \"{original}\"\n\
                 query = [\"key\"]\n{}",
                super::RULES
            ),
        );
        let server = Server::start(&["--config", file.path()]);
        for (_, name, value) in FORGED {
            let lines = [HOST, (name, value)];
            let lines = if *name == "Host" { &lines[1..] } else { &lines[..] };
            let status = ask(&server, "DELETE", "/v1/auth/x?key=stolen", lines).status;
            assert_eq!(status, 200, "original = {original}: {name}: {value}");
        }
    }
}

#[test]
fn the_address_is_the_last_untrusted_hop() {
    let file = TempFile::new(
        "auth.toml",
        "[server]\ntrusted_proxies = [\"127.0.0.1\", \"10.0.0.0/8\"]\n\
         [[rule]]\nname = \"ip\"\nkey = [\"ip\"]\nlimits = [\"1/hour\"]\n",
    );
    let server = Server::start(&["--config", file.path()]);
    let status = |forwarded: &[&str]| {
        let lines: Vec<_> = [HOST]
            .into_iter()
            .chain(forwarded.iter().map(|hops| ("X-Forwarded-For", *hops)))
            .collect();
        ask(&server, "GET", "/v1/auth", &lines).status
    };
    assert_eq!(status(&["203.0.113.7"]), 200);
    // The same client, with any addresses before its own, and through any of the proxies.
    for forwarded in [
        &["203.0.113.7"] as &[_],
        &["6.6.6.6, 203.0.113.7"],
        &["6.6.6.6", "203.0.113.7"],
        &["127.0.0.1, 203.0.113.7, 10.1.2.3"],
        &["203.0.113.7:1234"],
        &["::ffff:203.0.113.7, 10.0.0.1"],
    ] {
        assert_eq!(status(forwarded), 429, "{forwarded:?}");
    }
    assert_eq!(status(&["203.0.113.8"]), 200);
}
