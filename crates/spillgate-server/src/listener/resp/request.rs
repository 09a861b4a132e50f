//! Parses the commands that check limits, within their bounds.

use std::ops::RangeInclusive;
use std::time::Duration;

use smallvec::SmallVec;
use spillgate::{Cost, Limit, Request};

use super::answer::{Answer, Throttled};
use crate::bounds::{ATTRIBUTES_MAX, NAME_MAX, VALUE_MAX};

/// A check and the form of its answer, or the problem of an argument.
pub type ParsedCheck<'a> = Result<(Request<'a>, Answer), String>;

/// Parses `CL.THROTTLE key max_burst count period [quantity]` of redis-cell: the capacity is one more than the burst.
pub fn cl_throttle<'a>(arguments: &[&'a [u8]]) -> ParsedCheck<'a> {
    let capacity = 1 + number("max_burst", arguments[1], 0..=COUNT_MAX - 1)?;
    let count = number("count", arguments[2], 1..=COUNT_MAX)?;
    let period = number("period", arguments[3], 1..=PERIOD_MAX)?;
    let quantity = match arguments.get(4) {
        None => 1,
        Some(text) => number("quantity", text, 0..=u64::MAX)?,
    };
    let limit = Limit::bucket(count, Duration::from_secs(period), capacity)
        .map_err(|error| format!("max_burst: {}", error.message()))?;
    let request = Request::keyed(key(arguments[0])?, limit).costing(quantity);
    Ok((request, Answer::Cell(Throttled { capacity, quantity })))
}

/// Parses `SG.CHECK domain cost [attribute value …]`, a check by the rules of the policy.
pub fn sg_check<'a>(arguments: &[&'a [u8]]) -> ParsedCheck<'a> {
    let domain = name("domain", arguments[0])?;
    let mut request = Request::new().in_domain(domain).costing(cost(arguments[1])?);
    let (pairs, odd) = arguments[2..].as_chunks::<2>();
    if let [attribute, ..] = odd {
        let attribute = quoted(attribute);
        return Err(format!("attribute {attribute}: has no value; write attributes in pairs"));
    }
    for [attribute, value] in pairs {
        let attribute = name("attribute", attribute)?;
        if request.attribute(attribute).is_some() {
            return Err(format!("attribute {attribute:?}: is there twice; give it once"));
        }
        request = request.with(attribute, bounded(attribute, value)?);
    }
    Ok((request, Answer::Check))
}

/// Checks the key of an inline limit. Bytes that are no UTF-8 are refused and not repaired: repaired keys of two
/// clients might be equal.
fn key(bytes: &[u8]) -> Result<&str, String> {
    if bytes.is_empty() {
        // Most likely a variable that was never set: all such clients would share one counter.
        return Err("key: is empty; name the subject of the limit".to_owned());
    }
    std::str::from_utf8(bounded("key", bytes)?)
        .map_err(|_| "key: its bytes are not UTF-8; send it as hexadecimal digits".to_owned())
}

fn bounded<'a>(argument: &str, bytes: &'a [u8]) -> Result<&'a [u8], String> {
    if bytes.len() > VALUE_MAX {
        let length = bytes.len();
        return Err(format!(
            "{argument}: must have at most {VALUE_MAX} bytes, got {length}; send a hash of it"
        ));
    }
    Ok(bytes)
}

pub fn name<'a>(argument: &str, bytes: &'a [u8]) -> Result<&'a str, String> {
    let name = std::str::from_utf8(bytes).ok();
    name.filter(|name| (1..=NAME_MAX).contains(&name.len())).ok_or_else(|| {
        format!(
            "{argument}: {} is not a valid name; names are 1 to {NAME_MAX} bytes of UTF-8",
            quoted(bytes)
        )
    })
}

/// Parses a cost such as `5` or `requests=1,tokens=900`.
pub fn cost(text: &[u8]) -> Result<Cost<'_>, String> {
    if !text.contains(&b'=') {
        return number("cost", text, 0..=u64::MAX).map(Cost::requests);
    }
    let mut cost = Cost::requests(0);
    let mut units: SmallVec<[&str; 4]> = SmallVec::new();
    for part in text.split(|byte| *byte == b',') {
        let Some(equals) = part.iter().position(|byte| *byte == b'=') else {
            let part = quoted(part);
            return Err(format!(
                "cost: {part} is not a unit with its number; write for example requests=1,tokens=900"
            ));
        };
        let unit = name("unit of cost", &part[..equals])?;
        if units.contains(&unit) {
            return Err(format!("cost: unit {unit:?} is there twice; give it once"));
        }
        if units.len() == ATTRIBUTES_MAX {
            return Err(format!("cost: more than {ATTRIBUTES_MAX} units; leave some out"));
        }
        units.push(unit);
        cost = cost.and(unit, number("cost", &part[equals + 1..], 0..=u64::MAX)?);
    }
    Ok(cost)
}

pub fn number(argument: &str, text: &[u8], range: RangeInclusive<u64>) -> Result<u64, String> {
    // A sign is no digit, though the standard library takes a plus.
    let digits = text.first().filter(|first| first.is_ascii_digit()).map(|_| text);
    let number = digits.and_then(|digits| std::str::from_utf8(digits).ok()?.parse().ok());
    number.filter(|number| range.contains(number)).ok_or_else(|| {
        let (least, most) = range.into_inner();
        format!("{argument}: {} is not a whole number from {least} to {most}", quoted(text))
    })
}

