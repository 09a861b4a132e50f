//! Every way in which a policy file can be wrong, with what is said about it.
//! Longer than 450 lines because it is one table, and a table reads best in one place.

use crate::policy::Policy;

#[test]
fn refuses_what_is_no_toml() {
    refuses(
        "[[rule]",
        "1: not TOML: unclosed array table, expected `]`; put texts in quotes, lists in brackets, and each field on a line of its own",
    );
    refuses(
        "[[rule]]
name = login",
        "2: field `name`: not TOML: string values must be quoted, expected literal string; put texts in quotes, lists in brackets, and each field on a line of its own",
    );
    refuses(
        "[[rule]]
key = [ip]",
        "2: field `key`: not TOML: invalid float, expected `inf`; put texts in quotes, lists in brackets, and each field on a line of its own",
    );
    refuses(
        "[[rule]]
mode: shadow",
        "2: not TOML: invalid unquoted key, expected letters, numbers, `-`, `_`; put texts in quotes, lists in brackets, and each field on a line of its own",
    );
    refuses(
        r#"[[rule]]
name = "a"
name = "b""#,
        "3: field `name`: said twice in one table; keep one of them",
    );
    refuses(
        "[store]

[store]",
        "3: field `store`: said twice in one table; keep one of them",
    );
    refuses(
        "[[rule]]
limits = [

[[rule]]
",
        "4: not TOML: string values must be quoted, expected literal string; put texts in quotes, lists in brackets, and each field on a line of its own",
    );
}

#[test]
fn refuses_tables_that_nobody_reads() {
    refuses("rule = 5", "1: field `rule`: write each in a table of its own, below [[rule]]");
    refuses(
        r#"[rule]
name = "a""#,
        "1: field `rule`: write each in a table of its own, below [[rule]]",
    );
    refuses(
        "[override]",
        "1: field `override`: write each in a table of its own, below [[override]]",
    );
    refuses(
        r#"[[rules]]
name = "a""#,
        "1: field `rules`: there is no such field; did you mean `rule`?",
    );
    refuses(
        r#"[databases]
url = "x""#,
        "1: field `databases`: there is no such field; those that exist here are rule, override, server, store, telemetry",
    );
}

#[test]
fn refuses_a_rule_that_lacks_something() {
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
        r#"2: rule "a", field `key`: missing; write for example key = ["ip"], or key = [] for one bucket for all"#,
    );
    refuses(
        r#"[[rule]]
name = "a"
key = []"#,
        r#"1: rule "a", field `limits`: missing; write for example limits = ["5/minute"]"#,
    );
}

#[test]
fn refuses_fields_that_rules_do_not_have() {
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
        r#"2: rule "a", field `colour`: there is no such field; those that exist here are name, domain, match, key, limits, on_outage, mode, anchor"#,
    );
    refuses_rule(
        r#"lease = { share = 0.05, ttl = "1s" }"#,
        r#"2: rule "a", field `lease`: not in this version yet; leave it out"#,
    );
    refuses_rule(
        "postpaid = true",
        r#"2: rule "a", field `postpaid`: not in this version yet; leave it out"#,
    );
    refuses_rule(
        "parallel = true",
        r#"2: rule "a", field `parallel`: not in this version yet; leave it out"#,
    );
    refuses_rule(
        "fallback_share = 0.5",
        r#"2: rule "a", field `fallback_share`: not in this version yet; leave it out"#,
    );
    refuses_rule(
        "negative_hits = true",
        r#"2: rule "a", field `negative_hits`: not in this version yet; leave it out"#,
    );
    refuses_rule(
        "request_limit = true",
        r#"2: rule "a", field `request_limit`: not in this version yet; leave it out"#,
    );
}

