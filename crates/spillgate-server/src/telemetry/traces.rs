//! Traces: some requests are recorded as spans, so that an operator can follow a request through several services.
//!
//! A request with a `traceparent` is traced if its caller traces it; each other request is sampled with the same small
//! chance. An untraced request costs one header look-up and one random number. A span holds the decision and its rule,
//! and no attribute of the request.

use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use axum::Router;
use axum::extract::Request;
use axum::middleware::{Next, from_fn};
use hyper::header::HeaderMap;
use spillgate::Decision;
use tracing::field::Empty;
use tracing::{Instrument, Span, info_span};

use crate::config::Sample;

/// Samples requests, and opens their spans. Clones share one sequence of samples.
#[derive(Clone, Debug, Default)]
pub(crate) struct Traces {
    sampler: Option<Arc<Sampler>>,
}

#[derive(Debug)]
struct Sampler {
    sample: Sample,
    /// The number of the next request. Its hash under `seed` is the random number, so no two processes sample alike.
    requests: AtomicU64,
    seed: RandomState,
}

impl Traces {
    #[cfg(any(feature = "otlp", test))]
    pub fn sampling(sample: Sample) -> Traces {
        let (requests, seed) = (AtomicU64::new(0), RandomState::new());
        Traces { sampler: Some(Arc::new(Sampler { sample, requests, seed })) }
    }

    pub(crate) fn are_made(&self) -> bool {
        self.sampler.is_some()
    }

    /// Returns these routes with a layer that traces their requests.
    pub(crate) fn over(&self, routes: Router) -> Router {
        let Some(sampler) = self.sampler.clone() else { return routes };
        routes.layer(from_fn(move |request: Request, next: Next| {
            let span = sampler.span(&request);
            next.run(request).instrument(span)
        }))
    }

    /// Returns the span of a batch of RESP commands. RESP carries no `traceparent`, so the batch is sampled.
    pub(crate) fn of_batch(&self) -> Span {
        match &self.sampler {
            Some(sampler) if sampler.samples() => opened("RESP"),
            Some(_) | None => Span::none(),
        }
    }

    /// Records a decision in the span of the current request.
    pub(crate) fn record(&self, decision: &Decision) {
        if self.sampler.is_none() {
            return;
        }
        let span = Span::current();
        span.record("spillgate.allowed", decision.allowed());
        if let Some(reason) = decision.reason() {
            span.record("spillgate.reason", reason.as_str());
        }
        span.record("spillgate.source", decision.source().name());
        if let Some(rule) = decision.rule() {
            span.record("spillgate.rule", rule);
        }
    }

    /// Records the decisions of a batch in the span of the current request.
    pub(crate) fn record_all(&self, decisions: &[Decision]) {
        if let [one] = decisions {
            return self.record(one);
        }
        if self.sampler.is_some() {
            let denied = decisions.iter().filter(|decision| !decision.allowed()).count();
            let span = Span::current();
            span.record("spillgate.checks", decisions.len());
            span.record("spillgate.denied", denied);
        }
    }
}

impl Sampler {
    fn span(&self, request: &Request) -> Span {
        let path = request.uri().path();
        // Probes and pages are not traced.
        let Some(name) = TRACED.into_iter().find(|known| path.starts_with(known)) else {
            return Span::none();
        };
        match Caller::from_headers(request.headers()) {
            Some(caller) if caller.sampled => follow(opened(name), caller),
            None if self.samples() => opened(name),
            Some(_) | None => Span::none(),
        }
    }

    /// Returns whether the next request is sampled.
    fn samples(&self) -> bool {
        let random = self.seed.hash_one(self.requests.fetch_add(1, Ordering::Relaxed));
        random % 1_000_000 < u64::from(self.sample.0)
    }
}

fn opened(name: &'static str) -> Span {
    info_span!(
        target: REQUEST,
        "request",
        otel.name = name,
        otel.kind = "server",
        spillgate.allowed = Empty,
        spillgate.reason = Empty,
        spillgate.source = Empty,
        spillgate.rule = Empty,
        spillgate.checks = Empty,
        spillgate.denied = Empty,
    )
}

