//! The check of the header fields of any decision.
//!
//! An input is a sequence of counters of 26 bytes each: the limit, the known fields, the result,
//! and four numbers.

use std::sync::{Arc, LazyLock};

use http::HeaderMap;
use sfv::Parser;

use super::DenialResponse;
use crate::decision::{self, CounterOutcome, CounterOutcomes, Names, Reason, Source};
use crate::headers::HeaderStyle;
use crate::policy::Policy;

/// Panics if a field is not a valid structured field, or is written twice.
pub fn holds(input: &[u8]) {
    let counters: CounterOutcomes =
        input.as_chunks().0.iter().take(COUNTERS_MAX).map(outcome).collect();
    let decision = decision::from_counters(counters, Names::Policy(Arc::clone(&POLICY)));
    for style in HeaderStyle::ALL {
        let mut headers = HeaderMap::new();
        style.write(&decision, &mut headers);
        for (name, value) in &headers {
            let parser = || Parser::new(value.as_bytes());
            let reads = match (style, name.as_str()) {
                (HeaderStyle::Draft7, "ratelimit") => parser().parse::<sfv::Dictionary>().is_ok(),
                (_, "ratelimit" | "ratelimit-policy") => parser().parse::<sfv::List>().is_ok(),
                _ => parser().parse::<sfv::Item>().is_ok(),
            };
            assert!(reads, "{style:?}: {name}: {value:?}");
        }
        let once = headers.clone();
        style.write(&decision, &mut headers);
        assert_eq!(headers, once, "{style:?}");
    }
    if let Some(denial) = DenialResponse::of(&decision) {
        assert!(denial.retry_after_seconds().is_none_or(|seconds| seconds > 0));
        assert!(
            denial.response(HeaderStyle::Ietf).status().is_client_error() || decision.degraded()
        );
    }
}

fn outcome(bytes: &[u8; COUNTER_BYTES]) -> CounterOutcome {
    let [place, known, result, more, numbers @ ..] = bytes;
    let (rule, limit) = PLACES[usize::from(*place) % PLACES.len()];
    let number = |at: usize| {
        let (_, from) = numbers.split_at(at);
        u64::from_le_bytes(*from.first_chunk().expect("numbers end where the last one does"))
    };
    let knows = |bit: u8| known & bit != 0;
    // In the range of real replies: at most the capacity, and times within 53 bits.
    let capacity = 1 + number(0) % 1_000_000_000;
    let us = |at| number(at) >> 11;
    CounterOutcome {
        rule: Some(rule).into(),
        limit,
        shadow: knows(0x10),
        advisory: knows(0x20),
        capacity: knows(1).then_some(capacity).into(),
        remaining: knows(2).then_some(u64::from(*more) * capacity / 255).into(),
        retry_after_us: knows(4).then_some(us(6)).into(),
        reset_after_us: knows(8).then_some(us(14)).into(),
        denied: [None, Some(Reason::LimitExceeded), Some(Reason::CostExceedsLimit)]
            [usize::from(result % 3)],
        source: Some(SOURCES[usize::from(result >> 4) % SOURCES.len()]),
        ..CounterOutcome::inline()
    }
}

/// Rules and limits of [`POLICY`].
const PLACES: [(u32, u16); 10] =
    [(0, 0), (1, 0), (1, 1), (1, 2), (1, 3), (1, 4), (1, 5), (1, 6), (2, 0), (3, 0)];
const SOURCES: [Source; 5] =
    [Source::Store, Source::Lease, Source::DenialCache, Source::Fallback, Source::OutagePolicy];
const COUNTER_BYTES: usize = 26;
/// The most counters of one decision.
const COUNTERS_MAX: usize = 64;

static POLICY: LazyLock<Arc<Policy>> = LazyLock::new(|| {
    let policy = r#"
        [[rule]]
        name = "one"
        key = ["user"]
        limits = ["5/ms"]

        [[rule]]
        name = "all/of.them-0123456789-0123456789-0123456789-0123456789-01234567"
        key = ["user"]
        limits = [
            { quota = "10/second", burst = 1_000_000_000 },
            { quota = "1000/month", algorithm = "fixed-window" },
            { quota = "7/d", algorithm = "sliding-log" },
            { quota = "60000/minute", algorithm = "sliding-window", unit = "tokens", name = "llm" },
            { quota = "20", algorithm = "concurrency", max_hold = "30s" },
            "unlimited",
            "block",
        ]

        [[rule]]
        name = "slots"
        key = []
        limits = [{ quota = "20", algorithm = "concurrency", max_hold = "30s" }]

        [[rule]]
        name = "watched"
        mode = "shadow"
        key = []
        limits = ["1/366d"]
    "#;
    Arc::new(Policy::from_toml(policy).expect("a policy of ours"))
});
