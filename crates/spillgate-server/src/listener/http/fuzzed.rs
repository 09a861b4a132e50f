//! A claim about every body of a check or a batch.

use spillgate::Request;

use super::json::parse;
use super::problem::Problem;
use super::request::{Batch, Check};
use crate::bounds::{ATTRIBUTES_MAX, BATCH_MAX, NAME_MAX, VALUE_MAX};

/// Panics if a parsed body exceeds the bounds, or if a request changes when it is written and parsed again.
pub fn holds(body: &[u8]) {
    super::reservation::fuzzed::holds(body);
    match parse::<Check<'_>>(body) {
        Ok(check) => match check.reservation() {
            Ok((request, _)) => {
                if let Err(problem) = check.request() {
                    is_short(&problem);
                }
                is_bounded(&request);
            }
            Err(problem) => is_short(&problem),
        },
        Err(problem) => is_short(&problem),
    }
    match Batch::listed(body).map(Batch::of) {
        Ok(batch) => {
            let items: Vec<_> = batch.requests().collect();
            assert!(items.len() <= BATCH_MAX);
            for item in &items {
                match item {
                    Ok((request, _)) => is_bounded(request),
                    Err(problem) => is_short(problem),
                }
            }
        }
        Err(problem) => is_short(&problem),
    }
}

fn is_bounded(request: &Request<'_>) {
    assert!((1..=NAME_MAX).contains(&request.domain().len()));
    match request.inline_limit() {
        None => {
            assert!(request.attributes().count() <= ATTRIBUTES_MAX);
            for (name, value) in request.attributes() {
                assert!((1..=NAME_MAX).contains(&name.len()) && value.len() <= VALUE_MAX);
            }
            reads_back(request);
        }
        Some((key, limit)) => {
            assert!((1..=VALUE_MAX).contains(&key.len()));
            assert!(limit.capacity().is_none_or(|capacity| capacity <= u32::MAX.into()));
        }
    }
}

fn reads_back(request: &Request<'_>) {
    let quoted = |text: &str| serde_json::to_string(text).expect("a text is JSON");
    let attribute = |(name, value): (&str, &[u8])| {
        let value = std::str::from_utf8(value).expect("JSON is UTF-8");
        format!("{}:{}", quoted(name), quoted(value))
    };
    let attributes: Vec<String> = request.attributes().map(attribute).collect();
    let body = format!(
        "{{\"domain\":{},\"attributes\":{{{}}},\"cost\":{}}}",
        quoted(request.domain()),
        attributes.join(","),
        request.cost().of("requests")
    );
    let check: Check<'_> = parse(body.as_bytes()).expect("a written request is a body");
    let Ok(again) = check.request() else { panic!("{body} is no request") };
    assert_eq!(again.domain(), request.domain());
    assert_eq!(again.cost().of("requests"), request.cost().of("requests"));
    assert!(again.attributes().eq(request.attributes()), "{body}");
}

/// Panics if a problem is long: an answer must not grow with its request.
pub(in crate::listener) fn is_short(problem: &Problem) {
    assert!(format!("{problem:?}").len() <= PROBLEM_MAX, "{problem:?}");
}

/// The longest problem: a field and a message of 300 characters each, all of them escaped.
const PROBLEM_MAX: usize = 8 * 1024;
