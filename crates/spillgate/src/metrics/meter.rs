//! The counts of one rule, and the meters of all rules of a policy.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::is_near_limit;
use crate::decision::{CounterOutcome, Reason, Source};
use crate::policy::Rule;

/// Counts the decisions of one rule.
#[derive(Debug)]
pub(super) struct Meter {
    pub(super) domain: Box<str>,
    pub(super) rule: Box<str>,
    /// By result, then by source.
    decisions: [[AtomicU64; SOURCES.len()]; RESULTS.len()],
    near_limit: AtomicU64,
    /// Decisions by `on_outage` though the store was healthy.
    overloaded: AtomicU64,
}

impl Meter {
    pub(super) fn new(domain: &str, rule: &str) -> Meter {
        Meter {
            domain: domain.into(),
            rule: rule.into(),
            decisions: Default::default(),
            near_limit: AtomicU64::new(0),
            overloaded: AtomicU64::new(0),
        }
    }

    /// Counts the counters of one decision as one result: with the first reason and the worst source.
    pub(super) fn count(&self, counters: &[CounterOutcome]) {
        let reason = counters.iter().filter_map(|counter| counter.denied).min();
        let source = counters.iter().map(|counter| counter.source).max().unwrap_or(Source::Store);
        self.decisions[index(reason)][source as usize].fetch_add(1, Ordering::Relaxed);
        if counters.iter().any(is_near_limit) {
            self.near_limit.fetch_add(1, Ordering::Relaxed);
        }
        if counters.iter().any(|counter| counter.overloaded) {
            self.overloaded.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Returns how many decisions had each reason (`None` is allowed) and source, without zeros.
    pub(super) fn decisions(&self) -> impl Iterator<Item = (Option<Reason>, Source, u64)> {
        let each =
            RESULTS.iter().flat_map(|reason| SOURCES.iter().map(|source| (*reason, *source)));
        let counted = each.map(|(reason, source)| {
            let count = &self.decisions[index(reason)][source as usize];
            (reason, source, count.load(Ordering::Relaxed))
        });
        counted.filter(|(_, _, count)| *count > 0)
    }

    /// Returns how many decisions allowed and how many denied, as [`DECISIONS`] names them.
    pub(super) fn by_decision(&self) -> [u64; DECISIONS.len()] {
        let mut counts = [0; DECISIONS.len()];
        for (reason, _, count) in self.decisions() {
            counts[usize::from(reason.is_some())] += count;
        }
        counts
    }

    /// Returns how many decisions were made without the store.
    pub(super) fn fallback(&self) -> u64 {
        let degraded = self.decisions().filter(|(_, source, _)| *source >= Source::Fallback);
        degraded.map(|(_, _, count)| count).sum()
    }

    /// Returns how many decisions `on_outage` made though the store was healthy.
    pub(super) fn overloaded(&self) -> u64 {
        self.overloaded.load(Ordering::Relaxed)
    }

    pub(super) fn near_limit(&self) -> u64 {
        self.near_limit.load(Ordering::Relaxed)
    }
}

/// One meter for each rule, in the order of the policy. Clones share them.
#[derive(Clone, Debug, Default)]
pub(crate) struct Meters(Arc<[Arc<Meter>]>);

impl Meters {
    /// Returns the meters of the rules of a policy. A rule that the policy before had keeps its meter.
    pub(crate) fn of<'r>(rules: impl Iterator<Item = &'r Rule>, before: &Meters) -> Meters {
        let names = |meter: &Meter| (meter.domain.clone(), meter.rule.clone());
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

    pub(super) fn of_rule(&self, rule_index: u32) -> &Meter {
        &self.0[rule_index as usize]
    }

    /// Returns each meter once.
    pub(super) fn all(&self) -> impl Iterator<Item = &Meter> {
        self.0.iter().take(RULES_MAX + 1).map(|meter| &**meter)
    }
}

/// Returns the place of a result in [`RESULTS`].
fn index(reason: Option<Reason>) -> usize {
    reason.map_or(0, |reason| reason as usize + 1)
}

/// Values of the label `decision`.
pub(super) const DECISIONS: [&str; 2] = ["allowed", "denied"];

/// Allowed, then each reason of a denial in the order of its enum.
const RESULTS: [Option<Reason>; 6] = [
    None,
    Some(Reason::Blocked),
    Some(Reason::CostExceedsLimit),
    Some(Reason::LimitExceeded),
    Some(Reason::StoreUnavailable),
    Some(Reason::Overloaded),
];

const SOURCES: [Source; 5] =
    [Source::Store, Source::Lease, Source::DenialCache, Source::Fallback, Source::OutagePolicy];

/// Domain and rule of counts that have no labels of their own.
pub(super) const OTHER: &str = "other";

/// More series than this are a burden for Prometheus: the rules beyond share one meter.
pub(crate) const RULES_MAX: usize = 1_000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_result_has_the_place_that_its_index_says() {
        for (place, reason) in RESULTS.into_iter().enumerate() {
            assert_eq!(index(reason), place);
        }
        for (place, source) in SOURCES.into_iter().enumerate() {
            assert_eq!(source as usize, place);
        }
    }
}
