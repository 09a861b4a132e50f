//! The error for an invalid limit.

use std::fmt;

use super::Algorithm;

/// The reason why a limit is invalid: the field, the problem, and an accepted value.
///
/// `Limit::parse` and `LimitSpec::build` return it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LimitError {
    field: &'static str,
    message: String,
}

impl LimitError {
    /// Returns the field that is wrong: `quota`, `burst`, `algorithm`, …
    pub fn field(&self) -> &'static str {
        self.field
    }

    /// Returns the problem, and how to fix it.
    pub fn message(&self) -> &str {
        &self.message
    }

    /// Creates an error about a field. The message must say how to fix it.
    pub fn new(field: &'static str, message: impl Into<String>) -> LimitError {
        LimitError { field, message: message.into() }
    }

    /// Creates the error for a burst with another algorithm than the token bucket.
    pub fn burst_elsewhere(algorithm: Algorithm) -> LimitError {
        LimitError::new(
            "burst",
            format!("only a token-bucket has a burst, and this is a {algorithm}; leave burst out"),
        )
    }
}

impl fmt::Display for LimitError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.field, self.message)
    }
}

impl std::error::Error for LimitError {}
