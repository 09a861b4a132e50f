//! What is worth telling of each counter: the numbers that are known, and what they are called outside.

use std::cmp::Ordering;
use std::sync::OnceLock;
use std::time::Duration;

use bytes::Bytes;
use smallvec::SmallVec;

use crate::decision::{Decision, LimitDecision, Reason, Source};
use crate::limit::{Algorithm, Limit, REQUESTS};

/// An enforced counter whose numbers are known.
pub(super) struct Advice<'d> {
    pub(super) name: PolicyName<'d>,
    pub(super) capacity: u64,
    pub(super) remaining: u64,
    counter: LimitDecision<'d>,
    limit: &'d Limit,
}

/// What a limit is called outside: its rule's name, and its own where the rule has several.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PolicyName<'d> {
    rule: Option<&'d str>,
    limit: Option<&'d str>,
}

/// The counters that had a part in the verdict.
pub(crate) fn enforced_counters(
    decision: &Decision,
) -> impl Iterator<Item = (LimitDecision<'_>, PolicyName<'_>)> {
    let mut before = None;
    let mut counters = decision.limits().peekable();
    std::iter::from_fn(move || {
        loop {
            let counter = counters.next()?;
            let rule = counter.rule();
            // The limits of one rule stand side by side.
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

/// In whole seconds, up, and never none: who is told to wait 0 s comes back too early.
pub(crate) fn whole_seconds(duration: Duration) -> u64 {
    seconds_up(duration).max(1)
}

impl<'d> Advice<'d> {
    /// Of a decision over a single counter, and nothing to look for beside it.
    #[inline]
    pub(super) fn sole(decision: &'d Decision) -> Option<Advice<'d>> {
        let mut counters = decision.limits();
        let counter = counters.next().filter(|counter| counters.len() == 0 && !counter.shadow())?;
        let (rule, definition) = (counter.rule(), counter.definition());
        let limit = if rule.is_none() { definition.name() } else { None };
        Advice::over(counter, PolicyName { rule, limit })
    }

    /// The tightest first; a limit that two decisions met is told of once.
    pub(super) fn of(
        decisions: impl IntoIterator<Item = &'d Decision>,
    ) -> SmallVec<[Advice<'d>; 2]> {
        let mut advice: SmallVec<[Advice<'d>; 2]> = SmallVec::new();
        for (counter, name) in decisions.into_iter().flat_map(enforced_counters) {
            advice.extend(Advice::over(counter, name));
        }
        if advice.len() > 1 {
            advice.sort_by(tighter_first);
            let mut reply: SmallVec<[PolicyName<'d>; 4]> = SmallVec::new();
            advice.retain(|one| {
                let new = !reply.contains(&one.name);
                reply.push(one.name);
                new
            });
        }
        advice
    }

    #[inline]
    fn over(counter: LimitDecision<'d>, name: PolicyName<'d>) -> Option<Advice<'d>> {
        let (capacity, remaining, limit) =
            (counter.capacity()?, counter.remaining()?, counter.definition());
        Some(Advice { name, capacity, remaining, counter, limit })
    }

    /// Where the limit's part of `RateLimit-Policy` is kept, if it is as its rule says.
    pub(super) fn kept(&self) -> Option<&'d OnceLock<Bytes>> {
        self.counter.written_limit(self.name.limit.is_some())
    }

    /// What the capacity is for.
    pub(super) fn window_s(&self) -> Option<u64> {
        self.limit.window().map(whole_seconds)
    }

    /// The quota unit, where it is not requests.
    pub(super) fn unit(&self) -> Option<&'d str> {
        if self.is_slots() {
            return Some("concurrent-requests");
        }
        Some(self.limit.unit()).filter(|unit| *unit != REQUESTS)
    }

    /// Until the request would pass, or else until one more unit is there.
    pub(super) fn more_after_s(&self) -> Option<u64> {
        if self.is_slots() {
            return None;
        }
        match self.counter.reason() {
            Some(reason) if reason.is_permanent() => None,
            Some(_) => self.counter.retry_after().map(whole_seconds),
            None => self.one_more_after_us().map(|us| us.div_ceil(SECOND_US).max(1)),
        }
    }

    /// Until the request would pass, or else until the limit is untouched.
    pub(super) fn reset_s(&self) -> Option<u64> {
        if self.is_slots() {
            return None;
        }
        match self.counter.reason() {
            None => self.counter.reset_after().map(seconds_up),
            Some(_) => self.counter.retry_after().map(whole_seconds),
        }
    }

    /// Known of a window that ends, and of a bucket that drains evenly.
    fn one_more_after_us(&self) -> Option<u64> {
        let used = self.capacity.checked_sub(self.remaining).filter(|used| *used > 0)?;
        // The share that a process enforces alone drains by other numbers.
        let by_its_numbers = self.counter.source() < Source::Fallback;
        let reset_after_us = self.counter.reset_after_us().filter(|_| by_its_numbers)?;
        match self.limit.algorithm() {
            Algorithm::FixedWindow => Some(reset_after_us),
            _ => {
                let later_us = self.limit.drain_us(used - 1)?;
                Some(reset_after_us.saturating_sub(later_us))
            }
        }
    }

    /// Slots come back when they are released: nobody knows when.
    fn is_slots(&self) -> bool {
        self.limit.algorithm() == Algorithm::Concurrency
    }
}

impl<'d> PolicyName<'d> {
    /// What to write one after the other.
    pub(crate) fn parts(self) -> impl Iterator<Item = &'d str> {
        let [first, slash, second] = match (self.rule, self.limit) {
            (Some(rule), Some(limit)) => [rule, "/", limit],
            (Some(name), None) | (None, Some(name)) => [name, "", ""],
            (None, None) => [NAMELESS, "", ""],
        };
        [first, slash, second].into_iter()
    }
}

/// Orders denying limits before others: first those that no wait helps, then by the longest wait, an unknown one being
/// longest. Other limits go by the least part of the capacity that is left.
fn tighter_first(a: &Advice<'_>, b: &Advice<'_>) -> Ordering {
    let wait = |one: &Advice<'_>| one.counter.retry_after().unwrap_or(Duration::MAX);
    let left = |a: &Advice<'_>, b: &Advice<'_>| u128::from(a.remaining) * u128::from(b.capacity);
    let severity = |one: &Advice<'_>| one.counter.reason().map(Reason::is_permanent);
    severity(b)
        .cmp(&severity(a))
        .then_with(|| wait(b).cmp(&wait(a)))
        .then_with(|| left(a, b).cmp(&left(b, a)))
}

fn seconds_up(duration: Duration) -> u64 {
    duration.as_secs() + u64::from(duration.subsec_nanos() > 0)
}

const SECOND_US: u64 = 1_000_000;
/// A limit that came with the request and was given no name.
const NAMELESS: &str = "default";
