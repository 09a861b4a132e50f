//! Invalid overrides.

use super::refuses;

#[test]
fn rejects_overrides_with_missing_fields() {
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
fn rejects_overrides_of_unknown_rules_and_fields() {
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
fn rejects_invalid_subjects() {
    refuses_override(
        r#"rule = "api"
subject = "u"
limits = ["9/second"]"#,
        r#"7: override of "api", field `subject`: this is a string; write a table of attributes: subject = { ip = "203.0.113.7" }"#,
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
        r#"7: override of "api", field `subject`: this is a whole number; write a string, in quotes"#,
    );
    refuses_override(
        r#"rule = "api"
subject = { user = "u*" }
limits = ["9/second"]"#,
        r#"7: override of "api", field `subject`: an override is for exact values and networks, and "u*" has a *; write { exact = "u*" } to take it literally"#,
    );
    refuses_override(
        r#"rule = "api"
subject = { user = { prefix = "u" } }
limits = ["9/second"]"#,
        r#"7: override of "api", field `subject`: the value of "user" is a table; write one of exact in it, or put the attribute's name in quotes if it has a dot: "user.prefix""#,
    );
    refuses_override(
        r#"rule = "api"
subject = { user = { like = "u" } }
limits = ["9/second"]"#,
        r#"7: override of "api", field `subject`: the value of "user" is a table; write one of exact in it, or put the attribute's name in quotes if it has a dot: "user.like""#,
    );
}

#[test]
fn rejects_values_that_are_no_subject() {
    let by_address = |subject: &str, message: &str| {
        let rule = "[[rule]]\nname = 'r'\nkey = ['ip', 'remote_address']\nlimits = ['5/s']";
        let text =
            format!("{rule}\n[[override]]\nrule = 'r'\nlimits = ['9/s']\nsubject = {subject}");
        refuses(&text, &format!("8: override of \"r\", field `subject`: {message}"));
    };
    by_address(
        "{ ip = 'localhost' }",
        r#""ip": "localhost" is not an IP address; write one such as "203.0.113.7", or a network such as "203.0.113.0/24""#,
    );
    by_address(
        "{ ip = '2001:db8::1:0/112' }",
        r#""ip": "2001:db8::1:0/112" is only a part of 2001:db8::/64, which counts as one client; write "2001:db8::/64" to cover it"#,
    );
    by_address(
        "{ ip = '10.0.0.0/8', remote_address = '10.0.0.0/8' }",
        r#""remote_address": only one attribute of an override can be a network; write one address of the others"#,
    );
}

#[test]
fn rejects_limits_that_replace_no_limit_of_the_rule() {
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
        r#"8: override of "api", limit "0", field `limits`: another limit replaces the rule's limit "0" already; keep one of them"#,
    );
    refuses_override(
        r#"rule = "api"
subject = { user = "u" }
limits = ["9/second", { name = "0", quota = "9/day" }]"#,
        r#"8: override of "api", limit "0", field `limits`: another limit replaces the rule's limit "0" already; keep one of them"#,
    );
    refuses_override(
        r#"rule = "api"
subject = { user = "u" }
limits = ["9/hour", { quota = "9/fortnight" }]"#,
        r#"8: override of "api", limit "1", field `quota`: "9/fortnight" is not a quota: "fortnight" is not a length of time; write second, minute, hour, day, week, month or year, or a number with ms, s, m, h or d"#,
    );
    refuses_override(
        r#"rule = "api"
subject = { user = "u" }
limits = [{ burst = 5 }]"#,
        r#"8: override of "api", limit "0", field `quota`: missing; write for example quota = "5/minute""#,
    );
}

#[test]
fn rejects_overrides_that_tie() {
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

/// Asserts that an override with these fields is rejected. They begin in line 6.
#[track_caller]
fn refuses_override(fields: &str, message: &str) {
    let rule = r#"
        name = "api"
        key = ["tenant", "user"]
        limits = ["5/second", { name = "daily", quota = "100/day" }]"#;
    refuses(&format!("[[rule]]{rule}\n[[override]]\n{fields}"), message);
}
