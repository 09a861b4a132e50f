//! The answer: one verdict, and what it means for each counter that was asked.

use std::cmp::Reverse;
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
pub use words::{Denial, Reason, Source};

/// One verdict over every counter that a request met.
///
/// The numbers at the top are those of the counter that matters most: of the refusing one that takes
/// longest, else of the one nearest to its end. What is not known is `None`, never made up.
#[derive(Clone)]
#[must_use = "a denied request must not proceed"]
pub struct Decision {
    denied: Option<Reason>,
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
        let denied = decisive.filter_map(|counter| counter.denied).min();
        let source = enforced().map(|counter| counter.source).max().unwrap_or(Source::Store);
        // A decision is over 64 counters at most.
        let top = top(&counters, denied.is_some()).map(|top| top as u16);
        Decision { denied, source, top, counters: counters.into(), names }
    }

    /// The decision over one enforced counter.
    #[inline]
    pub(crate) fn of_one(judged: CounterOutcome, names: Names) -> Decision {
        let (denied, source) = (judged.denied, judged.source);
        Decision { denied, source, top: Some(0), counters: Kept::One(judged), names }
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

    /// Whether it may happen.
    pub fn allowed(&self) -> bool {
        self.denied.is_none()
    }

    /// Returns why it is not allowed, `None` if it is. Of several reasons, the first in the order of
    /// [`Reason`] is returned.
    pub fn reason(&self) -> Option<Reason> {
        self.denied
    }

    /// Returns why the request is denied and how long to wait, `None` if it is allowed.
    ///
    /// ```
    /// # tokio::runtime::Runtime::new().unwrap().block_on(async {
    /// use std::time::Duration;
    /// use spillgate::{Limit, Limiter, Reason};
    ///
    /// let limiter = Limiter::builder().build().await.unwrap();
    /// let limit = Limit::per_minute(1);
    /// assert!(limiter.check_limit("user:42", &limit, 1).await.denial().is_none());
    ///
    /// let denial = limiter.check_limit("user:42", &limit, 1).await.denial().unwrap();
    /// assert_eq!(denial.reason, Reason::LimitExceeded);
    /// assert!(denial.retry_after.unwrap() <= Duration::from_secs(60));
    /// # });
    /// ```
    pub fn denial(&self) -> Option<Denial> {
        let reason = self.denied?;
        Some(Denial { reason, retry_after: self.retry_after() })
    }

    /// Returns whether no rule of the policy matched the request. Such a request is allowed, unless the policy says
    /// `on_unmatched = "deny"`.
    pub fn is_unmatched(&self) -> bool {
        self.counters.as_slice().is_empty()
    }

    /// How long to wait; zero if allowed, `None` if no wait helps or nobody knows.
    pub fn retry_after(&self) -> Option<Duration> {
        match self.denied {
            None => Some(Duration::ZERO),
            Some(reason) if reason.is_permanent() => None,
            Some(_) => self.top().and_then(|counter| counter.retry_after()),
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

    /// Returns whether this counter allows the request. A counter that no shard evaluated, because another one denied
    /// first, allows and has no numbers.
    pub fn allowed(&self) -> bool {
        self.counter.allows()
    }

    /// Returns why this counter denies, `None` if it does not.
    pub fn reason(&self) -> Option<Reason> {
        self.counter.denied
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
fn top(counters: &[CounterOutcome], is_denied: bool) -> Option<usize> {
    let enforced = counters.iter().enumerate().filter(|(_, counter)| !counter.shadow);
    if !is_denied {
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
    // The longest wait first, an unknown one being longest; equal waits by the order of the reasons, then of the file.
    let rank = |counter: &CounterOutcome| {
        let wait = counter.retry_after_us.number().map_or((1, 0), |us| (0, us));
        (wait, Reverse(counter.denied))
    };
    let mut deciding: Option<usize> = None;
    for (i, counter) in enforced.filter(|(_, counter)| !counter.advisory && !counter.allows()) {
        if deciding.is_none_or(|known| rank(counter) > rank(&counters[known])) {
            deciding = Some(i);
        }
    }
    deciding
}
