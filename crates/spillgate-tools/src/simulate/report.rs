//! What came of it, as numbers for programs; as words for people in [`text`].

use jiff::Timestamp;
use serde::Serialize;
use spillgate::Policy;

use super::bins::Bins;
use super::event::Vocabulary;
use super::log::Found;
use super::replay::{Judged, Outcome};
use super::tally::{Followed, LimitTally, Place, RuleTally};

pub(super) mod charts;
pub(super) mod html;
mod text;

/// The whole of it.
#[derive(Debug, Serialize)]
pub(super) struct Report {
    pub(super) input: Input,
    pub(super) policies: Vec<PolicyReport>,
    pub(super) conditions: Vec<ConditionReport>,
}

/// What was replayed.
#[derive(Debug, Serialize)]
pub(super) struct Input {
    pub(super) source: String,
    pub(super) formats: Vec<&'static str>,
    pub(super) lines: u64,
    pub(super) malformed: u64,
    pub(super) malformed_examples: Vec<String>,
    pub(super) out_of_order: u64,
    pub(super) late: u64,
    pub(super) whole_seconds: bool,
    pub(super) from: Option<String>,
    pub(super) to: Option<String>,
    #[serde(skip)]
    pub(super) span_us: Option<(u64, u64)>,
    #[serde(skip)]
    pub(super) is_made_up: bool,
}

#[derive(Debug, Serialize)]
pub(super) struct PolicyReport {
    pub(super) policy: String,
    pub(super) requests: u64,
    pub(super) allowed: u64,
    pub(super) denied: u64,
    pub(super) never: u64,
    pub(super) unmatched: u64,
    pub(super) subjects_refused: u64,
    /// Whether there were more refused subjects than are counted.
    pub(super) subjects_refused_at_least: bool,
    pub(super) tiers_most: usize,
    pub(super) forgotten: u64,
    pub(super) rules: Vec<RuleReport>,
    pub(super) refused_most: Vec<SubjectReport>,
    pub(super) worst_times: Vec<WorstTime>,
    pub(super) followed: Vec<FollowedReport>,
    pub(super) against_first: Option<DifferenceReport>,
    /// Requests and refusals over time.
    #[serde(skip)]
    pub(super) over_time: Bins,
}

#[derive(Debug, Serialize)]
pub(super) struct RuleReport {
    pub(super) rule: String,
    pub(super) met: u64,
    pub(super) refused: u64,
    pub(super) never: u64,
    pub(super) would_refuse: u64,
    pub(super) subjects_refused: u64,
    pub(super) limits: Vec<LimitReport>,
    /// Of a rule that nothing met: the attributes that nothing tells.
    pub(super) unknown_attributes: Vec<String>,
}

#[derive(Debug, Serialize)]
pub(super) struct LimitReport {
    pub(super) limit: String,
    pub(super) algorithm: &'static str,
    pub(super) unit: String,
    pub(super) refused: u64,
    pub(super) charged: u64,
    /// How full it was at half of the decisions, at 99 of a hundred, and at the most, in percent.
    pub(super) fill_median: Option<usize>,
    pub(super) fill_p99: Option<usize>,
    pub(super) fill_most: Option<usize>,
}

#[derive(Debug, Serialize)]
pub(super) struct SubjectReport {
    pub(super) rule: String,
    pub(super) subject: String,
    /// How often it was refused for sure, and how often at the most.
    pub(super) refused: u64,
    pub(super) refused_at_most: u64,
}

#[derive(Debug, Serialize)]
pub(super) struct WorstTime {
    pub(super) from: String,
    pub(super) seconds: u64,
    pub(super) requests: u64,
    pub(super) refused: u64,
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
    /// The most that was admitted in any window that long, and when such a one ended.
    pub(super) admitted_most: u64,
    pub(super) at: String,
    /// Whether there was more in a window than is counted.
    pub(super) lost_count: bool,
    #[serde(skip)]
    pub(super) unit: String,
    #[serde(skip)]
    pub(super) bins: Bins,
}

#[derive(Debug, Serialize)]
pub(super) struct DifferenceReport {
    pub(super) only_first_refuses: u64,
    pub(super) only_this_refuses: u64,
    /// Who is refused by the first only.
    pub(super) subjects: Vec<SubjectReport>,
}

#[derive(Debug, Serialize)]
pub(super) struct ConditionReport {
    pub(super) condition: String,
    pub(super) holds: bool,
}

/// What was replayed, before it is known what came of it.
pub(super) struct Replayed {
    pub(super) source: String,
    pub(super) found: Found,
    pub(super) is_made_up: bool,
    /// From when to when a pattern is made; a log's span is that of its events.
    pub(super) span_us: Option<(u64, u64)>,
}