#[test]
fn refuses_wrong_names_and_words() {
    refuses_rule(
        r#"name = "log in""#,
        r#"2: rule "log in", field `name`: "log in" is no name; write 1 to 64 of A-Z a-z 0-9 _ . / -"#,
    );
    refuses_rule(
        r#"name = """#,
        r#"2: rule "", field `name`: "" is no name; write 1 to 64 of A-Z a-z 0-9 _ . / -"#,
    );
    refuses_rule(
        "name = 5",
        "2: rule without a name, field `name`: a whole number stands here; write a text, in quotes",
    );
    refuses_rule(
        r#"domain = """#,
        r#"2: rule "a", field `domain`: a domain has 1 to 256 bytes, and this one has 0; leave it out for "default""#,
    );
    refuses_rule(
        r#"domain = ["web"]"#,
        r#"2: rule "a", field `domain`: a list stands here; write a text, in quotes"#,
    );
    refuses_rule(
        r#"mode = "enforced""#,
        r#"2: rule "a", field `mode`: "enforced" is none of enforce, shadow, off; write one of these"#,
    );
    refuses_rule(
        "on_outage = true",
        r#"2: rule "a", field `on_outage`: true or false stands here; write a text, in quotes"#,
    );
}

#[test]
fn refuses_wrong_keys_and_anchors() {
    refuses_rule(
        r#"key = "ip""#,
        r#"2: rule "a", field `key`: a text stands here; write a list: key = [...]"#,
    );
    refuses_rule(
        r#"key = ["ip", 5]"#,
        r#"2: rule "a", field `key`: a whole number stands here; write a text, in quotes"#,
    );
    refuses_rule(
        r#"key = ["ip",
  "route", "ip"]"#,
        r#"3: rule "a", field `key`: "ip" is said twice; keep one of them"#,
    );
    refuses_rule(
        r#"key = [""]"#,
        r#"2: rule "a", field `key`: the name of an attribute has 1 to 64 bytes, and this one has 0; write it as requests have it"#,
    );
    refuses_rule(
        r#"key = ["tenant"]
anchor = ["user"]"#,
        r#"3: rule "a", field `anchor`: "user" is not in the key, and only a part of the key can be the anchor; leave it out, or add it to the key"#,
    );
    refuses_rule(
        r#"anchor = "ip""#,
        r#"2: rule "a", field `anchor`: a text stands here; write a list: anchor = [...]"#,
    );
    refuses_rule(
        &format!("key = {:?}", (0..33).map(|i| format!("a{i}")).collect::<Vec<_>>()),
        r#"2: rule "a", field `key`: 33 attributes, and a request has 32 at most; leave some out"#,
    );
}

#[test]
fn refuses_conditions_that_could_be_read_otherwise() {
    refuses_rule(
        r#"match = "x""#,
        r#"2: rule "a", field `match`: a text stands here; write a table of attributes: match = { ip = "203.0.113.7" }"#,
    );
    refuses_rule(
        "match = { route = [] }",
        r#"2: rule "a", field `match`: an empty list, which nothing matches; write a value, or leave "route" out"#,
    );
    refuses_rule(
        r#"match = { route = ["/a",
  7] }"#,
        r#"3: rule "a", field `match`: a whole number stands here; write a text, in quotes"#,
    );
    refuses_rule(
        r#"match = { route = "/a/*/b" }"#,
        r#"2: rule "a", field `match`: only a * at the end is special, and "/a/*/b" has another; write { exact = "/a/*/b" } to take it literally, or { prefix = "..." } for what begins so"#,
    );
    refuses_rule(
        r#"match = { route = "**" }"#,
        r#"2: rule "a", field `match`: only a * at the end is special, and "**" has another; write { exact = "**" } to take it literally, or { prefix = "..." } for what begins so"#,
    );
    refuses_rule(
        r#"match = { route = ["/a", "*b"] }"#,
        r#"2: rule "a", field `match`: only a * at the end is special, and "*b" has another; write { exact = "*b" } to take it literally, or { prefix = "..." } for what begins so"#,
    );
    refuses_rule(
        r#"match.user.role = "admin""#,
        r#"2: rule "a", field `match`: a table stands behind "user"; write one of exact and prefix in it, or put the attribute's name in quotes if it has a dot: "user.role""#,
    );
    refuses_rule(
        r#"match = { route = { exact = "a", prefix = "b" } }"#,
        r#"2: rule "a", field `match`: write { exact = "..." } or { prefix = "..." }, and nothing else in it"#,
    );
    refuses_rule(
        "match = { route = { prefix = 5 } }",
        r#"2: rule "a", field `match`: a whole number stands here; write a text, in quotes"#,
    );
    refuses_rule(
        r#"match = { "" = "x" }"#,
        r#"2: rule "a", field `match`: the name of an attribute has 1 to 64 bytes, and this one has 0; write it as requests have it"#,
    );
    refuses_rule(
        &format!(r#"match = {{ {} = "x" }}"#, "a".repeat(65)),
        r#"2: rule "a", field `match`: the name of an attribute has 1 to 64 bytes, and this one has 65; write it as requests have it"#,
    );
}

