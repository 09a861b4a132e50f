//! `--fail-if`: the conditions under which a pipeline stops, such as `denied>1%` or `denied(login)>0`.

use std::fmt;

use super::report::Report;

/// A count, a comparison and a bound.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Condition {
    /// The condition as the flag gave it.
    text: String,
    metric: Metric,
    rule: Option<String>,
    comparison: Comparison,
    bound: Amount,
}

/// A decimal number: its digits, how many of them are behind the point, and whether it is a percentage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Amount {
    digits: u64,
    places: u32,
    percent: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Comparison {
    Above,
    AtLeast,
    Below,
    AtMost,
    Equal,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Metric {
    Denied,
    CostExceedsLimit,
    SubjectsDenied,
    WouldDeny,
    Unmatched,
    Malformed,
    Late,
    NewlyDenied,
    NewlyAllowed,
}

/// Reads a condition.
pub(crate) fn condition(text: &str) -> Result<Condition, String> {
    let plain: String = text.chars().filter(|c| !c.is_whitespace()).collect();
    let (sign, comparison) = COMPARISONS
        .into_iter()
        .find(|(sign, _)| plain.contains(sign))
        .ok_or_else(|| format!("{text:?} has no comparison; {EXAMPLE}"))?;
    let (left, right) = plain.split_once(sign).unwrap_or_default();
    let (name, rule) = match left.split_once('(') {
        Some((name, rest)) => {
            let rule = rest.strip_suffix(')').filter(|rule| !rule.is_empty());
            (name, Some(rule.ok_or_else(|| format!("{text:?} names no rule; {EXAMPLE}"))?))
        }
        None => (left, None),
    };
    let metric = METRICS.iter().find(|(known, _)| *known == name).map(|(_, metric)| *metric);
    let metric = metric.ok_or_else(|| {
        let names: Vec<&str> = METRICS.iter().map(|(name, _)| *name).collect();
        format!("{name:?} is not a count; the counts are {}", names.join(", "))
    })?;
    if rule.is_some() && !metric.has_rules() {
        return Err(format!("{name} is not counted by rule; leave out the rule's name"));
    }
    let bound =
        Amount::parse(right).ok_or_else(|| format!("{right:?} is not a number; {EXAMPLE}"))?;
    if bound.percent && metric == Metric::SubjectsDenied {
        return Err("subjects-denied takes a number, not a percentage, because the total of the subjects is not counted; leave out the %".to_owned());
    }
    let rule = rule.map(str::to_owned);
    Ok(Condition { text: text.to_owned(), metric, rule, comparison, bound })
}

impl Condition {
    /// Refuses a condition about a rule or a policy that is not there.
    pub fn check(&self, rules: &[&str], policies: usize) -> Result<(), String> {
        if let Some(rule) = &self.rule
            && !rules.contains(&rule.as_str())
        {
            return Err(format!(
                "--fail-if {}: there is no rule {rule}; the rules are {}",
                self.text,
                rules.join(", ")
            ));
        }
        let compares = matches!(self.metric, Metric::NewlyDenied | Metric::NewlyAllowed);
        if compares && policies < 2 {
            return Err(format!(
                "--fail-if {}: it compares two policies; name the other one: --against FILE",
                self.text
            ));
        }
        Ok(())
    }

    /// Returns whether the condition holds for the first policy.
    pub fn holds(&self, report: &Report) -> bool {
        let (count, of) = self.count(report);
        self.comparison.holds(count, of, self.bound)
    }

    /// Returns the count, and the number that a percentage refers to.
    fn count(&self, report: &Report) -> (u64, u64) {
        let policy = &report.policies[0];
        let rule =
            self.rule.as_ref().and_then(|name| policy.rules.iter().find(|rule| rule.rule == *name));
        let difference = report.policies.get(1).and_then(|other| other.against_first.as_ref());
        match (self.metric, rule) {
            (Metric::Denied, Some(rule)) => (rule.denied, rule.matched),
            (Metric::Denied, None) => (policy.denied, policy.requests),
            (Metric::CostExceedsLimit, Some(rule)) => (rule.cost_exceeds_limit, rule.matched),
            (Metric::CostExceedsLimit, None) => (policy.cost_exceeds_limit, policy.requests),
            (Metric::WouldDeny, Some(rule)) => (rule.would_deny, rule.matched),
            (Metric::WouldDeny, None) => {
                (policy.rules.iter().map(|rule| rule.would_deny).sum(), policy.requests)
            }
            (Metric::SubjectsDenied, Some(rule)) => (rule.subjects_denied, 0),
            (Metric::SubjectsDenied, None) => (policy.subjects_denied, 0),
            (Metric::Unmatched, _) => (policy.unmatched, policy.requests),
            (Metric::Malformed, _) => (report.input.malformed, report.input.lines),
            (Metric::Late, _) => (report.input.late, report.input.lines),
            (Metric::NewlyDenied, _) => {
                (difference.map_or(0, |difference| difference.only_first_denies), policy.requests)
            }
            (Metric::NewlyAllowed, _) => {
                (difference.map_or(0, |difference| difference.only_this_denies), policy.requests)
            }
        }
    }
}

impl fmt::Display for Condition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl Metric {
    fn has_rules(self) -> bool {
        matches!(
            self,
            Metric::Denied | Metric::CostExceedsLimit | Metric::SubjectsDenied | Metric::WouldDeny
        )
    }
}

impl Comparison {
    fn holds(self, count: u64, of: u64, bound: Amount) -> bool {
        let scale = 10_u128.pow(bound.places);
        let (left, right) = match bound.percent {
            true => (u128::from(count) * 100 * scale, u128::from(bound.digits) * u128::from(of)),
            false => (u128::from(count) * scale, u128::from(bound.digits)),
        };
        match self {
            Comparison::Above => left > right,
            Comparison::AtLeast => left >= right,
            Comparison::Below => left < right,
            Comparison::AtMost => left <= right,
            Comparison::Equal => left == right,
        }
    }
}

impl Amount {
    fn parse(text: &str) -> Option<Amount> {
        let (number, percent) = match text.strip_suffix('%') {
            Some(number) => (number, true),
            None => (text, false),
        };
        let (whole, part) = number.split_once('.').unwrap_or((number, ""));
        let all = format!("{}{part}", whole.replace('_', ""));
        let fits =
            !whole.is_empty() && part.len() <= 9 && all.bytes().all(|byte| byte.is_ascii_digit());
        let digits = all.parse().ok().filter(|_| fits && !number.ends_with('.'))?;
        Some(Amount { digits, places: part.len() as u32, percent })
    }
}

const METRICS: [(&str, Metric); 9] = [
    ("denied", Metric::Denied),
    ("cost-exceeds-limit", Metric::CostExceedsLimit),
    ("subjects-denied", Metric::SubjectsDenied),
    ("would-deny", Metric::WouldDeny),
    ("unmatched", Metric::Unmatched),
    ("malformed", Metric::Malformed),
    ("late", Metric::Late),
    ("newly-denied", Metric::NewlyDenied),
    ("newly-allowed", Metric::NewlyAllowed),
];
/// The longer signs first, since `>` is in `>=`.
const COMPARISONS: [(&str, Comparison); 5] = [
    (">=", Comparison::AtLeast),
    ("<=", Comparison::AtMost),
    (">", Comparison::Above),
    ("<", Comparison::Below),
    ("=", Comparison::Equal),
];
const EXAMPLE: &str = "write for example denied>1%, denied(login)>0 or subjects-denied>10";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_condition_is_a_count_a_comparison_and_a_number() {
        for text in [
            "denied>1%",
            "denied(login)>=0.5 %",
            "subjects-denied(a/b) > 1_000",
            "malformed=0",
            "newly-denied>0",
        ] {
            assert_eq!(condition(text).unwrap().to_string(), text);
        }
        for (text, expected) in [
            ("", "has no comparison"),
            ("denied", "has no comparison"),
            ("denied>", "is not a number"),
            ("denied>-1", "is not a number"),
            ("denied>1.", "is not a number"),
            ("denied>1e3", "is not a number"),
            ("denied()>1", "names no rule"),
            ("denied(login>1", "names no rule"),
            ("refused>1", "the counts are denied, cost-exceeds-limit"),
            ("malformed(login)>1", "not counted by rule"),
            ("subjects-denied>1%", "leave out the %"),
        ] {
            let error = condition(text).unwrap_err();
            assert!(error.contains(expected), "{text}: {error}");
        }
    }

    #[test]
    fn percentages_are_exact() {
        let holds = |text: &str, count, of| {
            let condition = condition(text).unwrap();
            condition.comparison.holds(count, of, condition.bound)
        };
        assert!(!holds("denied>1%", 100, 10_000) && holds("denied>1%", 101, 10_000));
        assert!(holds("denied>=1%", 100, 10_000) && holds("denied<=1%", 100, 10_000));
        assert!(holds("denied>0.01%", 2, 10_000) && !holds("denied>0.02%", 2, 10_000));
        assert!(!holds("denied>0%", 0, 0) && holds("denied=0", 0, 0));
        assert!(holds("denied>99.999999999%", u64::MAX, u64::MAX));
    }
}