/// The caller's span, from a `traceparent` such as `00-4bf9…4736-00f0…02b7-01`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Caller {
    pub(crate) trace: u128,
    pub(crate) span: u64,
    /// Whether the caller traces this request.
    pub(crate) sampled: bool,
}

impl Caller {
    /// Reads the caller's span; `None` if the field is absent or malformed.
    fn from_headers(headers: &HeaderMap) -> Option<Caller> {
        let mut fields = headers.get("traceparent")?.to_str().ok()?.split('-');
        let mut field = |length: usize| fields.next().filter(|text| text.len() == length);
        let (version, trace, span, flags) = (field(2)?, field(32)?, field(16)?, field(2)?);
        if version != "00" || fields.next().is_some() {
            return None;
        }
        let number = |text: &str| {
            let is_digit = |byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
            text.bytes().all(is_digit).then(|| u128::from_str_radix(text, 16).ok())?
        };
        let (trace, span, flags) = (number(trace)?, number(span)?, number(flags)?);
        let whole = trace != 0 && span != 0;
        // The casts lose nothing: the field's length bounds a span to 16 digits.
        whole.then_some(Caller { trace, span: span as u64, sampled: flags & 1 == 1 })
    }
}

/// Makes a span part of its caller's trace, and returns it.
#[cfg(feature = "otlp")]
fn follow(span: Span, caller: Caller) -> Span {
    super::otlp::follow(&span, caller);
    span
}

#[cfg(not(feature = "otlp"))]
fn follow(span: Span, _caller: Caller) -> Span {
    span
}

/// The target of spans that begin a trace here. Spans within have the target of the log.
pub const REQUEST: &str = "spillgate::request";

/// The paths whose requests are traced. Of two that begin alike the longer comes first.
const TRACED: [&str; 9] = [
    "/v1/check/batch",
    "/v1/check",
    "/v1/auth",
    "/v1/reserve",
    "/v1/settle",
    "/v1/cancel",
    "/v1/release",
    "/v1/renew",
    "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit",
];

#[cfg(test)]
mod tests {
    use super::*;

    fn caller(traceparent: &str) -> Option<Caller> {
        let mut headers = HeaderMap::new();
        headers.insert("traceparent", traceparent.parse().unwrap());
        Caller::from_headers(&headers)
    }

    #[test]
    fn a_traceparent_decides_and_a_malformed_one_is_ignored() {
        let ids = "4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7";
        let (trace, span) = (0x4bf9_2f35_77b3_4da6_a3ce_929d_0e0e_4736, 0x00f0_67aa_0ba9_02b7);
        let by = |sampled| Some(Caller { trace, span, sampled });
        assert_eq!(caller(&format!("00-{ids}-01")), by(true));
        assert_eq!(caller(&format!("00-{ids}-03")), by(true));
        assert_eq!(caller(&format!("00-{ids}-00")), by(false));
        for malformed in [
            String::new(),
            ids.to_owned(),
            format!("ff-{ids}-01"),
            format!("00-{ids}-1"),
            format!("00-{ids}-0g"),
            format!("00-{ids}-+1"),
            format!("00-{ids}-01-more"),
            format!("00-{}-00f067aa0ba902b7-01", "0".repeat(32)),
            format!("00-{}-01", ids.to_uppercase()),
        ] {
            assert_eq!(caller(&malformed), None, "{malformed:?}");
        }
        assert_eq!(Caller::from_headers(&HeaderMap::new()), None);
    }

    #[test]
    fn samples_the_share_of_requests_that_the_settings_name() {
        let sampled = |sample| {
            let traces = Traces::sampling(Sample(sample));
            let sampler = traces.sampler.unwrap();
            (0..1_000_000).filter(|_| sampler.samples()).count()
        };
        assert_eq!((sampled(0), sampled(1_000_000)), (0, 1_000_000));
        let few = sampled(10_000);
        assert!((9_000..11_000).contains(&few), "{few}");
    }
}
