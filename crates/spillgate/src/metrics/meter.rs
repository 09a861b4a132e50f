//! The counts of one rule, and the meters of all rules of a policy.

use std::collections::HashMap;
use std::sync::Arc;

use super::counts::{NOT_ASKED, RESULTS, RuleCounts, SOURCES, index};
use super::is_near_limit;
use crate::decision::{CounterOutcome, Reason, Source};
use crate::policy::Rule;
use crate::tally::Tally;

/// Counts the decisions of one rule.
#[derive(Debug)]
pub struct Meter {
    pub(crate) domain: Arc<str>,
    pub(crate) rule: Arc<str>,
    counts: Tally<COUNTS>,
}

impl Meter {
    pub fn new(domain: &str, rule: &str) -> Meter {
        Meter { domain: domain.into(), rule: rule.into(), counts: Tally::default() }
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
        let source = source.map_or(NOT_ASKED, |source| source as usize);
        counts.add(index(reason) * SOURCES.len() + source);
        if reason.is_none() && is_near {
            counts.add(NEAR_LIMIT);
        }
        if is_overloaded {
            counts.add(OVERLOADED);
        }
    }

    /// Returns how many decisions had each reason (`None` is allowed) and source, without zeros.
    pub fn decisions(&self) -> impl Iterator<Item = (Option<Reason>, &'static str, u64)> {
        let counts = self.counts.read().into_iter().take(NEAR_LIMIT).enumerate();
        let counted = counts.filter(|(_, count)| *count > 0);
        counted.map(|(place, count)| {
            (RESULTS[place / SOURCES.len()], SOURCES[place % SOURCES.len()], count)
        })
    }

    /// Returns the counts now.
    pub fn read(&self) -> RuleCounts {
        let counts = self.counts.read();
        let mut read = RuleCounts {
            domain: Arc::clone(&self.domain),
            rule: Arc::clone(&self.rule),
            by_result: [0; RESULTS.len()],
            by_source: [0; SOURCES.len()],
            near_limit: counts[NEAR_LIMIT],
        };
        for (place, count) in counts.into_iter().take(NEAR_LIMIT).enumerate() {
            read.by_result[place / SOURCES.len()] += count;
            read.by_source[place % SOURCES.len()] += count;
        }
        read
    }

    /// Returns how many decisions allowed and how many denied, as [`DECISIONS`] names them.
    pub fn by_decision(&self) -> [u64; DECISIONS.len()] {
        let mut counts = [0; DECISIONS.len()];
        for (reason, _, count) in self.decisions() {
            counts[usize::from(reason.is_some())] += count;
        }
        counts
    }

    /// Returns how many decisions were made without the store.
    pub fn fallback(&self) -> u64 {
        let sources = Source::Fallback as usize..=Source::OutagePolicy as usize;
        self.read().by_source[sources].iter().sum()
    }

    /// Returns how many decisions `on_outage` made though the store was healthy.
    pub fn overloaded(&self) -> u64 {
        self.counts.read()[OVERLOADED]
    }

    pub fn near_limit(&self) -> u64 {
        self.counts.read()[NEAR_LIMIT]
    }
}

/// One meter for each rule, in the order of the policy. Clones share them.
#[derive(Clone, Debug, Default)]
pub(crate) struct Meters(Arc<[Arc<Meter>]>);

impl Meters {
    /// Returns the meters of the rules of a policy. A rule that the policy before had keeps its meter.
    pub(crate) fn for_rules<'r>(rules: impl Iterator<Item = &'r Rule>, before: &Meters) -> Meters {
        let names = |meter: &Meter| (Arc::clone(&meter.domain), Arc::clone(&meter.rule));
        let known: HashMap<_, _> =
            before.0.iter().map(|meter| (names(meter), Arc::clone(meter))).collect();
        let meter = |domain: &str, rule: &str| {
            let known = known.get(&(domain.into(), rule.into())).map(Arc::clone);
            known.unwrap_or_else(|| Arc::new(Meter::new(domain, rule)))
        };
        let others = meter(OTHER, OTHER);
        let meters = rules.enumerate().map(|(position, rule)| match position {
            0..RULES_MAX => meter(rule.domain(), rule.name()),
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

// The places of a meter's counts: decisions by result and then by source, and two more.
const NEAR_LIMIT: usize = RESULTS.len() * SOURCES.len();
const OVERLOADED: usize = NEAR_LIMIT + 1;
const COUNTS: usize = NEAR_LIMIT + 2;

/// Values of the label `decision`.
pub const DECISIONS: [&str; 2] = ["allowed", "denied"];

/// Domain and rule of counts that have no labels of their own.
pub const OTHER: &str = "other";

/// More series than this are a burden for Prometheus: the rules beyond share one meter.
pub(crate) const RULES_MAX: usize = 1_000;
