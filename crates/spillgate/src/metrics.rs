//! Counts of decisions, by rule and by reason, and the subjects that called most.
//!
//! [`Limiter::counts`](crate::Limiter::counts) reads the counts,
//! [`Limiter::metrics_text`](crate::Limiter::metrics_text) writes them for Prometheus, and
//! [`Limiter::top`](crate::Limiter::top) lists subjects. A subject is never a label.

use std::cell::Cell;

pub use spillgate_core::histogram::Durations;
use spillgate_core::histogram::Histogram;

use crate::decision::CounterOutcome;
use crate::time::counter_ns;

mod counting;
mod counts;
mod decisions;
mod meter;
mod rates;
mod sketch;
mod text;
mod top;

pub(crate) use counting::Counting;
pub use counts::{Counts, DecisionCount, RuleCounts, ShardCounts};
pub use decisions::{Decisions, RESULTS};
pub(crate) use meter::Meters;
pub(crate) use meter::RULES_MAX;
use meter::{Meter, OTHER};
use rates::Rates;
pub(crate) use text::{Kind, Text};
use top::Tops;
pub use top::{Top, TopOfRule, TopSubject};

/// The counts of a limiter besides those of its rules. The meters of the rules are in force together with the policy, so
/// that a count needs no lookup.
#[derive(Debug)]
pub(crate) struct Metrics {
    /// Counts inline limits, which have no rule and any domain.
    inline: Meter,
    decision: Histogram,
    /// Whether all decisions are timed, or one in [`TIMED_IN_MEMORY`].
    on_store: bool,
    counting: Counting,
    pub(crate) tops: Tops,
    rates: Rates,
}

/// The start of a decision, if the decision is timed.
#[derive(Clone, Copy)]
pub(crate) struct Began(Option<u64>);

/// The time of a decision, if the decision is timed.
#[derive(Clone, Copy)]
pub(crate) struct Took(Option<u64>);

impl Metrics {
    pub(crate) fn new(on_store: bool, counting: Counting) -> Metrics {
        Metrics {
            inline: Meter::new(OTHER, "", &[""]),
            decision: Histogram::default(),
            on_store,
            counting,
            tops: Tops::new(counting == Counting::All),
            rates: Rates::default(),
        }
    }

    pub(crate) fn begin(&self) -> Began {
        let timed = self.counting != Counting::Nothing && (self.on_store || is_drawn());
        Began(timed.then(counter_ns))
    }

    pub(crate) fn end(&self, began: Began) {
        self.add(Metrics::stop(began));
    }

    /// Returns the time of a decision that may not be the last for its caller: a caller that waits decides again.
    pub(crate) fn stop(began: Began) -> Took {
        Took(began.0.map(|began_ns| counter_ns().saturating_sub(began_ns)))
    }

    /// Counts the time of a decision that is the last for its caller.
    pub(crate) fn add(&self, took: Took) {
        if let Took(Some(took_ns)) = took {
            self.decision.add_ns(took_ns, 1);
        }
    }

    /// Returns the subjects with the most use and those with the most denials, `n` of each for each rule.
    pub(crate) fn top(&self, rule: Option<&str>, n: usize) -> Top {
        self.tops.read(rule, n, counter_ns())
    }

    /// Returns the times of all decisions.
    #[cfg(feature = "redis")]
    pub(crate) fn times(&self) -> Durations {
        self.decision.read()
    }

    /// Returns the counts of rules and decisions. Shards have meters of their own, and the limiter counts unmatched
    /// requests.
    pub(crate) fn read(&self, rules: &Meters, unmatched: u64) -> Counts {
        Counts {
            rules: rules.all().chain([&self.inline]).map(Meter::read).collect(),
            unmatched,
            decisions: self.decision.read(),
            shards: Vec::new(),
        }
    }

    /// Counts a decision once for each of its rules, by the mode of the rule. Without the meters of rules
    /// the decision is on an inline limit.
    #[inline]
    pub(crate) fn count(
        &self,
        counters: &[CounterOutcome],
        meters: Option<&Meters>,
        allowed: bool,
    ) {
        if self.counting == Counting::Nothing {
            return;
        }
        let Some(meters) = meters else { return self.inline.count(counters) };
        for rule in counters.chunk_by(|one, next| one.rule == next.rule) {
            // A denied request is not charged to shadow rules, so it is none of their decisions.
            if !rule[0].shadow || allowed {
                let meter = rule[0].rule.number().map(|index| meters.of_rule(index));
                meter.unwrap_or(&self.inline).count(rule);
            }
        }
    }
}

/// Returns whether this decision is timed. Not every one is: two clock readings take as long as a decision in memory.
fn is_drawn() -> bool {
    thread_local!(static SINCE: Cell<u8> = const { Cell::new(0) });
    let since = SINCE.get();
    SINCE.set((since + 1) % TIMED_IN_MEMORY);
    since == 0
}

/// Returns whether a counter that allows has a fifth of its limit or less left.
fn is_near_limit(counter: &CounterOutcome) -> bool {
    let (remaining, capacity) = (counter.remaining.number(), counter.capacity.number());
    let (Some(remaining), Some(capacity)) = (remaining, capacity) else { return false };
    counter.allows() && remaining <= capacity / NEAR
}

/// One decision in 64 is enough for percentiles within minutes, and too few to cost time.
const TIMED_IN_MEMORY: u8 = 64;
/// A request is near the limit if it leaves a fifth of it or less.
const NEAR: u64 = 5;
