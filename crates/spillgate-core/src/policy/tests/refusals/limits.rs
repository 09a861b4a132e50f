//! Invalid lists of limits.

use super::{refuses, refuses_rule};

#[test]
fn rejects_lists_without_limits() {
    refuses_rule(
        r#"limits = "5/minute""#,
        r#"2: rule "a", field `limits`: this is a string; write a list: limits = ["5/minute"]"#,
    );
    for table in ["[rule.limits]\nquota = \"5/minute\"", "limits = { quota = \"5/minute\" }"] {
        let message = r#"rule "a", field `limits`: this is one table; write a list, such as limits = ["5/minute"], or [[rule.limits]] with two brackets above each limit"#;
        refuses(&format!("[[rule]]\nname = \"a\"\nkey = []\n{table}"), &format!("4: {message}"));
    }
    refuses_rule(
        "limits = []",
        r#"2: rule "a", field `limits`: an empty list; write for example limits = ["5/minute"], or "unlimited" for no limit"#,
    );
    refuses_rule(
        "limits = [5]",
        r#"2: rule "a", limit "0", field `limits`: this is neither a string nor a table; write "5/minute" or { quota = "5/minute" }"#,
    );
    refuses_rule(
        &format!(r#"limits = ["unlimited"{}]"#, r#", "1/day""#.repeat(64)),
        r#"2: rule "a", field `limits`: 65 limits, and a decision holds 64; leave some out"#,
    );
}

#[test]
fn rejects_wrong_limits() {
    refuses_rule(
        r#"limits = ["5/fortnight"]"#,
        r#"2: rule "a", limit "0", field `limits`: "5/fortnight" is not a quota: "fortnight" is not a length of time; write second, minute, hour, day, week, month or year, or a number with ms, s, m, h or d"#,
    );
    refuses_rule(
        r#"limits = [
  "5/minute",
  { name = "daily", quota = "0/day" },
]"#,
        r#"4: rule "a", limit "daily", field `quota`: a count of 0 allows nothing; write "block" if you mean that, or "unlimited" for the opposite"#,
    );
    refuses_rule(
        "limits = [{ burst = 5 }]",
        r#"2: rule "a", limit "0", field `quota`: missing; write for example quota = "5/minute""#,
    );
    refuses_rule(
        r#"limits = [{ quota = "5/minute", burst = -1 }]"#,
        r#"2: rule "a", limit "0", field `burst`: expected a whole number from 0 up, got -1; write for example burst = 200"#,
    );
    refuses_rule(
        r#"limits = [{ quota = "5/minute", burst = "10" }]"#,
        r#"2: rule "a", limit "0", field `burst`: expected a whole number from 0 up, got "10"; write for example burst = 200"#,
    );
    refuses_rule(
        r#"limits = [{ quota = "5/minute", algoritm = "sliding-log" }]"#,
        r#"2: rule "a", limit "0", field `algoritm`: there is no such field; did you mean `algorithm`?"#,
    );
    refuses_rule(
        r#"limits = ["none"]"#,
        r#"2: rule "a", limit "0", field `limits`: "none" is not a quota; write "unlimited" for no limit, "block" to allow nothing, or for example "5/minute""#,
    );
    refuses_rule(
        r#"limits = [{ quota = "5", algorithm = "concurrency", hold = "30s" }]"#,
        r#"2: rule "a", limit "0", field `hold`: there is no such field; did you mean `max_hold`?"#,
    );
    refuses_rule(
        r#"limits = [{ quota = "5/minute", algorithm = "leaky" }]"#,
        r#"2: rule "a", limit "0", field `algorithm`: "leaky" is not an algorithm; write token-bucket, fixed-window, sliding-log, sliding-window or concurrency"#,
    );
    refuses_rule(
        r#"limits = [{ quota = "5/minute", algorithm = "fixed-window", burst = 5 }]"#,
        r#"2: rule "a", limit "0", field `burst`: only a token-bucket has a burst, and this is a fixed-window; leave burst out"#,
    );
    refuses_rule(
        r#"limits = [{ quota = "5/day", algorithm = "fixed-window", time_zone = "Berlin" }]"#,
        r#"2: rule "a", limit "0", field `time_zone`: "Berlin" is not a time zone; write an IANA name such as "Europe/Berlin""#,
    );
    refuses_rule(
        r#"limits = [{ quota = "5", algorithm = "concurrency" }]"#,
        r#"2: rule "a", limit "0", field `max_hold`: a permit must end even if its holder dies; write for example max_hold = "30s""#,
    );
    refuses_rule(
        r#"limits = [{ name = "a b", quota = "5/day" }]"#,
        r#"2: rule "a", limit "a b", field `name`: "a b" is not a valid name; write 1 to 64 of A-Z a-z 0-9 _ . / -"#,
    );
    refuses_rule(
        r#"limits = [{ quota = "5/day", unit = "" }]"#,
        r#"2: rule "a", limit "0", field `unit`: "" is not a valid name; write 1 to 64 of A-Z a-z 0-9 _ . / -"#,
    );
    refuses(
        r#"[[rule]]
name = "a"
key = []
[[rule.limits]]
quota = "5/day"
[[rule.limits]]
quota = "5/never""#,
        r#"7: rule "a", limit "1", field `quota`: "5/never" is not a quota: "never" is not a length of time; write second, minute, hour, day, week, month or year, or a number with ms, s, m, h or d"#,
    );
}

#[test]
fn rejects_two_limits_with_one_name() {
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
