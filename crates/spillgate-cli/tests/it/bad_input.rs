//! Input that cannot be understood is refused as a whole, with the name of the field, and charges nothing.

use serde_json::{Value, json};

use crate::client::Reply;
use crate::server::Server;

/// Each line: a body of `/v1/check`, the field that the problem names, and a part of its detail.
const BAD_CHECKS: &[(&str, &str, &str)] = &[
    // The shape.
    ("5", "", "expected an object such as"),
    ("null", "", "expected an object such as"),
    (r#"["web"]"#, "", "expected an object such as"),
    (r#"{"keys":"u"}"#, "keys", "unknown field `keys`, expected one of `domain`"),
    (r#"{"key":"u","key":"v","limit":{"quota":"5/minute"}}"#, "key", "duplicate field `key`"),
    (r#"{"key":"u"}"#, "limit", "missing beside key"),
    (r#"{"key":"u","limit":null}"#, "limit", "missing beside key"),
    (r#"{"limit":{"quota":"5/minute"}}"#, "key", "missing beside limit"),
    (r#"{"key":"u","limit":{"quota":"5/minute"},"attributes":{}}"#, "attributes", "uses no rules"),
    // Domain and key.
    (r#"{"domain":5}"#, "domain", "expected a string"),
    (r#"{"domain":""}"#, "domain", "names have 1 to 64"),
    (r#"{"key":5,"limit":{"quota":"5/minute"}}"#, "key", "expected a string"),
    (r#"{"key":"","limit":{"quota":"5/minute"}}"#, "key", "an empty key"),
    // Attributes.
    (r#"{"attributes":["ip"]}"#, "attributes", "expected an object, got an array"),
    (r#"{"attributes":{"ip":true}}"#, "attributes.ip", "expected a string, or an integer"),
    (r#"{"attributes":{"ip":null}}"#, "attributes.ip", "expected a string, or an integer"),
    (r#"{"attributes":{"ip":1.5}}"#, "attributes.ip", "expected a string, or an integer"),
    (r#"{"attributes":{"ip":["a"]}}"#, "attributes.ip", "expected a string, or an integer"),
    (r#"{"attributes":{"ip":"a","ip":"b"}}"#, "attributes.ip", "duplicate field `ip`"),
    (r#"{"attributes":{"":"a"}}"#, "attributes", "names have 1 to 64"),
    // Costs.
    (r#"{"cost":-1}"#, "cost", "by unit, got -1"),
    (r#"{"cost":1.5}"#, "cost", "by unit, got 1.5"),
    (r#"{"cost":1e3}"#, "cost", "expected a whole number"),
    (r#"{"cost":18446744073709551616}"#, "cost", "expected a whole number"),
    (r#"{"cost":"5"}"#, "cost", "by unit, got \"5\""),
    (r#"{"cost":[5]}"#, "cost", "expected a whole number"),
    (r#"{"cost":{"tokens":-1}}"#, "cost.tokens", "expected a whole number, not below 0, got -1"),
    (r#"{"cost":{"tokens":null}}"#, "cost.tokens", "expected a whole number"),
    (r#"{"cost":{"tokens":1,"tokens":2}}"#, "cost.tokens", "duplicate field `tokens`"),
    // Limits.
    (r#"{"key":"u","limit":"5/minute"}"#, "limit", "expected an object such as"),
    (r#"{"key":"u","limit":["5/minute"]}"#, "limit", "expected an object such as"),
    (
        r#"{"key":"u","limit":{}}"#,
        "limit.quota",
        "missing field `quota`; add for example \"quota\": \"5/minute\"",
    ),
    (r#"{"key":"u","limit":{"quota":5}}"#, "limit.quota", "expected a string"),
    (r#"{"key":"u","limit":{"quota":"5/minute","rate":5}}"#, "limit.rate", "unknown field `rate`"),
    (
        r#"{"key":"u","limit":{"quota":"5/minute","quota":"6/minute"}}"#,
        "limit.quota",
        "duplicate field `quota`",
    ),
    (r#"{"key":"u","limit":{"quota":"0/minute"}}"#, "limit.quota", "a count of 0"),
    (r#"{"key":"u","limit":{"quota":"-5/minute"}}"#, "limit.quota", ""),
    (r#"{"key":"u","limit":{"quota":"99999999999999999999/minute"}}"#, "limit.quota", ""),
    (r#"{"key":"u","limit":{"quota":"5/fortnight"}}"#, "limit.quota", "is not a length of time"),
    (r#"{"key":"u","limit":{"quota":""}}"#, "limit.quota", ""),
    (r#"{"key":"u","limit":{"quota":"5/minute","burst":0}}"#, "limit.burst", ""),
    (
        r#"{"key":"u","limit":{"quota":"5/minute","burst":-1}}"#,
        "limit.burst",
        "expected a whole number, not below 0, got -1",
    ),
    (
        r#"{"key":"u","limit":{"quota":"5/minute","burst":"9"}}"#,
        "limit.burst",
        "expected a whole number",
    ),
    (
        r#"{"key":"u","limit":{"quota":"5/minute","algorithm":"leaky"}}"#,
        "limit.algorithm",
        "is not an algorithm",
    ),
    // Waiting.
    (
        r#"{"wait_ms":60001}"#,
        "wait_ms",
        "must be at most 60000, got 60001; to wait longer, check again after retry_after_ms",
    ),
    (r#"{"wait_ms":-1}"#, "wait_ms", "expected a whole number"),
    // Broken JSON.
    (
        "",
        "",
        "the body is empty; send an object such as {\"attributes\": {\"ip\": \"203.0.113.7\"}}",
    ),
    (" \n", "", "the body is empty; send an object such as"),
    ("{\"cost\":", "", "is not JSON: it ends too early at line 1, column 8"),
    ("{\n\"cost\": 1,,}", "", "at line 2, column"),
    (r#"{"cost":1} x"#, "", "trailing characters at line 1, column 12"),
    (r#"{"attributes":{"ip":"\ud800"}}"#, "", "at line 1"),
    ("{'key':1}", "", "at line 1, column 2"),
    ("NaN", "", "at line 1, column 1"),
];

#[test]
fn a_bad_check_is_a_400_that_names_its_field() {
    let server = Server::start(&[]);
    let mut client = server.client();
    for (body, field, part) in BAD_CHECKS {
        let reply = client.post("/v1/check", body.as_bytes()).unwrap();
        expect_problem(&reply, 400, "Bad Request", field, part, body);
    }
}

#[test]
fn an_answer_repeats_the_id_of_its_request_and_an_error_always_has_one() {
    let server = Server::start(&[]);
    let mut client = server.client();
    let long = "x".repeat(129);
    let allowed = r#"{"key":"u","limit":{"quota":"5/minute"}}"#;
    for (path, body) in [("/v1/check", allowed), ("/v1/check", "{"), ("/nowhere", "")] {
        let is_error = body != allowed;
        for (sent, repeated) in [("4f-1c", true), (long.as_str(), false), ("a b", false)] {
            let headers = [("Host", "localhost"), ("X-Request-Id", sent)];
            let reply = client.send_with("POST", path, &headers, body.as_bytes()).unwrap();
            let id = reply.header("x-request-id");
            assert_eq!(id == Some(sent), repeated, "{path} {body}: {reply:?}");
            assert_eq!(id.is_some(), repeated || is_error, "{path} {body}: {reply:?}");
        }
    }
}

#[test]
fn a_null_field_counts_as_absent() {
    let server = Server::start(&[]);
    let nulls =
        r#"{"domain":null,"attributes":null,"key":null,"limit":null,"cost":null,"wait_ms":null}"#;
    assert_eq!(server.check(nulls)["allowed"], true);
    let nulls =
        r#"{"key":"u","limit":{"quota":"5/minute","burst":null,"algorithm":null},"wait_ms":0}"#;
    assert_eq!(server.check(nulls)["remaining"], 4);
}

#[test]
fn each_bound_admits_the_last_value_and_refuses_the_next() {
    let server = Server::start(&[]);
    let text = |length: usize| "x".repeat(length);
    let attributes = |count: usize| -> Value {
        (0..count).map(|n| (format!("a{n}"), json!("v"))).collect::<serde_json::Map<_, _>>().into()
    };
    let units = |count: usize| -> Value {
        (0..count).map(|n| (format!("u{n}"), json!(1))).collect::<serde_json::Map<_, _>>().into()
    };
    let key = |length: usize| json!({"key": text(length), "limit": {"quota": "5/minute"}});
    let cases = [
        (
            "attributes",
            json!({"attributes": attributes(32)}),
            json!({"attributes": attributes(33)}),
        ),
        (
            &format!("attributes.{}", text(65)),
            json!({"attributes": {text(64): ""}}),
            json!({"attributes": {text(65): ""}}),
        ),
        (
            "attributes.a",
            json!({"attributes": {"a": text(4_096)}}),
            json!({"attributes": {"a": text(4_097)}}),
        ),
        ("key", key(4_096), key(4_097)),
        ("domain", json!({"domain": text(64)}), json!({"domain": text(65)})),
        ("cost", json!({"cost": units(32)}), json!({"cost": units(33)})),
    ];
    for (field, last, next) in cases {
        server.check(&last.to_string());
        let reply = server.post("/v1/check", next.to_string().as_bytes());
        expect_problem(&reply, 400, "Bad Request", field, "", field);
    }
}

#[test]
fn a_bad_item_of_a_batch_is_answered_by_its_problem_and_its_neighbours_by_decisions() {
    let server = Server::start(&[]);
    let good = r#"{"key":"u1","limit":{"quota":"40/day"}}"#;
    let mut left = 40;
    for (bad, field) in [
        ("5", ""),
        ("[]", ""),
        ("null", ""),
        (r#""\ud800""#, ""),
        (r#"{"cost":-1}"#, "cost"),
        (r#"{"cost":-}"#, "whole"),
        (r#"{"attributes":{"ip":true}}"#, "attributes.ip"),
        (r#"{"attributes":{"ip":[[[[]]]]}}"#, "attributes.ip"),
        (r#"{"key":"u","limit":{"quota":"0/minute"}}"#, "limit.quota"),
        (r#"{"key":"u"}"#, "limit"),
        (r#"{"kye":"u"}"#, "kye"),
        (r#"{"cost":1,"cost":1}"#, "cost"),
        (r#"{"wait_ms":1}"#, "wait_ms"),
        (r#"{"wait_ms":60001}"#, "wait_ms"),
        (r#"{"ttl_ms":1}"#, "ttl_ms"),
    ] {
        let reply = server.post("/v1/check/batch", format!("[{good},{bad},{good}]").as_bytes());
        if field == "whole" {
            // Without the end of an item there is no next one.
            assert_eq!(reply.status, 400, "{bad}: {}", reply.body);
            continue;
        }
        assert_eq!(reply.status, 200, "{bad}: {}", reply.body);
        let results = reply.json()["results"].clone();
        assert_eq!(results.as_array().unwrap().len(), 3, "{bad}: {results}");
        left -= 2;
        assert_eq!(results[0]["remaining"], left + 1, "{bad}: {results}");
        assert_eq!(results[2]["remaining"], left, "{bad}: {results}");
        let problem = &results[1]["error"];
        assert_eq!(problem["status"], 400, "{bad}: {results}");
        assert_eq!(problem["title"], "Bad Request", "{bad}: {results}");
        assert_eq!(problem["field"].as_str().unwrap_or_default(), field, "{bad}: {results}");
        // By itself the item has the same problem.
        if !field.contains("_ms") {
            assert_eq!(problem, &server.post("/v1/check", bad.as_bytes()).json(), "{bad}");
        }
    }
}

#[test]
fn a_batch_is_an_array_of_at_most_one_thousand() {
    let server = Server::start(&[]);
    let reply = server.post("/v1/check/batch", b"{}");
    expect_problem(&reply, 400, "Bad Request", "", "expected an array of at most 1000", "{}");
    let reply =
        server.post("/v1/check/batch", json!(vec![json!({}); 1_001]).to_string().as_bytes());
    expect_problem(
        &reply,
        400,
        "Bad Request",
        "",
        "more than 1000 items; send the rest in another call",
        "1,001 items",
    );
}

#[test]
fn a_body_above_one_mebibyte_is_a_413() {
    let server = Server::start(&[]);
    let body = |length: usize| format!("{{}}{}", " ".repeat(length - 2));
    assert_eq!(server.post("/v1/check", body(1024 * 1024).as_bytes()).status, 200);
    for length in [1024 * 1024 + 1, 4 * 1024 * 1024] {
        let reply = server.post("/v1/check", body(length).as_bytes());
        expect_problem(
            &reply,
            413,
            "Payload Too Large",
            "",
            "above 1048576 bytes; send the checks in several calls",
            "a long body",
        );
    }
}

#[test]
fn a_wrong_path_or_method_names_those_that_exist() {
    let server = Server::start(&[]);
    let mut client = server.client();
    for (method, path) in
        [("GET", "/"), ("POST", "/v1/chek"), ("POST", "/v1/check/"), ("DELETE", "/v2")]
    {
        let reply = client.send(method, path, b"").unwrap();
        expect_problem(
            &reply,
            404,
            "Not Found",
            "",
            "there are POST /v1/check, /v1/check/batch, /v1/reserve, ",
            path,
        );
    }
    for (method, path) in [("GET", "/v1/check"), ("PUT", "/v1/check/batch"), ("BREW", "/v1/check")]
    {
        let reply = client.send(method, path, b"").unwrap();
        let part = format!("{path} does not take {method}; send POST");
        expect_problem(&reply, 405, "Method Not Allowed", "", &part, method);
        assert_eq!(reply.header("allow"), Some("POST"), "{method} {path}");
    }
    let reply = client.send("POST", "/v1/openapi.json", b"").unwrap();
    expect_problem(&reply, 405, "Method Not Allowed", "", "does not take POST; send GET", "POST");
}

#[test]
fn a_path_of_the_admin_listener_is_a_404_that_names_it() {
    let server = Server::start(&[]);
    for path in ["/livez", "/readyz", "/metrics", "/admin/v1/rules"] {
        let reply = server.client().send("GET", path, b"").unwrap();
        let part = format!("there is no {path} here; send it to the admin listener, server.admin");
        expect_problem(&reply, 404, "Not Found", "", &part, path);
    }
}

#[test]
fn a_compressed_body_is_a_400_that_says_so() {
    let server = Server::start(&[]);
    let reply = server.post("/v1/check", b"\x1f\x8b\x08\x00\x00\x00\x00\x00");
    expect_problem(&reply, 400, "Bad Request", "", "the body is compressed; send it as it is", "");
}

#[test]
fn an_answer_does_not_grow_with_its_request() {
    let server = Server::start(&[]);
    let long = "x".repeat(100_000);
    for body in [
        format!(r#"{{"{long}":1}}"#),
        format!(r#"{{"cost":"{long}"}}"#),
        format!(r#"{{"key":"u","limit":{{"quota":"{long}"}}}}"#),
    ] {
        let reply = server.post("/v1/check", body.as_bytes());
        assert_eq!(reply.status, 400);
        assert!(reply.body.len() < 2_000, "{} bytes", reply.body.len());
    }
}

#[test]
fn bytes_that_are_not_utf8_are_refused() {
    let server = Server::start(&[]);
    for body in [b"{\"key\":\"\xff\"}".as_slice(), b"\x00", b"\xef\xbb\xbf{}", &[0x5b; 100_000]] {
        let reply = server.post("/v1/check", body);
        assert_eq!(reply.status, 400, "{}", reply.body);
    }
}

#[track_caller]
fn expect_problem(reply: &Reply, status: u16, title: &str, field: &str, part: &str, sent: &str) {
    let context = format!("{sent}: {}", reply.body);
    assert_eq!(reply.status, status, "{context}");
    assert_eq!(reply.header("content-type"), Some("application/problem+json"), "{context}");
    let problem = reply.json();
    let page = "/blob/main/docs/reference/errors.md#codes-over-http";
    assert!(problem["type"].as_str().unwrap().ends_with(page), "{context}");
    assert!(reply.header("x-request-id").is_some_and(|id| !id.is_empty()), "{context}");
    let table = include_str!("../../../../docs/reference/errors.md");
    let row = format!("\n| `{}` | {status} |", problem["code"].as_str().unwrap());
    assert!(table.contains(&row), "docs/reference/errors.md has no row {row:?}: {context}");
    assert_eq!(problem["title"], title, "{context}");
    assert_eq!(problem["status"], status, "{context}");
    assert_eq!(
        problem.get("field").map_or("", |field| field.as_str().unwrap()),
        field,
        "{context}"
    );
    let detail = problem["detail"].as_str().unwrap();
    assert!(detail.contains(part) && detail.starts_with(field), "{context}");
}
