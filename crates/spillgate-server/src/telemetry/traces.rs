//! Traces: some requests as spans, for whoever follows one through several services.
//!
//! What is not traced costs a look at a head and a number. Whoever calls with a `traceparent` has drawn
//! already, and is followed; else each request has the same small chance. A span says what was
//! answered and by which rule, and nothing of who asked.

use std::fmt::Write;
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

/// Draws requests, and opens their spans. Clones draw together.
#[derive(Clone, Debug, Default)]
pub(crate) struct Traces {
    drawing: Option<Arc<Drawing>>,
}

#[derive(Debug)]
struct Drawing {
    sample: Sample,
    /// A request's number, whose hash is its draw: no two processes draw alike.
    requests: AtomicU64,
    seed: RandomState,
    counts: Arc<SpanCounts>,
}

/// What became of the spans that ended. Those that are none of sent, failed and dropped still wait.
#[derive(Debug, Default)]
pub(super) struct SpanCounts {
    pub(super) ended: AtomicU64,
    pub(super) sent: AtomicU64,
    pub(super) failed: AtomicU64,
    /// Found no place among those that wait.
    pub(super) dropped: AtomicU64,
    /// Wait, or are on their way.
    #[cfg(feature = "otlp")]
    pub(super) waiting: AtomicU64,
}

impl Traces {
    #[cfg(any(feature = "otlp", test))]
    pub(super) fn of(sample: Sample, counts: Arc<SpanCounts>) -> Traces {
        let (requests, seed) = (AtomicU64::new(0), RandomState::new());
        Traces { drawing: Some(Arc::new(Drawing { sample, requests, seed, counts })) }
    }

    pub(crate) fn are_made(&self) -> bool {
        self.drawing.is_some()
    }

    /// Routes whose questions are traced.
    pub(crate) fn over(&self, routes: Router) -> Router {
        let Some(drawing) = self.drawing.clone() else { return routes };
        routes.layer(from_fn(move |request: Request, next: Next| {
            let span = drawing.span(&request);
            next.run(request).instrument(span)
        }))
    }

    /// The span of a batch that came over RESP, which has no place for a caller's own.
    pub(crate) fn of_batch(&self) -> Span {
        match &self.drawing {
            Some(drawing) if drawing.draws() => opened("RESP"),
            Some(_) | None => Span::none(),
        }
    }

    /// Says in the span of the request under way what it was answered.
    pub(crate) fn tell(&self, decision: &Decision) {
        if self.drawing.is_none() {
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

    /// As the limiter's own metrics are written; nothing where nothing is traced.
    pub(crate) fn text(&self) -> String {
        let Some(drawing) = &self.drawing else { return String::new() };
        let mut text =
            "# HELP spillgate_spans_total Spans of traces: ended here, and of these sent to \
                        the collector, not taken by it, or dropped because too many waited.\n\
                        # TYPE spillgate_spans_total counter\n"
                .to_owned();
        let SpanCounts { ended, sent, failed, dropped, .. } = &*drawing.counts;
        let results = [("ended", ended), ("sent", sent), ("failed", failed), ("dropped", dropped)];
        for (result, count) in results {
            let count = count.load(Ordering::Relaxed);
            writeln!(text, "spillgate_spans_total{{result=\"{result}\"}} {count}")
                .expect("a string takes all text");
        }
        text
    }

    /// What several at once were answered.
    pub(crate) fn tell_of_all(&self, decisions: &[Decision]) {
        if let [one] = decisions {
            return self.tell(one);
        }
        if self.drawing.is_some() {
            let refused = decisions.iter().filter(|decision| !decision.allowed()).count();
            let span = Span::current();
            span.record("spillgate.questions", decisions.len());
            span.record("spillgate.refused", refused);
        }
    }
}

impl Drawing {
    fn span(&self, request: &Request) -> Span {
        let path = request.uri().path();
        // Probes and pages are nobody's questions.
        let Some(name) = TRACED.into_iter().find(|known| path.starts_with(known)) else {
            return Span::none();
        };
        match Caller::of(request.headers()) {
            Some(caller) if caller.sampled => follow(opened(name), caller),
            None if self.draws() => opened(name),
            Some(_) | None => Span::none(),
        }
    }

    fn draws(&self) -> bool {
        let draw = self.seed.hash_one(self.requests.fetch_add(1, Ordering::Relaxed));
        draw % 1_000_000 < u64::from(self.sample.0)
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
        spillgate.questions = Empty,
        spillgate.refused = Empty,
    )
}

/// The caller's span, as `traceparent` names it: `00-4bf9…4736-00f0…02b7-01`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Caller {
    pub(super) trace: u128,
    pub(super) span: u64,
    /// Whether it is traced.
    pub(super) sampled: bool,
}

impl Caller {
    /// A field that is malformed names nobody.
    fn of(headers: &HeaderMap) -> Option<Caller> {
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
        // Sixteen digits and two.
        whole.then_some(Caller { trace, span: span as u64, sampled: flags & 1 == 1 })
    }
}

/// The span, within its caller's trace.
#[cfg(feature = "otlp")]
fn follow(span: Span, caller: Caller) -> Span {
    super::otlp::follow(&span, caller);
    span
}

#[cfg(not(feature = "otlp"))]
fn follow(span: Span, _caller: Caller) -> Span {
    span
}

/// The target of spans that begin a trace here; what is traced within has the target of the log.
pub(super) const REQUEST: &str = "spillgate::request";

/// The paths whose requests are traced, the longer of two that begin alike first.
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
        Caller::of(&headers)
    }

    #[test]
    fn a_caller_that_has_drawn_is_followed_and_one_that_is_malformed_says_nothing() {
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
        assert_eq!(Caller::of(&HeaderMap::new()), None);
    }

    #[test]
    fn as_many_are_drawn_as_the_settings_say() {
        let drawn = |sample| {
            let traces = Traces::of(Sample(sample), Arc::default());
            let drawing = traces.drawing.unwrap();
            (0..1_000_000).filter(|_| drawing.draws()).count()
        };
        assert_eq!((drawn(0), drawn(1_000_000)), (0, 1_000_000));
        let few = drawn(10_000);
        assert!((9_000..11_000).contains(&few), "{few}");
    }
}
