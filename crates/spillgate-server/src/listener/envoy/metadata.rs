//! Encodes a decision as dynamic metadata, which Envoy's access logs can print and its later filters can read.
//!
//! The fields have the names of the HTTP API. Fields without a value are absent. Nothing that a client sent is among
//! them, since it would end up in logs.

use prost_types::value::Kind;
use prost_types::{ListValue, Struct, Value};
use spillgate::{AtomicDecision, LimitDecision, Reason};

use super::answer::name;
use crate::listener::http::answer::ms_up;

/// Returns the metadata of the answer to a call in this domain.
pub fn build(combined: &AtomicDecision, domain: &str) -> Struct {
    let whole = combined.whole();
    let denied_by = |shadow: bool| {
        let denies = move |limit: &LimitDecision<'_>| {
            limit.shadow() == shadow && !limit.advisory() && limit.reason().is_some()
        };
        let names = whole.limits().filter(denies).map(|limit| text(&name(whole, &limit)));
        Some(names.collect::<Vec<_>>()).filter(|names| !names.is_empty()).map(list)
    };
    let number = |number: Option<u64>| number.map(|number| value(Kind::NumberValue(number as f64)));
    let word = |word: Option<&str>| word.map(text);
    let fields = [
        ("domain", Some(text(domain))),
        ("allowed", Some(value(Kind::BoolValue(whole.allowed())))),
        ("reason", word(whole.reason().map(Reason::as_str))),
        ("rule", word(whole.rule())),
        ("limit", word(whole.limit())),
        ("capacity", number(whole.capacity())),
        ("remaining", number(whole.remaining())),
        ("retry_after_ms", number(whole.retry_after().map(ms_up))),
        ("reset_after_ms", number(whole.reset_after().map(ms_up))),
        ("source", word(Some(whole.source().name()))),
        ("degraded", Some(value(Kind::BoolValue(whole.degraded())))),
        ("denied_by", denied_by(false)),
        ("shadow_denied_by", denied_by(true)),
    ];
    let known = fields.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?)));
    Struct { fields: known.collect() }
}

fn text(text: &str) -> Value {
    value(Kind::StringValue(text.to_owned()))
}

fn list(values: Vec<Value>) -> Value {
    value(Kind::ListValue(ListValue { values }))
}

fn value(kind: Kind) -> Value {
    Value { kind: Some(kind) }
}
