//! The counts of one rule, and the meters of all rules of a policy.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::counts::{NOT_ASKED, RESULTS, RuleCounts, SOURCES, index};
use super::is_near_limit;
use crate::decision::{CounterOutcome, Reason, Source};
use crate::policy::Rule;

/// Counts the decisions of one rule.
#[derive(Debug)]
pub(super) struct Meter {
    pub(super) domain: Arc<str>,
    pub(super) rule: Arc<str>,
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
    #[inline]
    pub(super) fn count(&self, counters: &[CounterOutcome]) {
        let reason = counters.iter().filter_map(|counter| counter.denied).min();
        self.decisions[index(reason)][source_of(counters)].fetch_add(1, Ordering::Relaxed);
        if counters.iter().any(is_near_limit) {
            self.near_limit.fetch_add(1, Ordering::Relaxed);
        }
        if counters.iter().any(|counter| counter.overloaded) {
            self.overloaded.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Returns how many decisions had each reason (`None` is allowed) and source, without zeros.
    pub(super) fn decisions(&self) -> impl Iterator<Item = (Option<Reason>, &'static str, u64)> {
        let results = RESULTS.into_iter().zip(&self.decisions);
        let each = results.flat_map(|(reason, counts)| {
            let by_source = SOURCES.into_iter().zip(counts);
            by_source.map(move |(source, count)| (reason, source, count.load(Ordering::Relaxed)))
        });
        each.filter(|(_, _, count)| *count > 0)
    }

    /// Returns the counts now.
    pub(super) fn read(&self) -> RuleCounts {
        let mut counts = RuleCounts {
            domain: Arc::clone(&self.domain),
            rule: Arc::clone(&self.rule),
            by_result: [0; RESULTS.len()],
            by_source: [0; SOURCES.len()],
            near_limit: self.near_limit(),
        };
        for (result, of_result) in self.decisions.iter().enumerate() {
            for (source, count) in of_result.iter().enumerate() {
                let count = count.load(Ordering::Relaxed);
                counts.by_result[result] += count;
                counts.by_source[source] += count;
            }
        }
        counts
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
        let sources = Source::Fallback as usize..=Source::OutagePolicy as usize;
        let degraded = self.decisions.iter().flat_map(|counts| &counts[sources.clone()]);
        degraded.map(|count| count.load(Ordering::Relaxed)).sum()
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

    pub(super) fn of_rule(&self, rule_index: u32) -> &Meter {
        &self.0[rule_index as usize]
    }

    /// Returns each meter once.
    pub(super) fn all(&self) -> impl Iterator<Item = &Meter> {
        self.0.iter().take(RULES_MAX + 1).map(|meter| &**meter)
    }
}

/// Returns the place in [`SOURCES`] of the worst source of a rule's counters.
fn source_of(counters: &[CounterOutcome]) -> usize {
    let worst = counters.iter().map(|counter| counter.source).max().unwrap_or(Source::Store);
    let is_unknown = |counter: &CounterOutcome| counter.reset_after_us.number().is_none();
    match worst {
        Source::Store if counters.iter().all(is_unknown) => NOT_ASKED,
        worst => worst as usize,
    }
}

/// Values of the label `decision`.
pub(super) const DECISIONS: [&str; 2] = ["allowed", "denied"];

/// Domain and rule of counts that have no labels of their own.
pub(super) const OTHER: &str = "other";

/// More series than this are a burden for Prometheus: the rules beyond share one meter.
pub(crate) const RULES_MAX: usize = 1_000;