#[test]
fn refuses_lists_that_hold_no_limits() {
    refuses_rule(
        r#"limits = "5/minute""#,
        r#"2: rule "a", field `limits`: a text stands here; write a list: limits = [...]"#,
    );
    refuses_rule(
        "limits = []",
        r#"2: rule "a", field `limits`: an empty list; write for example limits = ["5/minute"], or "unlimited" to say so"#,
    );
    refuses_rule(
        "limits = [5]",
        r#"2: rule "a", limit "0", field `limits`: neither a text nor a table stands here; write "5/minute" or { quota = "5/minute" }"#,
    );
    refuses_rule(
        &format!(r#"limits = ["unlimited"{}]"#, r#", "1/day""#.repeat(64)),
        r#"2: rule "a", field `limits`: 65 limits, and a decision holds 64; leave some out"#,
    );
}

#[test]
fn refuses_wrong_limits() {
    refuses_rule(
        r#"limits = ["5/fortnight"]"#,
        r#"2: rule "a", limit "0", field `limits`: "fortnight" is no length of time; write second, minute, hour, day, week, month or year, or a number with ms, s, m, h or d"#,
    );
    refuses_rule(
        r#"limits = [
  "5/minute",
  { name = "daily", quota = "0/day" },
]"#,
        r#"4: rule "a", limit "daily", field `quota`: a count of 0 lets nothing pass; write "none" to say so, or "unlimited" for the opposite"#,
    );
    refuses_rule(
        "limits = [{ burst = 5 }]",
        r#"2: rule "a", limit "0", field `quota`: missing; write for example quota = "5/minute""#,
    );
    refuses_rule(
        r#"limits = [{ quota = "5/minute", burst = -1 }]"#,
        r#"2: rule "a", limit "0", field `burst`: this is no whole number from 0 up; write for example burst = 200"#,
    );
    refuses_rule(
        r#"limits = [{ quota = "5/minute", burst = "10" }]"#,
        r#"2: rule "a", limit "0", field `burst`: this is no whole number from 0 up; write for example burst = 200"#,
    );
    refuses_rule(
        r#"limits = [{ quota = "5/minute", algoritm = "sliding-log" }]"#,
        r#"2: rule "a", limit "0", field `algoritm`: there is no such field; did you mean `algorithm`?"#,
    );
    refuses_rule(
        r#"limits = [{ quota = "5/minute", algorithm = "leaky" }]"#,
        r#"2: rule "a", limit "0", field `algorithm`: "leaky" is no algorithm; write token-bucket, fixed-window, sliding-log, sliding-window or concurrency"#,
    );
    refuses_rule(
        r#"limits = [{ quota = "5/minute", algorithm = "fixed-window", burst = 5 }]"#,
        r#"2: rule "a", limit "0", field `burst`: only a token-bucket has a burst, and this is a fixed-window; leave burst out"#,
    );
    refuses_rule(
        r#"limits = [{ quota = "5/day", algorithm = "fixed-window", time_zone = "Berlin" }]"#,
        r#"2: rule "a", limit "0", field `time_zone`: "Berlin" is no time zone; write an IANA name such as "Europe/Berlin""#,
    );
    refuses_rule(
        r#"limits = [{ quota = "5", algorithm = "concurrency" }]"#,
        r#"2: rule "a", limit "0", field `hold`: a slot needs an end even if its holder dies; write for example hold = "30s""#,
    );
    refuses_rule(
        r#"limits = [{ name = "a b", quota = "5/day" }]"#,
        r#"2: rule "a", limit "a b", field `name`: "a b" is no name; write 1 to 64 of A-Z a-z 0-9 _ . / -"#,
    );
    refuses_rule(
        r#"limits = [{ quota = "5/day", unit = "" }]"#,
        r#"2: rule "a", limit "0", field `unit`: "" is no name; write 1 to 64 of A-Z a-z 0-9 _ . / -"#,
    );
    refuses(
        r#"[[rule]]
name = "a"
key = []
[[rule.limits]]
quota = "5/day"
[[rule.limits]]
quota = "5/never""#,
        r#"7: rule "a", limit "1", field `quota`: "never" is no length of time; write second, minute, hour, day, week, month or year, or a number with ms, s, m, h or d"#,
    );
}

