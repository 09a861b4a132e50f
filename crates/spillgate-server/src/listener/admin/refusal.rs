//! Errors of runtime changes, as problem details.

use hyper::StatusCode;
use spillgate::control::ControlError;
use spillgate::policy::InvalidChange;

use super::Problem;

impl From<ControlError> for Problem {
    fn from(error: ControlError) -> Problem {
        problem_of(&error, "cost")
    }
}

/// Returns the problem of a charge or refund, whose cost is in the field `cost`.
pub fn problem_of(error: &ControlError, cost: &'static str) -> Problem {
    let (status, field) = match error {
        ControlError::Refused(InvalidChange::UnknownUnit { .. }) => (StatusCode::BAD_REQUEST, cost),
        ControlError::Refused(InvalidChange::UnknownRule { .. }) => (StatusCode::NOT_FOUND, "rule"),
        ControlError::Refused(InvalidChange::Limit { .. } | InvalidChange::LimitCount { .. }) => {
            (StatusCode::BAD_REQUEST, "limits")
        }
        ControlError::Refused(_) | ControlError::MissingAttribute(_) | ControlError::TooLong => {
            (StatusCode::BAD_REQUEST, "subject")
        }
        ControlError::Expired => (StatusCode::BAD_REQUEST, "expires_at"),
        ControlError::NotSet { .. } => (StatusCode::NOT_FOUND, ""),
        ControlError::Full | ControlError::Changed { .. } => (StatusCode::CONFLICT, ""),
        // The request is valid: the client can send it again once the store is back.
        _ => (StatusCode::SERVICE_UNAVAILABLE, ""),
    };
    let message = error.to_string();
    // A problem shows its field before the message, so the message must not name it a second time.
    let bare = message.strip_prefix(field).and_then(|rest| rest.strip_prefix(": "));
    Problem::in_field(field, bare.unwrap_or(&message)).with_status(status)
}
