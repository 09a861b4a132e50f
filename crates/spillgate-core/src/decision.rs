//! The answer to a request: allowed or denied, with the numbers of each counter.

use std::cmp::Reverse;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use bytes::Bytes;
use smallvec::SmallVec;

use crate::limit::{Algorithm, Limit};
use crate::policy::{LimitPlace, Policy, Rule, RuleDenial};
use crate::reservation::Receipt;

mod counter_outcome;
mod debug;
mod words;

pub use counter_outcome::CounterOutcome;
pub use words::{Denial, Reason, Source};

/// The answer to one request: allowed or denied, with the numbers of every counter.
///
/// The decision's own numbers are those of its deciding limit: among denying counters the one with
/// the longest wait, else the one with the least quota left. Unknown numbers are `None`, never
/// invented.
///
/// ```
/// # tokio::runtime::Runtime::new().unwrap().block_on(async {
/// use std::time::Duration;
/// use spillgate::{Limit, Limiter, Request, Source};
///
/// let limiter = Limiter::builder().build().await.unwrap();
/// let decision = limiter.check(&Request::keyed("user:42", Limit::per_minute(5))).await;
/// assert!(decision.allowed());
/// assert_eq!((decision.capacity(), decision.remaining()), (Some(5), Some(4)));
/// assert_eq!(decision.retry_after(), Some(Duration::ZERO));
/// assert_eq!(decision.reset_after(), Some(Duration::from_secs(12)));
/// assert_eq!(decision.source(), Source::Store);
/// for limit in decision.limits() {
///     println!("limit {}: {:?} of {:?} left", limit.limit(), limit.remaining(), limit.capacity());
/// }
/// # });
/// ```
#[derive(Clone)]
#[must_use = "a denied request must not proceed"]
pub struct Decision {
    summary: Summary,
    counters: CounterOutcomes,
    names: Names,
    receipt: Option<Receipt>,
}

/// What the counters of a decision say together.
#[derive(Clone, Copy)]
pub struct Summary {
    /// The reason of a denial.
    denied: Option<Reason>,
    /// The worst source of the enforced counters.
    source: Source,
    /// The index of the deciding counter.
    top: Option<u16>,
}

/// The outcomes of a decision's counters while it is made.
pub type CounterOutcomes = SmallVec<[CounterOutcome; 1]>;

/// The source of the counters' names.
#[derive(Clone)]
pub enum Names {
    /// Of the policy's rules and limits.
    Policy(Arc<Policy>),
    /// Of an inline limit, which has no rule.
    Inline(Limit),
}

/// One counter of a decision: one limit of one rule for one subject.
///
/// `Decision::limits` lists them.
#[derive(Clone, Copy)]
pub struct LimitDecision<'d> {
    counter: &'d CounterOutcome,
    names: &'d Names,
}

impl Decision {
    /// Returns the receipt of an allowed decision that made a reservation or holds permits.
    ///
    /// Pass it to `settle`, `cancel`, `release` or `renew` of the limiter. A check has one if it
    /// charged a concurrency limit.
    pub fn receipt(&self) -> Option<&Receipt> {
        self.receipt.as_ref()
    }

    /// Returns whether the request is allowed.
    pub fn allowed(&self) -> bool {
        self.summary.allows()
    }

    /// Returns the reason of a denial, or `None` if the request is allowed. If several reasons
    /// apply, returns the first in the order of [`Reason`].
    pub fn reason(&self) -> Option<Reason> {
        self.summary.denied
    }

    /// Returns the reason of a denial and the time to wait, or `None` if the request is allowed.
    ///
    /// ```
    /// # tokio::runtime::Runtime::new().unwrap().block_on(async {
    /// use std::time::Duration;
    /// use spillgate::{Limit, Limiter, Reason, Request};
    ///
    /// let limiter = Limiter::builder().build().await.unwrap();
    /// let request = Request::keyed("user:42", Limit::per_minute(1));
    /// assert!(limiter.check(&request).await.denial().is_none());
    ///
    /// let denial = limiter.check(&request).await.denial().unwrap();
    /// assert_eq!(denial.reason, Reason::LimitExceeded);
    /// assert!(denial.retry_after.unwrap() <= Duration::from_secs(60));
    /// # });
    /// ```
    pub fn denial(&self) -> Option<Denial> {
        let reason = self.summary.denied?;
        Some(Denial { reason, retry_after: self.retry_after() })
    }

