//! What can go wrong before the first decision. After it, everything is a decision.

use std::fmt;

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
            BuildError::Tls { why } => write!(f, "TLS to the store: {why}"),
        }
    }
}

impl std::error::Error for BuildError {}
