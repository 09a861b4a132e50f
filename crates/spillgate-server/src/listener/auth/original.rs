//! Reads the client's request from the fields that a proxy sends, each part in the one spelling that rules match.

use std::borrow::Cow;

use axum::extract::Request;
use hyper::header::{HOST, HeaderMap};

use crate::config::Original;

/// Method, host and target (path and query) that a proxy reported.
pub(super) struct Reported<'r> {
    pub(super) method: Option<&'r [u8]>,
    pub(super) host: Option<&'r [u8]>,
    pub(super) target: Option<&'r [u8]>,
}

impl<'r> Reported<'r> {
    /// Reads them from the configured source.
    pub(super) fn by(original: Original, request: &'r Request) -> Reported<'r> {
        let names = match original {
            Original::XForwarded => X_FORWARDED,
            Original::XOriginal => X_ORIGINAL,
            Original::Request => return Reported::by_itself(request),
        };
        let [method, host, target] = names.map(|name| last(request.headers(), name));
        // A proxy behind another appends its value to the list of the first.
        let last_of_list = |list: &'r [u8]| list.rsplit(|byte| *byte == b',').next();
        let (method, host) = (method.and_then(last_of_list), host.and_then(last_of_list));
        Reported { method, host, target }
    }

    fn by_itself(request: &'r Request) -> Reported<'r> {
        let target = request.uri().path_and_query().map(|target| target.as_str());
        let target = target.and_then(|target| target.strip_prefix(OWN_PATH));
        Reported {
            method: Some(request.method().as_str().as_bytes()),
            host: last(request.headers(), HOST.as_str()),
            target: target.map(str::as_bytes),
        }
    }
}

pub(super) fn upper_case(method: &[u8]) -> Vec<u8> {
    method.trim_ascii().to_ascii_uppercase()
}

/// Returns the wanted parameters of a target; of a repeated one the first.
pub(super) fn parameters(target: &[u8], wanted: &[String]) -> Vec<(String, String)> {
    if wanted.is_empty() {
        return Vec::new();
    }
    let query = target.splitn(2, |byte| *byte == b'?').nth(1).unwrap_or_default();
    let query = query.split(|byte| *byte == b'#').next().unwrap_or_default();
    let mut found: Vec<(String, String)> = Vec::new();
    for (name, value) in form_urlencoded::parse(query) {
        let is_wanted = wanted.iter().any(|wanted| *wanted == name);
        if is_wanted && !found.iter().any(|(known, _)| *known == name) {
            found.push((name.into_owned(), Cow::into_owned(value)));
        }
    }
    found
}

/// Returns the last line of a header, which the nearest proxy wrote.
fn last<'r>(headers: &'r HeaderMap, name: &str) -> Option<&'r [u8]> {
    headers.get_all(name).iter().next_back().map(|value| value.as_bytes())
}

const OWN_PATH: &str = "/v1/auth";
pub(super) const X_FORWARDED: [&str; 3] =
    ["x-forwarded-method", "x-forwarded-host", "x-forwarded-uri"];
pub(super) const X_ORIGINAL: [&str; 3] = ["x-original-method", "x-original-host", "x-original-uri"];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_of_a_repeated_parameter_counts_in_any_encoding() {
        let wanted = ["key".to_owned(), "b c".to_owned()];
        let found = |target: &str| parameters(target.as_bytes(), &wanted);
        let pair = |name: &str, value: &str| (name.to_owned(), value.to_owned());
        assert_eq!(found("/x?key=1&key=2"), [pair("key", "1")]);
        assert_eq!(found("/x?%6Bey=a+b%20c&b%20c="), [pair("key", "a b c"), pair("b c", "")]);
        assert_eq!(found("/x?other=1#?key=2"), []);
        assert_eq!(found("/x"), []);
    }
}
