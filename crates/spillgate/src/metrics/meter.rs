//! What is counted of one rule, and the meters of all rules of a policy.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::is_near_limit;
use crate::decision::{CounterOutcome, Source};
use crate::policy::Rule;

/// A decision as metrics name it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Verdict {
    Allowed,
    Denied,
    /// Denied, and no wait helps.
    Never,
}

impl Verdict {
    fn of_counter(counter: &CounterOutcome) -> Verdict {
        match counter.denied {
            None => Verdict::Allowed,
            Some(reason) if reason.is_permanent() => Verdict::Never,
            Some(_) => Verdict::Denied,
        }
    }

    /// Returns the value of the label `verdict`.
    pub(super) fn name(self) -> &'static str {
        match self {
            Verdict::Allowed => "allowed",
            Verdict::Denied => "denied",
            Verdict::Never => "never",
        }
    }
}

/// The verdicts of one rule.
#[derive(Debug)]
pub(super) struct Meter {
    pub(super) domain: Box<str>,
    pub(super) rule: Box<str>,
    verdicts: [[AtomicU64; SOURCES.len()]; VERDICTS.len()],
    near_limit: AtomicU64,
    /// Decisions that found the store at work and too slow.
    overloaded: AtomicU64,
}

impl Meter {
    pub(super) fn new(domain: &str, rule: &str) -> Meter {
        Meter {
            domain: domain.into(),
            rule: rule.into(),
            verdicts: Default::default(),
            near_limit: AtomicU64::new(0),
            overloaded: AtomicU64::new(0),
        }
    }

    /// Counts the counters of one decision as one verdict: the worst, by the worst source.
    pub(super) fn count(&self, counters: &[CounterOutcome]) {
        let verdict = counters.iter().map(Verdict::of_counter).max().unwrap_or(Verdict::Allowed);
        let source = counters.iter().map(|counter| counter.source).max().unwrap_or(Source::Store);
        self.verdicts[verdict as usize][source as usize].fetch_add(1, Ordering::Relaxed);
        if counters.iter().any(is_near_limit) {
            self.near_limit.fetch_add(1, Ordering::Relaxed);
        }
        if counters.iter().any(|counter| counter.overloaded) {
            self.overloaded.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// How often each verdict came from each source, those that never did left out.
    pub(super) fn verdicts(&self) -> impl Iterator<Item = (Verdict, Source, u64)> {
        let each =
            VERDICTS.iter().flat_map(|verdict| SOURCES.iter().map(|source| (*verdict, *source)));
        let counted = each.map(|(verdict, source)| {
            let count = &self.verdicts[verdict as usize][source as usize];
            (verdict, source, count.load(Ordering::Relaxed))
        });
        counted.filter(|(_, _, count)| *count > 0)
    }

    /// How often each verdict came.
    pub(super) fn by_verdict(&self) -> [u64; VERDICTS.len()] {
        VERDICTS.map(|verdict| {
            let sources = self.verdicts[verdict as usize].iter();
            sources.map(|count| count.load(Ordering::Relaxed)).sum()
        })
    }

    /// Decisions that the store had no part in.
    pub(super) fn fallback(&self) -> u64 {
        let alone = self.verdicts().filter(|(_, source, _)| *source >= Source::Fallback);
        alone.map(|(_, _, count)| count).sum()
    }

    /// Decisions that found the store at work and too slow.
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
    /// The meters of a policy's rules: those of the policy before it, where it had the rule.
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

    /// Each once.
    pub(super) fn all(&self) -> impl Iterator<Item = &Meter> {
        self.0.iter().take(RULES_MAX + 1).map(|meter| &**meter)
    }
}

pub(super) const VERDICTS: [Verdict; 3] = [Verdict::Allowed, Verdict::Denied, Verdict::Never];
const SOURCES: [Source; 5] =
    [Source::Store, Source::Lease, Source::DenialCache, Source::Fallback, Source::OutagePolicy];

/// Domain and rule of what has no label of its own.
pub(super) const OTHER: &str = "other";

/// More series than this are a burden to whoever stores them: the rest share one meter.
pub(crate) const RULES_MAX: usize = 1_000;
