//! Splits lines in the Common and the Combined Log Format of Apache and nginx:
//! `203.0.113.7 - ann [10/Oct/2000:13:55:36 -0700] "GET /a HTTP/1.1" 200 2326 "referer" "agent"`.

use std::borrow::Cow;

/// One line, split into its fields in the order of [`FIELDS`].
pub struct Clf<'l>([Cow<'l, [u8]>; FIELDS.len()]);

/// The names of the fields. The host is there if the server logs which of its hosts a request was for.
pub const FIELDS: [&str; 10] =
    ["host", "ip", "ident", "user", "time", "request", "status", "bytes", "referer", "user-agent"];

impl<'l> Clf<'l> {
    /// Splits a line, or returns its problem.
    pub fn parse(line: &'l [u8]) -> Result<Clf<'l>, &'static str> {
        const NO_TIME: &str = "no time in brackets";
        let open = line.windows(2).position(|pair| pair == b" [").ok_or(NO_TIME)?;
        let (time, rest) = split(&line[open + 2..], b']').ok_or(NO_TIME)?;
        let [host, ip, ident, user] = client(&line[..open]).ok_or("no address before the time")?;
        let (request, rest) = quoted(rest).ok_or("no request in quotes after the time")?;
        let (status, rest) = word(rest);
        let (bytes, rest) = word(rest);
        let (referer, rest) = quoted(rest).unwrap_or_default();
        let (agent, _) = quoted(rest).unwrap_or_default();
        let [host, ip, ident, user, time] = [host, ip, ident, user, time].map(Cow::Borrowed);
        let [status, bytes] = [status, bytes].map(Cow::Borrowed);
        Ok(Clf([host, ip, ident, user, time, request, status, bytes, referer, agent]))
    }

    /// Returns the value of a field.
    pub fn field(&self, name: &str) -> Option<Cow<'_, [u8]>> {
        let number = FIELDS.iter().position(|known| known.eq_ignore_ascii_case(name))?;
        Some(Cow::Borrowed(&*self.0[number]))
    }
}

/// Splits `address ident user`, with a host before it in a log of several hosts. A user's name may contain spaces.
fn client(text: &[u8]) -> Option<[&[u8]; 4]> {
    let (first, rest) = word(text);
    let (second, after) = word(rest);
    let is_address = |text: &[u8]| {
        std::str::from_utf8(text).is_ok_and(|text| text.parse::<std::net::IpAddr>().is_ok())
    };
    if is_address(second) && !is_address(first) {
        let (ident, user) = word(after);
        return Some([first, second, ident, user]);
    }
    (!first.is_empty()).then_some([b"", first, second, after])
}

/// Splits at the next space.
fn word(text: &[u8]) -> (&[u8], &[u8]) {
    split(text, b' ').unwrap_or((text, b""))
}

/// Splits at the first `end`, and drops the spaces behind it.
fn split(text: &[u8], end: u8) -> Option<(&[u8], &[u8])> {
    let at = text.iter().position(|byte| *byte == end)?;
    Some((&text[..at], text[at + 1..].trim_ascii_start()))
}

