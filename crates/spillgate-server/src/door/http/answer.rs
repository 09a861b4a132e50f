//! Decisions as JSON. The fields, in this order, are a contract; what is not known is null.

use std::time::Duration;

use axum::body::Body;
use axum::response::Response;
use hyper::header::{CONTENT_TYPE, HeaderValue};
use serde::{Serialize, Serializer};
use spillgate::{Decision, Receipt, TierDecision};

/// The answer to one check.
pub(in crate::door) fn to_one(decision: &Decision) -> Response {
    json(&Answer::of(decision), ANSWER_BYTES)
}

/// The answer to several, in their order.
pub(in crate::door) fn to_many(decisions: &[Decision]) -> Response {
    json(&Answers { results: decisions }, ANSWER_BYTES * decisions.len())
}

#[derive(Serialize)]
struct Answers<'d> {
    #[serde(serialize_with = "each_answer")]
    results: &'d [Decision],
}

#[derive(Serialize)]
struct Answer<'d> {
    verdict: &'static str,
    allowed: bool,
    rule: Option<&'d str>,
    limit: Option<&'d str>,
    capacity: Option<u64>,
    remaining: Option<u64>,
    retry_after_ms: Option<u64>,
    reset_after_ms: Option<u64>,
    source: &'static str,
    degraded: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    receipt: Option<&'d str>,
    #[serde(serialize_with = "each_tier")]
    tiers: &'d Decision,
}

#[derive(Serialize)]
struct Tier<'d> {
    rule: Option<&'d str>,
    limit: &'d str,
    unit: &'d str,
    capacity: Option<u64>,
    remaining: Option<u64>,
    retry_after_ms: Option<u64>,
    reset_after_ms: Option<u64>,
    verdict: &'static str,
    source: &'static str,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    shadow: bool,
}

impl<'d> Answer<'d> {
    fn of(decision: &'d Decision) -> Answer<'d> {
        Answer {
            verdict: decision.verdict().name(),
            allowed: decision.allowed(),
            rule: decision.rule(),
            limit: decision.limit(),
            capacity: decision.capacity(),
            remaining: decision.remaining(),
            retry_after_ms: decision.retry_after().map(ms_up),
            reset_after_ms: decision.reset_after().map(ms_up),
            source: decision.source().name(),
            degraded: decision.degraded(),
            receipt: decision.receipt().map(Receipt::as_str),
            tiers: decision,
        }
    }
}

impl<'d> Tier<'d> {
    fn of(tier: TierDecision<'d>) -> Tier<'d> {
        Tier {
            rule: tier.rule(),
            limit: tier.limit(),
            unit: tier.unit(),
            capacity: tier.capacity(),
            remaining: tier.remaining(),
            retry_after_ms: tier.retry_after().map(ms_up),
            reset_after_ms: tier.reset_after().map(ms_up),
            verdict: tier.verdict().name(),
            source: tier.source().name(),
            shadow: tier.shadow(),
        }
    }
}

fn each_answer<S: Serializer>(decisions: &&[Decision], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_seq(decisions.iter().map(Answer::of))
}

fn each_tier<S: Serializer>(decision: &&Decision, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_seq(decision.tiers().map(Tier::of))
}

/// Rounded up: whoever comes back after that long is not too early.
pub(in crate::door) fn ms_up(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros().div_ceil(1_000)).unwrap_or(u64::MAX)
}

/// Any answer as JSON; `capacity` is about how many bytes it takes.
pub(in crate::door) fn json(answer: &impl Serialize, capacity: usize) -> Response {
    let mut bytes = Vec::with_capacity(capacity);
    serde_json::to_writer(&mut bytes, answer)
        .expect("strings and numbers always make JSON, and memory takes them");
    let mut response = Response::new(Body::from(bytes));
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

/// An answer of one tier with its numbers, so that most are written without growing the buffer.
pub(in crate::door) const ANSWER_BYTES: usize = 512;

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
