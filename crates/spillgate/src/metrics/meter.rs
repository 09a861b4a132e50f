//! The counts of one rule, and the meters of all rules of a policy.

use std::collections::HashMap;
use std::sync::Arc;

use super::counts::{DecisionCount, MODES, NOT_ASKED, REASONS, RuleCounts, SOURCES};
use super::is_near_limit;
use crate::decision::{CounterOutcome, Reason};
use crate::limit::NamedLimit;
use crate::policy::Rule;
use crate::tally::Tally;

/// Counts the decisions of one rule.
#[derive(Debug)]
pub struct Meter {
    domain: Arc<str>,
    rule: Arc<str>,
    counts: Tally<COUNTS>,
    /// The limits in the order of the rule. An override has the same.
    limits: Box<[LimitMeter]>,
}

/// Counts the denials of one limit by mode, reason and source. Apart from the other counts, because most threads never
/// need room for them.
#[derive(Debug)]
struct LimitMeter {
    limit: Arc<str>,
    denials: Tally<DENIALS>,
}

impl Meter {
    pub fn new(domain: &str, rule: &str, limits: &[&str]) -> Meter {
        let limit = |name: &&str| LimitMeter { limit: (*name).into(), denials: Tally::default() };
        Meter {
            domain: domain.into(),
            rule: rule.into(),
            counts: Tally::default(),
            limits: limits.iter().map(limit).collect(),
        }
    }

    /// Counts the counters of one decision as one result: with the first reason and the worst source. An advisory counter
    /// denies nothing.
    #[inline]
    pub fn count(&self, counters: &[CounterOutcome]) {
        let (mut reason, mut source, mut is_near, mut is_overloaded) = (None, None, false, false);
        for counter in counters {
            if !counter.advisory {
                reason = Reason::first(reason, counter.denied);
            }
            source = source.max(counter.source);
            is_near |= is_near_limit(counter);
            is_overloaded |= counter.overloaded;
        }
        let counts = self.counts.of_this_thread();
        let mode = usize::from(counters.first().is_some_and(|counter| counter.shadow));
        let place = mode * SOURCES.len() + source.map_or(NOT_ASKED, |source| source as usize);
        match reason {
            None => counts.add(place),
            Some(reason) => self.count_denial(counters, reason, place),
        }
        if reason.is_none() && is_near {
            counts.add(NEAR_LIMIT);
        }
        if is_overloaded {
            counts.add(OVERLOADED);
        }
    }

    /// Counts a denial at the limit that denied. Of several limits with the reason, that is the one with the longest
    /// wait, as in an answer. `place` is that of mode and source.
    fn count_denial(&self, counters: &[CounterOutcome], reason: Reason, place: usize) {
        let denying = counters.iter().filter(|c| !c.advisory && c.denied == Some(reason));
        let wait = |counter: &&CounterOutcome| counter.retry_after_us.number().unwrap_or(u64::MAX);
        // Of equals `max_by_key` returns the last, so the order is reversed.
        let longest = denying.rev().max_by_key(wait);
        // The rules beyond the first 1,000 have one meter, and it has one limit.
        let limit = longest.and_then(|counter| self.limits.get(usize::from(counter.limit)));
        if let Some(limit) = limit.or(self.limits.last()) {
            limit.denials.of_this_thread().add(reason as usize * PLACES + place);
        }
    }

    /// Returns the counts now.
    pub fn read(&self) -> RuleCounts {
        let counts = self.counts.read();
        let no_limit = Arc::default();
        let allowed = counts.into_iter().take(PLACES).enumerate();
        let allowed = allowed.map(|(place, count)| kind(None, &no_limit, place, count));
        let denied = self.limits.iter().flat_map(LimitMeter::read);
        RuleCounts {
            domain: Arc::clone(&self.domain),
            rule: Arc::clone(&self.rule),
            decisions: allowed.chain(denied).filter(|kind| kind.count > 0).collect(),
            near_limit: counts[NEAR_LIMIT],
            overloaded: counts[OVERLOADED],
        }
    }
}

impl LimitMeter {
    fn read(&self) -> impl Iterator<Item = DecisionCount> {
        let counts = self.denials.read().into_iter().enumerate();
        counts.map(|(place, count)| {
            kind(Some(REASONS[place / PLACES]), &self.limit, place % PLACES, count)
        })
    }
}

/// Returns the decisions of a mode and source.
fn kind(reason: Option<Reason>, limit: &Arc<str>, place: usize, count: u64) -> DecisionCount {
    let (mode, source) = (MODES[place / SOURCES.len()], SOURCES[place % SOURCES.len()]);
    DecisionCount { mode, reason, limit: Arc::clone(limit), source, count }
}

/// One meter for each rule, in the order of the policy. Clones share them.
#[derive(Clone, Debug, Default)]
pub(crate) struct Meters(Arc<[Arc<Meter>]>);

