//! Forward auth: the request that a proxy describes, and the answer to the proxy.

mod denials;
mod forged;
mod proxies;
mod spelling;

use crate::client::Reply;
use crate::server::{Server, TempFile, on_both_engines};

/// Every attribute that a client could forge has a rule of its own, which shows in the answer if it matches.
pub(crate) const RULES: &str = r#"
[[rule]]
name = "login"
match = { path = "/login" }
key = ["path"]
limits = ["2/hour"]

[[rule]]
name = "ip"
key = ["ip"]
limits = ["1000/hour"]

[[rule]]
name = "admin-host"
match = { host = "admin.example" }
key = ["host"]
limits = ["block"]

[[rule]]
name = "delete"
match = { method = "DELETE" }
key = ["method"]
limits = ["block"]

[[rule]]
name = "key"
match = { key = "stolen" }
key = ["key"]
limits = ["block"]
"#;

/// Starts a server that trusts this machine as its proxy.
fn behind_a_proxy(original: &str, more: &str) -> Server {
    let file = TempFile::new(
        "auth.toml",
        &format!(
            "[server]\ntrusted_proxies = [\"127.0.0.1\"]\n\
             [server.auth]\noriginal = \"{original}\"\nquery = [\"key\"]\n{more}\n{RULES}"
        ),
    );
    Server::start(&["--config", file.path()])
}

#[track_caller]
fn ask(server: &Server, method: &str, path: &str, headers: &[(&str, &str)]) -> Reply {
    server.client().send_with(method, path, headers, b"").unwrap()
}

const HOST: (&str, &str) = ("Host", "spillgate.internal");
const LOGIN: [(&str, &str); 2] = [HOST, ("X-Forwarded-Uri", "/login")];

#[test]
fn the_third_request_is_denied_with_its_wait() {
    let rules = TempFile::new(
        "auth.toml",
        &format!("[server]\ntrusted_proxies = [\"127.0.0.1\"]\n{RULES}"),
    );
    on_both_engines(&["--config", rules.path()], |server| {
        let first = ask(server, "GET", "/v1/auth", &LOGIN);
        assert_eq!((first.status, first.body.as_str()), (200, ""));
        assert!(first.header("ratelimit").unwrap().starts_with("\"login\";r=1;t="), "{first:?}");
        assert_eq!(ask(server, "GET", "/v1/auth", &LOGIN).status, 200);
        let third = ask(server, "GET", "/v1/auth", &LOGIN);
        assert_eq!(third.status, 429);
        assert_eq!(third.header("content-type"), Some("application/problem+json"));
        let wait: u64 = third.header("retry-after").unwrap().parse().unwrap();
        assert!((1..=1_800).contains(&wait), "{third:?}");
        assert_eq!(third.json()["violated-policies"][0], "login");
    });
}

#[test]
fn a_denial_has_a_status_that_the_proxy_understands() {
    let server = behind_a_proxy("x-forwarded", "");
    while ask(&server, "GET", "/v1/auth", &LOGIN).status == 200 {}
    for (path, status) in [
        ("/v1/auth", 429),
        ("/v1/auth?deny_status=403", 403),
        // A status that means success, or none at all, changes nothing.
        ("/v1/auth?deny_status=200", 429),
        ("/v1/auth?deny_status=", 429),
        ("/v1/auth?deny_status=no", 429),
    ] {
        let reply = ask(&server, "GET", path, &LOGIN);
        assert_eq!(reply.status, status, "{path}");
        assert_eq!(reply.json()["status"], status, "{path}");
        assert!(reply.header("retry-after").is_some(), "{path}");
    }
    let server = behind_a_proxy("x-forwarded", "deny_status = 403");
    while ask(&server, "GET", "/v1/auth", &LOGIN).status == 200 {}
    assert_eq!(ask(&server, "GET", "/v1/auth", &LOGIN).status, 403);
    assert_eq!(ask(&server, "GET", "/v1/auth?deny_status=401", &LOGIN).status, 401);
}

