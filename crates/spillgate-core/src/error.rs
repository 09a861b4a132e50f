//! Errors of building a limiter, and of calls to the store.
//!
//! A limiter that was built answers every request with a decision.

use std::error::Error;
use std::fmt;
use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

/// The reason for an error in words, with the error that caused it if there is one.
///
/// ```
/// use std::error::Error as _;
/// use spillgate::{StoreError, Why};
///
/// let refused = std::io::Error::from(std::io::ErrorKind::ConnectionRefused);
/// let error = StoreError::NotExecuted(Why::new("redis://db:6379 refuses", refused));
/// assert_eq!(error.to_string(), "the store did not execute: redis://db:6379 refuses");
/// assert!(error.source().unwrap().is::<std::io::Error>());
/// ```
#[derive(Clone, Debug)]
pub struct Why {
    message: String,
    source: Option<Arc<dyn Error + Send + Sync>>,
}

#[doc(hidden)]
impl Why {
    /// Creates the reason from a message and the error that caused it.
    pub fn new(message: impl Into<String>, source: impl Error + Send + Sync + 'static) -> Why {
        Why { message: message.into(), source: Some(Arc::new(source)) }
    }

    /// Returns the reason with another message and the same cause.
    #[must_use]
    pub fn map(self, message: impl FnOnce(String) -> String) -> Why {
        Why { message: message(self.message), source: self.source }
    }

    fn source(&self) -> Option<&(dyn Error + 'static)> {
        Some(&**self.source.as_ref()?)
    }
}

impl<M: Into<String>> From<M> for Why {
    fn from(message: M) -> Why {
        Why { message: message.into(), source: None }
    }
}

impl Deref for Why {
    type Target = str;

    fn deref(&self) -> &str {
        &self.message
    }
}

impl fmt::Display for Why {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self)
    }
}

/// Reasons are equal if their messages are.
impl PartialEq for Why {
    fn eq(&self, other: &Why) -> bool {
        **self == **other
    }
}

impl Eq for Why {}

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
        why: Why,
    },
    /// The ring is invalid.
    Ring {
        /// The problem and its remedy.
        why: String,
    },
    /// The namespace has characters that keys may not have, or is too long.
    Namespace {
        /// The namespace.
        namespace: String,
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
        why: Why,
    },
    /// A store was set for a limiter in memory.
    NotInMemory,
    /// A certificate is invalid.
    Tls {
        /// The problem, with the certificate, and its remedy.
        why: Why,
    },
}

impl fmt::Display for BuildError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            BuildError::StoreUrl { url, why } => write!(f, "store address {url:?}: {why}"),
            BuildError::Ring { why } => f.write_str(why),
            BuildError::Namespace { namespace } => write!(
                f,
                "a namespace has 1 to 32 of the characters a-z 0-9 _ -, got {namespace:?}"
            ),
            BuildError::OnStateLoss { why } => write!(f, "on_state_loss: {why}"),
            BuildError::OtherStore => f.write_str(
                "the servers or databases differ from those in use; only credentials may change while it \
                 runs, so restart",
            ),
            BuildError::StoreUnavailable { waited, why } => write!(
                f,
                "the store did not answer within {waited:?}: {why}; start it, wait longer, or do not require it"
            ),
            BuildError::NotInMemory => {
                f.write_str("a limiter in memory cannot use the store that was set; await `build` instead")
            }
            BuildError::Tls { why } => write!(f, "TLS to the store: {why}"),
        }
    }
}

impl Error for BuildError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            BuildError::StoreUrl { why, .. }
            | BuildError::StoreUnavailable { why, .. }
            | BuildError::Tls { why } => why.source(),
            BuildError::Ring { .. }
            | BuildError::Namespace { .. }
            | BuildError::OnStateLoss { .. }
            | BuildError::OtherStore
            | BuildError::NotInMemory => None,
        }
    }
}

/// The reason why a store gave no answer. It tells callers whether the call may have been executed.
///
/// `Limiter::state` returns it in `ControlError::Store`.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum StoreError {
    /// The store rejected the call or was never reached. Nothing was charged.
    NotExecuted(Why),
    /// The store may have executed the call. It counts as charged.
    Unknown(Why),
    /// The store works but did not answer in time.
    Overloaded {
        /// Whether the call was sent. Then it counts as charged.
        sent: bool,
        /// Whether the caller has a shorter deadline than a decision, and admits by itself
        /// afterwards.
        admits_itself: bool,
        /// The reason why the wait ended.
        why: Why,
    },
    /// The store's reply cannot be used: the data is not Spillgate's, or the script failed. This counts as a bug.
    Foreign(Why),
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

impl Error for StoreError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            StoreError::NotExecuted(why) | StoreError::Unknown(why) => why.source(),
            StoreError::Overloaded { why, .. } | StoreError::Foreign(why) => why.source(),
        }
    }
}
