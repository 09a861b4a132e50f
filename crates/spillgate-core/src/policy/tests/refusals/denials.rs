//! Denials that do not load.

use super::refuses_rule;

#[track_caller]
fn refuses_denial(denial: &str, message: &str) {
    refuses_rule(&format!("denial = {denial}"), &format!(r#"2: rule "a", field {message}"#));
}

#[test]
fn rejects_denials_of_the_wrong_shape() {
    refuses_denial(
        "429",
        r#"`denial`: this is a whole number; write a table: denial = { status = 403, text = "No more logins today." }"#,
    );
    refuses_denial(
        "{}",
        r#"`denial`: an empty table, which changes nothing; write for example denial = { status = 403, text = "No more logins today." }"#,
    );
    refuses_denial(
        r#"{ body = "no" }"#,
        "`body`: there is no such field; those that exist here are status, text, json, problem, headers",
    );
    refuses_denial(
        r#"{ header = { x-reason = "quota" } }"#,
        "`header`: there is no such field; did you mean `headers`?",
    );
}

#[test]
fn rejects_statuses_that_are_no_errors() {
    for status in [0, 200, 302, 399, 600, 65_965] {
        refuses_denial(
            &format!("{{ status = {status} }}"),
            &format!("`status`: must be from 400 to 599, got {status}; write for example 429"),
        );
    }
    for status in [r#""429""#, "-429", "429.0"] {
        refuses_denial(
            &format!("{{ status = {status} }}"),
            &format!(
                "`status`: expected a whole number from 0 up, got {status}; write for example status = 429"
            ),
        );
    }
}

#[test]
fn rejects_bodies_that_cannot_be_sent() {
    refuses_denial(
        r#"{ text = "no", problem = { title = "no" } }"#,
        "`problem`: a response has one body, and `text` is one; keep one of them",
    );
    refuses_denial(
        r#"{ json = { a = "no" }, text = "no" }"#,
        "`json`: a response has one body, and `text` is one; keep one of them",
    );
    refuses_denial("{ text = 5 }", "`text`: this is a whole number; write a string, in quotes");
    refuses_denial(
        r#"{ json = "{}" }"#,
        r#"`json`: this is a string; write a table: json = { title = "Too many logins" }"#,
    );
    refuses_denial(
        &format!("{{ text = {:?} }}", "a".repeat(4_097)),
        "`text`: 4097 bytes, and 4096 are the most; shorten it",
    );
    // `{"a":"…"}` has eight bytes more than its text.
    refuses_denial(
        &format!("{{ json = {{ a = {:?} }} }}", "a".repeat(4_089)),
        "`json`: 4097 bytes, and 4096 are the most; shorten it",
    );
    refuses_denial(
        &format!("{{ problem = {{ title = {:?} }} }}", "a".repeat(4_090)),
        "`problem`: 4097 bytes, and 4096 are the most; shorten it",
    );
}

#[test]
fn rejects_values_that_json_does_not_have() {
    for number in ["inf", "-inf", "nan", "+nan"] {
        refuses_denial(
            &format!("{{ json = {{ a = {number} }} }}"),
            &format!("`json`: {number} is not a number in JSON; write it as a string"),
        );
    }
    refuses_denial(
        "{ json = { a = [99999999999999999999] } }",
        "`json`: 99999999999999999999 is too large a number; write it as a string",
    );
    refuses_denial(
        &format!("{{ json = {{ a = {}1{} }} }}", "[".repeat(17), "]".repeat(17)),
        "`json`: values are nested more than 16 deep; make them flatter",
    );
}

#[test]
fn rejects_members_of_a_problem_that_the_response_has_already() {
    refuses_denial(
        "{ problem = { status = 402 } }",
        r#"`problem`: "status": the problem has the status of the response; set the status of the denial"#,
    );
    refuses_denial(
        r#"{ problem = { violated-policies = ["a"] } }"#,
        r#"`problem`: "violated-policies": Spillgate writes the limits that deny; choose another name"#,
    );
    for name in ["type", "title", "detail", "instance"] {
        refuses_denial(
            &format!("{{ problem = {{ {name} = 5 }} }}"),
            &format!(
                r#"`problem`: "{name}": type, title, detail and instance are texts; write this one in quotes"#
            ),
        );
    }
    for name in ["", "1st", "a b", "é", "a\\\""] {
        refuses_denial(
            &format!("{{ problem = {{ \"{name}\" = \"a\" }} }}"),
            &format!(
                r#"`problem`: "{name}": the name of a member has a letter, then letters, digits, - and _; choose such a name"#
            ),
        );
    }
}

#[test]
fn rejects_header_fields_that_http_or_spillgate_sets() {
    refuses_denial(
        r#"{ headers = ["x-reason"] }"#,
        r#"`headers`: this is a list; write a table: headers = { x-reason = "quota" }"#,
    );
    refuses_denial(
        "{ headers = { x-reason = 5 } }",
        "`headers`: this is a whole number; write a string, in quotes",
    );
    for name in ["", "x reason", "x:y", ":status", "é"] {
        refuses_denial(
            &format!("{{ headers = {{ \"{name}\" = \"a\" }} }}"),
            &format!(
                r#"`headers`: "{name}" is not the name of a header field; write for example x-reason"#
            ),
        );
    }
    for name in [
        "Connection",
        "content-encoding",
        "Content-Length",
        "date",
        "keep-alive",
        "proxy-connection",
        "RateLimit",
        "ratelimit-policy",
        "Retry-After",
        "te",
        "trailer",
        "Transfer-Encoding",
        "upgrade",
        "X-RateLimit-Limit",
        "x-spillgate-source",
    ] {
        refuses_denial(
            &format!("{{ headers = {{ {name} = \"a\" }} }}"),
            &format!(
                r#"`headers`: "{name}" is a field that Spillgate or the connection sets; leave it out"#
            ),
        );
    }
    for value in ["a\\r\\nset-cookie: b", "a\\u0000", "é", "\\u007f"] {
        refuses_denial(
            &format!("{{ headers = {{ x-reason = \"{value}\" }} }}"),
            r#"`headers`: the value of "x-reason" has other characters than printable ASCII; leave them out"#,
        );
    }
    refuses_denial(
        r#"{ headers = { X-Reason = "a", x-reason = "b" } }"#,
        r#"`headers`: "x-reason" is listed twice; keep one of them"#,
    );
}

#[test]
fn rejects_more_header_fields_than_proxies_take() {
    let fields = |names: usize, bytes: usize| {
        let fields = (10..10 + names).map(|n| format!("x{n} = {:?}", "a".repeat(bytes - 3)));
        format!("{{ headers = {{ {} }} }}", fields.collect::<Vec<_>>().join(", "))
    };
    refuses_denial(&fields(17, 8), "`headers`: 17 fields, and 16 are the most; leave some out");
    refuses_denial(
        &fields(3, 683),
        "`headers`: 2049 bytes of names and values, and 2048 are the most; shorten them",
    );
}
