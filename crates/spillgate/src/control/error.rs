//! Errors of operators' calls.

use std::fmt;

use super::SUBJECT_BYTES_MAX;
use super::table::ENTRIES_MAX;
use crate::error::StoreError;
use crate::policy::InvalidChange;

/// The reason why an operator's call failed. A store that is out of reach is no reason to refuse a
/// runtime change: it is in force at the instance asked, and reaches the store later.
///
/// `Limiter::set_override` and the other calls of operators return it.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum ControlError {
    /// The change is invalid under the policy in force. Nothing was done.
    Refused(InvalidChange),
    /// The subject lacks an attribute of the rule's key. Nothing was done.
    MissingAttribute(String),
    /// The change would have expired already. Nothing was done.
    Expired,
    /// There is no such runtime change to remove. Nothing was done.
    NotSet {
        /// The problem and its remedy, such as another override that covers the subject.
        message: String,
    },
    /// Another change came before one that names the version that it replaces, by
    /// [`ChangeNote::replacing`](super::ChangeNote::replacing). Nothing was done.
    Changed {
        /// The change that is there, with its actor and time.
        message: String,
    },
    /// The subject and limits are too long for an entry. Nothing was done.
    TooLong,
    /// The table of runtime changes is full. Nothing was done.
    Full,
    /// The store did not answer for this subject's counters.
    Store(StoreError),
}

impl fmt::Display for ControlError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ControlError::Refused(why) => why.fmt(f),
            ControlError::MissingAttribute(name) => {
                write!(f, "subject: the rule's key needs the attribute {name:?}; give it a value")
            }
            ControlError::Expired => {
                f.write_str("expires_at: this instant is past; give a later one or none")
            }
            ControlError::NotSet { message } | ControlError::Changed { message } => {
                f.write_str(message)
            }
            ControlError::TooLong => write!(
                f,
                "subject: it and the limits take more than {SUBJECT_BYTES_MAX} bytes together; use fewer or shorter attributes"
            ),
            ControlError::Full => write!(
                f,
                "there are {ENTRIES_MAX} runtime changes in force, and that is the maximum; remove some, or move them into the policy file"
            ),
            ControlError::Store(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for ControlError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            ControlError::Refused(why) => Some(why),
            ControlError::Store(error) => Some(error),
            _ => None,
        }
    }
}

impl From<InvalidChange> for ControlError {
    fn from(why: InvalidChange) -> ControlError {
        ControlError::Refused(why)
    }
}
