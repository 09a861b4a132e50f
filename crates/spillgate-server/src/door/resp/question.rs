//! The commands that ask: what each takes, the bounds of it, and the question that it makes.

use std::ops::RangeInclusive;
use std::time::Duration;

use smallvec::SmallVec;
use spillgate::{Cost, Limit, Question, Request};

use super::answer::{Answer, Throttled};
use crate::bounds::{ATTRIBUTES_MAX, DOMAIN, NAME_MAX, VALUE_MAX};

/// A question, and the form of its answer; or the argument that keeps it from being one.
pub(super) type Asked<'a> = Result<(Question<'a>, Answer), String>;

/// `CL.THROTTLE key max_burst count period [quantity]`, as redis-cell has it: what may pass at once
/// is one more than the burst.
pub(super) fn cl_throttle<'a>(arguments: &[&'a [u8]]) -> Asked<'a> {
    let burst = number("max_burst", arguments[1], 0..=COUNT_MAX - 1)?;
    let (question, throttled) = throttle(arguments, burst + 1)?;
    Ok((question, Answer::Cell(throttled)))
}

/// `THROTTLE key max_burst count period [quantity]`, as throttlecrab has it: what may pass at once
/// is the burst.
pub(super) fn throttle_crab<'a>(arguments: &[&'a [u8]]) -> Asked<'a> {
    let burst = number("max_burst", arguments[1], 1..=COUNT_MAX)?;
    let (question, throttled) = throttle(arguments, burst)?;
    Ok((question, Answer::Crab(throttled)))
}

fn throttle<'a>(
    arguments: &[&'a [u8]],
    capacity: u64,
) -> Result<(Question<'a>, Throttled), String> {
    let count = number("count", arguments[2], 1..=COUNT_MAX)?;
    let period = number("period", arguments[3], 1..=PERIOD_MAX)?;
    let quantity = match arguments.get(4) {
        None => 1,
        Some(text) => number("quantity", text, 0..=u64::MAX)?,
    };
    let limit = Limit::bucket(count, Duration::from_secs(period), capacity)
        .map_err(|error| format!("max_burst: {}", error.message()))?;
    let (key, cost) = (key(arguments[0])?, Cost::requests(quantity));
    let question = Question::AdHoc { domain: DOMAIN, key, limit, cost };
    Ok((question, Throttled { capacity, quantity }))
}

/// `SG.CHECK domain cost [attribute value …]`: by the rules of the policy.
pub(super) fn sg_check<'a>(arguments: &[&'a [u8]]) -> Asked<'a> {
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
    Ok((Question::Request(request), Answer::Check))
}

/// Who is limited. Bytes that are no text are refused, not repaired: two callers might become one.
fn key(bytes: &[u8]) -> Result<&str, String> {
    if bytes.is_empty() {
        // Most likely a variable that was never set: all such callers would share one limit.
        return Err("key: is empty; name who is limited".to_owned());
    }
    std::str::from_utf8(bounded("key", bytes)?)
        .map_err(|_| "key: is no UTF-8; send it as hexadecimal digits".to_owned())
}

fn bounded<'a>(what: &str, bytes: &'a [u8]) -> Result<&'a [u8], String> {
    if bytes.len() > VALUE_MAX {
        let length = bytes.len();
        return Err(format!("{what}: {length} bytes, and {VALUE_MAX} at most; send a hash of it"));
    }
    Ok(bytes)
}

pub(super) fn name<'a>(what: &str, bytes: &'a [u8]) -> Result<&'a str, String> {
    let name = std::str::from_utf8(bytes).ok();
    name.filter(|name| (1..=NAME_MAX).contains(&name.len())).ok_or_else(|| {
        format!("{what}: {} is no name; names are 1 to {NAME_MAX} bytes of UTF-8", quoted(bytes))
    })
}

