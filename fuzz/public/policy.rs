//! Checks the policy in any file.

use spillgate::{Policy, Request};

/// Panics if a problem has no line of the file, or if a rule does not match a request that has all it needs.
pub fn holds(input: &[u8]) {
    let Ok(text) = std::str::from_utf8(input) else { return };
    let problems = Policy::problems_in("f", text);
    let lines = 1 + input.iter().filter(|byte| **byte == b'\n').count();
    assert!(problems.is_sorted_by_key(|problem| problem.line()));
    assert!(problems.iter().all(|problem| (1..=lines).contains(&problem.line())), "{problems:?}");
    assert!(problems.iter().all(|problem| !problem.message().is_empty()), "{problems:?}");
    let policy = match Policy::from_toml_named("f", text) {
        Ok(policy) => policy,
        Err(first) => return assert_eq!(problems.first(), Some(&first)),
    };
    assert!(problems.is_empty());
    for rule in policy.rules() {
        assert_eq!(policy.rule(rule.name()).map(|found| found.name()), Some(rule.name()));
        let request = Request::new().in_domain(rule.domain());
        let request = rule.needs().fold(request, |request, name| request.with(name, "x"));
        let matched = policy.matched(&policy.typed(&request));
        assert!(matched.iter().all(|matched| (1..=64).contains(&matched.limits.len())));
        assert!(matched.is_sorted_by_key(|matched| matched.rule_index));
    }
}
