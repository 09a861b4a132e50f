//! Writes decisions as JSON. The fields and their order are a contract. Unknown values are null.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use axum::response::Response;
use hyper::header::{CONTENT_TYPE, HeaderMap, HeaderValue};
use serde::Serialize;
use spillgate::http::{DenialResponse, HeaderStyle};
use spillgate::{Decision, LimitDecision, Reason};

/// The response that a rule sets for a middleware, beside its header fields.
#[derive(Serialize)]
struct Denial {
    status: u16,
    body: String,
}

/// Answers one check, with ready-made header fields if a style is given, and with a sentence about each name of its
/// request that no rule uses.
pub fn to_check<B: From<Vec<u8>>>(
    decision: &Decision,
    headers: Option<HeaderStyle>,
    unused: &[Arc<str>],
) -> Response<B> {
    let mut bytes = Vec::with_capacity(ANSWER_BYTES);
    write_decision(&mut bytes, decision, headers, write_limit);
    write_unused(&mut bytes, unused);
    response(bytes)
}

/// Answers with each limit's quota and burst in force too, as a policy writes them.
pub fn with_quotas(decision: &Decision) -> Response {
    let mut bytes = Vec::with_capacity(ANSWER_BYTES);
    write_decision(&mut bytes, decision, None, |bytes, limit| {
        write_limit(bytes, limit);
        bytes.pop();
        write_word(bytes, r#","quota":"#, &limit.definition().to_string());
        bytes.push(b'}');
    });
    response(bytes)
}

/// The answer to a batch, made item by item in their order.
pub struct Answers(Vec<u8>);

impl Answers {
    /// Begins the answer to some items.
    pub fn to(items: usize) -> Answers {
        let mut bytes = Vec::with_capacity(ANSWER_BYTES * items);
        bytes.extend_from_slice(br#"{"results":["#);
        Answers(bytes)
    }

    /// Answers the next item by a decision, with ready-made header fields if a style is given.
    pub fn add(&mut self, decision: &Decision, headers: Option<HeaderStyle>) {
        write_decision(&mut self.0, decision, headers, write_limit);
        self.0.push(b',');
    }

    /// Answers the next item by a problem, as JSON.
    pub fn add_problem(&mut self, problem: &[u8]) {
        self.0.extend_from_slice(br#"{"error":"#);
        self.0.extend_from_slice(problem);
        self.0.extend_from_slice(b"},");
    }

    /// Returns the answer, with a sentence about each name that no rule uses.
    pub fn response(self, unused: &[Arc<str>]) -> Response {
        let Answers(mut bytes) = self;
        if bytes.last() == Some(&b',') {
            bytes.pop();
        }
        bytes.extend_from_slice(b"]}");
        write_unused(&mut bytes, unused);
        // A buffer that grew has up to twice the room that it needs, until the client has taken the answer.
        bytes.shrink_to_fit();
        response(bytes)
    }
}

// The answer to a check is written by hand, piece by piece, each field's name together with the marks around it:
// serializing it took longer than deciding. The names of rules, limits and units, and receipts, hold no character that
// JSON escapes.

fn write_decision(
    bytes: &mut Vec<u8>,
    decision: &Decision,
    headers: Option<HeaderStyle>,
    write_limit: impl FnMut(&mut Vec<u8>, LimitDecision<'_>),
) {
    write_flag(bytes, r#"{"allowed":"#, decision.allowed());
    write_name(bytes, r#","reason":"#, decision.reason().map(Reason::as_str));
    write_name(bytes, r#","rule":"#, decision.rule());
    write_name(bytes, r#","limit":"#, decision.limit());
    write_number(bytes, r#","capacity":"#, decision.capacity());
    write_number(bytes, r#","remaining":"#, decision.remaining());
    write_number(bytes, r#","retry_after_ms":"#, decision.retry_after().map(ms_up));
    write_number(bytes, r#","reset_after_ms":"#, decision.reset_after().map(ms_up));
    write_word(bytes, r#","source":"#, decision.source().name());
    write_flag(bytes, r#","degraded":"#, decision.degraded());
    write_flag(bytes, r#","matched":"#, decision.limits().len() > 0);
    if let Some(receipt) = decision.receipt() {
        write_word(bytes, r#","receipt":"#, receipt.as_str());
    }
    if let Some(style) = headers {
        write_headers(bytes, decision, style);
    }
    write_list(bytes, r#","limits":["#, decision.limits(), write_limit);
    bytes.extend_from_slice(b"}");
}

/// Writes the header fields that a middleware copies to its own response, and the rest of the response if a rule sets
/// it.
fn write_headers(bytes: &mut Vec<u8>, decision: &Decision, style: HeaderStyle) {
    let of_rule = DenialResponse::from_decision(decision).filter(DenialResponse::is_of_rule);
    let mut headers = of_rule.map_or_else(HeaderMap::new, |refusal| refusal.headers());
    style.write(decision, &mut headers);
    let fields = headers
        .iter()
        .filter_map(|(name, value)| Some((name.as_str(), value.to_str().ok()?)))
        .collect::<BTreeMap<_, _>>();
    bytes.extend_from_slice(br#","headers":"#);
    write_json(bytes, &fields);
    if let Some(refusal) = of_rule {
        bytes.extend_from_slice(br#","denial":"#);
        write_json(bytes, &Denial { status: refusal.status().as_u16(), body: refusal.body() });
    }
}

/// Adds a member to the object that was written, if there is an unused name.
fn write_unused(bytes: &mut Vec<u8>, unused: &[Arc<str>]) {
    if unused.is_empty() {
        return;
    }
    bytes.pop();
    bytes.extend_from_slice(br#","unused":"#);
    write_json(bytes, &unused.iter().map(|name| &**name).collect::<Vec<&str>>());
    bytes.push(b'}');
}

fn write_limit(bytes: &mut Vec<u8>, limit: LimitDecision<'_>) {
    write_name(bytes, r#"{"rule":"#, limit.rule());
    write_word(bytes, r#","limit":"#, limit.limit());
    write_word(bytes, r#","unit":"#, limit.unit());
    write_number(bytes, r#","capacity":"#, limit.capacity());
    write_number(bytes, r#","remaining":"#, limit.remaining());
    write_number(bytes, r#","retry_after_ms":"#, limit.retry_after().map(ms_up));
    write_number(bytes, r#","reset_after_ms":"#, limit.reset_after().map(ms_up));
    write_flag(bytes, r#","allowed":"#, limit.reason().is_none());
    write_name(bytes, r#","reason":"#, limit.reason().map(Reason::as_str));
    write_word(bytes, r#","source":"#, limit.source().name());
    if limit.shadow() {
        write_flag(bytes, r#","shadow":"#, true);
    }
    bytes.extend_from_slice(b"}");
}

fn write_list<I>(
    bytes: &mut Vec<u8>,
    name: &str,
    items: impl IntoIterator<Item = I>,
    mut write: impl FnMut(&mut Vec<u8>, I),
) {
    bytes.extend_from_slice(name.as_bytes());
    for (number, item) in items.into_iter().enumerate() {
        if number > 0 {
            bytes.push(b',');
        }
        write(bytes, item);
    }
    bytes.push(b']');
}

fn write_word(bytes: &mut Vec<u8>, name: &str, word: &str) {
    bytes.extend_from_slice(name.as_bytes());
    bytes.push(b'"');
    bytes.extend_from_slice(word.as_bytes());
    bytes.push(b'"');
}

fn write_name(bytes: &mut Vec<u8>, name: &str, known: Option<&str>) {
    match known {
        Some(known) => write_word(bytes, name, known),
        None => write_null(bytes, name),
    }
}

fn write_flag(bytes: &mut Vec<u8>, name: &str, flag: bool) {
    bytes.extend_from_slice(name.as_bytes());
    bytes.extend_from_slice(if flag { b"true" } else { b"false" });
}

fn write_number(bytes: &mut Vec<u8>, name: &str, number: Option<u64>) {
    let Some(number) = number else { return write_null(bytes, name) };
    bytes.extend_from_slice(name.as_bytes());
    bytes.extend_from_slice(itoa::Buffer::new().format(number).as_bytes());
}

fn write_null(bytes: &mut Vec<u8>, name: &str) {
    bytes.extend_from_slice(name.as_bytes());
    bytes.extend_from_slice(b"null");
}

/// Rounds up to whole milliseconds, so that a client that waits for this time is not too early.
pub fn ms_up(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros().div_ceil(1_000)).unwrap_or(u64::MAX)
}

/// Returns any answer as JSON. `capacity` is the estimated number of its bytes.
pub fn json(answer: &impl Serialize, capacity: usize) -> Response {
    response(json_bytes(answer, capacity))
}

/// Returns the bytes of any answer as JSON.
pub fn json_bytes(answer: &impl Serialize, capacity: usize) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(capacity);
    write_json(&mut bytes, answer);
    bytes
}

fn write_json(bytes: &mut Vec<u8>, value: &impl Serialize) {
    serde_json::to_writer(bytes, value)
        .expect("strings and numbers always make JSON, and memory takes them");
}

/// Returns the answer with this JSON.
pub fn response<B: From<Vec<u8>>>(json: Vec<u8>) -> Response<B> {
    let mut response = Response::new(B::from(json));
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

/// The estimated bytes of an answer with one limit, so that most answers are written without growing the buffer.
pub const ANSWER_BYTES: usize = 512;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wait_is_rounded_up_to_whole_milliseconds() {
        for (us, ms) in [(0, 0), (1, 1), (999, 1), (1_000, 1), (1_001, 2)] {
            assert_eq!(ms_up(Duration::from_micros(us)), ms, "{us} µs");
        }
    }
}
