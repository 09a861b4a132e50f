//! The answers of the HTTP API to valid checks.

use serde_json::{Value, json};

use crate::server::{Server, TempFile, on_both_engines};

const FIVE_A_MINUTE: &str = r#"{"key":"u1","limit":{"quota":"5/minute"}}"#;

#[test]
fn five_a_minute_allow_five_and_then_deny_for_at_most_twelve_seconds() {
    on_both_engines(&[], |server| {
        for call in 1..=5 {
            assert_eq!(server.check(FIVE_A_MINUTE)["allowed"], true, "call {call}");
        }
        let sixth = server.check(FIVE_A_MINUTE);
        assert_eq!(
            (&sixth["reason"], &sixth["allowed"]),
            (&json!("limit-exceeded"), &json!(false))
        );
        let wait = sixth["retry_after_ms"].as_u64().unwrap();
        assert!((1..=12_000).contains(&wait), "{sixth}");
    });
}

#[test]
fn an_answer_has_every_field_in_order_and_null_for_unknown_values() {
    on_both_engines(&[], |server| {
        let reply =
            server.post("/v1/check", br#"{"key":"u1","limit":{"quota":"5/minute"},"cost":6}"#);
        assert_eq!(reply.header("content-type"), Some("application/json"));
        let numbers = r#""capacity":5,"remaining":5,"retry_after_ms":null,"reset_after_ms":0"#;
        let limit = format!(
            r#"{{"rule":null,"limit":"0","unit":"requests",{numbers},"allowed":false,"reason":"cost-exceeds-limit","source":"store"}}"#
        );
        let decision = r#""allowed":false,"reason":"cost-exceeds-limit","rule":null,"limit":"0""#;
        let source = r#""source":"store","degraded":false,"matched":true"#;
        assert_eq!(reply.body, format!(r#"{{{decision},{numbers},{source},"limits":[{limit}]}}"#));
    });
}

#[test]
fn an_answer_lists_each_of_several_limits() {
    let rules = TempFile::new(
        "several.toml",
        r#"
        [[rule]]
        name = "first/of.all"
        key = []
        limits = [{ name = "a_minute", quota = "5/minute" }, "1000/day"]

        [[rule]]
        name = "watched"
        key = []
        mode = "shadow"
        limits = ["1/minute"]
        "#,
    );
    on_both_engines(&["--config", rules.path()], |server| {
        let body = server.post("/v1/check", br#"{"cost":2}"#).body;
        let answer: Value = serde_json::from_str(&body).unwrap();
        let fields = ["rule", "limit", "capacity"].map(|field| &answer[field]);
        assert_eq!(fields, [&json!("first/of.all"), &json!("a_minute"), &json!(5)], "{body}");
        let limits = answer["limits"].as_array().unwrap();
        let names = limits.iter().map(|limit| limit["rule"].as_str().unwrap());
        assert_eq!(names.collect::<Vec<_>>(), ["first/of.all", "first/of.all", "watched"]);
        let shadows = limits.iter().map(|limit| limit.get("shadow"));
        assert_eq!(shadows.collect::<Vec<_>>(), [None, None, Some(&json!(true))]);
        let batch = server.post("/v1/check/batch", br#"[{"cost":2},{"cost":0}]"#).body;
        let batch: Value = serde_json::from_str(&batch).unwrap();
        assert_eq!(batch["results"].as_array().unwrap().len(), 2, "{batch}");
    });
}

#[test]
fn a_request_is_decided_by_the_rules_that_match_it() {
    on_both_engines(&["--config", rules().path()], |server| {
        let login = r#"{"attributes":{"ip":"203.0.113.7","route":"/login"}}"#;
        let first = server.check(login);
        assert_eq!((&first["rule"], &first["remaining"]), (&json!("login"), &json!(1)));
        server.check(login);
        assert_eq!(server.check(login)["allowed"], false);
        let other = r#"{"attributes":{"ip":"203.0.113.8","route":"/login"}}"#;
        assert_eq!(server.check(other)["allowed"], true);
    });
}

#[test]
fn an_unmatched_request_is_allowed_and_has_no_numbers() {
    on_both_engines(&["--config", rules().path()], |server| {
        let unmatched = json!({
            "allowed": true, "reason": null, "rule": null, "limit": null, "capacity": null, "remaining": null,
            "retry_after_ms": 0, "reset_after_ms": null, "source": "store", "degraded": false, "matched": false, "limits": [],
        });
        assert_eq!(server.check("{}"), unmatched);
        assert_eq!(
            server.check(r#"{"domain":"elsewhere","attributes":{"ip":"203.0.113.7"}}"#),
            unmatched
        );
    });
}

#[test]
fn a_number_is_the_same_attribute_as_its_digits() {
    let file = TempFile::new(
        "limits.toml",
        "[[rule]]\nname = \"user\"\nkey = [\"user\"]\nlimits = [\"2/minute\"]\n",
    );
    let server = Server::start(&["--config", file.path()]);
    server.check(r#"{"attributes":{"user":-7}}"#);
    server.check(r#"{"attributes":{"user":"-7"}}"#);
    assert_eq!(server.check(r#"{"attributes":{"user":-7}}"#)["allowed"], false);
}

#[test]
fn an_escaped_key_is_the_same_key() {
    let server = Server::start(&[]);
    server.check(r#"{"key":"caf\u00e9","limit":{"quota":"2/minute"}}"#);
    assert_eq!(server.check(r#"{"key":"café","limit":{"quota":"2/minute"}}"#)["remaining"], 0);
}

#[test]
fn a_key_is_another_one_in_another_domain() {
    on_both_engines(&[], |server| {
        let check = |domain: &str| {
            server.check(&format!(
                r#"{{"domain":{domain},"key":"u","limit":{{"quota":"2/minute"}}}}"#
            ))
        };
        assert_eq!(check("\"a\"")["remaining"], 1);
        assert_eq!(check("\"b\"")["remaining"], 1);
        assert_eq!(check("null")["remaining"], 1);
        assert_eq!(check("\"default\"")["remaining"], 0);
    });
}

#[test]
fn cost_0_peeks_and_a_cost_above_capacity_is_denied_for_good() {
    on_both_engines(&[], |server| {
        let check = |cost: &str| {
            server.check(&format!(r#"{{"key":"u","limit":{{"quota":"5/minute"}},"cost":{cost}}}"#))
        };
        let outcome = |answer: Value| (answer["reason"].clone(), answer["remaining"].clone());
        assert_eq!(outcome(check("0")), (json!(null), json!(5)));
        assert_eq!(outcome(check("18446744073709551615")), (json!("cost-exceeds-limit"), json!(5)));
        assert_eq!(outcome(check(r#"{"requests":3,"tokens":9}"#)), (json!(null), json!(2)));
        assert_eq!(outcome(check(r#"{"tokens":9}"#)), (json!(null), json!(2)));
        assert_eq!(outcome(check("3")), (json!("limit-exceeded"), json!(2)));
        assert_eq!(outcome(check("{}")), (json!(null), json!(2)));
    });
}

#[test]
fn the_response_of_a_rule_comes_with_the_header_fields() {
    let rules = "[[rule]]\nname = \"free\"\nkey = [\"user\"]\nlimits = [\"1/day\"]\n\
                 denial = { status = 402, text = \"Pay\", headers = { X-Plan = \"free\" } }\n\
                 [[rule]]\nname = \"usual\"\nkey = [\"ip\"]\nlimits = [\"block\"]\n";
    let file = TempFile::new("denials.toml", rules);
    on_both_engines(&["--config", file.path()], |server| {
        let check = |headers: bool| {
            server.check(&format!(r#"{{"attributes":{{"user":"ada"}},"headers":{headers}}}"#))
        };
        let allowed = check(true);
        assert_eq!((&allowed["allowed"], allowed.get("denial")), (&json!(true), None));
        assert_eq!(allowed["headers"].get("x-plan"), None);
        let denied = check(true);
        assert_eq!(denied["denial"], json!({"status": 402, "body": "Pay"}));
        assert_eq!(denied["headers"]["content-type"], "text/plain; charset=utf-8");
        assert_eq!(denied["headers"]["x-plan"], "free");
        assert!(denied["headers"]["retry-after"].is_string(), "{denied}");
        assert_eq!(check(false).get("denial"), None);
        let usual = server.check(r#"{"attributes":{"ip":"::1"},"headers":true}"#);
        assert_eq!((&usual["allowed"], usual.get("denial")), (&json!(false), None));
        assert_eq!(usual["headers"].get("content-type"), None);
    });
}

#[test]
fn header_fields_come_in_the_requested_style() {
    on_both_engines(&[], |server| {
        let check = |headers: &str| {
            server.check(&format!(
                r#"{{"key":"u","limit":{{"quota":"1/minute"}},"headers":{headers}}}"#
            ))
        };
        let allowed = check("true");
        assert_eq!(allowed["headers"]["ratelimit-policy"], r#""default";q=1;w=60"#, "{allowed}");
        assert_eq!(allowed["headers"].get("retry-after"), None);
        let legacy = &check(r#""legacy""#)["headers"];
        assert_eq!(legacy["x-ratelimit-remaining"], "0");
        let wait: u64 = legacy["retry-after"].as_str().unwrap().parse().unwrap();
        assert!((1..=60).contains(&wait), "{legacy}");
        let none = &check(r#""none""#)["headers"];
        assert_eq!(none.as_object().map(|fields| fields.len()), Some(1), "{none}");
        for absent in ["false", "null"] {
            assert_eq!(check(absent).get("headers"), None, "{absent}");
        }
        let batch = r#"[{"key":"v","limit":{"quota":"1/minute"},"headers":"draft-7"},{}]"#;
        let batch = server.post("/v1/check/batch", batch.as_bytes()).json();
        assert!(batch["results"][0]["headers"]["ratelimit"].is_string(), "{batch}");
        assert_eq!(batch["results"][1].get("headers"), None, "{batch}");
        let wrong = server.post("/v1/check", br#"{"headers":"draft-5"}"#);
        assert_eq!((wrong.status, &wrong.json()["field"]), (400, &json!("headers")));
        assert!(wrong.body.contains("ietf, draft-7, draft-6, legacy, none"), "{}", wrong.body);
    });
}

#[test]
fn a_batch_is_answered_in_order_each_check_by_itself() {
    on_both_engines(&["--config", rules().path()], |server| {
        let ad_hoc = |key: &str| json!({"key": key, "limit": {"quota": "1/minute"}});
        let login = json!({"attributes": {"ip": "::1", "route": "/login"}, "cost": 2});
        let batch = json!([ad_hoc("a"), ad_hoc("a"), login, ad_hoc("b"), {}, login]).to_string();
        let reply = server.post("/v1/check/batch", batch.as_bytes());
        assert_eq!(reply.status, 200, "{}", reply.body);
        let reply = reply.json();
        let decisions: Vec<&Value> =
            reply["results"].as_array().unwrap().iter().map(|one| &one["allowed"]).collect();
        assert_eq!(decisions, [true, false, true, true, true, false]);
    });
}

#[test]
fn an_empty_batch_has_no_results() {
    let server = Server::start(&[]);
    assert_eq!(server.post("/v1/check/batch", b"[]").body, r#"{"results":[]}"#);
}

#[test]
fn a_full_batch_of_one_thousand_is_answered() {
    on_both_engines(&[], |server| {
        let checks: Vec<Value> = (0..1_000)
            .map(|n| json!({"key": format!("k{}", n % 10), "limit": {"quota": "50/day"}}))
            .collect();
        let reply = server.post("/v1/check/batch", json!(checks).to_string().as_bytes()).json();
        let results = reply["results"].as_array().unwrap();
        assert_eq!(results.len(), 1_000);
        assert_eq!(results.iter().filter(|one| one["allowed"] == true).count(), 500);
    });
}

#[test]
fn the_content_type_does_not_matter() {
    let server = Server::start(&[]);
    for content_type in ["application/json", "application/x-www-form-urlencoded", "nonsense"] {
        let mut client = server.client();
        let length = FIVE_A_MINUTE.len();
        let head = format!(
            "POST /v1/check HTTP/1.1\r\nHost: h\r\nContent-Type: {content_type}\r\nContent-Length: {length}\r\n\r\n"
        );
        client.write(head.as_bytes()).unwrap();
        client.write(FIVE_A_MINUTE.as_bytes()).unwrap();
        assert_eq!(client.read().unwrap().status, 200, "{content_type}");
    }
}

fn rules() -> TempFile {
    TempFile::new(
        "limits.toml",
        "[[rule]]\nname = \"login\"\nmatch = { route = \"/login\" }\nkey = [\"ip\"]\nlimits = [\"2/minute\"]\n",
    )
}

#[test]
fn a_check_waits_for_room_up_to_its_bound() {
    on_both_engines(&[], |server| {
        let check = |quota: &str, wait_ms: u32| {
            let limit = format!(r#"{{"quota":"{quota}","burst":1}}"#);
            server.check(&format!(r#"{{"key":"{quota}","limit":{limit},"wait_ms":{wait_ms}}}"#))
        };
        while check("5/second", 0)["allowed"] == true {}
        let outcome = check("5/second", 60_000);
        assert_eq!((&outcome["allowed"], &outcome["retry_after_ms"]), (&json!(true), &json!(0)));
        assert_eq!(check("1/hour", 60_000)["allowed"], true);
        assert_eq!(check("1/hour", 60_000)["allowed"], false, "that would take an hour");
    });
}
