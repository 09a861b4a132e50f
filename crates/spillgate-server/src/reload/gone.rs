//! Warns of a file that has lost most of its rules: it is in force, and probably a mistake.

use spillgate::{Policy, Rule};

use crate::counted::first_names;

/// Returns a warning if more than half of the rules in force are not in the next policy, unless that has no rules on
/// purpose.
pub fn warning_of_gone_rules(in_force: &Policy, next: &Policy) -> Option<String> {
    let before = in_force.rules().len();
    let gone: Vec<&str> =
        in_force.rules().map(Rule::name).filter(|name| next.rule(name).is_none()).collect();
    if 2 * gone.len() <= before || next.is_empty_on_purpose() {
        return None;
    }
    Some(format!(
        "{} of {before} rules are gone since this reload: {}; if that is meant, reload once more: send SIGHUP, \
         or run systemctl reload",
        gone.len(),
        first_names(&gone)
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn policy(names: &[&str]) -> Policy {
        let rule =
            |name: &&str| format!("[[rule]]\nname = \"{name}\"\nkey = []\nlimits = [\"1/s\"]\n");
        Policy::from_toml(&names.iter().map(rule).collect::<String>()).unwrap()
    }

    #[track_caller]
    fn check(before: &[&str], after: &[&str], warning: Option<&str>) {
        let found = warning_of_gone_rules(&policy(before), &policy(after));
        let found = found.as_deref().and_then(|text| text.split_once("; ")).map(|(gone, _)| gone);
        assert_eq!(found, warning);
    }

    #[test]
    fn warns_only_if_more_than_half_of_the_rules_are_gone() {
        check(&[], &[], None);
        check(&["a", "b"], &["a"], None);
        check(&["a", "b"], &["a", "c"], None);
        check(&["a", "b", "c"], &["a"], Some("2 of 3 rules are gone since this reload: b, c"));
        check(&["a"], &["b", "c"], Some("1 of 1 rules are gone since this reload: a"));
        let six = ["a", "b", "c", "d", "e", "f"];
        check(&six, &[], Some("6 of 6 rules are gone since this reload: a, b, c, d and 2 more"));
        let on_purpose = Policy::from_toml("rules = []").unwrap();
        assert_eq!(warning_of_gone_rules(&policy(&six), &on_purpose), None);
    }
}
