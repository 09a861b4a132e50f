//! The answer: one verdict, and what it means for each counter that was asked.

use std::sync::Arc;
use std::time::Duration;

use smallvec::SmallVec;

use crate::algorithm::Charge;
use crate::limit::{Algorithm, Limit};
use crate::policy::{LimitPlace, Policy};
use crate::reservation::Receipt;

mod counter_outcome;
mod debug;
mod kept;
mod words;

pub(crate) use counter_outcome::CounterOutcome;
use kept::Kept;
pub use words::{Reason, Source, Verdict};

/// One verdict over every counter that a request met.
///
/// The numbers at the top are those of the counter that matters most: of the refusing one that takes
/// longest, else of the one nearest to its end. What is not known is `None`, never made up.
#[derive(Clone)]
pub struct Decision {
    verdict: Verdict,
    source: Source,
    top: Option<u16>,
    counters: Kept,
    names: Names,
}

/// The counters of a decision while it is made.
pub(crate) type CounterOutcomes = SmallVec<[CounterOutcome; 1]>;

/// Where the names of counters are found.
#[derive(Clone)]
pub(crate) enum Names {
    Policy(Arc<Policy>),
    Inline(Limit),
}

/// One counter of a decision.
#[derive(Clone, Copy)]
pub struct LimitDecision<'d> {
    counter: &'d CounterOutcome,
    names: &'d Names,
}

impl Decision {
    #[inline]
    pub(crate) fn new(counters: CounterOutcomes, names: Names) -> Decision {
        let enforced = || counters.iter().filter(|counter| !counter.shadow);
        let decisive = enforced().filter(|counter| !counter.advisory);
        let verdict = decisive.map(|counter| counter.verdict).max().unwrap_or(Verdict::Allowed);
        let source = enforced().map(|counter| counter.source).max().unwrap_or(Source::Store);
        // A decision is over 64 counters at most.
        let top = top(&counters, verdict).map(|top| top as u16);
        Decision { verdict, source, top, counters: counters.into(), names }
    }

    /// The decision over one enforced counter.
    #[inline]
    pub(crate) fn of_one(judged: CounterOutcome, names: Names) -> Decision {
        let (verdict, source) = (judged.verdict, judged.source);
        Decision { verdict, source, top: Some(0), counters: Kept::One(judged), names }
    }

    pub(crate) fn with_receipt(mut self, receipt: Receipt) -> Decision {
        self.counters.set_receipt(receipt);
        self
    }

    /// What a reservation is settled, cancelled, released or renewed by, and a check over a
    /// concurrency limit released or renewed: there if it was allowed.
    pub fn receipt(&self) -> Option<&Receipt> {
        self.counters.receipt()
    }

    /// May it happen?
    pub fn verdict(&self) -> Verdict {
        self.verdict
    }

    /// Whether it may happen.
    pub fn allowed(&self) -> bool {
        self.verdict == Verdict::Allowed
    }

    /// Returns why it is not allowed, `None` if it is. Of several reasons, the first in the order of
    /// [`Reason`] is returned.
    pub fn reason(&self) -> Option<Reason> {
        if self.allowed() {
            return None;
        }
        let decisive = self.limits().filter(|counter| !counter.shadow() && !counter.advisory());
        decisive.filter_map(|counter| counter.reason()).min()
    }

    /// How long to wait; zero if allowed, `None` if no wait helps or nobody knows.
    pub fn retry_after(&self) -> Option<Duration> {
        match self.verdict {
            Verdict::Allowed => Some(Duration::ZERO),
            Verdict::Never => None,
            Verdict::Denied => self.top().and_then(|counter| counter.retry_after()),
        }
    }

    /// The rule of the counter that matters most.
    pub fn rule(&self) -> Option<&str> {
        self.top().and_then(|counter| counter.rule())
    }

    /// The limit of the counter that matters most.
    pub fn limit(&self) -> Option<&str> {
        self.top().map(|counter| counter.limit())
    }

    /// How much that counter holds when untouched.
    pub fn capacity(&self) -> Option<u64> {
        self.top().and_then(|counter| counter.capacity())
    }

    /// The largest cost that it would admit now.
    pub fn remaining(&self) -> Option<u64> {
        self.top().and_then(|counter| counter.remaining())
    }

    /// How long until it is untouched again.
    pub fn reset_after(&self) -> Option<Duration> {
        self.top().and_then(|counter| counter.reset_after())
    }

    /// Who judged: the worst of the enforced counters' sources.
    pub fn source(&self) -> Source {
        self.source
    }

    /// Whether the store had no part in it.
    pub fn degraded(&self) -> bool {
        self.source >= Source::Fallback
    }

    /// Every counter, in the order of the policy, shadow rules included.
    pub fn limits(&self) -> impl ExactSizeIterator<Item = LimitDecision<'_>> {
        self.counters.as_slice().iter().map(|counter| LimitDecision { counter, names: &self.names })
    }

    /// The counter that matters most, whose numbers are those of the decision: of the refusing ones the
    /// one with the longest wait, else the one with the least left of its capacity.
    pub fn top(&self) -> Option<LimitDecision<'_>> {
        let counters = self.counters.as_slice();
        self.top
            .map(|top| LimitDecision { counter: &counters[usize::from(top)], names: &self.names })
    }
}