#[test]
fn an_outage_denied_by_a_rule_is_503_or_the_proxys_status() {
    let file = TempFile::new(
        "auth.toml",
        "[[rule]]\nname = \"ip\"\nkey = [\"ip\"]\non_outage = \"deny\"\nlimits = [\"5/minute\"]\n",
    );
    let url = format!("redis://127.0.0.1:{}", spillgate_testkit::free_port());
    let server = Server::start(&["--config", file.path(), "--redis", &url]);
    let reply = ask(&server, "GET", "/v1/auth", &[HOST]);
    assert_eq!((reply.status, reply.header("retry-after")), (503, Some("1")));
    assert_eq!(ask(&server, "GET", "/v1/auth?deny_status=403", &[HOST]).status, 403);
}

#[test]
fn no_denial_is_an_error_that_ext_authz_would_take_for_a_failure() {
    let behind_envoy =
        "[server]\ntrusted_proxies = [\"127.0.0.1\"]\n[server.auth]\noriginal = \"request\"\n";
    let of_rules = "[[rule]]\nname = \"own\"\nmatch = { path = \"/own\" }\nkey = []\nlimits = [\"block\"]\n\
                    denial = { status = 503 }\n\
                    [[rule]]\nname = \"all\"\nkey = []\non_outage = \"deny\"\nlimits = [\"5/minute\"]\n";
    let of_no_domain =
        "[[rule]]\nname = \"other\"\ndomain = \"other\"\nkey = []\nlimits = [\"5/minute\"]\n";
    let url = format!("redis://127.0.0.1:{}", spillgate_testkit::free_port());
    for (more, rules) in [("", of_rules), ("domains = \"known\"\n", of_no_domain)] {
        let settings = behind_envoy.replace("[server]\n", &format!("[server]\n{more}"));
        let file = TempFile::new("auth.toml", &format!("{settings}{rules}"));
        let server = Server::start(&["--config", file.path(), "--redis", &url]);
        for path in ["/v1/auth/own", "/v1/auth/"] {
            let reply = ask(&server, "GET", path, &[HOST]);
            assert_eq!(
                (reply.status, &reply.json()["status"]),
                (429, &429.into()),
                "{path}: {rules}"
            );
            let is_outage = rules == of_rules && path == "/v1/auth/";
            assert_eq!(reply.header("retry-after"), is_outage.then_some("1"), "{path}: {rules}");
        }
    }
}

#[test]
fn no_client_input_makes_the_answer_an_error() {
    let long = "x".repeat(30_000);
    let long_path = format!("/{long}");
    let long_query = format!("/?key={long}");
    for original in ["x-forwarded", "x-original", "request"] {
        let server = behind_a_proxy(original, "headers = [\"x-api-key\"]");
        for (name, value) in [
            ("X-Forwarded-Uri", long_path.as_str()),
            ("X-Original-URI", &long_query),
            ("X-Forwarded-Uri", ""),
            ("X-Original-URI", "%%%2"),
            ("X-Forwarded-Host", "::::"),
            ("X-Original-Host", &long),
            ("X-Forwarded-Method", "caf\u{e9}"),
            ("X-Forwarded-For", "unknown, _hidden, ,,999.1.1.1"),
            ("X-Forwarded-For", &long),
            ("X-Api-Key", "\u{fffd}"),
            ("X-Api-Key", &long),
        ] {
            let reply = ask(&server, "GET", "/v1/auth", &[HOST, (name, value)]);
            assert_eq!(reply.status, 200, "{original}: {name}: {:.20}: {}", value, reply.body);
        }
        for path in [
            "/v1/auth/",
            "/v1/auth//",
            "/v1/auth/%",
            "/v1/auth/../../..",
            "/v1/auth*",
            "/v1/auth?%",
        ] {
            assert_eq!(ask(&server, "OPTIONS", path, &[HOST]).status, 200, "{original}: {path}");
        }
    }
}

#[test]
fn a_header_attribute_separates_its_clients() {
    let file = TempFile::new(
        "auth.toml",
        "[server.auth]\nheaders = [\"X-Api-Key\"]\n\
         [[rule]]\nname = \"key\"\nkey = [\"x-api-key\"]\nlimits = [\"1/hour\"]\n",
    );
    let server = Server::start(&["--config", file.path()]);
    let status = |keys: &[&str]| {
        let lines: Vec<_> =
            [HOST].into_iter().chain(keys.iter().map(|key| ("x-api-key", *key))).collect();
        ask(&server, "GET", "/v1/auth", &lines).status
    };
    assert_eq!((status(&["a"]), status(&["a"])), (200, 429));
    assert_eq!(status(&["b"]), 200);
    // All requests with several keys are one client, whichever of them the application takes.
    assert_eq!(status(&["a", "c"]), 200);
    for keys in [["a", "c"], ["c", "a"], ["a", "d"], ["e", "f"]] {
        assert_eq!(status(&keys), 429, "{keys:?}");
    }
    assert_eq!(status(&["a", "a"]), 429);
    assert_eq!(status(&[]), 200);
}

