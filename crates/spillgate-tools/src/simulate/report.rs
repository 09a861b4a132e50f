//! The results as numbers for programs; [`text`] writes them for people.

use jiff::Timestamp;
use serde::Serialize;
use spillgate::Policy;

use super::bins::Bins;
use super::event::Vocabulary;
use super::replay::{Outcome, PolicyReplay};
use super::tally::{Followed, LimitTally, Place, RuleTally};

mod text;

/// The whole report; its fields are those of `--json`.
#[derive(Debug, Serialize)]
pub(super) struct Report {
    pub(super) input: Input,
    pub(super) policies: Vec<PolicyReport>,
    pub(super) conditions: Vec<ConditionReport>,
}

/// The traffic that was replayed.
#[derive(Debug, Default, Serialize)]
pub(super) struct Input {
    pub(super) source: String,
    /// The formats of the logs, each once: `combined log`.
    pub(super) formats: Vec<&'static str>,
    pub(super) lines: u64,
    /// Lines that could not be read: their number, and the first few.
    pub(super) malformed: u64,
    pub(super) malformed_examples: Vec<String>,
    pub(super) out_of_order: u64,
    pub(super) late: u64,
    /// Whether all instants are whole seconds.
    pub(super) whole_seconds: bool,
    pub(super) from: Option<String>,
    pub(super) to: Option<String>,
    /// The span of a pattern, or of a log's events.
    #[serde(skip)]
    pub(super) span_us: Option<(u64, u64)>,
}

#[derive(Debug, Serialize)]
pub(super) struct PolicyReport {
    pub(super) policy: String,
    pub(super) requests: u64,
    pub(super) allowed: u64,
    pub(super) denied: u64,
    /// Of these, the requests that cost more than a limit can ever hold.
    pub(super) cost_exceeds_limit: u64,
    pub(super) unmatched: u64,
    pub(super) subjects_denied: u64,
    /// Whether more subjects were denied than are counted.
    pub(super) subjects_denied_at_least: bool,
    pub(super) evicted: u64,
    pub(super) rules: Vec<RuleReport>,
    pub(super) denied_most: Vec<SubjectReport>,
    pub(super) worst_times: Vec<WorstTime>,
    pub(super) followed: Vec<FollowedReport>,
    pub(super) against_first: Option<DifferenceReport>,
}

#[derive(Debug, Serialize)]
pub(super) struct RuleReport {
    pub(super) rule: String,
    pub(super) matched: u64,
    pub(super) denied: u64,
    pub(super) cost_exceeds_limit: u64,
    pub(super) would_deny: u64,
    pub(super) subjects_denied: u64,
    pub(super) limits: Vec<LimitReport>,
    /// If no request matched the rule: its attributes that no request has.
    pub(super) unknown_attributes: Vec<String>,
}

#[derive(Debug, Serialize)]
pub(super) struct LimitReport {
    pub(super) limit: String,
    pub(super) algorithm: &'static str,
    pub(super) unit: String,
    pub(super) denied: u64,
    pub(super) charged: u64,
    /// The fill after a decision, in percent: p50, p99 and maximum.
    pub(super) fill_median: Option<usize>,
    pub(super) fill_p99: Option<usize>,
    pub(super) fill_most: Option<usize>,
}

#[derive(Debug, Serialize)]
pub(super) struct SubjectReport {
    pub(super) rule: String,
    pub(super) subject: String,
    /// How often it was denied for certain, and how often at most.
    pub(super) denied: u64,
    pub(super) denied_at_most: u64,
}

#[derive(Debug, Serialize)]
pub(super) struct WorstTime {
    pub(super) from: String,
    pub(super) seconds: u64,
    pub(super) requests: u64,
    pub(super) denied: u64,
    #[serde(skip)]
    pub(super) width_us: u64,
}

#[derive(Debug, Serialize)]
pub(super) struct FollowedReport {
    pub(super) rule: String,
    pub(super) limit: String,
    pub(super) algorithm: &'static str,
    pub(super) subject: String,
    pub(super) capacity: u64,
    pub(super) window_ms: u64,
    /// The most that was admitted in any window of this length, and when such a window ended.
    pub(super) admitted_most: u64,
    pub(super) at: String,
    /// Whether a window had more entries than are counted.
    pub(super) lost_count: bool,
    #[serde(skip)]
    pub(super) unit: String,
}

#[derive(Debug, Serialize)]
pub(super) struct DifferenceReport {
    pub(super) only_first_denies: u64,
    pub(super) only_this_denies: u64,
    /// The subjects that only the first policy denies.
    pub(super) subjects: Vec<SubjectReport>,
}

#[derive(Debug, Serialize)]
pub(super) struct ConditionReport {
    pub(super) condition: String,
    pub(super) holds: bool,
}

impl Report {
    /// Returns the report on policies, in their order, with at most `top` subjects.
    pub(super) fn new(
        mut input: Input,
        outcome: Outcome,
        policies: &[Policy],
        words: &Vocabulary,
        top: usize,
    ) -> Report {
        input.span_us = input.span_us.or(outcome.span_us);
        input.from = input.span_us.map(|(from_us, _)| instant(from_us));
        input.to = input.span_us.map(|(_, to_us)| instant(to_us));
        let present = words.names().iter().zip(&outcome.present);
        let unknown: Vec<&str> =
            present.filter(|(_, present)| !**present).map(|(name, _)| name.as_str()).collect();
        let first_rules: Vec<String> = policies
            .iter()
            .take(1)
            .flat_map(Policy::rules)
            .map(|rule| rule.name().to_owned())
            .collect();
        let policies = outcome.policies.into_iter().zip(policies).enumerate().map(
            |(number, (replayed, policy))| {
                let first = (number > 0).then_some(first_rules.as_slice());
                PolicyReport::new(replayed, policy, &unknown, first, top)
            },
        );
        Report { input, policies: policies.collect(), conditions: Vec::new() }
    }
}

