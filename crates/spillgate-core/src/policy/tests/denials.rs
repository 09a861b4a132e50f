//! The denials of rules, as they are read.

use super::policy;
use crate::policy::{DenialBody, RuleDenial};

/// Returns the denial of a rule with this text.
fn denial(text: &str) -> RuleDenial {
    let rule = format!("[[rule]]\nname = \"a\"\nkey = []\nlimits = [\"1/s\"]\n{text}");
    policy(&rule).rule("a").unwrap().denial().unwrap().clone()
}

#[test]
fn a_denial_sets_what_it_names() {
    let status = denial("denial = { status = 599 }");
    assert_eq!((status.status(), status.body(), status.headers().len()), (Some(599), None, 0));
    let page = "[rule.denial]\ntext = '''\n<h1>Slow down</h1>\n'''\n\
                headers.Content-Type = \"text/html\"\nheaders.\"X-A\" = \"\\t a!~\"";
    let page = denial(page);
    assert_eq!(page.status(), None);
    assert_eq!(page.body(), Some(&DenialBody::Text("<h1>Slow down</h1>\n".into())));
    assert!(page.headers().eq([("content-type", "text/html"), ("x-a", "\t a!~")]));
    let without = policy("[[rule]]\nname = \"a\"\nkey = []\nlimits = [\"1/s\"]");
    assert_eq!(without.rule("a").unwrap().denial(), None);
}

#[test]
fn a_denial_belongs_to_the_rule_above_it() {
    let rule = |name: &str| format!("[[rule]]\nname = \"{name}\"\nkey = []\nlimits = [\"1/s\"]\n");
    let text = format!("{}[rule.denial]\nstatus = 402\n{}", rule("a"), rule("b"));
    let policy = policy(&text);
    let status = |name: &str| policy.rule(name).unwrap().denial().and_then(RuleDenial::status);
    assert_eq!((status("a"), status("b")), (Some(402), None));
}

#[test]
fn json_has_the_values_of_the_file() {
    let body = |members: &str| match denial(&format!("denial.json = {{ {members} }}")).body() {
        Some(DenialBody::Json(json)) => json.to_string(),
        other => panic!("{other:?}"),
    };
    for (written, json) in [
        ("", "{}"),
        ("b = true, a = false", r#"{"a":false,"b":true}"#),
        ("a = [+1, -2, 0x1F, 1_000]", r#"{"a":[1,-2,31,1000]}"#),
        ("a = [+1.5, -0.25, 1e+6, 1_0.0]", r#"{"a":[1.5,-0.25,1e+6,10.0]}"#),
        ("a.b = { c = [{}, []] }", r#"{"a":{"b":{"c":[{},[]]}}}"#),
        ("a = 1979-05-27T07:32:00Z", r#"{"a":"1979-05-27T07:32:00Z"}"#),
        (r#""\"\\" = 'é"\'"#, r#"{"\"\\":"é\"\\"}"#),
        (r#"a = "\u0000\n\u001f\u007f""#, "{\"a\":\"\\u0000\\u000a\\u001f\u{7f}\"}"),
    ] {
        assert_eq!(body(written), json, "{written}");
    }
    let deepest = format!("a = {}1{}", "[".repeat(16), "]".repeat(16));
    assert_eq!(body(&deepest), format!("{{\"a\":{}1{}}}", "[".repeat(16), "]".repeat(16)));
}

#[test]
fn a_denial_has_room_for_what_is_stated() {
    let text = denial(&format!("denial.text = {:?}", "a".repeat(4_096)));
    assert_eq!(text.body(), Some(&DenialBody::Text("a".repeat(4_096).into())));
    let fields: Vec<String> = (10..26).map(|n| format!("x{n} = {:?}", "a".repeat(125))).collect();
    let full = denial(&format!("denial.headers = {{ {} }}", fields.join(", ")));
    assert_eq!(full.headers().map(|(name, value)| name.len() + value.len()).sum::<usize>(), 2_048);
}
