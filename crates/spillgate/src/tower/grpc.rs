//! Denials for gRPC clients: a status in the headers, with `RetryInfo` and `QuotaFailure` of
//! `google.rpc` as its details.

use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD_NO_PAD;
use http::header::{CONTENT_TYPE, HeaderName, HeaderValue};
use http::{HeaderMap, Method, Response};

use super::Head;
use crate::decision::Reason;
use crate::denial_response::{DenialResponse, description};

/// Returns whether a request is gRPC or gRPC-Web. Both have the method POST. Another request with their content type gets
/// a status that caches and logs understand.
pub fn is_asked_for(head: Head<'_>) -> bool {
    let kind = head.headers.get(CONTENT_TYPE).and_then(|kind| kind.to_str().ok());
    let format = kind.and_then(|kind| kind.strip_prefix("application/grpc"));
    let is_grpc = |format: &str| {
        let web = format.strip_prefix("-web");
        let format = web.map_or(format, |web| web.strip_prefix("-text").unwrap_or(web));
        format.is_empty() || format.starts_with(['+', ';', ' ', '\t'])
    };
    head.method == Method::POST && format.is_some_and(is_grpc)
}

/// Makes a response of headers alone, which servers send for errors before the first message.
pub fn response(denial: &DenialResponse<'_>, head: Head<'_>) -> Response<Vec<u8>> {
    let code = match denial.reason() {
        Reason::Blocked => PERMISSION_DENIED,
        Reason::StoreUnavailable | Reason::Overloaded => UNAVAILABLE,
        _ => RESOURCE_EXHAUSTED,
    };
    let message = description(denial.reason());
    let details = STANDARD_NO_PAD.encode(status(code, message, denial));
    let mut headers = HeaderMap::with_capacity(8);
    if let Some(kind) = head.headers.get(CONTENT_TYPE) {
        headers.insert(CONTENT_TYPE, kind.clone());
    }
    headers.insert(GRPC_STATUS, code.into());
    headers.insert(GRPC_MESSAGE, HeaderValue::from_static(message));
    if let Ok(details) = HeaderValue::try_from(details) {
        headers.insert(GRPC_STATUS_DETAILS, details);
    }
    if let Some(pushback) = pushback(denial) {
        headers.insert(GRPC_RETRY_PUSHBACK, pushback);
    }
    let mut response = Response::new(Vec::new());
    *response.headers_mut() = headers;
    response
}

/// Returns when a client may retry by itself. A negative number means never.
fn pushback(denial: &DenialResponse<'_>) -> Option<HeaderValue> {
    if matches!(denial.reason(), Reason::Blocked | Reason::CostExceedsLimit) {
        return Some(HeaderValue::from_static("-1"));
    }
    let ms = denial.wait()?.as_micros().div_ceil(1_000);
    Some(u64::try_from(ms).unwrap_or(u64::MAX).into())
}

/// Encodes a `google.rpc.Status`.
fn status(code: u16, message: &str, denial: &DenialResponse<'_>) -> Vec<u8> {
    let mut status = Message::default();
    status.number(1, u64::from(code)).bytes(2, message.as_bytes());
    if let Some(wait) = denial.wait() {
        status.detail("RetryInfo", &retry_info(wait));
    }
    if code == RESOURCE_EXHAUSTED {
        status.detail("QuotaFailure", &quota_failure(denial));
    }
    status.0
}

fn retry_info(wait: Duration) -> Message {
    let mut delay = Message::default();
    delay.number(1, wait.as_secs()).number(2, u64::from(wait.subsec_nanos()));
    let mut info = Message::default();
    info.bytes(1, &delay.0);
    info
}

fn quota_failure(denial: &DenialResponse<'_>) -> Message {
    let mut failure = Message::default();
    for policy in denial.violated_policies() {
        let mut violation = Message::default();
        violation.bytes(1, policy.as_bytes()).bytes(2, b"quota exceeded");
        failure.bytes(1, &violation.0);
    }
    failure
}

/// A protobuf message with the two kinds of fields needed here.
#[derive(Default)]
struct Message(Vec<u8>);

impl Message {
    /// Writes a number. Zero is left out, since it is the default.
    fn number(&mut self, field: u8, number: u64) -> &mut Message {
        if number > 0 {
            self.0.push(field << 3);
            self.varint(number);
        }
        self
    }

    fn bytes(&mut self, field: u8, bytes: &[u8]) -> &mut Message {
        self.0.push(field << 3 | 2);
        self.varint(bytes.len() as u64);
        self.0.extend_from_slice(bytes);
        self
    }

    /// Adds a `google.protobuf.Any` to the list of details.
    fn detail(&mut self, name: &str, message: &Message) {
        let mut any = Message::default();
        let kind = format!("type.googleapis.com/google.rpc.{name}");
        any.bytes(1, kind.as_bytes()).bytes(2, &message.0);
        self.bytes(3, &any.0);
    }

    fn varint(&mut self, mut number: u64) {
        while number > 0x7f {
            self.0.push(number as u8 | 0x80);
            number >>= 7;
        }
        self.0.push(number as u8);
    }
}

const PERMISSION_DENIED: u16 = 7;
const RESOURCE_EXHAUSTED: u16 = 8;
const UNAVAILABLE: u16 = 14;
const GRPC_STATUS: HeaderName = HeaderName::from_static("grpc-status");
const GRPC_MESSAGE: HeaderName = HeaderName::from_static("grpc-message");
const GRPC_STATUS_DETAILS: HeaderName = HeaderName::from_static("grpc-status-details-bin");
const GRPC_RETRY_PUSHBACK: HeaderName = HeaderName::from_static("grpc-retry-pushback-ms");