    /// Returns the decision if the request is allowed, else the denial as an error, for `?`.
    ///
    /// ```
    /// # tokio::runtime::Runtime::new().unwrap().block_on(async {
    /// use spillgate::{Denial, Limit, Limiter, Request};
    ///
    /// async fn greet(limiter: &Limiter, user: &str) -> Result<String, Denial> {
    ///     let request = Request::keyed(user, Limit::per_minute(1));
    ///     limiter.check(&request).await.into_result()?;
    ///     Ok(format!("hello {user}"))
    /// }
    ///
    /// let limiter = Limiter::builder().build().await.unwrap();
    /// assert!(greet(&limiter, "ada").await.is_ok());
    /// let denial = greet(&limiter, "ada").await.unwrap_err();
    /// assert!(denial.to_string().starts_with("denied: a limit is exceeded; retry after "));
    /// # });
    /// ```
    ///
    /// # Errors
    /// Returns the [`Denial`] of a request that is not allowed.
    pub fn into_result(self) -> Result<Decision, Denial> {
        self.denial().map_or(Ok(self), Err)
    }

    /// Returns whether no rule of the policy matched the request. Such a request is allowed.
    pub fn is_unmatched(&self) -> bool {
        self.counters.is_empty()
    }

    /// Returns the time to wait before the same request can be allowed: zero if it is allowed,
    /// `None` if no wait helps or the time is unknown.
    pub fn retry_after(&self) -> Option<Duration> {
        match self.summary.denied {
            None => Some(Duration::ZERO),
            Some(reason) if reason.is_permanent() => None,
            Some(_) => self.top().and_then(|counter| counter.retry_after()),
        }
    }

    /// Returns the rule of the deciding limit, or `None` for an inline limit or if no rule matched.
    pub fn rule(&self) -> Option<&str> {
        self.top().and_then(|counter| counter.rule())
    }

    /// Returns the name of the deciding limit, or `None` if no rule matched.
    pub fn limit(&self) -> Option<&str> {
        self.top().map(|counter| counter.limit())
    }

    /// Returns the capacity of the deciding limit, in its unit; `None` if it is unlimited.
    pub fn capacity(&self) -> Option<u64> {
        self.top().and_then(|counter| counter.capacity())
    }

    /// Returns the largest cost that the deciding limit would allow now; `None` if unknown.
    pub fn remaining(&self) -> Option<u64> {
        self.top().and_then(|counter| counter.remaining())
    }

    /// Returns the time until the deciding limit is full again; `None` if unknown.
    pub fn reset_after(&self) -> Option<Duration> {
        self.top().and_then(|counter| counter.reset_after())
    }

    /// Returns the source of the decision: the worst source of its enforced counters.
    pub fn source(&self) -> Source {
        self.summary.source
    }

    /// Returns whether the decision was made without the store, by a local fallback or an outage
    /// policy.
    pub fn degraded(&self) -> bool {
        self.summary.is_degraded()
    }

    /// Returns every counter in the order of the policy, shadow rules included.
    pub fn limits(&self) -> impl ExactSizeIterator<Item = LimitDecision<'_>> {
        self.counters.iter().map(|counter| LimitDecision { counter, names: &self.names })
    }

    /// Returns the deciding limit, whose numbers are those of the decision. Among denying counters
    /// it is the one with the longest wait, else the one with the smallest part of its capacity
    /// left.
    pub fn top(&self) -> Option<LimitDecision<'_>> {
        let counters = &self.counters;
        let top = self.summary.top?;
        Some(LimitDecision { counter: &counters[usize::from(top)], names: &self.names })
    }
}

