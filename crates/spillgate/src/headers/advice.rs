//! The known numbers of each enforced counter, and its name in header fields.

use std::cmp::Ordering;
use std::sync::OnceLock;
use std::time::Duration;

use bytes::Bytes;
use smallvec::SmallVec;

use crate::decision::{self, Decision, LimitDecision, Reason, Source};
use crate::limit::{Limit, REQUESTS};

/// An enforced counter with known numbers.
pub struct Advice<'d> {
    pub(crate) name: PolicyName<'d>,
    pub(crate) capacity: u64,
    pub(crate) remaining: u64,
    counter: LimitDecision<'d>,
    limit: &'d Limit,
}

/// The name of a limit in header fields: its rule's name, and its own if the rule has several
/// limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PolicyName<'d> {
    rule: Option<&'d str>,
    limit: Option<&'d str>,
}

/// Returns the counters of enforced rules with their names.
pub(crate) fn enforced_counters(
    decision: &Decision,
) -> impl Iterator<Item = (LimitDecision<'_>, PolicyName<'_>)> {
    let mut before = None;
    let mut counters = decision.limits().peekable();
    std::iter::from_fn(move || {
        loop {
            let counter = counters.next()?;
            let rule = counter.rule();
            // The limits of a rule are adjacent.
            let after = counters.peek().and_then(LimitDecision::rule);
            let several = rule.is_some() && (before == rule || after == rule);
            before = rule;
            let limit = match rule {
                Some(_) => several.then(|| counter.limit()),
                None => counter.definition().name(),
            };
            if !counter.shadow() {
                return Some((counter, PolicyName { rule, limit }));
            }
        }
    })
}

/// Returns whole seconds, rounded up to at least 1. A client that waits 0 s comes back too early.
pub(crate) fn whole_seconds(duration: Duration) -> u64 {
    seconds_up(duration).max(1)
}

impl<'d> Advice<'d> {
    /// Returns the advice of a decision over a single enforced counter, else `None`. Faster than
    /// [`Advice::new`].
    pub fn sole(decision: &'d Decision) -> Option<Advice<'d>> {
        let mut counters = decision.limits();
        let counter = counters.next().filter(|counter| counters.len() == 0 && !counter.shadow())?;
        let (rule, definition) = (counter.rule(), counter.definition());
        let limit = if rule.is_none() { definition.name() } else { None };
        Advice::over(counter, PolicyName { rule, limit })
    }

    /// Returns the advice of several decisions, tightest first. A limit that two decisions share is
    /// listed once.
    pub fn new(decisions: impl IntoIterator<Item = &'d Decision>) -> SmallVec<[Advice<'d>; 2]> {
        let mut advice: SmallVec<[Advice<'d>; 2]> = SmallVec::new();
        for (counter, name) in decisions.into_iter().flat_map(enforced_counters) {
            advice.extend(Advice::over(counter, name));
        }
        if advice.len() > 1 {
            advice.sort_by(tighter_first);
            let mut listed: SmallVec<[PolicyName<'d>; 4]> = SmallVec::new();
            advice.retain(|one| {
                let new = !listed.contains(&one.name);
                listed.push(one.name);
                new
            });
        }
        advice
    }

    fn over(counter: LimitDecision<'d>, name: PolicyName<'d>) -> Option<Advice<'d>> {
        let (capacity, remaining, limit) =
            (counter.capacity()?, counter.remaining()?, counter.definition());
        Some(Advice { name, capacity, remaining, counter, limit })
    }

    /// Returns the cache of the limit's text in `RateLimit-Policy`, if the rule's own limit is in
    /// force.
    pub fn kept(&self) -> Option<&'d OnceLock<Bytes>> {
        decision::header_text(&self.counter, self.name.limit.is_some())
    }

    /// Returns the period that the capacity applies to.
    pub fn window_s(&self) -> Option<u64> {
        self.limit.window().map(whole_seconds)
    }

    /// Returns the quota unit, unless it is requests.
    pub fn unit(&self) -> Option<&'d str> {
        if self.is_concurrency() {
            return Some("concurrent-requests");
        }
        Some(self.limit.unit()).filter(|unit| *unit != REQUESTS)
    }

    /// Returns the time until the request would be allowed, or if it was, until one more unit is
    /// free.
    pub fn more_after_s(&self) -> Option<u64> {
        if self.is_concurrency() {
            return None;
        }
        match self.denies() {
            Some(reason) if reason.is_permanent() => None,
            Some(_) => self.counter.retry_after().map(whole_seconds),
            None => self.one_more_after_us().map(|us| us.div_ceil(SECOND_US).max(1)),
        }
    }

    /// Returns the time until the request would be allowed, or if it was, until the limit is full.
    pub fn reset_s(&self) -> Option<u64> {
        if self.is_concurrency() {
            return None;
        }
        match self.denies() {
            None => self.counter.reset_after().map(seconds_up),
            Some(_) => self.counter.retry_after().map(whole_seconds),
        }
    }

    /// Returns the time until one more unit is free. It is known for fixed windows and for buckets,
    /// which drain evenly.
    fn one_more_after_us(&self) -> Option<u64> {
        let used = self.capacity.checked_sub(self.remaining).filter(|used| *used > 0)?;
        // A local share drains at another rate.
        let by_its_numbers = self.counter.source() < Source::Fallback;
        let reset_after = self.counter.reset_after().filter(|_| by_its_numbers)?;
        let reset_after_us = u64::try_from(reset_after.as_micros()).ok()?;
        self.limit.params()?.counting().one_more_after_us(used, reset_after_us)
    }

    /// Returns the reason why the limit denies, or `None` if it does not. One without room denies
    /// nothing if its rule is post-paid.
    fn denies(&self) -> Option<Reason> {
        self.counter.reason().filter(|_| self.counter.denies())
    }

    /// Returns whether it is a concurrency limit. Its permits may be released at any time.
    fn is_concurrency(&self) -> bool {
        self.limit.algorithm().counts_permits()
    }
}

impl<'d> PolicyName<'d> {
    /// Returns the parts of the name, to be written one after the other.
    pub(crate) fn parts(self) -> impl Iterator<Item = &'d str> {
        let [first, slash, second] = match (self.rule, self.limit) {
            (Some(rule), Some(limit)) => [rule, "/", limit],
            (Some(name), None) | (None, Some(name)) => [name, "", ""],
            (None, None) => [NAMELESS, "", ""],
        };
        [first, slash, second].into_iter()
    }
}

/// Orders denying limits before others: first those that no wait helps, then by the longest wait,
/// where unknown is longest. Other limits go by the smallest part of the capacity left.
fn tighter_first(a: &Advice<'_>, b: &Advice<'_>) -> Ordering {
    let wait = |one: &Advice<'_>| match one.denies() {
        Some(_) => one.counter.retry_after().unwrap_or(Duration::MAX),
        None => Duration::ZERO,
    };
    let left = |a: &Advice<'_>, b: &Advice<'_>| u128::from(a.remaining) * u128::from(b.capacity);
    let severity = |one: &Advice<'_>| one.denies().map(Reason::is_permanent);
    severity(b)
        .cmp(&severity(a))
        .then_with(|| wait(b).cmp(&wait(a)))
        .then_with(|| left(a, b).cmp(&left(b, a)))
}

fn seconds_up(duration: Duration) -> u64 {
    duration.as_secs() + u64::from(duration.subsec_nanos() > 0)
}

const SECOND_US: u64 = 1_000_000;
/// The name of an inline limit without one.
const NAMELESS: &str = "default";
