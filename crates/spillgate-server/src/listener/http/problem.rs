//! Errors as problem details of RFC 9457: the problem, the field and the fix.

use std::time::Duration;

use axum::body::Body;
use axum::response::{IntoResponse, Response};
use hyper::header::{CONTENT_TYPE, HeaderValue, RETRY_AFTER, WWW_AUTHENTICATE};
use hyper::{Method, StatusCode};
use serde::Serialize;
use spillgate::Reason;

use crate::app::UnknownName;

/// The reason for which a request got no decision and was not charged.
#[derive(Clone, Debug)]
pub struct Problem {
    status: StatusCode,
    /// The field with the problem, such as `limit.quota`; empty if the problem is about no field.
    field: String,
    message: String,
    kind: Kind,
}

/// The kind of a problem, which its answer marks for clients.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Plain,
    /// The client may send the same call again at once.
    Retryable,
    /// The reservation under the id of the call has ended in this way.
    Ended(&'static str),
    /// The service is too busy, or has no room for another record.
    Overloaded,
}

impl Problem {
    pub fn in_field(field: &str, message: &str) -> Problem {
        let problem = Problem::new(StatusCode::BAD_REQUEST, shortened(message));
        Problem { field: shortened(field), ..problem }
    }

    /// Returns this problem with another status than 400.
    pub fn with_status(self, status: StatusCode) -> Problem {
        Problem { status, ..self }
    }

    /// Returns the problem of an empty body, with what the path expects.
    pub fn no_body(expected: &str) -> Problem {
        Problem::new(StatusCode::BAD_REQUEST, format!("the body is empty; send {expected}"))
    }

    pub fn compressed() -> Problem {
        Problem::new(
            StatusCode::BAD_REQUEST,
            "the body is compressed; send it as it is, without Content-Encoding".to_owned(),
        )
    }

    pub fn broken_json(line: usize, column: usize, message: &str) -> Problem {
        let message = shortened(message);
        Problem::new(
            StatusCode::BAD_REQUEST,
            format!("the body is not JSON: {message} at line {line}, column {column}"),
        )
    }

    pub fn incomplete() -> Problem {
        Problem::new(
            StatusCode::BAD_REQUEST,
            "the body is incomplete; send as many bytes as Content-Length names".to_owned(),
        )
    }

    pub fn too_large(bytes_max: usize) -> Problem {
        let message =
            format!("the body is above {bytes_max} bytes; send the checks in several calls");
        Problem::new(StatusCode::PAYLOAD_TOO_LARGE, message)
    }

    /// Returns the problem of checks whose answer could have too many bytes, with how many of them fit.
    pub fn answer_too_large(most: usize, fit: usize) -> Problem {
        let message = format!(
            "the answer could have more than {most} bytes; send at most {fit} of these checks in a batch"
        );
        Problem::new(StatusCode::PAYLOAD_TOO_LARGE, message)
    }

    pub fn too_slow(bound: Duration) -> Problem {
        let message =
            format!("the body took more than {} s; send it with its head", bound.as_secs());
        Problem::new(StatusCode::REQUEST_TIMEOUT, message)
    }

    /// Returns the problem of a batch that was not charged, because the buffers have no room for its answer.
    pub fn no_room() -> Problem {
        Problem::retryable(
            "the buffers of this listener are full; send smaller batches, or the same batch later"
                .to_owned(),
        )
    }

    /// Returns the problem of a call that the settings of this server forbid.
    pub fn forbidden(why: &str) -> Problem {
        Problem::new(StatusCode::FORBIDDEN, why.to_owned())
    }

    /// Returns the problem of a call that was done in part or not at all. If the client sends it again, the rest is
    /// done.
    pub fn retryable(message: String) -> Problem {
        let problem = Problem::new(StatusCode::SERVICE_UNAVAILABLE, message);
        Problem { kind: Kind::Retryable, ..problem }
    }

    /// Returns the problem of a call with the id of an ended reservation.
    pub fn ended(how: &'static str, message: &str) -> Problem {
        let problem = Problem::in_field("id", message).with_status(StatusCode::CONFLICT);
        Problem { kind: Kind::Ended(how), ..problem }
    }

    /// Returns the problem of a call that the service is too busy for, or has no room for.
    pub fn overloaded(message: String) -> Problem {
        let problem = Problem::new(StatusCode::SERVICE_UNAVAILABLE, message);
        Problem { kind: Kind::Overloaded, ..problem }
    }

    pub fn no_token() -> Problem {
        let message = "no token or a wrong one; send the header Authorization: Bearer TOKEN";
        Problem::new(StatusCode::UNAUTHORIZED, message.to_owned())
    }

