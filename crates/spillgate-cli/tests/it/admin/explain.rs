//! `explain` and `top`, by the admin API and on the command line.

use serde_json::{Value, json};
use spillgate_testkit::RedisServer;

use super::{api_rule, decision, expect_ok, refused};
use crate::server::{Server, TempFile, on_both_engines, run};

const OF_ANN: &str = "/admin/v1/explain?attr.tenant=acme&attr.user=ann";

#[test]
fn an_explanation_predicts_the_next_check() {
    let file = api_rule();
    on_both_engines(&["--config", file.path()], |server| {
        for expected in ["allowed", "allowed", "limit-exceeded"] {
            let explained = expect_ok(server, "GET", OF_ANN, &Value::Null);
            assert_eq!(explained["reason"].as_str().unwrap_or("allowed"), expected, "{explained}");
            assert_eq!(decision(server), expected);
        }
        let explained = expect_ok(server, "GET", OF_ANN, &Value::Null);
        let limit = &explained["limits"][0];
        assert_eq!(
            (&limit["quota"], &limit["used"], &limit["remaining"], &limit["cost"]),
            (&json!("2/hour"), &json!(2), &json!(0), &json!(1)),
            "{explained}"
        );
        assert_eq!(limit["raise"]["quota"], "4/hour");
        assert_eq!(limit["raise"]["fits"], true);
        assert_eq!(explained["rules"][0]["matched"], true);
        let costly = expect_ok(server, "GET", &format!("{OF_ANN}&cost=3"), &Value::Null);
        assert_eq!(costly["reason"], "cost-exceeds-limit");
        let unmatched = expect_ok(server, "GET", "/admin/v1/explain?attr.user=ann", &Value::Null);
        assert_eq!(unmatched["rules"][0]["why"], "the request has no attribute \"tenant\"");
    });
}

#[test]
fn an_explanation_shows_leased_tokens() {
    let rule = "[[rule]]\nname = \"api\"\nkey = [\"tenant\"]\nlimits = [\"1000000/366d\"]\n\
                lease = { share = 0.05, ttl = \"60s\", hot = [{ tenant = \"acme\" }] }\n";
    let (file, redis) = (TempFile::new("limits.toml", rule), RedisServer::start());
    let server = Server::start_on(&redis, &["--config", file.path()]);
    let of = |tenant: &str| {
        expect_ok(&server, "GET", &format!("/admin/v1/explain?attr.tenant={tenant}"), &Value::Null)
    };
    let hot = of("acme");
    assert_eq!((&hot["source"], &hot["allowed"]), (&json!("lease"), &json!(true)), "{hot}");
    // The store counts leased tokens as used.
    assert!(hot["limits"][0]["remaining"].as_u64().unwrap() < 1_000_000, "{hot}");
    assert_eq!(of("cold")["source"], "store");
}

#[test]
fn an_invalid_explain_request_names_its_field() {
    let server = Server::start(&[]);
    for (query, field, part) in [
        ("?ip=1", "ip", "no such parameter"),
        ("?attr.=1", "attr.", "1 to 1024 bytes"),
        ("?attr.a=1&attr.a=2", "attr.a", "given twice"),
        ("?domain=a&domain=b", "domain", "given twice"),
        ("?cost=1&cost=5", "cost", "given twice"),
        ("?cost.tokens=1&cost.tokens=1", "cost.tokens", "given twice"),
        ("?cost=-1", "cost", "expected a whole number, got"),
        ("?cost.tokens=x", "cost.tokens", "expected a whole number, got"),
    ] {
        let (status, named, detail) =
            refused(&server, "GET", &format!("/admin/v1/explain{query}"), "");
        assert_eq!((status, named.as_str()), (400, field), "{query}: {detail}");
        assert!(detail.contains(part), "{query}: {detail}");
    }
}

#[test]
fn top_lists_the_busiest_and_the_most_denied_subjects() {
    let file = api_rule();
    on_both_engines(&["--config", file.path()], |server| {
        for _ in 0..5 {
            decision(server);
        }
        let top = expect_ok(server, "GET", "/admin/v1/top?rule=api&n=3", &Value::Null);
        let ann = |count| json!([{"subject": {"tenant": "acme", "user": "ann"}, "whole": true, "count": count}]);
        let api = &top["rules"][0];
        assert_eq!((&api["consumers"], &api["most_denied"]), (&ann(2), &ann(3)), "{top}");
    });
}

