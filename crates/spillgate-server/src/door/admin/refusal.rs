//! What the library says no to, as problem details.

use hyper::StatusCode;
use spillgate::{ControlError, WhyNot};

use super::Problem;

impl From<ControlError> for Problem {
    fn from(error: ControlError) -> Problem {
        let (status, field) = match &error {
            ControlError::Refused(WhyNot::UnknownRule { .. }) => (StatusCode::NOT_FOUND, "rule"),
            ControlError::Refused(WhyNot::Limit { .. }) => (StatusCode::BAD_REQUEST, "limits"),
            ControlError::Refused(_)
            | ControlError::MissingAttribute(_)
            | ControlError::TooLong => (StatusCode::BAD_REQUEST, "subject"),
            ControlError::Expired => (StatusCode::BAD_REQUEST, "expires_at"),
            ControlError::NotSet => (StatusCode::NOT_FOUND, ""),
            ControlError::Full => (StatusCode::CONFLICT, ""),
            // Nothing is wrong with the request: the same again will do once the store is back.
            _ => (StatusCode::SERVICE_UNAVAILABLE, ""),
        };
        let message = error.to_string();
        // The field goes before the message by itself.
        let bare = message.strip_prefix(field).and_then(|rest| rest.strip_prefix(": "));
        Problem::in_field(field, bare.unwrap_or(&message)).with_status(status)
    }
}
