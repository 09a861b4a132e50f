//! Encodes a decision as Envoy's response: a status for every descriptor, and for a denial the body and the header
//! fields of the client's answer.

use std::time::Duration;

use axum::http::{HeaderMap, StatusCode};
use spillgate::http::{DenialResponse, HeaderStyle};
use spillgate::{AtomicDecision, Decision, Limit, LimitDecision};

use super::proto::envoy::config::core::v3::HeaderValue;
use super::rls::RateLimitResponse;
use super::rls::rate_limit_response::rate_limit::Unit;
use super::rls::rate_limit_response::{Code, DescriptorStatus, RateLimit};

pub fn to(combined: &AtomicDecision, style: HeaderStyle) -> RateLimitResponse {
    let whole = combined.whole();
    let refusal = DenialResponse::from_decision(whole);
    let mut headers = refusal.map_or_else(HeaderMap::new, |refusal| refusal.headers());
    style.write(whole, &mut headers);
    let mut response = RateLimitResponse {
        overall_code: code(whole.allowed()).into(),
        statuses: combined.by_request().iter().map(status).collect(),
        response_headers_to_add: headers.iter().filter_map(header).collect(),
        ..RateLimitResponse::default()
    };
    if let Some(refusal) = refusal {
        // The body names the status that Envoy sends by default. The protocol has no place for another.
        response.raw_body = refusal.body_for(StatusCode::TOO_MANY_REQUESTS).into_bytes();
        if whole.degraded() {
            let source = named("x-spillgate-source", whole.source().name());
            response.response_headers_to_add.push(source);
        }
    }
    response
}

/// Returns the status of one descriptor. Rules in shadow mode are no part of it.
fn status(part: &Decision) -> DescriptorStatus {
    // A post-paid limit without room is over its limit, though it denies only the next call.
    let is_over = |limit: LimitDecision<'_>| !limit.shadow() && limit.reason().is_some();
    let ok = !part.limits().any(is_over);
    let mut status = DescriptorStatus { code: code(ok).into(), ..DescriptorStatus::default() };
    let Some(limit) = part.top() else { return status };
    let Some(capacity) = limit.capacity() else {
        status.limit_remaining = u32::MAX;
        return status;
    };
    let wait = if ok { limit.reset_after() } else { limit.retry_after() };
    // A permit may be released at any time, so a wait for one is no promise.
    let known = wait.filter(|_| !limit.algorithm().counts_permits());
    status.duration_until_reset = known.map(whole_seconds);
    // Without numbers the response names no limit, so that Envoy sends its clients none.
    let Some(remaining) = limit.remaining() else { return status };
    status.limit_remaining = saturated(remaining);
    status.current_limit = Some(RateLimit {
        name: name(part, &limit),
        requests_per_unit: saturated(capacity),
        unit: unit(limit.definition()).into(),
    });
    status
}

/// Returns the name of the rule, followed by that of the limit if the rule has several.
pub fn name(part: &Decision, limit: &LimitDecision<'_>) -> String {
    let rule = limit.rule().unwrap_or_default();
    let of_rule = part.limits().filter(|other| other.rule() == Some(rule)).count();
    if of_rule > 1 { format!("{rule}/{}", limit.limit()) } else { rule.to_owned() }
}

/// Returns the unit in which the whole capacity comes back, if Envoy has that unit. Calendar windows count by their
/// longest length. Without a unit Envoy sends its clients the capacity alone.
fn unit(limit: &Limit) -> Unit {
    let Some(window) = limit.window() else { return Unit::Unknown };
    let is = |days: u64| window == DAY * days as u32;
    let hours = window.as_secs() / 3_600;
    let calendar = limit.algorithm().profile().has_calendar;
    // A day has an hour more when clocks are set back.
    let is_calendar = |days: u64| calendar && (24 * days..=24 * days + 1).contains(&hours);
    match window {
        SECOND => Unit::Second,
        MINUTE => Unit::Minute,
        HOUR => Unit::Hour,
        _ if is(1) || is_calendar(1) => Unit::Day,
        _ if is(7) || is_calendar(7) => Unit::Week,
        _ if is(30) || is_calendar(31) => Unit::Month,
        _ if is(365) || is_calendar(366) => Unit::Year,
        _ => Unit::Unknown,
    }
}

fn code(ok: bool) -> Code {
    if ok { Code::Ok } else { Code::OverLimit }
}

fn header(
    (name, value): (&axum::http::HeaderName, &axum::http::HeaderValue),
) -> Option<HeaderValue> {
    Some(named(name.as_str(), value.to_str().ok()?))
}

fn named(key: &str, value: &str) -> HeaderValue {
    HeaderValue { key: key.to_owned(), value: value.to_owned(), ..HeaderValue::default() }
}

/// Rounds up to whole seconds: Envoy cuts fractions off, and a client that comes back too early is denied again.
fn whole_seconds(duration: Duration) -> prost_types::Duration {
    let seconds = duration.as_secs() + u64::from(duration.subsec_nanos() > 0);
    prost_types::Duration { seconds: seconds.try_into().unwrap_or(i64::MAX), nanos: 0 }
}

fn saturated(number: u64) -> u32 {
    number.try_into().unwrap_or(u32::MAX)
}

const SECOND: Duration = Duration::from_secs(1);
const MINUTE: Duration = Duration::from_secs(60);
const HOUR: Duration = Duration::from_secs(3_600);
const DAY: Duration = Duration::from_secs(86_400);

#[cfg(test)]
mod tests {
    use super::*;
    use spillgate::LimitSpec;

    #[test]
    fn a_unit_is_named_only_if_the_whole_capacity_comes_back_in_it() {
        let window = |quota: &str| LimitSpec::new(quota).algorithm("fixed-window");
        for (limit, expected) in [
            (LimitSpec::new("10/second"), Unit::Second),
            (LimitSpec::new("10/60s"), Unit::Minute),
            (LimitSpec::new("10/second").burst(600), Unit::Minute),
            (LimitSpec::new("10/second").burst(20), Unit::Unknown),
            (LimitSpec::new("10/90s"), Unit::Unknown),
            (LimitSpec::new("10/month"), Unit::Month),
            (LimitSpec::new("10/366d"), Unit::Unknown),
            (window("10/hour"), Unit::Hour),
            (window("10/day").time_zone("Europe/Berlin"), Unit::Day),
            (window("10/week"), Unit::Week),
            (window("10/month"), Unit::Month),
            (window("10/year"), Unit::Year),
            (LimitSpec::new("10").algorithm("concurrency").max_hold("30s"), Unit::Unknown),
        ] {
            assert_eq!(unit(&limit.build().unwrap()), expected, "{limit:?}");
        }
    }
}
