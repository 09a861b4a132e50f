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
}

impl fmt::Display for BuildError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            BuildError::StoreUrl { url, why } => write!(f, "store address {url:?}: {why}"),
        }
    }
}

impl std::error::Error for BuildError {}
