//! The state of a rule for one subject, and its correction.

use serde_json::{Value, json};

use super::{ann, api_rule, decision, expect_ok, refused};
use crate::server::{Server, on_both_engines};

const OF_ANN: &str = "/admin/v1/state?rule=api&attr.tenant=acme&attr.user=ann";

#[test]
fn a_look_shows_the_numbers_and_charges_nothing() {
    let file = api_rule();
    on_both_engines(&["--config", file.path()], |server| {
        assert_eq!(decision(server), "allowed");
        for _ in 0..3 {
            let state = expect_ok(server, "GET", OF_ANN, &Value::Null);
            assert_eq!(
                (&state["allowed"], &state["rule"], &state["remaining"], &state["capacity"]),
                (&json!(true), &json!("api"), &json!(1), &json!(2)),
                "{state}"
            );
        }
    });
}

#[test]
fn a_subject_is_charged_refunded_and_reset() {
    let file = api_rule();
    on_both_engines(&["--config", file.path()], |server| {
        let change = |field: &str, amount: Value| {
            let body = json!({"rule": "api", "subject": ann(), field: amount});
            expect_ok(server, "POST", "/admin/v1/state", &body)["remaining"].clone()
        };
        assert_eq!(change("charge", json!(2)), 0);
        assert_eq!(decision(server), "limit-exceeded");
        assert_eq!(change("refund", json!({"requests": 1})), 1);
        assert_eq!(decision(server), "allowed");
        assert_eq!(decision(server), "limit-exceeded");
        expect_ok(server, "DELETE", OF_ANN, &Value::Null);
        assert_eq!(decision(server), "allowed");
    });
}

#[test]
fn a_whole_rule_is_reset_only_with_all_in_the_request() {
    let file = api_rule();
    on_both_engines(&["--config", file.path()], |server| {
        while decision(server) == "allowed" {}
        let (status, field, detail) = refused(server, "DELETE", "/admin/v1/state?rule=api", "");
        assert_eq!((status, field.as_str()), (400, "subject"), "{detail}");
        let (status, field, detail) =
            refused(server, "DELETE", "/admin/v1/state?rule=api&all=yes", "");
        assert_eq!((status, field.as_str()), (400, "all"), "{detail}");
        assert_eq!(decision(server), "limit-exceeded");
        expect_ok(server, "DELETE", "/admin/v1/state?rule=api&all=true", &Value::Null);
        assert_eq!(decision(server), "allowed");
        // Counters have no version that a later change could name.
        let reset = "/admin/v1/state?rule=api&attr.tenant=acme&attr.user=ann";
        let headers = [("Host", "localhost")];
        let send = |body| server.operator().send_with("DELETE", reset, &headers, body).unwrap();
        let reply = send(b"");
        assert_eq!((reply.status, reply.header("etag")), (200, None));
        let reply = send(br#"{"reason": "lost otherwise"}"#);
        assert!(reply.status == 400 && reply.body.contains("into the query"), "{}", reply.body);
    });
}

#[test]
fn a_request_without_a_subject_names_its_field() {
    let file = api_rule();
    let server = Server::start(&["--config", file.path()]);
    let ask = |query: &str| refused(&server, "GET", &format!("/admin/v1/state{query}"), "");
    for (query, status, field, part) in [
        ("", 400, "rule", "missing"),
        ("?rule=api", 400, "subject", "tenant"),
        ("?rule=api&attr.tenant=acme", 400, "subject", "user"),
        ("?rule=none&attr.tenant=a", 404, "rule", "there is no rule \"none\""),
        ("?rule=api&rule=api", 400, "rule", "give it once"),
        ("?rule=api&attr.user=a&attr.user=b", 400, "attr.user", "give it once"),
        ("?rule=api&user=ann", 400, "user", "no such parameter"),
        ("?rule=api&all", 400, "all", "write all=true"),
        ("?rule=api&all=true", 400, "all", "leave it out"),
        ("?rule=api&all=false&all=false", 400, "all", "once"),
    ] {
        let (answered, named, detail) = ask(query);
        assert_eq!((answered, named.as_str()), (status, field), "{query}: {detail}");
        assert!(detail.contains(part), "{query}: {detail}");
    }
    let post = |body: &str| refused(&server, "POST", "/admin/v1/state", body);
    let with =
        |change: &str| format!(r#"{{"rule":"api","subject":{{"tenant":"a","user":"b"}}{change}}}"#);
    for (body, field, part) in [
        (with(""), "charge", "missing"),
        (with(r#","charge":1,"refund":1"#), "refund", "charge is there too"),
        (with(r#","charge":-1"#), "charge", "whole number"),
        (with(r#","charge":{"tokens":5}"#), "charge", "name one of its units, [\"requests\"]"),
        (with(r#","refund":{"tokens":5}"#), "refund", "no limit of the rule counts \"tokens\""),
        (with(r#","steal":1"#), "steal", "unknown field"),
        (r#"{"rule":"api","charge":1}"#.to_owned(), "subject", "missing field"),
        (r#"{"rule":"api","subject":[],"charge":1}"#.to_owned(), "subject", "an object"),
    ] {
        let (status, named, detail) = post(&body);
        assert_eq!((status, named.as_str()), (400, field), "{body}: {detail}");
        assert!(detail.contains(part), "{body}: {detail}");
    }
}

#[test]
fn a_body_above_the_bound_is_refused() {
    let server = Server::start(&[]);
    let (status, ..) = refused(&server, "POST", "/admin/v1/state", &" ".repeat(1024 * 1024 + 1));
    assert_eq!(status, 413);
}

#[test]
fn an_unavailable_store_is_reported_and_no_numbers_are_invented() {
    let file = api_rule();
    let url = format!("redis://127.0.0.1:{}", spillgate_testkit::free_port());
    let server = Server::start(&["--config", file.path(), "--redis", &url]);
    assert_eq!(refused(&server, "GET", OF_ANN, "").0, 503);
}

#[test]
fn a_change_of_counters_refuses_a_version_to_replace() {
    let file = api_rule();
    let server = Server::start(&["--config", file.path()]);
    let body = json!({"rule": "api", "subject": ann(), "charge": 1}).to_string();
    for (method, path, body) in [("DELETE", OF_ANN, ""), ("POST", "/admin/v1/state", &*body)] {
        for (seen, status) in [("\"2030-01-31T18:00:00Z\"", 400), ("*", 200)] {
            let headers = [("Host", "localhost"), ("If-Match", seen)];
            let reply =
                server.operator().send_with(method, path, &headers, body.as_bytes()).unwrap();
            assert_eq!(reply.status, status, "{method} {seen}: {}", reply.body);
            assert!(status == 200 || reply.body.contains("no versions"), "{}", reply.body);
        }
    }
}