impl<'d> LimitDecision<'d> {
    /// The rule; `None` for a limit that came with the request.
    pub fn rule(&self) -> Option<&'d str> {
        match self.names {
            Names::Policy(policy) => Some(policy.rule_name(self.index())),
            Names::Inline(_) => None,
        }
    }

    /// The limit's name: as given, else its position in the rule. A limit that the request asked for beside it is
    /// `NAME.request`.
    pub fn limit(&self) -> &'d str {
        if let Some(name) = self.counter.narrowed().and_then(Limit::name) {
            return name;
        }
        match self.names {
            Names::Policy(policy) => policy.limit_name(self.index()),
            Names::Inline(limit) => limit.name().unwrap_or("0"),
        }
    }

    /// What it counts.
    pub fn unit(&self) -> &'d str {
        self.definition().unit()
    }

    /// How it counts.
    pub fn algorithm(&self) -> Algorithm {
        self.definition().algorithm()
    }

    /// The limit itself.
    pub fn definition(&self) -> &'d Limit {
        if let Some(narrowed) = self.counter.narrowed() {
            return narrowed;
        }
        match self.names {
            Names::Policy(policy) => policy.limit(self.index()),
            Names::Inline(limit) => limit,
        }
    }

    /// What this counter alone would have said; a counter that nobody was asked about, because another
    /// had refused already, refused nothing, and has no numbers.
    pub fn verdict(&self) -> Verdict {
        self.counter.verdict
    }

    /// Returns why this counter denies, `None` if it does not.
    pub fn reason(&self) -> Option<Reason> {
        match (self.counter.verdict, self.counter.source) {
            (Verdict::Allowed, _) => None,
            (Verdict::Never, _) if self.capacity() == Some(0) => Some(Reason::Blocked),
            (Verdict::Never, _) => Some(Reason::CostExceedsLimit),
            (Verdict::Denied, Source::OutagePolicy) if self.counter.overloaded => {
                Some(Reason::Overloaded)
            }
            (Verdict::Denied, Source::OutagePolicy) => Some(Reason::StoreUnavailable),
            (Verdict::Denied, _) => Some(Reason::LimitExceeded),
        }
    }

    /// Who judged.
    pub fn source(&self) -> Source {
        self.counter.source
    }

    /// Whether its rule is only watched, and had no part in the verdict.
    pub fn shadow(&self) -> bool {
        self.counter.shadow
    }

    /// Whether it had no part in the verdict because nothing was asked of it: its rule is charged
    /// afterwards, or it was refunded to. What it says is how it stands.
    pub fn advisory(&self) -> bool {
        self.counter.advisory
    }

    /// How much it holds when untouched; `None` if unlimited.
    pub fn capacity(&self) -> Option<u64> {
        self.counter.capacity.number()
    }

    /// The largest cost that it would admit now.
    pub fn remaining(&self) -> Option<u64> {
        self.counter.remaining.number()
    }

    /// How long until it would admit the cost; zero if it does, `None` if never or unknown.
    pub fn retry_after(&self) -> Option<Duration> {
        self.counter.retry_after_us.number().map(Duration::from_micros)
    }

    /// How long until it is untouched again.
    pub fn reset_after(&self) -> Option<Duration> {
        self.counter.reset_after_us.number().map(Duration::from_micros)
    }

    /// [`LimitDecision::reset_after`] as it is kept.
    #[cfg(feature = "http")]
    pub(crate) fn reset_after_us(&self) -> Option<u64> {
        self.counter.reset_after_us.number()
    }

    /// What a receipt needs to give this counter's charge back.
    #[doc(hidden)]
    pub fn charge(&self) -> Option<Charge> {
        self.counter.charge()
    }

    /// Which rule of the policy it is of, and which limit of that rule, counted from 0.
    #[doc(hidden)]
    #[inline]
    pub fn position(&self) -> (usize, usize) {
        (self.counter.rule as usize, usize::from(self.counter.limit))
    }

    /// Where header fields keep what they say of the limit, unless another is in force in its place.
    #[cfg(feature = "http")]
    pub(crate) fn written_limit(
        &self,
        limit_is_named: bool,
    ) -> Option<&'d std::sync::OnceLock<bytes::Bytes>> {
        let Names::Policy(policy) = self.names else { return None };
        let is_whole = self.counter.narrowed().is_none()
            && policy.limit(self.index()).capacity() == self.capacity();
        policy.written_limit(self.index(), limit_is_named).filter(|_| is_whole)
    }

    fn index(&self) -> LimitPlace {
        let CounterOutcome { rule, overridden, limit, .. } = *self.counter;
        LimitPlace { rule, overridden: overridden.number(), limit: u32::from(limit) }
    }
}

/// The counter that speaks for all: the refusing one with the longest wait, unknown being longest;
/// else the one with the least left of its capacity; ties go to the first in the file.
fn top(counters: &[CounterOutcome], verdict: Verdict) -> Option<usize> {
    let enforced = counters.iter().enumerate().filter(|(_, counter)| !counter.shadow);
    if verdict == Verdict::Allowed {
        let mut least: Option<(usize, u64, u64)> = None;
        for (i, counter) in enforced {
            let params = counter.remaining.number().zip(counter.capacity.number());
            let Some((remaining, capacity)) = params else { continue };
            let is_less = |(_, other, of): (usize, u64, u64)| {
                u128::from(remaining) * u128::from(of) < u128::from(other) * u128::from(capacity)
            };
            if least.is_none_or(is_less) {
                least = Some((i, remaining, capacity));
            }
        }
        let first = || counters.iter().position(|counter| !counter.shadow);
        return least.map(|(i, ..)| i).or_else(first);
    }
    let wait =
        |counter: &CounterOutcome| counter.retry_after_us.number().map_or((1, 0), |us| (0, us));
    let mut longest: Option<(usize, (u8, u64))> = None;
    for (i, counter) in
        enforced.filter(|(_, counter)| !counter.advisory && counter.verdict == verdict)
    {
        if longest.is_none_or(|(_, known)| wait(counter) > known) {
            longest = Some((i, wait(counter)));
        }
    }
    longest.map(|(i, _)| i)
}
