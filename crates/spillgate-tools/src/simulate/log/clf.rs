//! Reads the Common and the Combined Log Format of Apache and nginx:
//! `203.0.113.7 - ann [10/Oct/2000:13:55:36 -0700] "GET /a HTTP/1.1" 200 2326 "referer" "agent"`.

use std::borrow::Cow;

use memchr::{memchr, memchr2};

use super::fields::{Field, Wanted};
use super::instant::instant_us;
use super::value::{parameter, request_line};
use crate::simulate::event::Event;

/// One line, split into its fields.
#[derive(Debug, Default, PartialEq, Eq)]
struct Parts<'l> {
    /// Before the address, if the server logs which of its hosts the request was for.
    host: &'l [u8],
    ip: &'l [u8],
    ident: &'l [u8],
    user: &'l [u8],
    time: &'l [u8],
    request: &'l [u8],
    status: &'l [u8],
    bytes: &'l [u8],
    referer: &'l [u8],
    agent: &'l [u8],
}

/// Reads a line into an event, or returns the line's problem.
pub(super) fn read(
    line: &[u8],
    wanted: &Wanted,
    event: &mut Event,
) -> Result<(), Cow<'static, str>> {
    let parts = parts(line)?;
    event.at_us = instant_us(parts.time)
        .ok_or("the brackets hold no time such as 10/Oct/2000:13:55:36 -0700")?;
    let (method, target) = request_line(parts.request).unwrap_or_default();
    for Field { name, spelling, attribute, .. } in &wanted.fields {
        let value = match name.as_str() {
            "ip" => parts.ip,
            "ident" => parts.ident,
            "user" => parts.user,
            "method" => method,
            "path" => target,
            "status" => parts.status,
            "bytes" => parts.bytes,
            "host" => parts.host,
            "referer" => &unescaped(parts.referer),
            "user-agent" => &unescaped(parts.agent),
            "request" => &unescaped(parts.request),
            _ => continue,
        };
        spelling.add(value, *attribute, event);
    }
    for Field { name, attribute, .. } in &wanted.parameters {
        if let Some(value) = parameter(target, name) {
            event.add(*attribute, value.as_bytes());
        }
    }
    if let Some(field) = &wanted.cost {
        event.cost = Some(match (field.as_str(), parts.bytes) {
            ("bytes", b"-") => 0,
            ("bytes", digits) => super::fields::amount(digits)?,
            _ => {
                return Err(
                    "this format has no number except bytes: write --cost-from bytes".into()
                );
            }
        });
    }
    Ok(())
}

/// The names of the fields of such a line.
pub(super) const FIELDS: [&str; 11] = [
    "ip",
    "ident",
    "user",
    "method",
    "path",
    "status",
    "bytes",
    "host",
    "referer",
    "user-agent",
    "request",
];

/// Returns the name of the format, if a line is in one of the two.
pub(super) fn recognise(line: &[u8]) -> Option<&'static str> {
    let parts = parts(line).ok()?;
    instant_us(parts.time)?;
    Some(if parts.agent.is_empty() { "common log" } else { "combined log" })
}

fn parts(line: &[u8]) -> Result<Parts<'_>, &'static str> {
    let mut parts = Parts::default();
    let open = line.windows(2).position(|pair| pair == b" [").ok_or("no time in brackets")?;
    let close = memchr(b']', &line[open..]).ok_or("no time in brackets")? + open;
    parts.time = &line[open + 2..close];
    [parts.host, parts.ip, parts.ident, parts.user] =
        client(&line[..open]).ok_or("no address before the time")?;
    let rest = line[close + 1..].trim_ascii_start();
    let (request, rest) = quoted(rest).ok_or("no request in quotes after the time")?;
    parts.request = request;
    let (status, rest) = word(rest);
    let (bytes, rest) = word(rest);
    (parts.status, parts.bytes) = (status, bytes);
    if let Some((referer, rest)) = quoted(rest) {
        parts.referer = referer;
        parts.agent = quoted(rest).map(|(agent, _)| agent).unwrap_or_default();
    }
    Ok(parts)
}

/// Splits `address ident user`, with a host before it in a log of several hosts. A user's name may contain spaces.
fn client(text: &[u8]) -> Option<[&[u8]; 4]> {
    let (first, rest) = word(text);
    if first.is_empty() {
        return None;
    }
    let (second, after) = word(rest);
    let is_address = |text: &[u8]| {
        std::str::from_utf8(text).is_ok_and(|text| text.parse::<std::net::IpAddr>().is_ok())
    };
    if is_address(second) && !is_address(first) {
        let (ident, user) = word(after);
        return Some([first, second, ident, user]);
    }
    Some([b"", first, second, after])
}