#[test]
fn the_command_line_explains_by_server_and_by_store() {
    let file = api_rule();
    let redis = RedisServer::start();
    let server = Server::start_on(&redis, &["--config", file.path()]);
    let url = format!("http://127.0.0.1:{}", server.admin_port.unwrap());
    for _ in 0..3 {
        decision(&server);
    }
    let ann = ["tenant=acme", "user=ann"];
    let output_of = |arguments: &[&str]| {
        let output = run(arguments);
        let error = String::from_utf8_lossy(&output.stderr);
        assert_eq!((output.status.code(), error.as_ref()), (Some(0), ""), "{arguments:?}");
        String::from_utf8(output.stdout).unwrap()
    };
    let of_server = output_of(&[&["explain", "--url", &url][..], &ann].concat());
    assert!(of_server.starts_with("Denied by api/0, for "), "{of_server}");
    assert!(of_server.contains("0 of 2 requests are left, and this costs 1."), "{of_server}");
    let store = ["explain", "--redis", &redis.url(), "--config", file.path()];
    let of_store = output_of(&[&store[..], &ann].concat());
    assert!(of_store.starts_with("Denied by api/0, for "), "{of_store}");
    let gone = format!("redis://127.0.0.1:{}", spillgate_testkit::free_port());
    let of_gone =
        run(&[&["explain", "--redis", &gone, "--config", file.path()][..], &ann].concat());
    let why = String::from_utf8_lossy(&of_gone.stderr);
    assert!(why.starts_with("spillgate: the store did not decide: "), "{why}");
    let cost = "requests=1,tokens=3";
    let json = output_of(&["explain", "--url", &url, "--json", "--cost", cost, "user=ann"]);
    assert_eq!(serde_json::from_str::<Value>(&json).unwrap()["allowed"], true);
    let top = output_of(&["top", "--url", &url, "--rule", "api"]);
    assert!(top.contains("           1  tenant=acme user=ann"), "{top}");
}

#[test]
fn top_adds_up_several_servers_and_says_which_one_is_missing() {
    let file = api_rule();
    let fleet = [(); 2].map(|()| Server::start(&["--config", file.path()]));
    let url = |port: u16| format!("http://127.0.0.1:{port}");
    let urls = [0, 1].map(|it: usize| url(fleet[it].admin_port.unwrap()));
    for server in &fleet {
        // Two are allowed by each, and one is denied.
        (0..3).for_each(|_| drop(decision(server)));
    }
    let both = run(&["top", "--url", &urls[0], "--url", &urls[1]]);
    let text = String::from_utf8(both.stdout).unwrap();
    assert!(text.contains(", 2 instances\n"), "{text}");
    assert!(text.contains("of 4 requests\n             4  tenant=acme user=ann"), "{text}");
    assert!(text.contains("denials, of 2\n             2  tenant=acme user=ann"), "{text}");
    assert_eq!(both.status.code(), Some(0));

    let absent = url(spillgate_testkit::free_port());
    let some = run(&["top", "--json", "--url", &absent, "--url", &urls[1]]);
    let answer: Value = serde_json::from_slice(&some.stdout).unwrap();
    assert_eq!(answer["rules"][0]["consumers"][0]["count"], 2, "{answer}");
    let error = String::from_utf8_lossy(&some.stderr);
    assert_eq!((some.status.code(), error.contains(&absent)), (Some(2), true), "{error}");
}

#[test]
fn the_command_line_sends_the_token() {
    let tokens = "ann:operator:0123456789abcdef0123456789abcdef\n";
    let token = TempFile::new("tokens", tokens);
    let config = format!("[server]\nadmin_token_file = \"{}\"\n", token.path());
    let config = TempFile::new("limits.toml", &config);
    let server = Server::start(&["--config", config.path()]);
    let url = format!("http://127.0.0.1:{}", server.admin_port.unwrap());
    for command in ["top", "explain"] {
        let without = run(&[command, "--url", &url]);
        assert_eq!(without.status.code(), Some(2));
        // The server's file with one line, and a file with the token alone.
        for file in [&token, &TempFile::new("token", tokens.strip_prefix("ann:operator:").unwrap())]
        {
            let with = run(&[command, "--url", &url, "--token-file", file.path()]);
            assert_eq!(with.status.code(), Some(0), "{}", String::from_utf8_lossy(&with.stderr));
        }
        let several = TempFile::new("tokens", &format!("{tokens}bob:viewer:fedcba9876543210\n"));
        let with = run(&[command, "--url", &url, "--token-file", several.path()]);
        let error = String::from_utf8_lossy(&with.stderr).into_owned();
        assert_eq!(with.status.code(), Some(2), "{error}");
        assert!(error.contains("several lines; name a file with one token"), "{error}");
    }
}

#[test]
fn a_request_that_only_a_shadow_rule_matches_is_allowed_by_no_inline_limit() {
    let rule =
        "[[rule]]\nname = \"api\"\nkey = [\"tenant\"]\nmode = \"shadow\"\nlimits = [\"1/day\"]\n";
    let file = TempFile::new("limits.toml", rule);
    let server = Server::start(&["--config", file.path()]);
    for _ in 0..2 {
        let path = "/admin/v1/explain?attr.tenant=acme";
        let explained = expect_ok(&server, "GET", path, &Value::Null);
        assert_eq!(
            explained["sentence"],
            "Allowed: only rules in shadow mode match, and these deny nothing."
        );
        assert_eq!(decision(&server), "allowed");
    }
}