/// `5`, or `requests=1,tokens=900`.
pub(super) fn cost(text: &[u8]) -> Result<Cost<'_>, String> {
    if !text.contains(&b'=') {
        return number("cost", text, 0..=u64::MAX).map(Cost::requests);
    }
    let mut cost = Cost::requests(0);
    let mut units: SmallVec<[&str; 4]> = SmallVec::new();
    for part in text.split(|byte| *byte == b',') {
        let Some(equals) = part.iter().position(|byte| *byte == b'=') else {
            let part = quoted(part);
            return Err(format!(
                "cost: {part} has no unit; write for example requests=1,tokens=900"
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

pub(super) fn number(what: &str, text: &[u8], range: RangeInclusive<u64>) -> Result<u64, String> {
    // A sign is no digit, though the standard library takes a plus.
    let digits = text.first().filter(|first| first.is_ascii_digit()).map(|_| text);
    let number = digits.and_then(|digits| std::str::from_utf8(digits).ok()?.parse().ok());
    number.filter(|number| range.contains(number)).ok_or_else(|| {
        let (least, most) = range.into_inner();
        format!("{what}: {} is no whole number from {least} to {most}", quoted(text))
    })
}

/// Bytes of a client's as they may stand in a message.
pub(super) fn quoted(bytes: &[u8]) -> String {
    let shown = &bytes[..bytes.len().min(QUOTED_MAX)];
    let more = if shown.len() < bytes.len() { "…" } else { "" };
    format!("'{}{more}'", shown.escape_ascii())
}

/// The largest count of any limit.
const COUNT_MAX: u64 = 1_000_000_000;

/// The seconds of 366 days, the longest period of any limit.
const PERIOD_MAX: u64 = 366 * 86_400;

/// Enough to recognise it by.
const QUOTED_MAX: usize = 32;

#[cfg(test)]
mod tests {
    use super::*;

    type Ask = for<'a> fn(&[&'a [u8]]) -> Asked<'a>;

    fn ask<'a>(ask: Ask, line: &'a str) -> Asked<'a> {
        let arguments: Vec<&[u8]> = line.split(' ').map(str::as_bytes).collect();
        ask(&arguments)
    }

    #[track_caller]
    fn refusal(ask_by: Ask, line: &str) -> String {
        ask(ask_by, line).map(|_| ()).expect_err(line)
    }

    #[test]
    fn what_may_pass_at_once_is_the_burst_of_throttle_and_one_more_for_cl_throttle() {
        for (by, line, capacity) in [
            (cl_throttle as Ask, "u1 0 30 60", 1),
            (cl_throttle, "u1 15 30 60", 16),
            (cl_throttle, "u1 999999999 1000000000 1", 1_000_000_000),
            (throttle_crab, "u1 15 30 60", 15),
        ] {
            let Ok((Question::AdHoc { domain, key, limit, cost }, _)) = ask(by, line) else {
                panic!("{line} is no question about a limit of its own");
            };
            assert_eq!((domain, key, limit.capacity()), ("default", "u1", Some(capacity)));
            assert_eq!(cost, Cost::requests(1));
        }
    }

    #[test]
    fn a_bad_argument_is_named_with_the_way_out() {
        for (line, complaint) in [
            (" 1 1 1", "key: is empty; name who is limited"),
            ("u 1000000000 1 1", "max_burst: '1000000000' is no whole number from 0 to 999999999"),
            ("u -1 1 1", "max_burst: '-1' is no whole number from 0"),
            ("u 1.5 1 1", "max_burst: '1.5' is no whole number"),
            ("u 1 0 1", "count: '0' is no whole number from 1 to 1000000000"),
            ("u 1 +1 1", "count: '+1' is no whole number"),
            ("u 1 1 0", "period: '0' is no whole number from 1 to 31622400"),
            ("u 1 1 31622401", "period: '31622401' is no whole number"),
            ("u 1 1 1 -1", "quantity: '-1' is no whole number from 0"),
            ("u 1 1 1 x\r\n", r"quantity: 'x\r\n' is no whole number"),
            ("u 1 1  1", "period: '' is no whole number"),
            ("u 900000000 1 31622400", "max_burst: a full bucket of 900000001 would take longer"),
        ] {
            let said = refusal(cl_throttle, line);
            assert!(said.starts_with(complaint), "{line}: {said}");
        }
        assert!(refusal(throttle_crab, "u 0 1 1").starts_with("max_burst: '0' is no whole number"));
        let key = "k".repeat(VALUE_MAX + 1);
        assert!(refusal(cl_throttle, &format!("{key} 1 1 1")).starts_with("key: 4097 bytes"));
        assert!(cl_throttle(&[b"\xff", b"1", b"1", b"1"]).is_err());
    }

    #[test]
    fn a_check_has_attributes_in_pairs_and_a_cost_by_unit() {
        let line = "web requests=1,tokens=900 ip 203.0.113.7 route /login";
        let Ok((Question::Request(request), Answer::Check)) = ask(sg_check, line) else {
            panic!("{line} is no question by the rules");
        };
        assert_eq!(request.domain(), "web");
        assert_eq!(request.attribute("route"), Some(b"/login".as_slice()));
        assert_eq!(*request.cost(), Cost::requests(1).and("tokens", 900));
        let units: Vec<String> = (0..33).map(|number| format!("u{number}=1")).collect();
        let many_units = format!("web {}", units.join(","));
        for (line, complaint) in [
            (" 1", "domain: '' is no name"),
            ("web x", "cost: 'x' is no whole number from 0"),
            ("web tokens=1,2", "cost: '2' has no unit"),
            ("web tokens=", "cost: '' is no whole number"),
            ("web =1", "unit of cost: '' is no name"),
            ("web requests=1,requests=2", "cost: unit \"requests\" is there twice"),
            ("web tokens=1,requests=1,tokens=1", "cost: unit \"tokens\" is there twice"),
            (&many_units, "cost: more than 32 units"),
            ("web 1 ip", "attribute 'ip': has no value"),
            ("web 1 ip a ip b", "attribute \"ip\": is there twice"),
            ("web 1  a", "attribute: '' is no name"),
        ] {
            let said = refusal(sg_check, line);
            assert!(said.starts_with(complaint), "{line}: {said}");
        }
    }

    #[test]
    fn what_is_quoted_is_short_and_plain() {
        assert_eq!(quoted(b"a'\r\n\xff"), r"'a\'\r\n\xff'");
        assert_eq!(quoted(&[b'a'; 40]), format!("'{}…'", "a".repeat(32)));
    }
}
