//! Why something could not be set, changed or read by an operator.

use std::fmt;

use super::table::ENTRIES_MAX;
use super::{Missed, SUBJECT_BYTES_MAX};
use crate::error::StoreError;
use crate::policy::InvalidChange;

/// Why an operator's call did nothing, or may have done a part.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum ControlError {
    /// It cannot hold under the policy in force; nothing was done.
    Refused(InvalidChange),
    /// The rule's key needs an attribute that was not given; nothing was done.
    MissingAttribute(String),
    /// It would have ended before it began; nothing was done.
    Expired,
    /// Nothing of the kind is set, so there is nothing to take back.
    NotSet,
    /// The subject or the limits are longer than an entry may be; nothing was done.
    TooLong,
    /// As many entries are set as are held; nothing was done.
    Full,
    /// No shard took it: it does not hold here, and elsewhere only if an answer was lost.
    Unreachable(Vec<Missed>),
    /// The store did not answer for this subject's state.
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
                f.write_str("expires_at: this instant is past; name one to come, or none")
            }
            ControlError::NotSet => {
                f.write_str("nothing of the kind is set while running; what the policy file says is changed there")
            }
            ControlError::TooLong => write!(
                f,
                "subject: it and the limits take more than {SUBJECT_BYTES_MAX} bytes together; name fewer or shorter attributes"
            ),
            ControlError::Full => write!(
                f,
                "{ENTRIES_MAX} entries are set, or taken back within a week, which is as many as are held; write some into the policy file instead"
            ),
            ControlError::Unreachable(missed) => {
                f.write_str("no shard of the store took it; try again when it answers:")?;
                missed.iter().try_for_each(|missed| write!(f, " {missed};"))
            }
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
