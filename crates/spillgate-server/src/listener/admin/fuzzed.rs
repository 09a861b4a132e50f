//! A claim about every input of the admin API: three kinds of bodies, and a query.
//!
//! An input is one byte that selects the kind, then the body or the query.

use hyper::Uri;
use spillgate::Request;

use super::explain::request_in;
use super::history::asked_in;
use super::instant::Instant;
use super::overrides::{LIMITS_MAX, OverrideFields};
use super::rules::ModeFields;
use super::state::ChangeFields;
use super::subject::{Query, subject};
use crate::bounds::{ENTRIES_MAX, LONG_NAME_MAX};
use crate::listener::http::fuzzed::is_short;
use crate::listener::http::json::{Object, parse};

/// Panics if a parsed input exceeds the bounds, or changes when it is written and parsed again.
pub fn holds(input: &[u8]) {
    let Some((kind, rest)) = input.split_first() else { return };
    match kind % 4 {
        0 => match parse::<Object<OverrideFields<'_>>>(rest) {
            Ok(Object(fields)) => {
                assert!(fields.limits.0.len() <= LIMITS_MAX);
                for limit in &fields.limits.0 {
                    // A limit or an error, but no panic.
                    drop(limit.0.build());
                }
                is_bounded(&subject(&fields.subject));
                reads_back(fields.expires_at.as_ref());
            }
            Err(problem) => is_short(&problem),
        },
        1 => match parse::<Object<ChangeFields<'_>>>(rest) {
            Ok(Object(fields)) => is_bounded(&subject(&fields.subject)),
            Err(problem) => is_short(&problem),
        },
        2 => match parse::<Object<ModeFields<'_>>>(rest) {
            Ok(Object(fields)) => reads_back(fields.expires_at.as_ref()),
            Err(problem) => is_short(&problem),
        },
        _ => query(rest),
    }
}

fn query(text: &[u8]) {
    let Ok(uri) = Uri::try_from([b"/?", text].concat()) else { return };
    if let Err(problem) = asked_in(&uri) {
        is_short(&problem);
    }
    match request_in(&uri) {
        Ok(request) => is_bounded(&request),
        Err(problem) => is_short(&problem),
    }
    let query = match Query::of(&uri) {
        Ok(query) => query,
        Err(problem) => return is_short(&problem),
    };
    is_bounded(&query.subject);
    let mut written = form_urlencoded::Serializer::new("/?".to_owned());
    let written = written.append_pair("rule", &query.rule);
    for (name, value) in query.subject.attributes() {
        let value = std::str::from_utf8(value).expect("a query is read as UTF-8");
        written.append_pair(&format!("attr.{name}"), value);
    }
    let again = Uri::try_from(written.finish()).expect("an encoded query makes a URI");
    let again = Query::of(&again).unwrap_or_else(|problem| panic!("{problem:?}"));
    assert_eq!(again.rule, query.rule);
    assert!(again.subject.attributes().eq(query.subject.attributes()));
}

fn is_bounded(subject: &Request<'_>) {
    assert!(subject.attributes().count() <= ENTRIES_MAX);
    assert!(subject.attributes().all(|(name, _)| name.len() <= LONG_NAME_MAX));
}

fn reads_back(instant: Option<&Instant>) {
    let Some(instant) = instant else { return };
    let text = serde_json::to_string(instant).expect("an instant is a text");
    let again: Instant = parse(text.as_bytes()).unwrap_or_else(|problem| panic!("{problem:?}"));
    assert_eq!(again.0, instant.0, "{text}");
}
