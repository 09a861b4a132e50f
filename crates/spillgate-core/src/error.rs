//! Errors of building a limiter, and of calls to the store.
//!
//! A limiter that was built answers every request with a decision.

use std::fmt;
use std::time::Duration;

/// The reason why a limiter could not be built.
///
/// `LimiterBuilder::build` and `Limiter::set_store_access` return it.
#[derive(Debug)]
#[non_exhaustive]
pub enum BuildError {
    /// The store's address is invalid or not supported by this build.
    StoreUrl {
        /// The address, without credentials.
        url: String,
        /// The problem and its remedy.
        why: String,
    },
    /// The ring is invalid.
    Ring {
        /// The problem and its remedy.
        why: String,
    },
    /// The setting for a loss of state does not work on this store.
    OnStateLoss {
        /// The problem and its remedy.
        why: String,
    },
    /// The servers differ from those in use, where only credentials may change.
    OtherStore,
    /// The store is required at start, and did not answer in time.
    StoreUnavailable {
        /// How long the builder waited.
        waited: Duration,
        /// The last error of a connection.
        why: String,
    },
    /// A certificate is invalid.
    Tls {
        /// The problem, with the certificate, and its remedy.
        why: String,
    },
}

impl fmt::Display for BuildError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            BuildError::StoreUrl { url, why } => write!(f, "store address {url:?}: {why}"),
            BuildError::Ring { why } => f.write_str(why),
            BuildError::OnStateLoss { why } => write!(f, "on_state_loss: {why}"),
            BuildError::OtherStore => f.write_str(
                "the servers or databases differ from those in use; only credentials may change while it \
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

/// The reason why a store gave no answer. It tells callers whether the call may have been executed.
///
/// `Limiter::state` returns it in `ControlError::Store`.
#[derive(Clone, Debug)]
pub enum StoreError {
    /// The store rejected the call or was never reached. Nothing was charged.
    NotExecuted(String),
    /// The store may have executed the call. It counts as charged.
    Unknown(String),
    /// The store works but did not answer in time.
    Overloaded {
        /// Whether the call was sent. Then it counts as charged.
        sent: bool,
        /// Whether the caller has a shorter deadline than a decision, and admits by itself
        /// afterwards.
        admits_itself: bool,
        /// The reason why the wait ended.
        why: String,
    },
    /// The store's reply cannot be used: the data is not Spillgate's, or the script failed. This counts as a bug.
    Foreign(String),
}

impl StoreError {
    /// Returns whether nothing was charged for sure.
    pub fn is_uncharged(&self) -> bool {
        matches!(self, StoreError::NotExecuted(_) | StoreError::Overloaded { sent: false, .. })
    }

    /// Returns whether the store works, and was only too slow.
    pub fn is_overload(&self) -> bool {
        matches!(self, StoreError::Overloaded { .. })
    }
}

impl fmt::Display for StoreError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            StoreError::NotExecuted(why) => write!(f, "the store did not execute: {why}"),
            StoreError::Unknown(why) => write!(f, "the store may have executed: {why}"),
            StoreError::Overloaded { why, .. } => write!(f, "the store is overloaded: {why}"),
            StoreError::Foreign(why) => {
                write!(
                    f,
                    "the store's reply cannot be used (a bug, or data that is not Spillgate's): {why}"
                )
            }
        }
    }
}

impl std::error::Error for StoreError {}