#[test]
fn refuses_two_of_one_name() {
    refuses(
        r#"[[rule]]
name = "a"
key = []
limits = ["5/minute"]
[[rule]]
name = "a"
key = []
limits = ["5/minute"]"#,
        r#"6: rule "a", field `name`: another rule further up has this name; give each its own"#,
    );
    refuses_rule(
        r#"limits = [{ name = "x", quota = "5/day" }, { name = "x", quota = "6/hour" }]"#,
        r#"2: rule "a", limit "x", field `limits`: another limit of this rule is named "x" already, be it by its position; give each a name of its own"#,
    );
    refuses_rule(
        r#"limits = [{ name = "1", quota = "5/day" }, "6/hour"]"#,
        r#"2: rule "a", limit "1", field `limits`: another limit of this rule is named "1" already, be it by its position; give each a name of its own"#,
    );
}

#[test]
fn refuses_overrides_that_lack_something() {
    refuses_override(
        "",
        r#"5: override of no rule, field `rule`: missing; write for example rule = "login""#,
    );
    refuses_override(
        r#"rule = "api"
limits = ["9/second"]"#,
        r#"5: override of "api", field `subject`: missing; write for example subject = { tenant = "acme" }"#,
    );
    refuses_override(
        r#"rule = "api"
subject = { user = "u" }"#,
        r#"5: override of "api", field `limits`: missing; write for example limits = ["1000/second"]"#,
    );
}

#[test]
fn refuses_overrides_of_nothing_known() {
    refuses_override(
        r#"rule = "apii"
subject = { user = "u" }
limits = ["9/second"]"#,
        r#"6: override of "apii", field `rule`: there is no rule "apii"; did you mean "api"?"#,
    );
    refuses_override(
        r#"rule = "login"
subject = { user = "u" }
limits = ["9/second"]"#,
        r#"6: override of "login", field `rule`: there is no rule "login"; write the name of a rule of this file"#,
    );
    refuses_override(
        r#"rule = "api"
subjects = { user = "u" }
limits = ["9/second"]"#,
        r#"7: override of "api", field `subjects`: there is no such field; did you mean `subject`?"#,
    );
    refuses_override(
        r#"rule = "api"
subject = { user = "u" }
limits = ["9/second"]
expires_at = "x""#,
        r#"9: override of "api", field `expires_at`: there is no such field; those that exist here are rule, subject, limits"#,
    );
}

#[test]
fn refuses_subjects_that_are_nobody() {
    refuses_override(
        r#"rule = "api"
subject = {}
limits = ["9/second"]"#,
        r#"7: override of "api", field `subject`: nobody is named; write for example subject = { tenant = "acme" }, or change the rule's own limits"#,
    );
    refuses_override(
        r#"rule = "api"
subject = "u"
limits = ["9/second"]"#,
        r#"7: override of "api", field `subject`: a text stands here; write a table of attributes: subject = { ip = "203.0.113.7" }"#,
    );
    refuses_override(
        r#"rule = "api"
subject = { ip = "u" }
limits = ["9/second"]"#,
        r#"7: override of "api", field `subject`: "ip" is not in the rule's key; name one or more of ["tenant", "user"]"#,
    );
    refuses_override(
        r#"rule = "api"
subject = { user = 5 }
limits = ["9/second"]"#,
        r#"7: override of "api", field `subject`: a whole number stands here; write a text, in quotes"#,
    );
    refuses_override(
        r#"rule = "api"
subject = { user = "u*" }
limits = ["9/second"]"#,
        r#"7: override of "api", field `subject`: an override is for exact values, and "u*" has a *; write { exact = "u*" } to take it literally"#,
    );
    refuses_override(
        r#"rule = "api"
subject = { user = { prefix = "u" } }
limits = ["9/second"]"#,
        r#"7: override of "api", field `subject`: an override is for exact values; write { exact = "..." }"#,
    );
    refuses_override(
        r#"rule = "api"
subject = { user = { like = "u" } }
limits = ["9/second"]"#,
        r#"7: override of "api", field `subject`: a table stands behind "user"; write one of exact and prefix in it, or put the attribute's name in quotes if it has a dot: "user.like""#,
    );
}