    pub fn no_such_path(path: &str, paths: &str) -> Problem {
        Problem::new(
            StatusCode::NOT_FOUND,
            format!("there is no {}; there are {paths}", shortened(path)),
        )
    }

    /// Returns the problem of a path that another listener has.
    pub fn elsewhere(path: &str, listener: &str) -> Problem {
        let message = format!("there is no {} here; send it to {listener}", shortened(path));
        Problem::new(StatusCode::NOT_FOUND, message)
    }

    pub fn no_such_rule(rule: &str) -> Problem {
        let message =
            format!("there is no rule {:?}; GET /admin/v1/rules lists them", shortened(rule));
        Problem::in_field("rule", &message).with_status(StatusCode::NOT_FOUND)
    }

    /// Returns the problem of a method that a path does not take, with the remedy.
    pub fn not_taken(method: &Method, path: &str, remedy: &str) -> Problem {
        let message =
            format!("{} does not take {}; {remedy}", shortened(path), shortened(method.as_str()));
        Problem::new(StatusCode::METHOD_NOT_ALLOWED, message)
    }

    pub fn new(status: StatusCode, message: String) -> Problem {
        Problem { status, field: String::new(), message, kind: Kind::Plain }
    }
}

impl From<UnknownName> for Problem {
    fn from(unknown: UnknownName) -> Problem {
        Problem::in_field(unknown.field, &unknown.to_string())
    }
}

#[derive(Serialize)]
struct Body9457<'p> {
    r#type: &'static str,
    code: &'static str,
    title: &'static str,
    status: u16,
    detail: &'p str,
    #[serde(skip_serializing_if = "str::is_empty")]
    field: &'p str,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    retryable: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    ended: Option<&'static str>,
}

impl Problem {
    /// Returns the stable name of the problem, on which a client can decide what to do.
    fn code(&self) -> &'static str {
        match (self.kind, self.status) {
            (Kind::Ended(_), _) => "ended",
            (Kind::Overloaded, _) => "overloaded",
            (_, StatusCode::BAD_REQUEST) => "invalid-request",
            (_, StatusCode::UNAUTHORIZED) => "unauthorized",
            (_, StatusCode::FORBIDDEN) => "forbidden",
            (_, StatusCode::NOT_FOUND) => "not-found",
            (_, StatusCode::METHOD_NOT_ALLOWED) => "method-not-allowed",
            (_, StatusCode::REQUEST_TIMEOUT) => "request-timeout",
            (_, StatusCode::CONFLICT) => "conflict",
            (_, StatusCode::PAYLOAD_TOO_LARGE) => "too-large",
            (_, StatusCode::SERVICE_UNAVAILABLE) => "unavailable",
            // Forward auth with a domain that the settings refuse.
            _ => "misconfigured",
        }
    }

    /// Returns the problem details as JSON.
    pub fn json(&self) -> Vec<u8> {
        let detail = match self.field.as_str() {
            "" => self.message.clone(),
            field => format!("{field}: {}", self.message),
        };
        let (reason, ended) = match self.kind {
            Kind::Plain | Kind::Retryable => (None, None),
            Kind::Ended(how) => (Some("ended"), Some(how)),
            Kind::Overloaded => (Some(Reason::Overloaded.as_str()), None),
        };
        let body = Body9457 {
            r#type: TYPE,
            code: self.code(),
            title: self.status.canonical_reason().unwrap_or_default(),
            status: self.status.as_u16(),
            detail: &detail,
            field: &self.field,
            retryable: self.kind == Kind::Retryable,
            reason,
            ended,
        };
        serde_json::to_vec(&body).expect("strings and numbers always make JSON")
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let mut response = Response::new(Body::from(self.json()));
        *response.status_mut() = self.status;
        response
            .headers_mut()
            .insert(CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
        if self.status == StatusCode::UNAUTHORIZED {
            response.headers_mut().insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        if self.kind == Kind::Overloaded {
            response.headers_mut().insert(RETRY_AFTER, HeaderValue::from_static("1"));
        }
        response
    }
}

/// Shortens a text of the client, since an answer must not grow with its request.
fn shortened(text: &str) -> String {
    match text.char_indices().nth(TEXT_MAX) {
        None => text.to_owned(),
        Some((end, _)) => format!("{}…", &text[..end]),
    }
}

/// The page that explains every code.
const TYPE: &str =
    concat!(env!("CARGO_PKG_HOMEPAGE"), "/blob/main/docs/reference/errors.md#codes-over-http");
/// The most characters of a text: longer than every message of this program.
const TEXT_MAX: usize = 300;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_text_is_cut_between_characters() {
        assert_eq!(shortened("short"), "short");
        let cut = shortened(&"é".repeat(1_000));
        assert_eq!(cut.chars().count(), TEXT_MAX + 1);
        assert!(cut.ends_with('…'));
    }
}
