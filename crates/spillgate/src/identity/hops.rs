//! Parses the hops that proxies report, nearest first, from `X-Forwarded-For` and `Forwarded` (RFC
//! 7239).
//!
//! A hop without an address is `None`: the clients behind it are unknown.

use std::net::IpAddr;

use http::HeaderMap;
use http::header::FORWARDED;
use smallvec::{SmallVec, smallvec};
use spillgate_core::ip::address;

use super::X_FORWARDED_FOR;

/// Returns the hops over all lines, which form one list. Reads from the end, so that a long forged
/// beginning costs nothing.
pub fn x_forwarded_for(headers: &HeaderMap) -> impl Iterator<Item = Option<IpAddr>> {
    let lines = headers.get_all(X_FORWARDED_FOR).into_iter().rev();
    lines
        .flat_map(|line| line.as_bytes().rsplit(|byte| *byte == b','))
        .map(<[u8]>::trim_ascii)
        .filter(|hop| !hop.is_empty())
        .map(|hop| address(unquoted(hop)))
}

/// Returns the hops over all lines. A line with an unclosed quote has no valid hop, since a client
/// could have opened the quote to hide the hops that a proxy appended.
pub fn forwarded(headers: &HeaderMap) -> impl Iterator<Item = Option<IpAddr>> {
    let lines = headers.get_all(FORWARDED).into_iter().rev();
    lines.flat_map(|line| {
        let hops = match split_outside_quotes(line.as_bytes(), b',') {
            Some(elements) => {
                let elements = elements.into_iter().map(<[u8]>::trim_ascii);
                elements.filter(|element| !element.is_empty()).map(element_address).collect()
            }
            None => smallvec![None],
        };
        SmallVec::<[Option<IpAddr>; 4]>::into_iter(hops).rev()
    })
}

/// Returns the address in `for=…` of one element, or `None` if it is missing, repeated or hidden.
fn element_address(element: &[u8]) -> Option<IpAddr> {
    let mut found = None;
    for pair in split_outside_quotes(element, b';')? {
        let pair = pair.trim_ascii();
        if pair.is_empty() {
            continue;
        }
        let equals = pair.iter().position(|byte| *byte == b'=')?;
        let (name, value) = (&pair[..equals], &pair[equals + 1..]);
        if name.eq_ignore_ascii_case(b"for") && found.replace(value).is_some() {
            return None;
        }
    }
    let value = found?;
    // An address never has an escaped character.
    if value.contains(&b'\\') { None } else { address(unquoted(value)) }
}

/// Splits at separators outside quotes. Returns `None` if a quote is not closed.
fn split_outside_quotes(text: &[u8], separator: u8) -> Option<SmallVec<[&[u8]; 4]>> {
    let mut parts = SmallVec::new();
    let (mut start, mut quoted, mut escaped) = (0, false, false);
    for (place, byte) in text.iter().enumerate() {
        match byte {
            _ if escaped => escaped = false,
            b'\\' if quoted => escaped = true,
            b'"' => quoted = !quoted,
            byte if *byte == separator && !quoted => {
                parts.push(&text[start..place]);
                start = place + 1;
            }
            _ => {}
        }
    }
    parts.push(&text[start..]);
    (!quoted).then_some(parts)
}

fn unquoted(text: &[u8]) -> &[u8] {
    text.strip_prefix(b"\"").and_then(|rest| rest.strip_suffix(b"\"")).unwrap_or(text)
}