#[test]
fn lines_that_ext_authz_joins_are_several_values() {
    for (original, expected) in [
        ("request", [200, 200, 429, 200, 429]),
        ("x-original", [200, 200, 200, 200, 429]),
        ("x-forwarded", [200, 200, 200, 200, 429]),
    ] {
        let file = TempFile::new(
            "auth.toml",
            &format!(
                "[server.auth]\noriginal = \"{original}\"\nheaders = [\"X-Api-Key\"]\n\
                 [[rule]]\nname = \"key\"\nkey = [\"x-api-key\"]\nlimits = [\"1/hour\"]\n"
            ),
        );
        let server = Server::start(&["--config", file.path()]);
        let status =
            |key: &str| ask(&server, "GET", "/v1/auth", &[HOST, ("x-api-key", key)]).status;
        assert_eq!(["a", "a,b", "a , c", "b", "b"].map(status), expected, "{original}");
    }
}

#[test]
fn a_repeated_parameter_gives_a_client_no_further_limit() {
    let file = TempFile::new(
        "auth.toml",
        "[server]\ntrusted_proxies = [\"127.0.0.1\"]\n[server.auth]\nquery = [\"k\"]\n\
         [[rule]]\nname = \"k\"\nkey = [\"k\"]\nlimits = [\"1/hour\"]\n",
    );
    let server = Server::start(&["--config", file.path()]);
    let status =
        |path: &str| ask(&server, "GET", "/v1/auth", &[HOST, ("X-Forwarded-Uri", path)]).status;
    assert_eq!((status("/?k=a"), status("/?k=a")), (200, 429));
    let admitted = (0..50).filter(|n| status(&format!("/?k={n}&k=a")) == 200).count();
    assert_eq!(admitted, 1);
}

#[test]
fn clients_behind_a_nat64_gateway_are_counted_by_their_ipv4_address() {
    let file = TempFile::new(
        "auth.toml",
        "[server]\ntrusted_proxies = [\"127.0.0.1\"]\n\
         [[rule]]\nname = \"ip\"\nkey = [\"ip\"]\nlimits = [\"1/hour\"]\n",
    );
    let server = Server::start(&["--config", file.path()]);
    let status =
        |ip: &str| ask(&server, "GET", "/v1/auth", &[HOST, ("X-Forwarded-For", ip)]).status;
    assert_eq!(status("64:ff9b::203.0.113.7"), 200);
    assert_eq!(status("203.0.113.7"), 429);
    assert_eq!(status("64:ff9b::203.0.113.8"), 200);
}

#[test]
fn an_attribute_with_two_sources_prevents_the_start() {
    for auth in ["headers = [\"host\"]", "query = [\"path\"]", "headers = [\"k\"]\nquery = [\"k\"]"]
    {
        let file = TempFile::new("auth.toml", &format!("[server.auth]\n{auth}\n"));
        let output =
            crate::server::run(&["serve", "--http", "127.0.0.1:0", "--config", file.path()]);
        let errors = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{errors}");
        assert!(
            errors.contains("field `server.auth`") && errors.contains("is an attribute already"),
            "{errors}"
        );
    }
}

#[test]
fn an_untrusted_peer_is_logged_once_with_the_remedy() {
    let server = Server::start(&[]);
    for _ in 0..3 {
        assert_eq!(ask(&server, "GET", "/v1/auth", &LOGIN).status, 200);
    }
    let log = server.rest_of_log();
    assert_eq!(
        log.matches("127.0.0.1 sent a request and is not in trusted_proxies").count(),
        1,
        "{log}"
    );
}

#[test]
fn a_proxy_that_does_not_describe_the_request_is_logged_once() {
    let server = behind_a_proxy("x-original", "");
    for _ in 0..3 {
        assert_eq!(ask(&server, "GET", "/v1/auth", &LOGIN).status, 200);
    }
    let log = server.rest_of_log();
    assert_eq!(log.matches("sends no X-Original-URI").count(), 1, "{log}");
}
