//! `spillgate check`: its text for people, its JSON for programs, its exit codes.

use spillgate_testkit::{RedisServer, free_port};

use crate::server::{Server, TempFile, run};

#[test]
fn the_exit_code_is_0_if_allowed_and_1_if_denied() {
    let server = Server::start(&[]);
    let check = |cost: &str| {
        let url = server.url();
        let output =
            run(&["check", "--url", &url, "--key", "u1", "--quota", "2/minute", "--cost", cost]);
        output.status.code()
    };
    assert_eq!(check("2"), Some(0));
    assert_eq!(check("1"), Some(1));
    assert_eq!(check("3"), Some(1));
    assert_eq!(check("tokens=9"), Some(1));
}

#[test]
fn the_text_shows_the_decision_first_and_then_every_limit() {
    let server = Server::start(&[]);
    let check =
        || stdout_of(&["check", "--url", &server.url(), "--key", "u1", "--quota", "1/minute"]);
    assert!(
        check().starts_with(
            "allowed\n  the inline limit: allowed, 0 of 1 requests left, full again in "
        )
    );
    assert!(check().starts_with("denied by the inline limit (limit-exceeded), try again in "));
}

#[test]
fn the_json_is_the_servers_answer() {
    let server = Server::start(&[]);
    let json = stdout_of(&[
        "check",
        "--url",
        &server.url(),
        "--json",
        "--key",
        "u1",
        "--quota",
        "5/minute",
        "--burst",
        "9",
        "--algorithm",
        "token-bucket",
    ]);
    let answer: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!((&answer["remaining"], &answer["capacity"]), (&8.into(), &9.into()));
}

#[test]
fn programs_get_json_on_a_failure_too() {
    let absent = format!("http://127.0.0.1:{}", free_port());
    for arguments in [
        &["check", "--json", "--url", &absent, "ip=::1"][..],
        &["explain", "--json", "--url", &absent, "ip=::1"],
        &["top", "--json", "--url", &absent],
        &["validate", "--json", "/no/such/file"],
        &["doctor", "--json"],
        &["bench", "--json", "steady", "--config", "/no/such/file"],
        &["simulate", "--json", "--config", "/no/such/file", "/no/such/log"],
    ] {
        let output = run(arguments);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
        let answer: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        let error = answer["error"].as_str().unwrap();
        let errors = String::from_utf8(output.stderr).unwrap();
        assert_eq!(errors, format!("spillgate: {error}\n"), "{arguments:?}");
    }
}

#[test]
fn attributes_domain_and_costs_reach_the_rules() {
    let rule = "[[rule]]\nname = \"api\"\ndomain = \"web\"\nkey = [\"tenant\"]\nlimits = [\"10/minute\"]\n";
    let file = TempFile::new("limits.toml", rule);
    let server = Server::start(&["--config", file.path()]);
    let url = server.url();
    let check =
        |more: &[&str]| stdout_of(&[&["check", "--url", &url, "tenant=a=b"], more].concat());
    assert!(
        check(&["--domain", "web", "--cost", "4"])
            .contains("api/0: allowed, 6 of 10 requests left")
    );
    assert!(
        check(&["--domain", "web", "--cost", "requests=1,tokens=9"])
            .contains("5 of 10 requests left")
    );
    assert!(check(&[]).starts_with("allowed: no rule matched"));
}

#[test]
fn a_direct_check_shares_state_with_the_server() {
    let redis = RedisServer::start();
    let server = Server::start(&["--redis", &redis.url()]);
    server.check(r#"{"key":"u1","limit":{"quota":"5/minute"}}"#);
    let direct =
        stdout_of(&["check", "--redis", &redis.url(), "--key", "u1", "--quota", "5/minute"]);
    assert!(direct.contains("3 of 5 requests left"), "{direct}");
}

#[test]
fn a_direct_check_uses_the_rules_of_a_file() {
    let redis = RedisServer::start();
    let file = TempFile::new(
        "limits.toml",
        "[[rule]]\nname = \"login\"\nkey = [\"ip\"]\nlimits = [\"1/minute\"]\n",
    );
    let check = || {
        run(&["check", "--redis", &redis.url(), "--config", file.path(), "ip=::1"]).status.code()
    };
    assert_eq!((check(), check()), (Some(0), Some(1)));
}

#[test]
fn a_direct_check_without_the_store_names_the_reason() {
    let redis = RedisServer::start();
    let without_rights = redis.url_of_user("app", "hush", &["~*", "+@all", "-eval", "-evalsha"]);
    for (url, why) in [
        (format!("redis://127.0.0.1:{}", free_port()), "Connection refused"),
        (without_rights.replace("hush", "hushed"), "WRONGPASS"),
        (without_rights, "no permissions"),
    ] {
        let output = run(&["check", "--redis", &url, "--key", "u1", "--quota", "16/minute"]);
        let errors = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(0), "{url}: {errors}");
        assert!(errors.starts_with("spillgate: the store did not decide: "), "{url}: {errors}");
        for part in [why, "run `spillgate doctor --redis URL` with the same URL\n"] {
            assert!(errors.contains(part), "{url}: {part:?} is not in {errors}");
        }
        assert!(!errors.contains("hush"), "{errors}");
        assert!(String::from_utf8(output.stdout).unwrap().contains("decided without the store"));
    }
}

