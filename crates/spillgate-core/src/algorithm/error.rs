//! The error for an invalid limit.

use std::fmt;

use super::{Algorithm, OwnField};

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
    #[doc(hidden)]
    pub fn new(field: &'static str, message: impl Into<String>) -> LimitError {
        LimitError { field, message: message.into() }
    }

    /// Creates the error for a field that `algorithm` has not.
    #[doc(hidden)]
    pub fn field_of_another(field: OwnField, algorithm: Algorithm) -> LimitError {
        match field {
            OwnField::Burst => LimitError::new(
                "burst",
                format!(
                    "only a token-bucket has a burst, and this is a {algorithm}; leave burst out"
                ),
            ),
            OwnField::TimeZone => LimitError::new(
                "time_zone",
                format!(
                    "{algorithm} has no calendar; leave time_zone out, or write algorithm = \"fixed-window\""
                ),
            ),
            OwnField::MaxHold => LimitError::new(
                "max_hold",
                format!(
                    "{algorithm} has no permits; leave max_hold out, or write algorithm = \"concurrency\""
                ),
            ),
        }
    }
}

impl fmt::Display for LimitError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.field, self.message)
    }
}

impl std::error::Error for LimitError {}
