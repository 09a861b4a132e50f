//! `--fail-if`: what a pipeline refuses to go on with, such as `refused>1%` or `refused(login)>0`.

use std::fmt;

use super::report::Report;

/// A count, and what it must not be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Condition {
    /// As somebody wrote it.
    text: String,
    metric: Metric,
    rule: Option<String>,
    comparison: Comparison,
    bound: Amount,
}

/// A decimal number: its digits, how many of them stand behind the point, and whether it is a percentage.
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
    Refused,
    Never,
    SubjectsRefused,
    WouldRefuse,
    Unmatched,
    Malformed,
    Late,
    NewlyRefused,
    NewlyAllowed,
}

/// Reads a condition.
pub(crate) fn condition(text: &str) -> Result<Condition, String> {
    let plain: String = text.chars().filter(|c| !c.is_whitespace()).collect();
    let (sign, comparison) = COMPARISONS
        .into_iter()
        .find(|(sign, _)| plain.contains(sign))
        .ok_or_else(|| format!("{text:?} compares nothing; {EXAMPLE}"))?;
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
        format!("{name:?} is nothing that is counted; there are {}", names.join(", "))
    })?;
    if rule.is_some() && !metric.has_rules() {
        return Err(format!("{name} is not counted by rule; leave out the rule's name"));
    }
    let bound = Amount::parse(right).ok_or_else(|| format!("{right:?} is no number; {EXAMPLE}"))?;
    if bound.percent && metric == Metric::SubjectsRefused {
        return Err("how many subjects there are is not counted; leave out the %".to_owned());
    }
    let rule = rule.map(str::to_owned);
    Ok(Condition { text: text.to_owned(), metric, rule, comparison, bound })
}

impl Condition {
    /// Refuses a condition on what these policies do not have.
    pub(super) fn check(&self, rules: &[&str], policies: usize) -> Result<(), String> {
        if let Some(rule) = &self.rule
            && !rules.contains(&rule.as_str())
        {
            return Err(format!(
                "--fail-if {}: no rule is called {rule}; there are {}",
                self.text,
                rules.join(", ")
            ));
        }
        let compares = matches!(self.metric, Metric::NewlyRefused | Metric::NewlyAllowed);
        if compares && policies < 2 {
            return Err(format!(
                "--fail-if {}: compared to what? Name it: --against FILE",
                self.text
            ));
        }
        Ok(())
    }

    /// Whether it holds of the first policy.
    pub(super) fn holds(&self, report: &Report) -> bool {
        let (count, of) = self.count(report);
        self.comparison.holds(count, of, self.bound)
    }

    /// What it counts, and of how many.
    fn count(&self, report: &Report) -> (u64, u64) {
        let policy = &report.policies[0];
        let rule =
            self.rule.as_ref().and_then(|name| policy.rules.iter().find(|rule| rule.rule == *name));
        let difference = report.policies.get(1).and_then(|other| other.against_first.as_ref());
        match (self.metric, rule) {
            (Metric::Refused, Some(rule)) => (rule.refused, rule.met),
            (Metric::Refused, None) => (policy.denied + policy.never, policy.requests),
            (Metric::Never, Some(rule)) => (rule.never, rule.met),
            (Metric::Never, None) => (policy.never, policy.requests),
            (Metric::WouldRefuse, Some(rule)) => (rule.would_refuse, rule.met),
            (Metric::WouldRefuse, None) => {
                (policy.rules.iter().map(|rule| rule.would_refuse).sum(), policy.requests)
            }
            (Metric::SubjectsRefused, Some(rule)) => (rule.subjects_refused, 0),
            (Metric::SubjectsRefused, None) => (policy.subjects_refused, 0),
            (Metric::Unmatched, _) => (policy.unmatched, policy.requests),
            (Metric::Malformed, _) => (report.input.malformed, report.input.lines),
            (Metric::Late, _) => (report.input.late, report.input.lines),
            (Metric::NewlyRefused, _) => {
                (difference.map_or(0, |difference| difference.only_first_refuses), policy.requests)
            }
            (Metric::NewlyAllowed, _) => {
                (difference.map_or(0, |difference| difference.only_this_refuses), policy.requests)
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
            Metric::Refused | Metric::Never | Metric::SubjectsRefused | Metric::WouldRefuse
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
    ("refused", Metric::Refused),
    ("never", Metric::Never),
    ("subjects-refused", Metric::SubjectsRefused),
    ("would-refuse", Metric::WouldRefuse),
    ("unmatched", Metric::Unmatched),
    ("malformed", Metric::Malformed),
    ("late", Metric::Late),
    ("newly-refused", Metric::NewlyRefused),
    ("newly-allowed", Metric::NewlyAllowed),
];
/// Those of two signs first.
const COMPARISONS: [(&str, Comparison); 5] = [
    (">=", Comparison::AtLeast),
    ("<=", Comparison::AtMost),
    (">", Comparison::Above),
    ("<", Comparison::Below),
    ("=", Comparison::Equal),
];
const EXAMPLE: &str = "write for example refused>1%, refused(login)>0 or subjects-refused>10";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_condition_is_a_count_a_comparison_and_a_number() {
        for text in [
            "refused>1%",
            "refused(login)>=0.5 %",
            "subjects-refused(a/b) > 1_000",
            "malformed=0",
            "newly-refused>0",
        ] {
            assert_eq!(condition(text).unwrap().to_string(), text);
        }
        for (text, told) in [
            ("", "compares nothing"),
            ("refused", "compares nothing"),
            ("refused>", "no number"),
            ("refused>-1", "no number"),
            ("refused>1.", "no number"),
            ("refused>1e3", "no number"),
            ("refused()>1", "names no rule"),
            ("refused(login>1", "names no rule"),
            ("denied>1", "there are refused, never"),
            ("malformed(login)>1", "not counted by rule"),
            ("subjects-refused>1%", "leave out the %"),
        ] {
            let error = condition(text).unwrap_err();
            assert!(error.contains(told), "{text}: {error}");
        }
    }

    #[test]
    fn percentages_are_exact() {
        let holds = |text: &str, count, of| {
            let condition = condition(text).unwrap();
            condition.comparison.holds(count, of, condition.bound)
        };
        assert!(!holds("refused>1%", 100, 10_000) && holds("refused>1%", 101, 10_000));
        assert!(holds("refused>=1%", 100, 10_000) && holds("refused<=1%", 100, 10_000));
        assert!(holds("refused>0.01%", 2, 10_000) && !holds("refused>0.02%", 2, 10_000));
        assert!(!holds("refused>0%", 0, 0) && holds("refused=0", 0, 0));
        assert!(holds("refused>99.999999999%", u64::MAX, u64::MAX));
    }
}
