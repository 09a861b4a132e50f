//! Why a limit cannot be.

use std::fmt;

use super::Algorithm;

/// Why a limit cannot be: which field, what is wrong with it, and what would fit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LimitError {
    field: &'static str,
    message: String,
}

impl LimitError {
    /// The field of the limit that is wrong: `quota`, `burst`, `algorithm`, …
    pub fn field(&self) -> &'static str {
        self.field
    }

    /// What is wrong with it, and the way out.
    pub fn message(&self) -> &str {
        &self.message
    }

    /// Makes an error about a field; the message names the way out.
    pub fn new(field: &'static str, message: impl Into<String>) -> LimitError {
        LimitError { field, message: message.into() }
    }

    /// Makes the error for a burst beside another algorithm than the token bucket.
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
