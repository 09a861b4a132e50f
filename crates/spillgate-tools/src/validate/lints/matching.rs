//! Finds rules that no request matches, and files that limit nothing.

use spillgate::http::normalised_path;
use spillgate::policy::Pattern;

use super::super::finding::Level;
use super::super::rules::decides;
use super::{COMPARED_MAX, Checked, Finding};

pub fn never_matches(checked: &Checked<'_>) -> Vec<Finding> {
    let attributes_max = checked.service.attributes_max;
    let mut found = Vec::new();
    for written in checked.rules() {
        let mut needs: Vec<&str> = written.rule.needs().collect();
        needs.sort_unstable();
        needs.dedup();
        if needs.len() > attributes_max {
            let problem = format!(
                "no request matches it: it needs {} attributes, and a request has at most {attributes_max}",
                needs.len()
            );
            found.push(written.warning(
                written.entry.line,
                problem,
                "write fewer attributes in match and key",
            ));
        }
        for (attribute, patterns) in written.rule.matches() {
            for pattern in patterns {
                let Some(spelling) = why_never(attribute, &pattern) else { continue };
                let problem = format!(
                    "{attribute} is never {}: proxies and the middleware normalise it",
                    pattern.describe()
                );
                found.push(written.warning(written.entry.line_of("match"), problem, spelling));
            }
        }
    }
    found
}

pub fn nothing_enforced(checked: &Checked<'_>) -> Vec<Finding> {
    let first = checked.rules().next();
    let first = first.filter(|_| !checked.policy.rules().any(decides));
    let finding = first.map(|written| Finding {
        code: "",
        level: Level::Warning,
        line: written.entry.line_of("mode"),
        rule: None,
        problem: "every rule is in shadow or off, so no request is denied".to_owned(),
        remedy: "set mode = \"enforce\" once a rule was in shadow long enough".to_owned(),
    });
    finding.into_iter().collect()
}

/// Reports a file without rules, which was probably cut short. A running service refuses it.
pub fn no_rules(checked: &Checked<'_>) -> Vec<Finding> {
    if checked.policy.rules().len() > 0 || checked.policy.is_empty_on_purpose() {
        return Vec::new();
    }
    vec![Finding {
        code: "",
        level: Level::Warning,
        line: 1,
        rule: None,
        problem: "it has no rules, so only inline limits are enforced".to_owned(),
        remedy: "write `rules = []` in it if that is meant".to_owned(),
    }]
}

/// Reports rules that were not compared, so that no finding does not look like no problem.
pub fn not_compared(checked: &Checked<'_>) -> Vec<Finding> {
    let first = checked.rules().nth(COMPARED_MAX);
    let finding = first.map(|written| {
        let problem = format!(
            "rules from here on are not compared with each other: only the first {COMPARED_MAX} are"
        );
        written.note(written.entry.line, problem, "validate them in a file of their own")
    });
    finding.into_iter().collect()
}

/// Returns how to write a value that the normalised attribute never has; `None` if it can have it.
fn why_never(attribute: &str, pattern: &Pattern<'_>) -> Option<&'static str> {
    let (bytes, is_whole) = match pattern {
        Pattern::Exact(bytes) => (*bytes, true),
        Pattern::Glob(glob) => (glob.head(), false),
        _ => return None,
    };
    let text = std::str::from_utf8(bytes).ok()?;
    if text.is_empty() {
        return None;
    }
    let spelling = match attribute {
        "method" => (text.bytes().any(|byte| byte.is_ascii_lowercase()), "write it in upper case"),
        "host" => (!is_host(text), "write it in lower case, without port and without a dot behind"),
        "path" => (
            !is_path(text, is_whole),
            "write it as a path from / on, without query, dots and escapes",
        ),
        _ => return None,
    };
    spelling.0.then_some(spelling.1)
}

fn is_host(text: &str) -> bool {
    let port = text.contains(':') && !text.starts_with('[');
    !port && !text.ends_with('.') && !text.bytes().any(|byte| byte.is_ascii_uppercase())
}

fn is_path(text: &str, is_whole: bool) -> bool {
    // A prefix may end within a segment: "/.w*" is the beginning of "/.well-known".
    let whole = if is_whole { text } else { &text[..text.rfind('/').map_or(0, |slash| slash + 1)] };
    text.starts_with('/') && !text.contains(['?', '#']) && normalised_path(whole) == whole
}