impl PolicyReport {
    fn new(
        replayed: PolicyReplay,
        policy: &Policy,
        unknown: &[&str],
        first_rules: Option<&[String]>,
        top: usize,
    ) -> PolicyReport {
        let evicted = replayed.evicted();
        let PolicyReplay { name, tally, difference, .. } = replayed;
        let rule_name = |number: usize| tally.rules[number].name.clone();
        let rules = policy.rules().zip(&tally.rules).enumerate();
        let rules = rules.map(|(number, (rule, counts))| RuleReport {
            unknown_attributes: match counts.matched {
                0 => {
                    rule.needs().filter(|name| unknown.contains(name)).map(str::to_owned).collect()
                }
                _ => Vec::new(),
            },
            limits: limits(rule, counts),
            rule: counts.name.clone(),
            matched: counts.matched,
            denied: counts.denied,
            cost_exceeds_limit: counts.cost_exceeds_limit,
            would_deny: counts.would_deny,
            subjects_denied: tally.subjects.subjects_of(number),
        });
        PolicyReport {
            policy: name,
            requests: tally.requests,
            allowed: tally.requests - tally.denied,
            denied: tally.denied,
            cost_exceeds_limit: tally.cost_exceeds_limit,
            unmatched: tally.unmatched,
            subjects_denied: tally.subjects.subjects(),
            subjects_denied_at_least: tally.subjects.is_full(),
            evicted,
            rules: rules.collect(),
            denied_most: subjects(tally.subjects.most(top), rule_name),
            worst_times: worst_times(&tally.over_time, top.min(WORST_TIMES_MAX)),
            followed: tally.followed.iter().filter_map(|one| followed(one, policy)).collect(),
            against_first: first_rules.map(|names| DifferenceReport {
                only_first_denies: difference.only_first_denies,
                only_this_denies: difference.only_this_denies,
                subjects: subjects(difference.subjects.most(top), |number| names[number].clone()),
            }),
        }
    }
}

fn limits(rule: &spillgate::Rule, counts: &RuleTally) -> Vec<LimitReport> {
    let report = |(number, limit): (usize, &spillgate::Limit)| {
        let counted = counts.limits.get(number);
        let fill =
            |percentile| counted.and_then(|counted: &LimitTally| counted.fill_at(percentile));
        LimitReport {
            limit: limit.name().map_or_else(|| limit.to_string(), |name| format!("{name} {limit}")),
            algorithm: limit.algorithm().name(),
            unit: limit.unit().to_owned(),
            denied: counted.map_or(0, |counted| counted.denied),
            charged: counted.map_or(0, |counted| counted.charged),
            fill_median: fill(50),
            fill_p99: fill(99),
            fill_most: fill(100),
        }
    };
    rule.limits().enumerate().map(report).collect()
}

fn followed(one: &Followed, policy: &Policy) -> Option<FollowedReport> {
    let rule = policy.rules().nth(one.rule)?;
    let limit = rule.limits().nth(one.limit)?;
    Some(FollowedReport {
        rule: rule.name().to_owned(),
        limit: limit.to_string(),
        algorithm: limit.algorithm().name(),
        subject: one.subject.clone(),
        capacity: one.capacity,
        window_ms: one.window_us() / 1_000,
        admitted_most: one.peak.0,
        at: instant(one.peak.1),
        lost_count: one.lost_count,
        unit: limit.unit().to_owned(),
    })
}

fn subjects(places: Vec<Place>, rule: impl Fn(usize) -> String) -> Vec<SubjectReport> {
    let report = |place: Place| SubjectReport {
        rule: rule(place.rule),
        subject: place.name.into(),
        denied: place.count - place.error,
        denied_at_most: place.count,
    };
    places.into_iter().map(report).collect()
}

/// Returns the spans of time with the most denials.
fn worst_times(over_time: &Bins, number: usize) -> Vec<WorstTime> {
    let over_time = over_time.joined(WORST_OF);
    let width_us = over_time.width_us();
    let mut denying: Vec<_> = over_time.all().filter(|(_, [_, denied])| *denied > 0).collect();
    denying.sort_by_key(|(from_us, [_, denied])| (std::cmp::Reverse(*denied), *from_us));
    let report = |(from_us, [requests, denied]): (u64, [u64; 2])| WorstTime {
        from: instant(from_us),
        seconds: width_us.div_ceil(1_000_000),
        requests,
        denied,
        width_us,
    };
    denying.into_iter().take(number).map(report).collect()
}

/// Returns `2026-11-03T12:00:00Z`, with as many fractional digits as needed.
fn instant(us: u64) -> String {
    let at = i64::try_from(us).ok().and_then(|us| Timestamp::from_microsecond(us).ok());
    at.map(|at| at.to_string()).unwrap_or_default()
}

/// Returns a part of a whole in percent, to a tenth: never 0 % of something, nor 100 % of less than all.
pub(super) fn percent(part: u64, whole: u64) -> String {
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

/// The most spans that are compared; shorter ones differ by chance.
const WORST_OF: usize = 150;
/// More would not help.
const WORST_TIMES_MAX: usize = 5;

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
