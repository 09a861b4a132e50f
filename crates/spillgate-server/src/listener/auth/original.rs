//! Reads the client's request from the fields that a proxy sends, each part in the one spelling that rules match.

use axum::extract::Request;
use hyper::header::{HOST, HeaderMap};
use spillgate::Value;

use crate::config::Original;

/// Method, host and target (path and query) that a proxy reported.
pub struct Reported<'r> {
    pub(crate) method: Option<&'r [u8]>,
    pub(crate) host: Option<&'r [u8]>,
    pub(crate) target: Option<&'r [u8]>,
}

impl<'r> Reported<'r> {
    /// Reads them from the configured source.
    pub fn by(original: Original, request: &'r Request) -> Reported<'r> {
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

pub fn upper_case(method: &[u8]) -> Vec<u8> {
    method.trim_ascii().to_ascii_uppercase()
}

/// Adds the wanted parameters of a target as attributes. A `#` ends the query or belongs to it, since servers differ, so
/// a parameter has the values of both readings.
pub fn with_parameters<'r>(
    mut asked: spillgate::Request<'r>,
    target: &[u8],
    wanted: &[String],
) -> spillgate::Request<'r> {
    if wanted.is_empty() {
        return asked;
    }
    let query = target.splitn(2, |byte| *byte == b'?').nth(1).unwrap_or_default();
    let cut = query.split(|byte| *byte == b'#').next().filter(|cut| cut.len() < query.len());
    let given: Vec<_> =
        [cut, Some(query)].into_iter().flatten().flat_map(form_urlencoded::parse).collect();
    for name in wanted {
        let values = given.iter().filter(|(known, _)| known == name);
        if let Some(value) = Value::of_repeated(values.map(|(_, value)| value.as_bytes())) {
            asked.set(name.clone(), value.into_owned());
        }
    }
    asked
}

/// Returns the last line of a header, which the nearest proxy wrote.
fn last<'r>(headers: &'r HeaderMap, name: &str) -> Option<&'r [u8]> {
    headers.get_all(name).iter().next_back().map(|value| value.as_bytes())
}

const OWN_PATH: &str = "/v1/auth";
pub const X_FORWARDED: [&str; 3] = ["x-forwarded-method", "x-forwarded-host", "x-forwarded-uri"];
pub const X_ORIGINAL: [&str; 3] = ["x-original-method", "x-original-host", "x-original-uri"];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_repeated_parameter_has_all_its_values_in_any_encoding() {
        let wanted = ["key".to_owned(), "b c".to_owned()];
        let found = |target: &str| {
            let asked = with_parameters(spillgate::Request::new(), target.as_bytes(), &wanted);
            let text = |value: &[u8]| String::from_utf8(value.to_vec()).unwrap();
            let shown = asked.values().map(|(name, value)| {
                let others = value.other_readings().map(|other| format!(" or {}", text(other)));
                format!("{name}={}{}", text(value.as_bytes()), others.collect::<String>())
            });
            shown.collect::<Vec<_>>()
        };
        assert_eq!(found("/x?key=1&key=1"), ["key=1"]);
        assert_eq!(found("/x?key=1&k%65y=2"), ["key=several values or 1,2 or 1 or 2"]);
        assert_eq!(found("/x?%6Bey=a+b%20c&b%20c="), ["key=a b c", "b c="]);
        assert_eq!(found("/x?other=1#?key=2"), [""; 0]);
        assert_eq!(found("/x#?key=2"), ["key=2"]);
        assert_eq!(found("/x"), [""; 0]);
        assert_eq!(found("/x?a=1#&key=2"), ["key=2"]);
        assert_eq!(
            found("/x?key=1&b+c=3#&key=1"),
            ["key=1", "b c=several values or 3,3# or 3 or 3#"]
        );
    }
}