impl Meters {
    /// Returns the meters of the rules of a policy. A rule that the policy before had, with the same names of limits,
    /// keeps its meter.
    pub(crate) fn for_rules<'r>(rules: impl Iterator<Item = &'r Rule>, before: &Meters) -> Meters {
        let names = |meter: &Meter| (Arc::clone(&meter.domain), Arc::clone(&meter.rule));
        let known: HashMap<_, _> = before.0.iter().map(|meter| (names(meter), meter)).collect();
        let meter = |domain: &str, rule: &str, limits: &[&str]| {
            let known = known.get(&(domain.into(), rule.into()));
            let same = |meter: &&&Arc<Meter>| {
                meter.limits.iter().map(|l| &*l.limit).eq(limits.iter().copied())
            };
            known.filter(same).map_or_else(
                || Arc::new(Meter::new(domain, rule, limits)),
                |meter| Arc::clone(meter),
            )
        };
        let others = meter(OTHER, OTHER, &[OTHER]);
        let meters = rules.enumerate().map(|(position, rule)| match position {
            0..RULES_MAX => {
                let limits: Vec<&str> = rule.named_limits().iter().map(NamedLimit::name).collect();
                meter(rule.domain(), rule.name(), &limits)
            }
            _ => Arc::clone(&others),
        });
        Meters(meters.collect())
    }

    pub fn of_rule(&self, rule_index: u32) -> &Meter {
        &self.0[rule_index as usize]
    }

    /// Returns each meter once.
    pub fn all(&self) -> impl Iterator<Item = &Meter> {
        self.0.iter().take(RULES_MAX + 1).map(|meter| &**meter)
    }
}

/// The number of modes by sources: the places of allowed decisions, and of the denials for each reason.
const PLACES: usize = MODES.len() * SOURCES.len();
const DENIALS: usize = REASONS.len() * PLACES;
// A meter has two more counts.
const NEAR_LIMIT: usize = PLACES;
const OVERLOADED: usize = PLACES + 1;
const COUNTS: usize = PLACES + 2;

/// Domain, rule and limit of counts that have no labels of their own.
pub const OTHER: &str = "other";

/// More series than this are a burden for Prometheus: the rules beyond share one meter.
pub(crate) const RULES_MAX: usize = 1_000;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::RuleSpec;

    fn meters(rules: impl IntoIterator<Item = RuleSpec>, before: &Meters) -> Meters {
        let policy =
            rules.into_iter().fold(crate::Policy::builder(), |policy, rule| policy.rule(rule));
        Meters::for_rules(policy.build().unwrap().rules(), before)
    }

    fn rule(number: usize, limits: &[&str]) -> RuleSpec {
        let rule = Rule::new(format!("r{number}")).key(["user"]);
        limits.iter().fold(rule, |rule, limit| rule.limit(*limit))
    }

    fn denied_at(limit: u16) -> CounterOutcome {
        CounterOutcome { limit, denied: Some(Reason::LimitExceeded), ..CounterOutcome::inline() }
    }

    fn kinds(meter: &Meter) -> Vec<(String, u64)> {
        let kinds = meter.read().decisions;
        kinds.iter().map(|kind| (kind.limit.to_string(), kind.count)).collect()
    }

    #[test]
    fn rules_beyond_the_first_thousand_share_one_series_of_denials() {
        let rules = (0..RULES_MAX + 2).map(|number| rule(number, &["1/s", "9/m", "90/h"]));
        let meters = meters(rules, &Meters::default());
        meters.of_rule(RULES_MAX as u32 - 1).count(&[denied_at(2)]);
        meters.of_rule(RULES_MAX as u32).count(&[denied_at(0)]);
        meters.of_rule(RULES_MAX as u32 + 1).count(&[denied_at(2)]);
        assert_eq!(meters.all().count(), RULES_MAX + 1);
        assert_eq!(kinds(meters.of_rule(RULES_MAX as u32 - 1)), [("2".to_owned(), 1)]);
        assert_eq!(kinds(meters.of_rule(RULES_MAX as u32)), [(OTHER.to_owned(), 2)]);
    }

    /// Else the denials of one limit would go on under the name of another.
    #[test]
    fn a_rule_begins_anew_when_its_limits_have_other_names() {
        let before = meters([rule(0, &["1/s", "9/m"])], &Meters::default());
        before.of_rule(0).count(&[denied_at(1)]);
        let other_numbers = meters([rule(0, &["5/s", "9/h"])], &before);
        assert_eq!(kinds(other_numbers.of_rule(0)), [("1".to_owned(), 1)]);
        let fewer = meters([rule(0, &["1/s"])], &other_numbers);
        assert_eq!(kinds(fewer.of_rule(0)), []);
    }
}
