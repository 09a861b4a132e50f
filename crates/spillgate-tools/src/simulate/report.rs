//! The results as numbers for programs; [`text`] writes them for people.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use jiff::Timestamp;
use serde::Serialize;
use spillgate::{Limit, Policy, Rule};

use super::replay::{PolicyReplay, Replay};
use super::tally::{DeniedSubject, LimitTally, MINUTE_US, RuleTally};

mod text;

/// The whole report; its fields are those of `--json`.
#[derive(Debug, Serialize)]
pub struct Report {
    pub(crate) input: Input,
    pub(crate) policies: Vec<PolicyReport>,
    pub(crate) conditions: Vec<ConditionReport>,
}

/// The traffic that was replayed.
#[derive(Debug, Default, Serialize)]
pub struct Input {
    pub(crate) source: String,
    /// The formats of the logs, each once.
    pub(crate) formats: Vec<&'static str>,
    pub(crate) lines: u64,
    /// Lines that could not be read: their number, and the first few.
    pub(crate) malformed: u64,
    pub(crate) malformed_examples: Vec<String>,
    pub(crate) out_of_order: u64,
    pub(crate) late: u64,
    /// Whether all instants are whole seconds.
    pub(crate) whole_seconds: bool,
    pub(crate) from: Option<String>,
    pub(crate) to: Option<String>,
    /// The instants of the first and the last request.
    #[serde(skip)]
    pub(crate) span_us: Option<(u64, u64)>,
}

#[derive(Debug, Serialize)]
pub struct PolicyReport {
    pub(crate) policy: String,
    pub(crate) requests: u64,
    pub(crate) allowed: u64,
    pub(crate) denied: u64,
    /// Of these, the requests that cost more than a limit can ever hold.
    pub(crate) cost_exceeds_limit: u64,
    pub(crate) unmatched: u64,
    pub(crate) subjects_denied: u64,
    /// Whether more subjects were denied than are counted.
    pub(crate) subjects_denied_at_least: bool,
    pub(crate) evicted: u64,
    pub(crate) rules: Vec<RuleReport>,
    pub(crate) denied_most: Vec<SubjectReport>,
    pub(crate) worst_minutes: Vec<WorstMinute>,
    pub(crate) against_first: Option<DifferenceReport>,
}

#[derive(Debug, Serialize)]
pub struct RuleReport {
    pub(crate) rule: String,
    pub(crate) matched: u64,
    pub(crate) denied: u64,
    pub(crate) cost_exceeds_limit: u64,
    pub(crate) would_deny: u64,
    pub(crate) subjects_denied: u64,
    pub(crate) limits: Vec<LimitReport>,
    /// If no request matched the rule: its attributes that no request has.
    pub(crate) unknown_attributes: Vec<String>,
}

#[derive(Debug, Serialize)]
pub struct LimitReport {
    pub(crate) limit: String,
    pub(crate) algorithm: &'static str,
    pub(crate) unit: String,
    pub(crate) denied: u64,
    pub(crate) charged: u64,
    /// The fill after a decision, in percent: p50, p99 and maximum.
    pub(crate) fill_median: Option<usize>,
    pub(crate) fill_p99: Option<usize>,
    pub(crate) fill_most: Option<usize>,
}

#[derive(Debug, Serialize)]
pub struct SubjectReport {
    pub(crate) rule: String,
    pub(crate) subject: String,
    pub(crate) denied: u64,
}

#[derive(Debug, Serialize)]
pub struct WorstMinute {
    pub(crate) from: String,
    pub(crate) requests: u64,
    pub(crate) denied: u64,
}

#[derive(Debug, Serialize)]
pub struct DifferenceReport {
    pub(crate) only_first_denies: u64,
    pub(crate) only_this_denies: u64,
    /// The subjects that only the first policy denies.
    pub(crate) subjects: Vec<SubjectReport>,
}

#[derive(Debug, Serialize)]
pub struct ConditionReport {
    pub(crate) condition: String,
    pub(crate) holds: bool,
}

impl Report {
    /// Returns the report on policies with these names, with at most `top` subjects.
    pub fn new(
        mut input: Input,
        replay: Replay,
        policies: &[Policy],
        names: &[String],
        top: usize,
    ) -> Report {
        let Replay { policies: replayed, span_us, seen, .. } = replay;
        input.span_us = span_us;
        input.from = span_us.map(|(from_us, _)| instant(from_us));
        input.to = span_us.map(|(_, to_us)| instant(to_us));
        let unknown = |rule: &Rule| -> Vec<String> {
            let needed = rule.needs().filter(|name| !seen.contains(*name));
            needed.map(str::to_owned).collect()
        };
        let first_rules: Vec<String> = policies
            .iter()
            .take(1)
            .flat_map(Policy::rules)
            .map(|rule| rule.name().to_owned())
            .collect();
        let mut reports: Vec<PolicyReport> = Vec::new();
        for ((replayed, policy), name) in replayed.into_iter().zip(policies).zip(names) {
            let first = (!reports.is_empty()).then_some(first_rules.as_slice());
            reports.push(PolicyReport::new(name, replayed, policy, &unknown, first, top));
        }
        Report { input, policies: reports, conditions: Vec::new() }
    }
}