impl Summary {
    /// Returns what all counters of a decision say.
    #[inline]
    pub fn new(counters: &[CounterOutcome]) -> Summary {
        // Most decisions have one counter, and nothing to compare.
        if let [CounterOutcome { shadow: false, advisory: false, denied, source, .. }] = *counters {
            return Summary { denied, source: source.unwrap_or(Source::Store), top: Some(0) };
        }
        let (mut denied, mut source) = (None, Source::Store);
        for counter in counters.iter().filter(|counter| !counter.shadow) {
            if !counter.advisory {
                denied = Reason::first(denied, counter.denied);
            }
            source = source.max(counter.source.unwrap_or(Source::Store));
        }
        // A decision has at most 64 counters.
        let top = top(counters, denied.is_some()).map(|top| top as u16);
        Summary { denied, source, top }
    }

    /// Returns whether the decision allows.
    pub fn allows(self) -> bool {
        self.denied.is_none()
    }

    /// Returns whether the decision was made without the store.
    pub fn is_degraded(self) -> bool {
        self.source >= Source::Fallback
    }
}

impl<'d> LimitDecision<'d> {
    /// Returns the name of the rule, or `None` for an inline limit.
    pub fn rule(&self) -> Option<&'d str> {
        self.policy_rule().map(Rule::name)
    }

    /// Returns the name of the limit: as given in the policy, else its position in the rule. A
    /// limit that the request asked for beside a configured one is called `NAME.request`.
    pub fn limit(&self) -> &'d str {
        match (self.counter.brought(), self.names) {
            (Some(limit), _) | (None, Names::Inline(limit)) => limit.name().unwrap_or("0"),
            (None, Names::Policy(policy)) => policy.named_limit(self.index()).name(),
        }
    }

    /// Returns the unit that the limit counts, for example `requests`.
    pub fn unit(&self) -> &'d str {
        self.definition().unit()
    }

    /// Returns the algorithm of the limit.
    pub fn algorithm(&self) -> Algorithm {
        self.definition().algorithm()
    }

    /// Returns the limit itself.
    pub fn definition(&self) -> &'d Limit {
        match (self.counter.brought(), self.names) {
            (Some(limit), _) | (None, Names::Inline(limit)) => limit,
            (None, Names::Policy(policy)) => policy.named_limit(self.index()).limit(),
        }
    }

    /// Returns whether the request asked for this limit of a rule, by
    /// [`Request::limited_to`](crate::Request::limited_to).
    pub fn is_request_limit(&self) -> bool {
        self.rule().is_some() && self.counter.brought().is_some()
    }

    /// Returns whether this counter allows the request. A counter that was not evaluated, because
    /// another had denied already, allows and has no numbers.
    pub fn allowed(&self) -> bool {
        self.counter.allows()
    }

    /// Returns the reason why this counter denies, or `None` if it does not.
    pub fn reason(&self) -> Option<Reason> {
        self.counter.denied
    }

    /// Returns the source of this counter's result; the store if no source evaluated it.
    pub fn source(&self) -> Source {
        self.counter.source.unwrap_or(Source::Store)
    }

    /// Returns whether the counter belongs to a shadow rule, which takes no part in the decision.
    pub fn shadow(&self) -> bool {
        self.counter.shadow
    }

    /// Returns whether the counter only reports its state. It takes no part in the decision because
    /// its rule is post-paid or the request only refunded to it.
    pub fn advisory(&self) -> bool {
        self.counter.advisory
    }

    /// Returns whether this limit denies the decision. Limits of shadow rules and advisory limits
    /// never do.
    ///
    /// ```
    /// # tokio::runtime::Runtime::new().unwrap().block_on(async {
    /// use spillgate::{Limit, Limiter, Request};
    ///
    /// let limiter = Limiter::builder().build().await.unwrap();
    /// let request = Request::keyed("user:42", Limit::per_minute(1)).costing(2);
    /// let decision = limiter.check(&request).await;
    /// assert!(decision.limits().all(|limit| limit.denies()));
    /// # });
    /// ```
    pub fn denies(&self) -> bool {
        self.counter.denies()
    }

    /// Returns the capacity of the limit, in its unit; `None` if it is unlimited.
    pub fn capacity(&self) -> Option<u64> {
        self.counter.capacity.number()
    }

    /// Returns the largest cost that the counter would allow now; `None` if unknown.
    pub fn remaining(&self) -> Option<u64> {
        self.counter.remaining.number()
    }

    /// Returns the time until the counter would allow the cost: zero if it does, `None` if never or
    /// unknown.
    pub fn retry_after(&self) -> Option<Duration> {
        self.counter.retry_after_us.number().map(Duration::from_micros)
    }

    /// Returns the time until the counter is full again; `None` if unknown.
    pub fn reset_after(&self) -> Option<Duration> {
        self.counter.reset_after_us.number().map(Duration::from_micros)
    }

    /// Returns the index of the rule in the policy, from 0. An inline limit has none, and 0 stands
    /// for it.
    #[doc(hidden)]
    pub fn rule_index(&self) -> usize {
        self.index().rule as usize
    }

    /// Returns the index of the limit in the rule, from 0.
    #[doc(hidden)]
    pub fn limit_index(&self) -> usize {
        usize::from(self.counter.limit)
    }

    fn policy_rule(&self) -> Option<&'d Rule> {
        match self.names {
            Names::Policy(policy) => Some(policy.rule_at(self.counter.rule.number()?)),
            Names::Inline(_) => None,
        }
    }

    /// Returns the place of the limit in the policy. An inline limit has none, and the default
    /// stands for it.
    fn index(&self) -> LimitPlace {
        let CounterOutcome { rule, overridden, limit, .. } = *self.counter;
        LimitPlace {
            rule: rule.number().unwrap_or_default(),
            overridden: overridden.number(),
            limit: u32::from(limit),
        }
    }
}