#[test]
fn refuses_limits_that_stand_for_no_limit_of_the_rule() {
    refuses_override(
        r#"rule = "api"
subject = { user = "u" }
limits = ["9/second", "9/hour", "9/day"]"#,
        r#"8: override of "api", limit "2", field `limits`: the rule has no limit in this position; name one of ["0", "daily"], or leave it out"#,
    );
    refuses_override(
        r#"rule = "api"
subject = { user = "u" }
limits = [{ name = "hourly", quota = "9/second" }]"#,
        r#"8: override of "api", limit "hourly", field `limits`: the rule has no limit "hourly"; name one of ["0", "daily"]"#,
    );
    refuses_override(
        r#"rule = "api"
subject = { user = "u" }
limits = [{ name = "0", quota = "9/second" }, { name = "0", quota = "9/day" }]"#,
        r#"8: override of "api", limit "0", field `limits`: another limit of this override stands for the rule's limit "0" already; keep one of them"#,
    );
    refuses_override(
        r#"rule = "api"
subject = { user = "u" }
limits = ["9/second", { name = "0", quota = "9/day" }]"#,
        r#"8: override of "api", limit "0", field `limits`: another limit of this override stands for the rule's limit "0" already; keep one of them"#,
    );
    refuses_override(
        r#"rule = "api"
subject = { user = "u" }
limits = ["9/hour", { quota = "9/fortnight" }]"#,
        r#"8: override of "api", limit "1", field `quota`: "fortnight" is no length of time; write second, minute, hour, day, week, month or year, or a number with ms, s, m, h or d"#,
    );
    refuses_override(
        r#"rule = "api"
subject = { user = "u" }
limits = [{ burst = 5 }]"#,
        r#"8: override of "api", limit "0", field `quota`: missing; write for example quota = "5/minute""#,
    );
}

#[test]
fn refuses_overrides_that_tie() {
    refuses_override(
        r#"rule = "api"
subject = { user = "u" }
limits = ["9/hour"]
[[override]]
rule = "api"
subject.user = "u"
limits = ["9/hour"]"#,
        r#"11: override of "api", field `subject`: line 7 has an override of the same subject; keep one of them"#,
    );
    refuses_override(
        r#"rule = "api"
subject = { user = "u" }
limits = ["9/hour"]
[[override]]
rule = "api"
subject.tenant = "t"
limits = ["9/hour"]"#,
        r#"11: override of "api", field `subject`: ties with the override of line 7: both name as many attributes, and one subject can have all of them; name more attributes in one, or take it out"#,
    );
}

/// A file of this text is refused; the message stands behind `limits.toml:`.
#[track_caller]
fn refuses(text: &str, message: &str) {
    let error = Policy::from_toml_file("limits.toml", text).expect_err(text);
    assert_eq!(error.to_string(), format!("limits.toml:{message}"), "{text}");
}

/// A rule of these fields is refused; they begin in line 2, and what a rule needs besides follows.
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

/// An override of these fields is refused; they begin in line 6.
#[track_caller]
fn refuses_override(fields: &str, message: &str) {
    let rule = r#"
        name = "api"
        key = ["tenant", "user"]
        limits = ["5/second", { name = "daily", quota = "100/day" }]"#;
    refuses(&format!("[[rule]]{rule}\n[[override]]\n{fields}"), message);
}