impl Report {
    /// The report on policies, as they were written, with so many subjects at the top.
    pub(super) fn new(
        replayed: Replayed,
        outcome: Outcome,
        policies: &[Policy],
        words: &Vocabulary,
        top: usize,
    ) -> Report {
        let Replayed { source, found, is_made_up, span_us } = replayed;
        let span_us = span_us.or(outcome.span_us);
        let input = Input {
            source,
            formats: found.formats,
            lines: found.lines,
            malformed: found.malformed,
            malformed_examples: found.examples.iter().map(ToString::to_string).collect(),
            out_of_order: found.sorted,
            late: found.late,
            whole_seconds: found.whole_seconds && found.lines > 0,
            from: span_us.map(|(from_us, _)| instant(from_us)),
            to: span_us.map(|(_, to_us)| instant(to_us)),
            span_us,
            is_made_up,
        };
        let told = words.names().iter().zip(&outcome.told);
        let unknown: Vec<&str> =
            told.filter(|(_, told)| !**told).map(|(name, _)| name.as_str()).collect();
        let first_rules: Vec<String> = policies
            .iter()
            .take(1)
            .flat_map(Policy::rules)
            .map(|rule| rule.name().to_owned())
            .collect();
        let policies = outcome.judged.into_iter().zip(policies).enumerate().map(
            |(number, (judged, policy))| {
                let first = (number > 0).then_some(first_rules.as_slice());
                PolicyReport::new(judged, policy, &unknown, first, top)
            },
        );
        Report { input, policies: policies.collect(), conditions: Vec::new() }
    }
}

impl PolicyReport {
    fn new(
        judged: Judged,
        policy: &Policy,
        unknown: &[&str],
        first_rules: Option<&[String]>,
        top: usize,
    ) -> PolicyReport {
        let Judged { name, tally, tiers_most, forgotten, difference, .. } = judged;
        let rule_name = |number: usize| tally.rules[number].name.clone();
        let rules = policy.rules().zip(&tally.rules).enumerate();
        let rules = rules.map(|(number, (rule, counts))| RuleReport {
            unknown_attributes: match counts.met {
                0 => {
                    rule.needs().filter(|name| unknown.contains(name)).map(str::to_owned).collect()
                }
                _ => Vec::new(),
            },
            limits: limits(rule, counts),
            rule: counts.name.clone(),
            met: counts.met,
            refused: counts.refused,
            never: counts.never,
            would_refuse: counts.would_refuse,
            subjects_refused: tally.refused.subjects_of(number),
        });
        PolicyReport {
            policy: name,
            requests: tally.requests,
            allowed: tally.requests - tally.denied - tally.never,
            denied: tally.denied,
            never: tally.never,
            unmatched: tally.unmatched,
            subjects_refused: tally.refused.subjects(),
            subjects_refused_at_least: tally.refused.is_full(),
            tiers_most,
            forgotten,
            rules: rules.collect(),
            refused_most: subjects(tally.refused.most(top), rule_name),
            worst_times: worst_times(&tally.over_time, top.min(WORST_TIMES_MAX)),
            followed: tally.followed.iter().filter_map(|one| followed(one, policy)).collect(),
            against_first: first_rules.map(|names| DifferenceReport {
                only_first_refuses: difference.only_first_refuses,
                only_this_refuses: difference.only_this_refuses,
                subjects: subjects(difference.subjects.most(top), |number| names[number].clone()),
            }),
            over_time: tally.over_time,
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
            refused: counted.map_or(0, |counted| counted.refused),
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
        bins: one.bins.clone(),
    })
}

fn subjects(places: Vec<Place>, rule: impl Fn(usize) -> String) -> Vec<SubjectReport> {
    let report = |place: Place| SubjectReport {
        rule: rule(place.rule),
        subject: place.name.into(),
        refused: place.count - place.error,
        refused_at_most: place.count,
    };
    places.into_iter().map(report).collect()
}

/// The spans of time with the most refusals.
fn worst_times(over_time: &Bins, number: usize) -> Vec<WorstTime> {
    let over_time = over_time.joined(WORST_OF);
    let width_us = over_time.width_us();
    let mut refusing: Vec<_> = over_time.all().filter(|(_, [_, refused])| *refused > 0).collect();
    refusing.sort_by_key(|(from_us, [_, refused])| (std::cmp::Reverse(*refused), *from_us));
    let report = |(from_us, [requests, refused]): (u64, [u64; 2])| WorstTime {
        from: instant(from_us),
        seconds: width_us.div_ceil(1_000_000),
        requests,
        refused,
        width_us,
    };
    refusing.into_iter().take(number).map(report).collect()
}

/// `2026-11-03T12:00:00Z`, with as many digits behind the second as it takes.
fn instant(us: u64) -> String {
    let at = i64::try_from(us).ok().and_then(|us| Timestamp::from_microsecond(us).ok());
    at.map(|at| at.to_string()).unwrap_or_default()
}

/// A part of a whole in percent, to a tenth: never 0 % of something, nor 100 % of less than all.
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

/// How finely worst times are told apart: what is shorter than a hundredth or so is chance.
const WORST_OF: usize = 150;
/// More say little.
const WORST_TIMES_MAX: usize = 5;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_percentage_is_never_nothing_of_something() {
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
