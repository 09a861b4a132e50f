//! Relations between rules: which one matches the requests of another, and which ones share a call.

use spillgate::policy::{Network, Pattern};
use spillgate::{Mode, Rule};

/// Returns whether the rule can deny a request.
pub fn decides(rule: &Rule) -> bool {
    rule.mode() == Mode::Enforce
}

/// Returns whether every request that matches `narrow` matches `wide` too. With `lacking`, it is about requests that
/// lack this attribute of `narrow` and match it otherwise; they have the attributes that every request has.
pub fn covers(wide: &Rule, narrow: &Rule, lacking: Option<&str>) -> bool {
    let has = |attribute: &str| match lacking {
        Some(lacking) if attribute == lacking => false,
        Some(_) if is_always_present(attribute) => true,
        _ => narrow.needs().any(|needed| needed == attribute),
    };
    wide.domain() == narrow.domain()
        && wide.key().all(has)
        && wide.matches().all(|(attribute, wanted)| {
            let wanted: Vec<Pattern<'_>> = wanted.collect();
            if lacking == Some(attribute) {
                return wanted.iter().any(holds_if_absent);
            }
            let any_value = wanted.iter().any(is_any);
            let narrow_patterns = narrow.matches().find(|(name, _)| *name == attribute);
            has(attribute)
                && (any_value
                    || narrow_patterns.is_some_and(|(_, mut patterns)| {
                        patterns.all(|pattern| wanted.iter().any(|wanted| holds(wanted, &pattern)))
                    }))
        })
}

/// Returns whether every request at forward auth has this attribute.
pub fn is_always_present(attribute: &str) -> bool {
    ["ip", "method", "host", "path"].contains(&attribute)
}

fn holds_if_absent(pattern: &Pattern<'_>) -> bool {
    match pattern {
        Pattern::Absent => true,
        Pattern::Not(patterns) => !patterns.iter().any(holds_if_absent),
        _ => false,
    }
}

/// Returns whether one request can match both rules.
pub fn can_match_together(one: &Rule, other: &Rule) -> bool {
    let apart = |(attribute, patterns): (&str, Vec<Pattern<'_>>)| {
        let others = other.matches().find(|(name, _)| *name == attribute);
        others.is_some_and(|(_, mut others)| {
            others.all(|other| patterns.iter().all(|one| excludes(one, &other)))
        })
    };
    one.domain() == other.domain()
        && !one.matches().map(|(attribute, patterns)| (attribute, patterns.collect())).any(apart)
}

/// Returns whether every value matches.
fn is_any(pattern: &Pattern<'_>) -> bool {
    matches!(pattern, Pattern::Glob(glob) if glob.is_any())
}

/// Returns whether surely every value that matches `narrow` matches `wide`.
pub fn holds(wide: &Pattern<'_>, narrow: &Pattern<'_>) -> bool {
    match (wide, narrow) {
        (Pattern::Glob(wide), Pattern::Exact(narrow)) => wide.matches(narrow),
        (Pattern::Glob(wide), Pattern::Glob(narrow)) if wide.is_prefix() => {
            narrow.head().starts_with(wide.head())
        }
        (Pattern::Network(wide), Pattern::Network(narrow)) => wide.contains(*narrow),
        (Pattern::Network(wide), Pattern::Exact(narrow)) => {
            Network::of_value(narrow).is_some_and(|narrow| wide.contains(narrow))
        }
        (wide, Pattern::Network(_)) if is_any(wide) => true,
        (wide, narrow) => wide == narrow,
    }
}

/// Returns whether surely no value matches both.
fn excludes(one: &Pattern<'_>, other: &Pattern<'_>) -> bool {
    match (one, other) {
        (Pattern::Not(not), other) | (other, Pattern::Not(not)) => {
            not.iter().any(|not| holds(not, other))
        }
        (Pattern::Exact(_), Pattern::Exact(_)) => one != other,
        (Pattern::Glob(one), Pattern::Glob(other)) => {
            !one.head().starts_with(other.head()) && !other.head().starts_with(one.head())
        }
        (Pattern::Glob(_), Pattern::Exact(_)) => !holds(one, other),
        (Pattern::Exact(_), Pattern::Glob(_)) => !holds(other, one),
        (Pattern::Network(_), Pattern::Network(_) | Pattern::Exact(_))
        | (Pattern::Exact(_), Pattern::Network(_)) => !holds(one, other) && !holds(other, one),
        _ => false,
    }
}

