//! Why a request would be decided as it would, and who uses most: over the door and on the command line.

use serde_json::{Value, json};
use spillgate_testkit::RedisServer;

use super::{api_rule, decision, refused, told};
use crate::server::{Server, TempFile, on_both_engines, run};

const OF_ANN: &str = "/admin/v1/explain?attr.tenant=acme&attr.user=ann";

#[test]
fn an_explanation_is_what_the_next_check_says() {
    let file = api_rule();
    on_both_engines(&["--config", file.path()], |server| {
        for expected in ["allowed", "allowed", "limit-exceeded"] {
            let explained = told(server, "GET", OF_ANN, &Value::Null);
            assert_eq!(explained["reason"].as_str().unwrap_or("allowed"), expected, "{explained}");
            assert_eq!(decision(server), expected);
        }
        let explained = told(server, "GET", OF_ANN, &Value::Null);
        let tier = &explained["limits"][0];
        assert_eq!(
            (&tier["quota"], &tier["used"], &tier["remaining"], &tier["cost"]),
            (&json!("2/1h"), &json!(2), &json!(0), &json!(1)),
            "{explained}"
        );
        assert_eq!(tier["raise"]["quota"], "4/1h");
        assert_eq!(tier["raise"]["fits"], true);
        assert_eq!(explained["rules"][0]["matched"], true);
        let costly = told(server, "GET", &format!("{OF_ANN}&cost=3"), &Value::Null);
        assert_eq!(costly["reason"], "cost-exceeds-limit");
        let stranger = told(server, "GET", "/admin/v1/explain?attr.user=ann", &Value::Null);
        assert_eq!(stranger["rules"][0]["why"], "the request has no attribute \"tenant\"");
    });
}

#[test]
fn what_is_taken_ahead_is_told_with_what_it_pays_for() {
    let rule = "[[rule]]\nname = \"api\"\nkey = [\"tenant\"]\nlimits = [\"1000000/366d\"]\n\
                lease = { share = 0.05, ttl = \"60s\", hot = [{ tenant = \"acme\" }] }\n";
    let (file, redis) = (TempFile::new("limits.toml", rule), RedisServer::start());
    let server = Server::start_on(&redis, &["--config", file.path()]);
    let of = |tenant: &str| {
        told(&server, "GET", &format!("/admin/v1/explain?attr.tenant={tenant}"), &Value::Null)
    };
    let hot = of("acme");
    assert_eq!((&hot["source"], &hot["allowed"]), (&json!("lease"), &json!(true)), "{hot}");
    let tier = &hot["leased"]["limits"][0];
    assert_eq!((&tier["rule"], &tier["limit"]), (&json!("api"), &json!("0")), "{hot}");
    assert_eq!(tier["remaining"], 1_000_000, "{hot}");
    // The store counts what is taken ahead as used.
    assert!(hot["limits"][0]["remaining"].as_u64().unwrap() < 1_000_000, "{hot}");
    assert_eq!(of("cold")["leased"], Value::Null);
}

#[test]
fn what_cannot_be_explained_is_told_with_its_field() {
    let server = Server::start(&[]);
    for (query, field, says) in [
        ("?ip=1", "ip", "no such parameter"),
        ("?attr.=1", "attr.", "1 to 64 bytes"),
        ("?attr.a=1&attr.a=2", "attr.a", "given twice"),
        ("?domain=a&domain=b", "domain", "given twice"),
        ("?cost=-1", "cost", "no whole number"),
        ("?cost.tokens=x", "cost.tokens", "no whole number"),
    ] {
        let (status, named, detail) =
            refused(&server, "GET", &format!("/admin/v1/explain{query}"), "");
        assert_eq!((status, named.as_str()), (400, field), "{query}: {detail}");
        assert!(detail.contains(says), "{query}: {detail}");
    }
}

#[test]
fn top_tells_who_uses_most_and_who_is_refused() {
    let file = api_rule();
    on_both_engines(&["--config", file.path()], |server| {
        for _ in 0..5 {
            decision(server);
        }
        let top = told(server, "GET", "/admin/v1/top?rule=api&n=3", &Value::Null);
        let ann = |count| json!([{"subject": {"tenant": "acme", "user": "ann"}, "whole": true, "count": count}]);
        let api = &top["rules"][0];
        assert_eq!((&api["consumers"], &api["most_denied"]), (&ann(2), &ann(3)), "{top}");
    });
}

#[test]
fn people_ask_on_the_command_line() {
    let file = api_rule();
    let redis = RedisServer::start();
    let server = Server::start_on(&redis, &["--config", file.path()]);
    let door = format!("http://127.0.0.1:{}", server.admin_port.unwrap());
    for _ in 0..3 {
        decision(&server);
    }
    let ann = ["tenant=acme", "user=ann"];
    let said = |arguments: &[&str]| {
        let output = run(arguments);
        let error = String::from_utf8_lossy(&output.stderr);
        assert_eq!((output.status.code(), error.as_ref()), (Some(0), ""), "{arguments:?}");
        String::from_utf8(output.stdout).unwrap()
    };
    let of_server = said(&[&["explain", "--url", &door][..], &ann].concat());
    assert!(of_server.starts_with("Denied by api/0, for "), "{of_server}");
    assert!(of_server.contains("0 of 2 requests are left, and this costs 1."), "{of_server}");
    let store = ["explain", "--redis", &redis.url(), "--config", file.path()];
    let of_store = said(&[&store[..], &ann].concat());
    assert!(of_store.starts_with("Denied by api/0, for "), "{of_store}");
    let json = said(&["explain", "--url", &door, "--json", "--cost", "tokens=3", "user=ann"]);
    assert_eq!(serde_json::from_str::<Value>(&json).unwrap()["allowed"], true);
    let top = said(&["top", "--url", &door, "--rule", "api"]);
    assert!(top.contains("           1  tenant=acme user=ann"), "{top}");
}

#[test]
fn the_command_line_shows_the_token() {
    let token = TempFile::new("token", "0123456789abcdef0123456789abcdef\n");
    let config = format!("[server]\nadmin_token_file = \"{}\"\n", token.path());
    let config = TempFile::new("limits.toml", &config);
    let server = Server::start(&["--config", config.path()]);
    let door = format!("http://127.0.0.1:{}", server.admin_port.unwrap());
    for command in ["top", "explain"] {
        let without = run(&[command, "--url", &door]);
        assert_eq!(without.status.code(), Some(2));
        let with = run(&[command, "--url", &door, "--token-file", token.path()]);
        assert_eq!(with.status.code(), Some(0), "{}", String::from_utf8_lossy(&with.stderr));
    }
}
