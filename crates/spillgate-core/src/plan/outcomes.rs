//! The outcome of each charge of a plan, and its source: the store, this instance alone, or the
//! rule's `on_outage`.

use smallvec::SmallVec;

use crate::counter::ChargeReply;

/// The outcome of one charge, and its source.
#[derive(Clone, Copy, Debug)]
pub enum ChargeOutcome {
    /// The store evaluated it: Redis, or memory if there is none.
    Store(ChargeReply),
    /// This instance evaluated it, by its local share of the limit.
    Fallback(ChargeReply, Cause),
    /// The rule's `on_outage` decided.
    OutagePolicy {
        /// Whether it allows.
        passes: bool,
        /// Why the store did not evaluate the charge.
        cause: Cause,
    },
    /// The denial cache holds an earlier denial that still applies. Unknown numbers are `None`.
    Remembered {
        /// The rest of the wait.
        retry_after_us: Option<u64>,
        /// The quota left.
        remaining: Option<u64>,
        /// The time until the counter is full again.
        reset_after_us: Option<u64>,
    },
    /// The store charged it, and the charge was refunded because another counter denied. The
    /// counter's state since then is unknown.
    Refunded,
    /// It was not evaluated, because another counter had denied already.
    NotAsked,
}

/// Why the store did not evaluate a charge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// The shard is out of reach.
    Outage,
    /// The shard works but did not answer in time.
    Overload,
}

/// The outcome of each charge, in the order of the transaction.
pub type ChargeOutcomes = SmallVec<[ChargeOutcome; 1]>;
