//! The values that describe a decision: denial, reason and source.

use std::error::Error;
use std::fmt;
use std::time::Duration;

/// The reason of a denial, and the time to wait. It is an error, so that `?` can return it.
///
/// `Decision::denial` and `Decision::into_result` return it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
#[must_use]
pub struct Denial {
    /// The first of all reasons, in the order of [`Reason`].
    pub reason: Reason,
    /// The time until the request would be allowed; `None` if no wait helps or the wait is unknown.
    pub retry_after: Option<Duration>,
}

/// The reason of a denial. If several apply, a decision has the first in this order.
///
/// `Decision::reason` and `Decision::denial` return it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Reason {
    /// A limit or an override blocks; nothing is ever allowed.
    Blocked,
    /// The cost exceeds a capacity; no wait can help.
    CostExceedsLimit,
    /// A limit has no room now.
    LimitExceeded,
    /// The store is unavailable, and the rule's `on_outage` denies.
    StoreUnavailable,
    /// The store works but could not answer in time, or has no room for another reservation record.
    Overloaded,
}

impl fmt::Display for Denial {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.reason {
            Reason::Blocked => "denied: a limit blocks the request",
            Reason::CostExceedsLimit => "denied: the cost is larger than a limit ever allows",
            Reason::LimitExceeded => "denied: a limit is exceeded",
            Reason::StoreUnavailable => "denied: the store of the limits is unavailable",
            Reason::Overloaded => "denied: the limiter is overloaded",
        })?;
        match self.retry_after {
            Some(wait) => write!(f, "; retry after {wait:.1?}"),
            None => Ok(()),
        }
    }
}

impl Error for Denial {}

impl Reason {
    /// Returns the reason that counts of those of two counters: the first in the order of the enum.
    #[inline]
    #[doc(hidden)]
    pub fn first(one: Option<Reason>, other: Option<Reason>) -> Option<Reason> {
        match (one, other) {
            (Some(one), Some(other)) => Some(one.min(other)),
            (one, other) => one.or(other),
        }
    }

    /// Returns whether no wait can help: the request is blocked, or costs more than a limit ever holds.
    pub fn is_permanent(self) -> bool {
        matches!(self, Reason::Blocked | Reason::CostExceedsLimit)
    }

    /// Returns the reason as every API spells it, for example `limit-exceeded`.
    pub fn as_str(self) -> &'static str {
        match self {
            Reason::Blocked => "blocked",
            Reason::CostExceedsLimit => "cost-exceeds-limit",
            Reason::LimitExceeded => "limit-exceeded",
            Reason::StoreUnavailable => "store-unavailable",
            Reason::Overloaded => "overloaded",
        }
    }
}

/// The part of Spillgate that made a decision, the worst last.
///
/// `Decision::source` returns it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Source {
    /// The store, or this process if state is in memory.
    Store,
    /// A lease: tokens that this instance took from the store ahead of use.
    Lease,
    /// An earlier denial that still applies.
    DenialCache,
    /// The local fallback: this instance alone, while the store is out of reach.
    Fallback,
    /// The rule's `on_outage`, while the store is out of reach.
    OutagePolicy,
}

impl Source {
    /// Returns the source as every API spells it: `store`, `lease`, `denial-cache`, `fallback` or
    /// `outage-policy`.
    pub fn name(self) -> &'static str {
        match self {
            Source::Store => "store",
            Source::Lease => "lease",
            Source::DenialCache => "denial-cache",
            Source::Fallback => "fallback",
            Source::OutagePolicy => "outage-policy",
        }
    }
}
