//! Errors of building a limiter, and of a call to the store.
//!
//! A limiter that is built answers every request with a decision.

use std::fmt;
use std::time::Duration;

/// Why a limiter could not be built.
#[derive(Debug)]
#[non_exhaustive]
pub enum BuildError {
    /// The store's address is not one that this build can speak to.
    StoreUrl {
        /// The address, without credentials.
        url: String,
        /// What is wrong with it, and the way out.
        why: String,
    },
    /// The nodes make no ring.
    Ring {
        /// Its number.
        number: u32,
        /// What is wrong with it, and the way out.
        why: String,
    },
    /// What is to hold after a loss of state cannot hold on this store.
    OnStateLoss {
        /// Why not, and the way out.
        why: String,
    },
    /// Other servers are named than those in use, where only credentials may change.
    OtherStore,
    /// The store is required at start, and did not answer in time.
    StoreUnavailable {
        /// How long the builder waited.
        waited: Duration,
        /// The last error of a connection.
        why: String,
    },
    /// The certificates are of no use.
    Tls {
        /// What is wrong with which of them, and the way out.
        why: String,
    },
}

impl fmt::Display for BuildError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            BuildError::StoreUrl { url, why } => write!(f, "store address {url:?}: {why}"),
            BuildError::Ring { number, why } => write!(f, "ring {number}: {why}"),
            BuildError::OnStateLoss { why } => write!(f, "on_state_loss: {why}"),
            BuildError::OtherStore => f.write_str(
                "other servers or databases are named than those in use; only credentials may change while it \
                 runs, so restart",
            ),
            BuildError::StoreUnavailable { waited, why } => write!(
                f,
                "the store did not answer within {waited:?}: {why}; start it, wait longer, or do not require it"
            ),
            BuildError::Tls { why } => write!(f, "TLS to the store: {why}"),
        }
    }
}

impl std::error::Error for BuildError {}

/// Why a store gave no answer. Whether it executed the call is what matters to the caller.
#[derive(Clone, Debug)]
pub enum StoreError {
    /// It refused, or was never reached: nothing was charged.
    NotExecuted(String),
    /// It may have charged, or not: unknown means charged.
    Unknown(String),
    /// It works, and did not answer in time.
    Overloaded {
        /// Whether the call was sent: it counts as charged then.
        sent: bool,
        /// Whether the caller gave less time than a decision has, and admits by itself afterwards.
        admits_itself: bool,
        /// What ended the wait.
        why: String,
    },
    /// What it holds or says is not ours: counted as a bug.
    Foreign(String),
}

#[cfg(feature = "redis")]
impl StoreError {
    /// Returns whether nothing was charged for sure.
    pub(crate) fn is_uncharged(&self) -> bool {
        matches!(self, StoreError::NotExecuted(_) | StoreError::Overloaded { sent: false, .. })
    }

    /// Returns whether the store works, and was only too slow.
    pub(crate) fn is_overload(&self) -> bool {
        matches!(self, StoreError::Overloaded { .. })
    }
}

impl fmt::Display for StoreError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            StoreError::NotExecuted(why) => write!(f, "the store did not execute: {why}"),
            StoreError::Unknown(why) => write!(f, "the store may have executed: {why}"),
            StoreError::Overloaded { why, .. } => write!(f, "the store is overloaded: {why}"),
            StoreError::Foreign(why) => write!(f, "what the store holds is not ours: {why}"),
        }
    }
}

impl std::error::Error for StoreError {}