/// Makes the decision over all counters of a request.
pub fn from_counters(counters: CounterOutcomes, names: Names) -> Decision {
    from_parts(Summary::new(&counters), counters, names, None)
}

/// Puts a decision together. `summary` is that of the counters.
#[inline(always)] // else the decision is moved
pub fn from_parts(
    summary: Summary,
    counters: CounterOutcomes,
    names: Names,
    receipt: Option<Receipt>,
) -> Decision {
    Decision { summary, counters, names, receipt }
}

/// Returns the rule's own response to denials, if the limit is that of a rule and the rule has one.
pub fn rule_denial<'d>(counter: &LimitDecision<'d>) -> Option<&'d RuleDenial> {
    counter.policy_rule().and_then(Rule::denial)
}

/// Returns the cached header text of a counter's limit, unless the request brought the limit.
pub fn header_text<'d>(
    counter: &LimitDecision<'d>,
    limit_is_named: bool,
) -> Option<&'d OnceLock<Bytes>> {
    match (counter.names, counter.counter.brought()) {
        (Names::Policy(policy), None) => policy.header_text(counter.index(), limit_is_named),
        _ => None,
    }
}

/// Returns the index of the deciding limit. If the decision denies, that is the denying counter
/// with the longest wait, where unknown is longest. Else it is the one with the smallest part of
/// its capacity left. Ties go to the first in the file.
fn top(counters: &[CounterOutcome], is_denied: bool) -> Option<usize> {
    let places = counters.iter().enumerate();
    if is_denied {
        // The longest wait first, where unknown is longest; equal waits by the order of the
        // reasons, then of the file.
        let rank = |counter: &CounterOutcome| {
            let wait = counter.retry_after_us.number().map_or((1, 0), |us| (0, us));
            (wait, Reverse(counter.denied))
        };
        let denying = places.filter(|(_, counter)| counter.denies());
        // Of equals `max_by_key` returns the last, so the order is reversed.
        return denying.rev().max_by_key(|(_, counter)| rank(counter)).map(|(i, _)| i);
    }
    let enforced = places.filter(|(_, counter)| !counter.shadow);
    let with_numbers = enforced.filter_map(|(i, counter)| {
        Some((i, counter.remaining.number()?, counter.capacity.number()?))
    });
    // Compares remaining ÷ capacity without division: a/b < c/d if a × d < c × b.
    let least = with_numbers.min_by(|(_, a, b), (_, c, d)| {
        (u128::from(*a) * u128::from(*d)).cmp(&(u128::from(*c) * u128::from(*b)))
    });
    let first = || counters.iter().position(|counter| !counter.shadow);
    least.map(|(i, ..)| i).or_else(first)
}
