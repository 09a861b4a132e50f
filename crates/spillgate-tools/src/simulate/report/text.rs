//! The report as text in columns, for a terminal.

use std::fmt;

use super::{DifferenceReport, Input, LimitReport, PolicyReport, Report, RuleReport, percent};
use crate::output::{grouped, table};
use crate::{counted, duration};

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.input.fmt(f)?;
        let first = self.policies.first().map(|policy| policy.policy.as_str()).unwrap_or_default();
        for policy in &self.policies {
            write!(f, "\n\n{policy}")?;
            if let Some(difference) = &policy.against_first {
                write_difference(f, first, &policy.policy, difference)?;
            }
        }
        if !self.conditions.is_empty() {
            f.write_str("\n")?;
        }
        for condition in &self.conditions {
            let holds = if condition.holds { "holds" } else { "does not hold" };
            write!(f, "\n--fail-if {}: {holds}", condition.condition)?;
        }
        Ok(())
    }
}

impl fmt::Display for Input {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.source)?;
        if !self.formats.is_empty() {
            write!(f, ": {}, {}", number_of(self.lines, "line"), self.formats.join(" and "))?;
        }
        if let (Some(from), Some(to), Some((from_us, to_us))) = (&self.from, &self.to, self.span_us)
        {
            write!(f, "\n  from {from} to {to}, {}", duration::shown(to_us - from_us))?;
        }
        if self.malformed > 0 {
            let malformed = number_of(self.malformed, "line");
            write!(f, "\n  left out: {malformed} that could not be read, such as")?;
        }
        for example in &self.malformed_examples {
            write!(f, "\n    {example}")?;
        }
        if self.out_of_order > 0 {
            write!(f, "\n  put in order: {}", number_of(self.out_of_order, "line"))?;
        }
        if self.late > 0 {
            let late = number_of(self.late, "line");
            write!(
                f,
                "\n  late: {late}, decided as if made when they came; a longer --delay orders them"
            )?;
        }
        if self.whole_seconds {
            f.write_str(
                "\n  times are whole seconds: the requests of one are decided at once, so short limits look \
                 tighter than they are; --spread spreads them",
            )?;
        }
        Ok(())
    }
}

impl fmt::Display for PolicyReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let of = |part| format!("{} ({})", grouped(part), percent(part, self.requests));
        write!(f, "{}: of {} requests", self.policy, grouped(self.requests))?;
        write!(f, " {} are allowed, {} denied", of(self.allowed), of(self.denied))?;
        if self.cost_exceeds_limit > 0 {
            write!(
                f,
                "\n  {} of these can never be allowed: they cost more than a limit holds",
                grouped(self.cost_exceeds_limit)
            )?;
        }
        if self.unmatched > 0 {
            write!(f, "\n  {} matched no rule", of(self.unmatched))?;
        }
        write_rules(f, &self.rules)?;
        for rule in self.rules.iter().filter(|rule| !rule.unknown_attributes.is_empty()) {
            let unknown = rule.unknown_attributes.join(", ");
            write!(
                f,
                "\n  {} never matched: no request has {unknown}; name the field: --map {unknown}=FIELD",
                rule.rule
            )?;
        }
        write_denied_most(f, self)?;
        write_worst_minutes(f, self)?;
        if self.evicted > 0 {
            write!(
                f,
                "\n\n  There were more subjects than fit: {} were evicted, and may have been admitted too often",
                grouped(self.evicted)
            )?;
        }
        Ok(())
    }
}

fn write_denied_most(f: &mut fmt::Formatter<'_>, policy: &PolicyReport) -> fmt::Result {
    if !policy.denied_most.is_empty() {
        let at_least = if policy.subjects_denied_at_least { "at least " } else { "" };
        let all = counted(policy.subjects_denied as usize, "subject");
        write!(f, "\n\n  Denied most, of {at_least}{all}")?;
    }
    for subject in &policy.denied_most {
        let denied = grouped(subject.denied);
        write!(f, "\n  {denied:>12}  {}  {}", subject.rule, subject.subject)?;
    }
    Ok(())
}

fn write_worst_minutes(f: &mut fmt::Formatter<'_>, policy: &PolicyReport) -> fmt::Result {
    if !policy.worst_minutes.is_empty() {
        f.write_str("\n\n  Most denials in one minute")?;
    }
    for worst in &policy.worst_minutes {
        let (denied, requests) = (grouped(worst.denied), grouped(worst.requests));
        write!(f, "\n  {denied:>12}  from {}, of {requests}", worst.from)?;
    }
    Ok(())
}

/// Writes one line for each limit of each rule.
fn write_rules(f: &mut fmt::Formatter<'_>, rules: &[RuleReport]) -> fmt::Result {
    let heads = ["rule", "limit", "matched", "denied", "", "subjects", "fill: p50", "p99", "max"];
    let mut rows = vec![heads.map(str::to_owned).to_vec()];
    for rule in rules.iter().take(RULES_MAX) {
        for (number, limit) in rule.limits.iter().enumerate() {
            rows.push(row(rule, limit, number == 0));
        }
    }
    write!(f, "\n{}", table(&rows, 2))?;
    if rules.len() > RULES_MAX {
        write!(f, "\n  and {} more rules: see --json", rules.len() - RULES_MAX)?;
    }
    for rule in rules.iter().filter(|rule| rule.would_deny > 0) {
        let would = number_of(rule.would_deny, "request");
        write!(
            f,
            "\n  {} never denies (shadow or post-paid); it had no room for {would}",
            rule.rule
        )?;
    }
    Ok(())
}

fn row(rule: &RuleReport, limit: &LimitReport, is_first: bool) -> Vec<String> {
    let once = |text: String| if is_first { text } else { String::new() };
    let fill = |fill: Option<usize>| fill.map_or("-".to_owned(), |percent| format!("{percent} %"));
    vec![
        once(rule.rule.clone()),
        format!("{} {}", limit.limit, limit.algorithm),
        once(grouped(rule.matched)),
        grouped(limit.denied),
        percent(limit.denied, rule.matched),
        once(grouped(rule.subjects_denied)),
        fill(limit.fill_median),
        fill(limit.fill_p99),
        fill(limit.fill_most),
    ]
}

fn write_difference(
    f: &mut fmt::Formatter<'_>,
    first: &str,
    this: &str,
    difference: &DifferenceReport,
) -> fmt::Result {
    let (only_first, only_this) = (difference.only_first_denies, difference.only_this_denies);
    if (only_first, only_this) == (0, 0) {
        return write!(f, "\n\n  {first} and {this} deny the same requests");
    }
    write!(
        f,
        "\n\n  Only {first} denies {}; only {this} denies {}",
        grouped(only_first),
        grouped(only_this)
    )?;
    for subject in &difference.subjects {
        write!(
            f,
            "\n  {:>12}  {}  {}, by {first} only",
            grouped(subject.denied),
            subject.rule,
            subject.subject
        )?;
    }
    Ok(())
}

/// Returns a number and its noun: `1 line`, `1,234 lines`.
fn number_of(count: u64, noun: &str) -> String {
    format!("{} {noun}{}", grouped(count), if count == 1 { "" } else { "s" })
}

/// As many rules as a person looks through.
const RULES_MAX: usize = 40;