/// Returns the attributes whose values decide the shard of the rule's counters.
pub fn tag(rule: &Rule) -> Vec<&str> {
    match rule.anchor() {
        Some(anchor) => anchor.collect(),
        None => rule.key().collect(),
    }
}

/// Returns the subjects of these attributes in words.
pub fn each_of(attributes: &[&str]) -> String {
    match attributes {
        [] => "for all requests".to_owned(),
        attributes => format!("for each {}", attributes.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use spillgate::Policy;

    fn policy(rules: &[(&str, &str)]) -> Policy {
        let entry = |(place, (wanted, key)): (usize, &(&str, &str))| {
            format!(
                "[[rule]]\nname = \"{place}\"\nmatch = {{ {wanted} }}\nkey = [{key}]\nlimits = [\"1/s\"]\n"
            )
        };
        Policy::from_toml(&rules.iter().enumerate().map(entry).collect::<String>()).unwrap()
    }

    #[track_caller]
    fn check(wide: (&str, &str), narrow: (&str, &str), covered: bool, together: bool) {
        let policy = policy(&[wide, narrow]);
        let [wide_rule, narrow_rule] = ["0", "1"].map(|name| policy.rule(name).unwrap());
        assert_eq!(covers(wide_rule, narrow_rule, None), covered, "{wide:?} covers {narrow:?}");
        assert_eq!(can_match_together(wide_rule, narrow_rule), together, "{wide:?} and {narrow:?}");
        assert_eq!(can_match_together(narrow_rule, wide_rule), together, "{narrow:?} and {wide:?}");
    }

    #[test]
    fn a_rule_covers_another_that_needs_no_less() {
        check(("", ""), ("path = '/a'", "'ip'"), true, true);
        check(("path = '/a*'", ""), ("path = '/a/b'", "'ip'"), true, true);
        check(("path = '/a*'", ""), ("path = '/a/b*'", "'ip'"), true, true);
        check(("path = '/a'", ""), ("path = '/a*'", "'ip'"), false, true);
        check(("path = ['/a', '/b*']", ""), ("path = ['/b/c', '/a']", "'ip'"), true, true);
        check(("path = ['/a', '/b*']", ""), ("path = ['/b/c', '/c']", "'ip'"), false, true);
        check(("", "'ip'"), ("", "'user'"), false, true);
        check(("", "'ip'"), ("", "'user', 'ip'"), true, true);
        check(("user = '*'", ""), ("", "'user'"), true, true);
        check(("method = 'GET'", ""), ("path = '/a'", ""), false, true);
        check(("method = 'GET'", ""), ("method = 'POST'", ""), false, false);
    }

    #[test]
    fn an_absent_attribute_does_not_help_to_cover() {
        let policy = policy(&[("", "'ip'"), ("", "'ip', 'user'")]);
        let [wide, narrow] = ["0", "1"].map(|name| policy.rule(name).unwrap());
        assert!(covers(wide, narrow, Some("user")));
        assert!(!covers(wide, narrow, Some("ip")));
    }

    #[test]
    fn requests_without_an_attribute_are_covered_by_what_they_always_have_and_by_absent() {
        for (wide, covered) in [
            (("", "'ip'"), true),
            (("key = { absent = true }", "'ip'"), true),
            (("key = { not = ['a'] }", ""), true),
            (("key = { not = ['a', { absent = true }] }", ""), false),
            (("path = '*'", "'host'"), true),
            (("path = '/a'", ""), false),
            (("", "'user'"), false),
            (("key = '*'", ""), false),
        ] {
            let policy = policy(&[wide, ("", "'key'")]);
            let [wide_rule, narrow] = ["0", "1"].map(|name| policy.rule(name).unwrap());
            assert_eq!(covers(wide_rule, narrow, Some("key")), covered, "{wide:?}");
        }
    }

    #[test]
    fn a_rule_with_a_not_pattern_has_no_request_of_what_it_excludes() {
        check(("ip = { not = ['10.0.0.0/8'] }", ""), ("ip = '10.1.0.0/16'", ""), false, false);
        check(("ip = { not = ['10.0.0.0/8'] }", ""), ("ip = '0.0.0.0/0'", ""), false, true);
    }
}
