//! Every way in which a policy file can be invalid, with its error.

use crate::policy::Policy;

mod denials;
mod limits;
mod overrides;

#[test]
fn rejects_text_that_is_not_toml() {
    refuses(
        "[[rule]",
        "1: not TOML: unclosed array table, expected `]`; put strings in quotes, lists in brackets, and each field on a line of its own",
    );
    refuses(
        "[[rule]]
name = login",
        "2: field `name`: not TOML: string values must be quoted, expected literal string; put strings in quotes, lists in brackets, and each field on a line of its own",
    );
    refuses(
        "[[rule]]
key = [ip]",
        "2: field `key`: not TOML: invalid float, expected `inf`; put strings in quotes, lists in brackets, and each field on a line of its own",
    );
    refuses(
        "[[rule]]
mode: shadow",
        "2: not TOML: invalid unquoted key, expected letters, numbers, `-`, `_`; put strings in quotes, lists in brackets, and each field on a line of its own",
    );
    refuses(
        r#"[[rule]]
name = "a"
name = "b""#,
        "3: field `name`: given twice in one table; keep one of them",
    );
    refuses(
        "[store]

[store]",
        "3: field `store`: given twice in one table; keep one of them",
    );
    refuses(
        "[[rule]]
limits = [

[[rule]]
",
        "4: not TOML: string values must be quoted, expected literal string; put strings in quotes, lists in brackets, and each field on a line of its own",
    );
}

#[test]
fn escapes_control_characters_of_an_unknown_field() {
    let text = "\"x\\u001b]0;\\nstatus: ok\" = 1";
    let error = Policy::from_toml(text).unwrap_err();
    assert_eq!(error.field(), "x\u{1b}]0;\nstatus: ok");
    assert!(error.to_string().contains(r"field `x\u{1b}]0;\nstatus: ok`: "), "{error}");
}

#[test]
fn reports_the_consequences_of_a_mistake_in_a_line_once() {
    let text = format!("[[rule]]\nname = {{ {} }}\nkey = [ip]\n", ".".repeat(300));
    let problems = Policy::problems_in("f", &text);
    let reply: Vec<_> =
        problems.iter().map(|problem| (problem.line(), problem.message())).collect();
    assert!(reply.iter().any(|(line, _)| *line == 2) && reply.iter().any(|(line, _)| *line == 3));
    let once: std::collections::BTreeSet<_> = reply.iter().collect();
    assert_eq!(once.len(), reply.len(), "{reply:#?}");
}

#[test]
fn rejects_invalid_leases() {
    let lease = |lease: &str, message: &str| {
        let expected = format!(r#"2: rule "a", field {message}"#);
        refuses_rule(&format!("lease = {lease}"), &expected);
    };
    lease(
        "0.05",
        r#"`lease`: this is a number with a fraction; write a table: lease = { share = 0.05, ttl = "1s" }"#,
    );
    lease(
        r#"{ ttl = "1s" }"#,
        r#"`share`: missing; write for example lease = { share = 0.05, ttl = "1s" }"#,
    );
    lease(
        "{ share = 0.05 }",
        r#"`ttl`: missing; write for example lease = { share = 0.05, ttl = "1s" }"#,
    );
    lease(
        r#"{ share = 1.5, ttl = "1s" }"#,
        "`share`: must be greater than 0 and at most 1, with at most six decimal places, got 1.5; write for example 0.25",
    );
    lease(
        r#"{ share = 0.05, ttl = "9ms" }"#,
        "`ttl`: a lease lasts from 10ms to 60s; the nearest that fits is 10ms",
    );
    lease(
        r#"{ share = 0.05, ttl = "2m" }"#,
        "`ttl`: a lease lasts from 10ms to 60s; the nearest that fits is 60s",
    );
    lease(
        r#"{ share = 0.05, ttl = "1s", size = 5 }"#,
        "`size`: there is no such field; those that exist here are share, ttl, hot",
    );
    for (hot, message) in [
        (r#""acme""#, "`hot`: this is a string; write a list: hot = [...]"),
        (r#"["acme"]"#, r#"`hot`: write hot = [{ tenant = "acme" }]"#),
        (r#"[{ ip = 5 }]"#, "`hot`: this is a whole number; write a string, in quotes"),
        (
            r#"[{ ip = "a", user = "b" }]"#,
            r#"`hot`: "user" is not in the rule's key; name each of ["ip"]"#,
        ),
        ("[{}]", r#"`hot`: a subject has each attribute of the rule's key; "ip" is missing"#),
    ] {
        let lease = format!("lease = {{ share = 0.05, ttl = \"1s\", hot = {hot} }}");
        refuses(
            &format!("[[rule]]\nname = \"a\"\nkey = [\"ip\"]\nlimits = [\"5/minute\"]\n{lease}"),
            &format!(r#"5: rule "a", field {message}"#),
        );
    }
    for (limit, algorithm) in [
        (r#"{ quota = "5/minute", algorithm = "sliding-log" }"#, "sliding-log"),
        (r#"{ quota = "5", algorithm = "concurrency", max_hold = "30s" }"#, "concurrency"),
    ] {
        let policy = format!(
            "[[rule]]\nname = \"a\"\nkey = []\nlimits = [{limit}]\nlease = {{ share = 0.05, ttl = \"1s\" }}"
        );
        refuses(
            &policy,
            &format!(
                r#"5: rule "a", field `lease`: limit "0" is a {algorithm}, which is never leased; leave the lease out, make it a token-bucket, fixed-window or sliding-window, or give it a rule of its own"#
            ),
        );
    }
    refuses(
        "[[rule]]\nname = \"a\"\nkey = []\nlimits = [\"5/minute\"]\npostpaid = true\nlease = { share = 0.05, ttl = \"1s\" }",
        r#"6: rule "a", field `lease`: a post-paid rule is charged only by the store; leave the lease out"#,
    );
}

#[test]
fn rejects_unknown_tables() {
    refuses("rule = 5", "1: field `rule`: write each in a table of its own, below [[rule]]");
    refuses(
        r#"[rule]
name = "a""#,
        "1: field `rule`: this is one table; write [[rule]], with two brackets, above the fields of each",
    );
    refuses(
        "[override]",
        "1: field `override`: this is one table; write [[override]], with two brackets, above the fields of each",
    );
    refuses(
        r#"[[rules]]
name = "a""#,
        "1: field `rules`: only an empty list is accepted here, which means that the file has no rules on purpose; write each rule in a table of its own, below [[rule]]",
    );
    refuses(
        r#"[databases]
url = "x""#,
        "1: field `databases`: there is no such field; those that exist here are attribute, rule, rules, override, server, store, telemetry",
    );
}

#[test]
fn rejects_a_rule_with_missing_fields() {
    refuses(
        r#"[[rule]]
key = []
limits = ["5/minute"]"#,
        r#"1: rule without a name, field `name`: missing; write for example name = "login""#,
    );
    refuses(
        r#"
[[rule]]
name = "a"
limits = ["5/minute"]"#,
        r#"2: rule "a", field `key`: missing; write for example key = ["ip"], or key = [] for one counter for all"#,
    );
    refuses(
        r#"[[rule]]
name = "a"
key = []"#,
        r#"1: rule "a", field `limits`: missing; write for example limits = ["5/minute"]"#,
    );
}

#[test]
fn rejects_unknown_and_wrong_fields_of_rules() {
    refuses_rule(
        r#"limit = ["5/minute"]"#,
        r#"2: rule "a", field `limit`: there is no such field; did you mean `limits`?"#,
    );
    refuses_rule(
        r#"on-outage = "deny""#,
        r#"2: rule "a", field `on-outage`: there is no such field; did you mean `on_outage`?"#,
    );
    refuses_rule(
        r#"colour = "red""#,
        r#"2: rule "a", field `colour`: there is no such field; those that exist here are name, domain, match, key, limits, on_outage, mode, anchor, local_share, postpaid, negative_hits, request_limit, lease, denial"#,
    );
    refuses_rule(
        r#"leases = { share = 0.05, ttl = "1s" }"#,
        r#"2: rule "a", field `leases`: there is no such field; did you mean `lease`?"#,
    );
    refuses_rule(
        r#"postpaid = "yes""#,
        r#"2: rule "a", field `postpaid`: this is a string; write true or false"#,
    );
    refuses_rule(
        r#"postpaid = "yes""#,
        r#"2: rule "a", field `postpaid`: this is a string; write true or false"#,
    );
    for share in ["0", "0.0", "1.5", "-0.25", "1e-3", "inf"] {
        refuses_rule(
            &format!("local_share = {share}"),
            &format!(
                r#"2: rule "a", field `local_share`: must be greater than 0 and at most 1, with at most six decimal places, got {share}; write for example 0.25"#
            ),
        );
    }
    refuses_rule(
        r#"local_share = "half""#,
        r#"2: rule "a", field `local_share`: this is a string; write a number such as 0.25"#,
    );
    refuses_rule(
        r#"negative_hits = "yes""#,
        r#"2: rule "a", field `negative_hits`: this is a string; write true or false"#,
    );
    refuses_rule(
        r#"request_limit = "raise""#,
        r#"2: rule "a", field `request_limit`: "raise" is none of ignore, lower, replace; write one of these"#,
    );
    refuses(
        r#"
        [[rule]]
        name = "a"
        key = []
        limits = ["5/second", "50/minute"]
        request_limit = "replace"
        "#,
        r#"6: rule "a", field `request_limit`: a request can replace one limit, and this rule has 2; leave one, and write the others in a rule of their own"#,
    );
    refuses(
        r#"
        [[rule]]
        name = "a"
        key = []
        limits = [{ quota = "5", algorithm = "concurrency", max_hold = "30s" }]
        request_limit = "replace"
        "#,
        r#"6: rule "a", field `request_limit`: a limit of a request is a rate, and cannot replace a concurrency limit; leave request_limit out"#,
    );
}

#[test]
fn rejects_wrong_names_and_words() {
    refuses_rule(
        r#"name = "log in""#,
        r#"2: rule "log in", field `name`: "log in" is not a valid name; write 1 to 64 of A-Z a-z 0-9 _ . / -"#,
    );
    refuses_rule(
        r#"name = """#,
        r#"2: rule "", field `name`: "" is not a valid name; write 1 to 64 of A-Z a-z 0-9 _ . / -"#,
    );
    refuses_rule(
        "name = 5",
        "2: rule without a name, field `name`: this is a whole number; write a string, in quotes",
    );
    refuses_rule(
        r#"domain = """#,
        r#"2: rule "a", field `domain`: a domain has 1 to 1024 bytes, and this one has 0; leave it out for "default""#,
    );
    refuses_rule(
        r#"domain = ["web"]"#,
        r#"2: rule "a", field `domain`: this is a list; write a string, in quotes"#,
    );
    refuses_rule(
        r#"mode = "enforced""#,
        r#"2: rule "a", field `mode`: "enforced" is none of enforce, shadow, off; write one of these"#,
    );
    refuses_rule(
        "on_outage = true",
        r#"2: rule "a", field `on_outage`: this is true or false; write a string, in quotes"#,
    );
}

#[test]
fn rejects_wrong_keys_and_anchors() {
    refuses_rule(
        r#"key = "ip""#,
        r#"2: rule "a", field `key`: this is a string; write a list: key = ["ip"]"#,
    );
    refuses_rule(
        r#"key = ["ip", 5]"#,
        r#"2: rule "a", field `key`: this is a whole number; write a string, in quotes"#,
    );
    refuses_rule(
        r#"key = ["ip",
  "route", "ip"]"#,
        r#"3: rule "a", field `key`: "ip" is listed twice; keep one of them"#,
    );
    refuses_rule(
        r#"key = [""]"#,
        r#"2: rule "a", field `key`: the name of an attribute has 1 to 1024 bytes, and this one has 0; write it as requests have it"#,
    );
    refuses_rule(
        r#"key = ["tenant"]
anchor = ["user"]"#,
        r#"3: rule "a", field `anchor`: "user" is not in the key, and only a part of the key can be the anchor; leave it out, or add it to the key"#,
    );
    refuses_rule(
        r#"anchor = "ip""#,
        r#"2: rule "a", field `anchor`: this is a string; write a list: anchor = ["ip"]"#,
    );
    refuses_rule(
        &format!("key = {:?}", (0..33).map(|i| format!("a{i}")).collect::<Vec<_>>()),
        r#"2: rule "a", field `key`: 33 attributes, and a request has 32 at most; leave some out"#,
    );
}

#[test]
fn rejects_ambiguous_conditions() {
    refuses_rule(
        r#"match = "x""#,
        r#"2: rule "a", field `match`: this is a string; write a table of attributes: match = { ip = "203.0.113.7" }"#,
    );
    refuses_rule(
        "match = { route = [] }",
        r#"2: rule "a", field `match`: an empty list, which nothing matches; write a value, or leave "route" out"#,
    );
    refuses_rule(
        r#"match = { route = ["/a",
  7] }"#,
        r#"3: rule "a", field `match`: this is a whole number; write a string, in quotes"#,
    );
    refuses_rule(
        r#"match = { route = ["/a", "b**"] }"#,
        r#"2: rule "a", field `match`: "b**" has two * side by side; write one of them, or { exact = "b**" } to take them literally"#,
    );
    refuses_rule(
        r#"match.user.role = "admin""#,
        r#"2: rule "a", field `match`: the value of "user" is a table; write one of exact, prefix, cidr, absent, not in it, or put the attribute's name in quotes if it has a dot: "user.role""#,
    );
    refuses_rule(
        r#"match = { route = { exact = "a", prefix = "b" } }"#,
        r#"2: rule "a", field `match`: the value of "route" is a table; write one of exact, prefix, cidr, absent, not in it, and nothing else"#,
    );
    refuses_rule(
        "match = { route = { absent = false } }",
        r#"2: rule "a", field `match`: write "route" = { absent = true }"#,
    );
    refuses_rule(
        "match = { ip = { cidr = [] } }",
        r#"2: rule "a", field `match`: an empty list, which nothing matches; write a network, or leave "ip" out"#,
    );
    refuses_rule(
        r#"match = { path = '^/users/\d+$' }"#,
        r#"2: rule "a", field `match`: "^/users/\\d+$" looks like a regular expression, and patterns are not; write * for any text, as in "/api/*", a list for alternatives, or { exact = "^/users/\\d+$" } to take it literally"#,
    );
    refuses_rule(
        r#"match = { ip = "10.*" }"#,
        r#"2: rule "a", field `match`: "10.*" is a part of an address, and addresses are matched by network; write for example { cidr = ["10.0.0.0/8"] }"#,
    );
    refuses_rule(
        r#"match = { ip = "localhost" }"#,
        r#"2: rule "a", field `match`: "localhost" is not an IP address; write one such as "203.0.113.7", or a network such as "203.0.113.0/24""#,
    );
    refuses_rule(
        r#"match = { ip = { not = "2001:db8::/80" } }"#,
        r#"2: rule "a", field `match`: "2001:db8::/80" is only a part of 2001:db8::/64, which counts as one client; write "2001:db8::/64" to cover it"#,
    );
    refuses_rule(
        r#"match = { user = { cidr = ["10.0.0.0/8"] } }"#,
        r#"2: rule "a", field `match`: "user" has no addresses; declare them: [attribute."user"] with type = "ip""#,
    );
    refuses_rule(
        "match = { route = { prefix = 5 } }",
        r#"2: rule "a", field `match`: this is a whole number; write a string, in quotes"#,
    );
    refuses_rule(
        r#"match = { "" = "x" }"#,
        r#"2: rule "a", field `match`: the name of an attribute has 1 to 1024 bytes, and this one has 0; write it as requests have it"#,
    );
    refuses_rule(
        &format!(r#"match = {{ {} = "x" }}"#, "a".repeat(1025)),
        r#"2: rule "a", field `match`: the name of an attribute has 1 to 1024 bytes, and this one has 1025; write it as requests have it"#,
    );
}

/// Asserts that a file with this text is rejected. `message` follows `limits.toml:`.
#[track_caller]
fn refuses(text: &str, message: &str) {
    let error = Policy::from_toml_named("limits.toml", text).expect_err(text);
    assert_eq!(error.to_string(), format!("limits.toml:{message}"), "{text}");
}

/// Asserts that a rule with these fields is rejected. They begin in line 2, and the other required
/// fields follow.
#[track_caller]
fn refuses_rule(fields: &str, message: &str) {
    let needed =
        [("key", "key = []"), ("limits", r#"limits = ["5/minute"]"#), ("name", r#"name = "a""#)];
    let said = |field: &str| fields.lines().any(|line| line.starts_with(&format!("{field} =")));
    let mut text = format!("[[rule]]\n{fields}\n");
    for (_, example) in needed.iter().filter(|(field, _)| !said(field)) {
        text += &format!("{example}\n");
    }
    refuses(&text, message);
}
