//! The words of an answer: verdict, reason and source.

/// May it happen?
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Verdict {
    /// Yes, and it was charged.
    Allowed,
    /// Not now; nothing was charged anywhere.
    Denied,
    /// Not ever: it costs more than a counter can hold. Nothing was charged.
    Never,
}

impl Verdict {
    /// The word for it: `allowed`, `denied`, `never`.
    pub fn name(self) -> &'static str {
        match self {
            Verdict::Allowed => "allowed",
            Verdict::Denied => "denied",
            Verdict::Never => "never",
        }
    }
}

/// Why a decision is denied. Where several reasons apply, the decision has the first in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Reason {
    /// A limit or an override blocks: nothing is ever allowed.
    Blocked,
    /// The cost exceeds a capacity: no wait can help.
    CostExceedsLimit,
    /// A limit has no room now.
    LimitExceeded,
    /// The store is unavailable, and the rule's `on_outage` denies.
    StoreUnavailable,
    /// The store works, but could not answer in time, or has no room for another record.
    Overloaded,
}

impl Reason {
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

/// Who judged, the worst last.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Source {
    /// The store, or the process's own memory where that is the store.
    Store,
    /// Tokens that this process took ahead.
    Lease,
    /// A refusal that still holds.
    DenialCache,
    /// This process alone, while the store is out of reach.
    Fallback,
    /// The rule's `on_outage`, while the store is out of reach.
    OutagePolicy,
}

impl Source {
    /// The word for it: `store`, `lease`, `denial-cache`, `fallback`, `outage-policy`.
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