/// Splits behind a string in quotes, and resolves the escapes that a server writes for quotes and for bytes that cannot
/// be printed: `\"`, `\x22`.
fn quoted(text: &[u8]) -> Option<(Cow<'_, [u8]>, &[u8])> {
    let inside = text.strip_prefix(b"\"")?;
    let end = inside.iter().position(|byte| matches!(byte, b'"' | b'\\'))?;
    let (mut value, mut rest) = (Cow::Borrowed(&inside[..end]), &inside[end..]);
    loop {
        let byte;
        (byte, rest) = match rest {
            [] => return None,
            [b'"', after @ ..] => return Some((value, after.trim_ascii_start())),
            [b'\\', b'x', high, low, after @ ..]
                if high.is_ascii_hexdigit() && low.is_ascii_hexdigit() =>
            {
                let digit = |digit: &u8| char::from(*digit).to_digit(16).unwrap_or(0) as u8;
                (digit(high) << 4 | digit(low), after)
            }
            [b'\\', byte, after @ ..] | [byte, after @ ..] => (*byte, after),
        };
        value.to_mut().push(byte);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::Random;

    const COMBINED: &str = r#"203.0.113.7 - ann lee [10/Oct/2000:13:55:36 -0700] "GET /a?b=\"c HTTP/1.1" 200 2326 "http://x/" "curl \"8\" \x7e""#;

    fn fields<const N: usize>(line: &str, names: [&str; N]) -> [String; N] {
        let clf = Clf::parse(line.as_bytes()).unwrap_or_else(|problem| panic!("{line}: {problem}"));
        names.map(|name| String::from_utf8(clf.field(name).unwrap().into_owned()).unwrap())
    }

    #[test]
    fn a_combined_line_has_all_its_fields() {
        assert_eq!(
            fields(COMBINED, FIELDS),
            [
                "",
                "203.0.113.7",
                "-",
                "ann lee",
                "10/Oct/2000:13:55:36 -0700",
                r#"GET /a?b="c HTTP/1.1"#,
                "200",
                "2326",
                "http://x/",
                r#"curl "8" ~"#,
            ]
        );
    }

    #[test]
    fn lines_of_other_servers_are_read_too() {
        let names = ["host", "ip", "user", "status", "user-agent"];
        for (line, expected) in [
            (
                r#"203.0.113.7 - - [10/Oct/2000:13:55:36 -0700] "GET / HTTP/1.0" 200 2326"#,
                ["", "203.0.113.7", "-", "200", ""],
            ),
            (
                r#"203.0.113.7 - - [10/Oct/2000:13:55:36 -0700] "\x16\x03" 400 -"#,
                ["", "203.0.113.7", "-", "400", ""],
            ),
            (
                r#"::1 - - [10/Oct/2000:13:55:36 -0700] "-" 408 0 "-" "x" 0.001 "more""#,
                ["", "::1", "-", "408", "x"],
            ),
            (
                r#"a.example:80 203.0.113.7 - ann [10/Oct/2000:13:55:36 -0700] "GET / HTTP/1.0" 200 1"#,
                ["a.example:80", "203.0.113.7", "ann", "200", ""],
            ),
        ] {
            assert_eq!(fields(line, names), expected, "{line}");
        }
    }

    #[test]
    fn an_unreadable_line_names_the_missing_part() {
        for (line, wrong) in [
            ("", "brackets"),
            ("203.0.113.7 - - 10/Oct/2000", "brackets"),
            (" [10/Oct/2000:13:55:36 -0700] \"GET / HTTP/1.1\" 200 1", "address"),
            ("203.0.113.7 - - [10/Oct/2000:13:55:36 -0700] GET /", "quotes"),
            ("203.0.113.7 - - [10/Oct/2000:13:55:36 -0700] \"GET /", "quotes"),
        ] {
            let problem = Clf::parse(line.as_bytes()).err().unwrap_or_default();
            assert!(problem.contains(wrong), "{line}: {problem}");
        }
    }

    #[test]
    fn any_bytes_are_a_line_or_a_problem() {
        let mut random = Random::new(1);
        let mut lines = 0;
        for _ in 0..20_000 {
            let mut line = COMBINED.as_bytes().to_vec();
            for _ in 0..random.below(6) {
                let place = random.below(line.len() as u64) as usize;
                match random.below(9) {
                    0 => line.truncate(place.max(1)),
                    1 => drop(line.splice(place..place, *b"\\x\"[] ")),
                    _ => line[place] = random.next() as u8,
                }
            }
            if let Ok(clf) = Clf::parse(&line) {
                assert!(!clf.field("ip").unwrap().is_empty());
                lines += 1;
            }
        }
        assert!(lines > 5_000 && lines < 20_000, "{lines} lines");
    }
}
