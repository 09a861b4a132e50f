//! The report as text in columns, for a terminal.

use std::fmt;

use super::{DifferenceReport, Input, LimitReport, PolicyReport, Report, RuleReport, percent};
use crate::counted;
use crate::plot::grouped;
use crate::simulate::duration;

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
            let verdict =
                if condition.holds { "FAILS: it holds that" } else { "ok: it does not hold that" };
            write!(f, "\n{verdict} {}", condition.condition)?;
        }
        Ok(())
    }
}

impl fmt::Display for Input {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.source)?;
        if !self.formats.is_empty() {
            write!(f, ": {}, {}", lines(self.lines), self.formats.join(" and "))?;
        }
        if let (Some(from), Some(to), Some((from_us, to_us))) = (&self.from, &self.to, self.span_us)
        {
            write!(f, "\n  from {from} to {to}, {}", duration::shown(to_us - from_us))?;
        }
        if self.malformed > 0 {
            let malformed = lines(self.malformed);
            write!(f, "\n  left out: {malformed} that could not be read, such as")?;
        }
        for example in &self.malformed_examples {
            write!(f, "\n    {example}")?;
        }
        if self.out_of_order > 0 {
            write!(f, "\n  put in order: {}", lines(self.out_of_order))?;
        }
        if self.late > 0 {
            let late = lines(self.late);
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
        if !self.denied_most.is_empty() {
            let at_least = if self.subjects_denied_at_least { "at least " } else { "" };
            let all = counted(self.subjects_denied as usize, "subject");
            write!(f, "\n\n  Denied most, of {at_least}{all}")?;
        }
        for subject in &self.denied_most {
            let about = if subject.denied_at_most > subject.denied { " or more" } else { "" };
            write!(
                f,
                "\n  {:>12}  {}  {}{about}",
                grouped(subject.denied),
                subject.rule,
                subject.subject
            )?;
        }
        if let Some(worst) = self.worst_times.first() {
            write!(f, "\n\n  Most denials in {}", duration::shown(worst.width_us))?;
        }
        for worst in &self.worst_times {
            write!(
                f,
                "\n  {:>12}  from {}, of {}",
                grouped(worst.denied),
                worst.from,
                grouped(worst.requests)
            )?;
        }
        for followed in &self.followed {
            let window = duration::shown(followed.window_ms * 1_000);
            let (most, capacity) = (grouped(followed.admitted_most), grouped(followed.capacity));
            let super::FollowedReport { subject, rule, algorithm, unit, at, .. } = followed;
            write!(
                f,
                "\n\n  {subject} by {rule} ({algorithm}): at most {most} {unit} in any {window}, at {at}; the limit is {capacity}"
            )?;
            if followed.lost_count {
                f.write_str("; a window had more than a million entries, so this may be too few")?;
            }
        }
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

/// Writes one line for each limit of each rule, in columns as wide as their content.
fn write_rules(f: &mut fmt::Formatter<'_>, rules: &[RuleReport]) -> fmt::Result {
    let heads = ["rule", "limit", "matched", "denied", "", "subjects", "fill: p50", "p99", "max"];
    let mut rows = vec![heads.map(str::to_owned).to_vec()];
    for rule in rules.iter().take(RULES_MAX) {
        for (number, limit) in rule.limits.iter().enumerate() {
            rows.push(row(rule, limit, number == 0));
        }
    }
    let width =
        |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..heads.len()).map(width).collect();
    f.write_str("\n")?;
    for row in &rows {
        f.write_str("\n ")?;
        for (column, (cell, width)) in row.iter().zip(&widths).enumerate() {
            match column {
                0 | 1 => write!(f, " {cell:width$} ")?,
                _ => write!(f, " {cell:>width$} ")?,
            }
        }
    }
    if rules.len() > RULES_MAX {
        write!(f, "\n  and {} more rules: see --json", rules.len() - RULES_MAX)?;
    }
    for rule in rules.iter().filter(|rule| rule.would_deny > 0) {
        let would = grouped(rule.would_deny);
        write!(f, "\n  {} is a shadow rule; it would have denied {would}", rule.rule)?;
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

fn lines(count: u64) -> String {
    format!("{} line{}", grouped(count), if count == 1 { "" } else { "s" })
}

/// As many rules as a person looks through.
const RULES_MAX: usize = 40;