#[test]
fn a_server_that_requires_a_token_gets_that_of_the_file() {
    let token = TempFile::new("token", "0123456789abcdef0123456789abcdef\n");
    let settings = format!("[server]\ndata_token_file = {:?}\n", token.path());
    let settings = TempFile::new("settings.toml", &settings);
    let server = Server::start(&["--config", settings.path()]);
    let url = server.url();
    let check = ["check", "--url", &url, "--key", "u1", "--quota", "5/minute"];
    let allowed = stdout_of(&[&check[..], &["--token-file", token.path()]].concat());
    assert!(allowed.starts_with("allowed"), "{allowed}");
    let refused = run(&check);
    assert_eq!(refused.status.code(), Some(2), "{refused:?}");
    assert_eq!(
        String::from_utf8(refused.stderr).unwrap(),
        "spillgate: no token or a wrong one; name the file with the server's data token with --token-file\n"
    );
}

#[test]
fn the_receipt_of_a_permit_is_in_the_text() {
    let rule = "[[rule]]\nname = \"jobs\"\nkey = [\"worker\"]\n\
                limits = [{ quota = \"2\", algorithm = \"concurrency\", max_hold = \"1m\" }]\n";
    let file = TempFile::new("limits.toml", rule);
    let server = Server::start(&["--config", file.path()]);
    let text = stdout_of(&["check", "--url", &server.url(), "worker=a"]);
    let (_, receipt) = text.trim_end().rsplit_once(" with receipt ").unwrap();
    let release = format!(r#"{{"receipt":"{receipt}"}}"#);
    assert_eq!(server.post("/v1/release", release.as_bytes()).json()["result"], "done", "{text}");
}

#[test]
fn an_error_is_exit_code_2_with_its_reason() {
    let server = Server::start(&[]);
    let url = server.url();
    // No free port: another test could take it before the call.
    let unused = "http://127.0.0.1:1";
    let resp = format!("http://127.0.0.1:{}", server.resp_port.unwrap());
    let grpc = format!("http://127.0.0.1:{}", server.grpc_port.unwrap());
    for (arguments, part) in [
        (&["--url", &url, "--key", "u", "--quota", "5/fortnight"][..], "limit.quota: "),
        (&["--url", &url, "a=1", "a=2"], "attributes.a: duplicate"),
        (&["--url", unused], "start a server with `spillgate serve`, or name another with --url"),
        (
            &["--url", "localhost:8080"],
            "this is not the address of a server; write one such as http://127.0.0.1:8082",
        ),
        (&["--url", "ftp://localhost"], "this is not the address of a server"),
        (&["--url", ""], "spillgate: --url: this is not the address of a server"),
        (&["--url", &resp], "; check the port in --url"),
        (&["--url", &grpc], "; check the port in --url"),
        (&["--key", "u", "--quota", "5/minute", "--burst", "x"], "write a whole number such as 20"),
        (&["--redis", "redis://127.0.0.1", "--token-file", "f"], "cannot be used with"),
        (&["--redis", "nonsense", "--key", "u", "--quota", "5/minute"], "store"),
        (&["ip"], "write NAME=VALUE"),
        (&["--cost", "-1"], "--cost"),
        (&["--key", "u"], "--quota"),
        (&["--key", "u", "--quota", "5/minute", "ip=1"], "cannot be used with"),
        (&["--redis", "redis://127.0.0.1", "--url", &url], "cannot be used with"),
        (&["--config", "f"], "--redis"),
        (&["--nonsense"], "--nonsense"),
    ] {
        let output = run(&[&["check"], arguments].concat());
        let errors = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {errors}");
        assert!(errors.contains(part), "{arguments:?}: {errors}");
        assert!(output.stdout.is_empty(), "{arguments:?}");
    }
}

#[test]
fn help_shows_examples_and_every_exit_code() {
    for (arguments, parts) in [
        (&["--help"][..], ["spillgate serve", "spillgate check --key u1 --quota 5/minute"]),
        (&["serve", "--help"], ["--redis <URL>", "curl -s localhost:8080/v1/check"]),
        (
            &["check", "--help"],
            ["Exit codes: 0 allowed, 1 denied, 2 error.", "--cost requests=1,tokens=900"],
        ),
        (
            &["validate", "--help"],
            [
                "spillgate validate limits.toml",
                "Exit codes: 0 the file loads, 1 it does not or has denied warnings",
            ],
        ),
    ] {
        let help = stdout_of(arguments);
        assert!(parts.iter().all(|part| help.contains(part)), "{arguments:?}: {help}");
    }
    assert_eq!(stdout_of(&["--version"]), concat!("spillgate ", env!("CARGO_PKG_VERSION"), "\n"));
}

/// Returns the standard output of a run.
#[track_caller]
fn stdout_of(arguments: &[&str]) -> String {
    let output = run(arguments);
    assert!(output.stderr.is_empty(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}
