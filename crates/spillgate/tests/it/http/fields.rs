//! Reads the IETF fields with an independent parser of structured fields and checks them against the draft.

use http::HeaderMap;
use sfv::{BareItem, ListEntry, Parser};

/// One member of `RateLimit-Policy`.
#[derive(Debug, PartialEq, Eq)]
pub struct PolicyItem {
    pub name: String,
    pub quota: i64,
    pub window: Option<i64>,
    pub unit: Option<String>,
}

/// One member of `RateLimit`.
#[derive(Debug, PartialEq, Eq)]
pub struct LimitItem {
    pub name: String,
    pub remaining: i64,
    pub more_after: Option<i64>,
}

/// Reads both fields. Panics on parts that a client would have to ignore.
pub fn read(headers: &HeaderMap) -> (Vec<PolicyItem>, Vec<LimitItem>) {
    let policies = members(headers, "ratelimit-policy").into_iter().map(|(name, parameters)| {
        let mut item = PolicyItem { name, quota: -1, window: None, unit: None };
        for (key, value) in parameters {
            match (key.as_str(), value) {
                ("q", Parameter::Integer(quota)) => item.quota = quota,
                ("w", Parameter::Integer(window)) => item.window = Some(window),
                ("qu", Parameter::Text(unit)) => item.unit = Some(unit),
                other => panic!("{other:?} is not allowed in RateLimit-Policy"),
            }
        }
        assert!(item.quota >= 0 && item.window.is_none_or(|window| window > 0), "{item:?}");
        item
    });
    let limits = members(headers, "ratelimit").into_iter().map(|(name, parameters)| {
        let mut item = LimitItem { name, remaining: -1, more_after: None };
        for (key, value) in parameters {
            match (key.as_str(), value) {
                ("r", Parameter::Integer(remaining)) => item.remaining = remaining,
                ("t", Parameter::Integer(seconds)) => item.more_after = Some(seconds),
                other => panic!("{other:?} is not allowed in RateLimit"),
            }
        }
        assert!(item.remaining >= 0 && item.more_after.is_none_or(|seconds| seconds >= 1));
        item
    });
    (policies.collect(), limits.collect())
}

#[derive(Debug)]
enum Parameter {
    Integer(i64),
    Text(String),
}

/// The members of a list of strings. The field must be a single line.
fn members(headers: &HeaderMap, name: &str) -> Vec<(String, Vec<(String, Parameter)>)> {
    let lines: Vec<_> = headers.get_all(name).iter().collect();
    assert!(lines.len() <= 1, "{name} stands in {} lines: {lines:?}", lines.len());
    let Some(line) = lines.first() else { return Vec::new() };
    let list: sfv::List = Parser::new(line.as_bytes()).parse().unwrap();
    list.into_iter()
        .map(|member| {
            let ListEntry::Item(item) = member else { panic!("an inner list in {line:?}") };
            let BareItem::String(name) = item.bare_item else {
                panic!("{:?} is not a string in {line:?}", item.bare_item)
            };
            let parameters = item.params.into_iter().map(|(key, value)| {
                let value = match value {
                    BareItem::Integer(number) => Parameter::Integer(number.into()),
                    BareItem::String(text) => Parameter::Text(text.into()),
                    other => panic!("{key}={other:?} in {line:?}"),
                };
                (key.to_string(), value)
            });
            (name.into(), parameters.collect())
        })
        .collect()
}