impl PolicyReport {
    fn new(
        name: &str,
        replayed: PolicyReplay,
        policy: &Policy,
        unknown: &dyn Fn(&Rule) -> Vec<String>,
        first_rules: Option<&[String]>,
        top: usize,
    ) -> PolicyReport {
        let evicted = replayed.evicted();
        let PolicyReplay { tally, difference, .. } = replayed;
        let rules = policy.rules().zip(&tally.rules).enumerate();
        let rules = rules.map(|(number, (rule, counts))| RuleReport {
            unknown_attributes: if counts.matched == 0 { unknown(rule) } else { Vec::new() },
            limits: limits(rule, counts),
            rule: counts.name.clone(),
            matched: counts.matched,
            denied: counts.denied,
            cost_exceeds_limit: counts.cost_exceeds_limit,
            would_deny: counts.would_deny,
            subjects_denied: tally.subjects.subjects_of(number),
        });
        PolicyReport {
            policy: name.to_owned(),
            requests: tally.requests,
            allowed: tally.requests - tally.denied,
            denied: tally.denied,
            cost_exceeds_limit: tally.cost_exceeds_limit,
            unmatched: tally.unmatched,
            subjects_denied: tally.subjects.subjects(),
            subjects_denied_at_least: tally.subjects.is_full(),
            evicted,
            rules: rules.collect(),
            denied_most: subjects(tally.subjects.most(top), |number| &tally.rules[number].name),
            worst_minutes: worst_minutes(&tally.minutes, top.min(WORST_MINUTES_MAX)),
            against_first: first_rules.map(|names| DifferenceReport {
                only_first_denies: difference.only_first_denies,
                only_this_denies: difference.only_this_denies,
                subjects: subjects(difference.subjects.most(top), |number| &names[number]),
            }),
        }
    }
}

fn limits(rule: &Rule, counts: &RuleTally) -> Vec<LimitReport> {
    let report = |(limit, counted): (&Limit, &LimitTally)| LimitReport {
        limit: limit.name().map_or_else(|| limit.to_string(), |name| format!("{name} {limit}")),
        algorithm: limit.algorithm().name(),
        unit: limit.unit().to_owned(),
        denied: counted.denied,
        charged: counted.charged,
        fill_median: counted.fill_at(50),
        fill_p99: counted.fill_at(99),
        fill_most: counted.fill_at(100),
    };
    rule.limits().zip(&counts.limits).map(report).collect()
}

fn subjects<'n>(
    denied: Vec<(usize, &DeniedSubject)>,
    rule: impl Fn(usize) -> &'n String,
) -> Vec<SubjectReport> {
    let report = |(number, subject): (usize, &DeniedSubject)| SubjectReport {
        rule: rule(number).clone(),
        subject: subject.name.to_string(),
        denied: subject.count,
    };
    denied.into_iter().map(report).collect()
}

/// Returns the minutes with the most denials.
fn worst_minutes(minutes: &BTreeMap<u64, [u64; 2]>, number: usize) -> Vec<WorstMinute> {
    let mut denying: Vec<_> = minutes.iter().filter(|(_, [_, denied])| *denied > 0).collect();
    denying.sort_by_key(|(minute, [_, denied])| (Reverse(*denied), **minute));
    let report = |(minute, [requests, denied]): (&u64, &[u64; 2])| WorstMinute {
        from: instant(minute * MINUTE_US),
        requests: *requests,
        denied: *denied,
    };
    denying.into_iter().take(number).map(report).collect()
}

/// Returns `2026-11-03T12:00:00Z`, with as many fractional digits as needed.
fn instant(us: u64) -> String {
    let at = i64::try_from(us).ok().and_then(|us| Timestamp::from_microsecond(us).ok());
    at.map(|at| at.to_string()).unwrap_or_default()
}

/// Returns a part of a whole in percent, to a tenth: never 0 % of something, nor 100 % of less than all.
pub fn percent(part: u64, whole: u64) -> String {
    if part == 0 || whole == 0 {
        return "0 %".to_owned();
    }
    if part == whole {
        return "100 %".to_owned();
    }
    let tenths = (u128::from(part) * 1_000 + u128::from(whole) / 2) / u128::from(whole);
    match tenths {
        0 => "under 0.1 %".to_owned(),
        1_000.. => "over 99.9 %".to_owned(),
        _ => format!("{}.{} %", tenths / 10, tenths % 10),
    }
}

/// More would not help.
const WORST_MINUTES_MAX: usize = 5;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_small_part_is_not_shown_as_0_percent() {
        for (part, whole, expected) in [
            (0, 10, "0 %"),
            (0, 0, "0 %"),
            (10, 10, "100 %"),
            (1, 1_000_000, "under 0.1 %"),
            (999_999, 1_000_000, "over 99.9 %"),
            (19, 1_000, "1.9 %"),
            (1, 3, "33.3 %"),
            (2, 3, "66.7 %"),
        ] {
            assert_eq!(percent(part, whole), expected);
        }
    }
}