/// Splits at the next space.
fn word(text: &[u8]) -> (&[u8], &[u8]) {
    match memchr(b' ', text) {
        Some(end) => (&text[..end], text[end..].trim_ascii_start()),
        None => (text, b""),
    }
}

/// Splits behind the text in quotes. A quote after a backslash does not end it.
fn quoted(text: &[u8]) -> Option<(&[u8], &[u8])> {
    let inside = text.strip_prefix(b"\"")?;
    let mut from = 0;
    loop {
        let at = memchr2(b'"', b'\\', inside.get(from..)?)? + from;
        match inside[at] {
            b'"' => return Some((&inside[..at], inside[at + 1..].trim_ascii_start())),
            _ => from = at + 2,
        }
    }
}

/// Resolves the escapes that a server writes for quotes and for bytes that cannot be printed.
fn unescaped(text: &[u8]) -> Cow<'_, [u8]> {
    if memchr(b'\\', text).is_none() {
        return Cow::Borrowed(text);
    }
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text;
    while let [first, after @ ..] = rest {
        rest = after;
        match (first, after) {
            (b'\\', [b'x', high, low, after @ ..])
                if high.is_ascii_hexdigit() && low.is_ascii_hexdigit() =>
            {
                let digit = |digit: &u8| char::from(*digit).to_digit(16).unwrap_or(0) as u8;
                bytes.push(digit(high) << 4 | digit(low));
                rest = after;
            }
            (b'\\', [escaped, after @ ..]) => {
                bytes.push(*escaped);
                rest = after;
            }
            _ => bytes.push(*first),
        }
    }
    Cow::Owned(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    const COMBINED: &str = r#"203.0.113.7 - ann lee [10/Oct/2000:13:55:36 -0700] "GET /a?b=\"c HTTP/1.1" 200 2326 "http://x/" "curl \"8\"""#;

    #[test]
    fn a_combined_line_has_all_its_fields() {
        let parts = parts(COMBINED.as_bytes()).unwrap();
        assert_eq!(parts.ip, b"203.0.113.7");
        assert_eq!((parts.ident, parts.user), (&b"-"[..], &b"ann lee"[..]));
        assert_eq!(parts.time, b"10/Oct/2000:13:55:36 -0700");
        assert_eq!(parts.request, br#"GET /a?b=\"c HTTP/1.1"#);
        assert_eq!((parts.status, parts.bytes), (&b"200"[..], &b"2326"[..]));
        assert_eq!(parts.referer, b"http://x/");
        assert_eq!(&*unescaped(parts.agent), br#"curl "8""#);
        assert_eq!(recognise(COMBINED.as_bytes()), Some("combined log"));
    }

    #[test]
    fn lines_of_other_servers_are_read_too() {
        for (line, kind) in [
            (
                r#"203.0.113.7 - - [10/Oct/2000:13:55:36 -0700] "GET / HTTP/1.0" 200 2326"#,
                "common log",
            ),
            (r#"203.0.113.7 - - [10/Oct/2000:13:55:36 -0700] "\x16\x03" 400 -"#, "common log"),
            (r#"::1 - - [10/Oct/2000:13:55:36] "-" 408 0 "-" "-" 0.001 "more""#, "combined log"),
            (
                r#"a.example:80 203.0.113.7 - - [10/Oct/2000:13:55:36 -0700] "GET / HTTP/1.0" 200 1"#,
                "common log",
            ),
        ] {
            assert_eq!(recognise(line.as_bytes()), Some(kind), "{line}");
        }
        let line = br#"a.example:80 203.0.113.7 - ann [10/Oct/2000:13:55:36 -0700] "GET / HTTP/1.0" 200 1"#;
        let parts = parts(line).unwrap();
        assert_eq!(
            (parts.host, parts.ip, parts.user),
            (&b"a.example:80"[..], &b"203.0.113.7"[..], &b"ann"[..])
        );
    }

    #[test]
    fn an_unreadable_line_names_the_missing_part() {
        for (line, wrong) in [
            ("", "brackets"),
            ("203.0.113.7 - - 10/Oct/2000", "brackets"),
            (" [10/Oct/2000:13:55:36 -0700] \"GET / HTTP/1.1\" 200 1", "address"),
            ("203.0.113.7 - - [10/Oct/2000:13:55:36 -0700] GET /", "quotes"),
            ("203.0.113.7 - - [10/Oct/2000:13:55:36 -0700] \"GET /", "quotes"),
            ("203.0.113.7 - - [now] \"GET / HTTP/1.1\" 200 1", "brackets"),
        ] {
            let mut event = Event::default();
            let problem = read(line.as_bytes(), &Wanted::default(), &mut event).unwrap_err();
            assert!(problem.contains(wrong), "{line}: {problem}");
        }
    }
}