/// Quotes bytes of a client in a message: escaped, and only the first ones.
pub fn quoted(bytes: &[u8]) -> String {
    let shown = &bytes[..bytes.len().min(QUOTED_MAX)];
    let more = if shown.len() < bytes.len() { "…" } else { "" };
    format!("'{}{more}'", shown.escape_ascii())
}

/// The largest count of any limit.
const COUNT_MAX: u64 = 1_000_000_000;

/// The seconds of 366 days, the longest period of any limit.
const PERIOD_MAX: u64 = 366 * 86_400;

/// The most bytes that a message quotes.
const QUOTED_MAX: usize = 32;

#[cfg(test)]
mod tests {
    use super::*;

    type Parser = for<'a> fn(&[&'a [u8]]) -> ParsedCheck<'a>;

    fn parse<'a>(parser: Parser, line: &'a str) -> ParsedCheck<'a> {
        let arguments: Vec<&[u8]> = line.split(' ').map(str::as_bytes).collect();
        parser(&arguments)
    }

    #[track_caller]
    fn refusal(parser: Parser, line: &str) -> String {
        parse(parser, line).map(|_| ()).expect_err(line)
    }

    #[test]
    fn the_capacity_of_cl_throttle_is_one_more_than_the_burst() {
        for (line, capacity) in
            [("u1 0 30 60", 1), ("u1 15 30 60", 16), ("u1 999999999 1000000000 1", 1_000_000_000)]
        {
            let (request, _) = parse(cl_throttle, line).unwrap();
            let (key, limit) = request.inline_limit().unwrap();
            assert_eq!((key, limit.capacity()), ("u1", Some(capacity)));
            assert_eq!((request.domain(), request.cost()), ("default", &Cost::requests(1)));
        }
    }

    #[test]
    fn an_error_names_the_argument_and_the_fix() {
        for (line, complaint) in [
            (" 1 1 1", "key: is empty; name the subject of the limit"),
            (
                "u 1000000000 1 1",
                "max_burst: '1000000000' is not a whole number from 0 to 999999999",
            ),
            ("u -1 1 1", "max_burst: '-1' is not a whole number from 0"),
            ("u 1.5 1 1", "max_burst: '1.5' is not a whole number"),
            ("u 1 0 1", "count: '0' is not a whole number from 1 to 1000000000"),
            ("u 1 +1 1", "count: '+1' is not a whole number"),
            ("u 1 1 0", "period: '0' is not a whole number from 1 to 31622400"),
            ("u 1 1 31622401", "period: '31622401' is not a whole number"),
            ("u 1 1 1 -1", "quantity: '-1' is not a whole number from 0"),
            ("u 1 1 1 x\r\n", r"quantity: 'x\r\n' is not a whole number"),
            ("u 1 1  1", "period: '' is not a whole number"),
            ("u 900000000 1 31622400", "max_burst: a full bucket of 900000001 would take longer"),
        ] {
            let error = refusal(cl_throttle, line);
            assert!(error.starts_with(complaint), "{line}: {error}");
        }
        let key = "k".repeat(VALUE_MAX + 1);
        let error = refusal(cl_throttle, &format!("{key} 1 1 1"));
        assert!(error.starts_with("key: must have at most 4096 bytes, got 4097"), "{error}");
        assert!(cl_throttle(&[b"\xff", b"1", b"1", b"1"]).is_err());
    }

    #[test]
    fn a_check_has_attributes_in_pairs_and_a_cost_by_unit() {
        let line = "web requests=1,tokens=900 ip 203.0.113.7 route /login";
        let Ok((request, Answer::Check)) = parse(sg_check, line) else {
            panic!("{line} is not a check by the rules");
        };
        assert_eq!(request.inline_limit(), None);
        assert_eq!(request.domain(), "web");
        assert_eq!(request.attribute("route"), Some(b"/login".as_slice()));
        assert_eq!(*request.cost(), Cost::requests(1).and("tokens", 900));
        let units: Vec<String> = (0..33).map(|number| format!("u{number}=1")).collect();
        let many_units = format!("web {}", units.join(","));
        for (line, complaint) in [
            (" 1", "domain: '' is not a valid name"),
            ("web x", "cost: 'x' is not a whole number from 0"),
            ("web tokens=1,2", "cost: '2' is not a unit with its number"),
            ("web requests=1,tokens", "cost: 'tokens' is not a unit with its number"),
            ("web tokens=", "cost: '' is not a whole number"),
            ("web =1", "unit of cost: '' is not a valid name"),
            ("web requests=1,requests=2", "cost: unit \"requests\" is there twice"),
            ("web tokens=1,requests=1,tokens=1", "cost: unit \"tokens\" is there twice"),
            (&many_units, "cost: more than 32 units"),
            ("web 1 ip", "attribute 'ip': has no value"),
            ("web 1 ip a ip b", "attribute \"ip\": is there twice"),
            ("web 1  a", "attribute: '' is not a valid name"),
        ] {
            let error = refusal(sg_check, line);
            assert!(error.starts_with(complaint), "{line}: {error}");
        }
    }

    #[test]
    fn quoted_bytes_are_short_and_escaped() {
        assert_eq!(quoted(b"a'\r\n\xff"), r"'a\'\r\n\xff'");
        assert_eq!(quoted(&[b'a'; 40]), format!("'{}…'", "a".repeat(32)));
    }
}
