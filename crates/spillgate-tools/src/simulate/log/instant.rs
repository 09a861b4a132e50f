//! Reads instants in the formats of logs: `10/Oct/2000:13:55:36 -0700`, RFC 3339, or a number since the epoch.

use jiff::civil::DateTime;
use jiff::tz::Offset;

/// Reads an instant in any of the formats, and returns its microseconds since the epoch. Returns `None` for other
/// text, and for instants before the epoch or later than limits can count.
pub(super) fn instant_us(text: &[u8]) -> Option<u64> {
    let text = text.trim_ascii();
    let us = match text {
        [_, _, b'/', ..] => clf_us(text)?,
        _ if text.iter().all(|byte| byte.is_ascii_digit() || *byte == b'.') => epoch_us(text)?,
        _ => rfc3339_us(text)?,
    };
    u64::try_from(us).ok().filter(|us| *us < LATEST_US)
}

/// Reads `10/Oct/2000:13:55:36 -0700`, the format of Apache and nginx.
fn clf_us(text: &[u8]) -> Option<i64> {
    let [d1, d2, b'/', m1, m2, m3, b'/', year @ .., b':', h1, h2, b':', n1, n2, b':', s1, s2] =
        text.get(..20)?
    else {
        return None;
    };
    let month = MONTHS.iter().position(|month| *month == [*m1, *m2, *m3])? as i64 + 1;
    let date = (number(year)?, month, number(&[*d1, *d2])?);
    let time = (number(&[*h1, *h2])?, number(&[*n1, *n2])?, number(&[*s1, *s2])?);
    let offset = match text.get(20..)? {
        [] => Offset::UTC,
        zone => offset(zone.trim_ascii_start())?,
    };
    Some(seconds(date, time, offset)? * 1_000_000)
}

/// Reads `2026-11-03T12:00:00.25+01:00`. A space may replace the `T`, and a comma the point; without an offset it is
/// UTC.
fn rfc3339_us(text: &[u8]) -> Option<i64> {
    let [y1, y2, y3, y4, b'-', m1, m2, b'-', d1, d2, between, h1, h2, b':', n1, n2, b':', s1, s2] =
        text.get(..19)?
    else {
        return None;
    };
    if !b"Tt _".contains(between) {
        return None;
    }
    let date = (number(&[*y1, *y2, *y3, *y4])?, number(&[*m1, *m2])?, number(&[*d1, *d2])?);
    let time = (number(&[*h1, *h2])?, number(&[*n1, *n2])?, number(&[*s1, *s2])?);
    let mut rest = &text[19..];
    let mut fraction_us = 0;
    if let [b'.' | b',', after @ ..] = rest {
        let digits = after.iter().take_while(|byte| byte.is_ascii_digit()).count();
        fraction_us = fraction(&after[..digits], 6)?;
        rest = &after[digits..];
    }
    let offset = match rest {
        [] | b"Z" | b"z" => Offset::UTC,
        zone => offset(zone.trim_ascii_start())?,
    };
    Some(seconds(date, time, offset)? * 1_000_000 + fraction_us)
}

/// Reads seconds, milliseconds, microseconds or nanoseconds. Their magnitudes differ by three digits each, which
/// distinguishes them from 1973 to 2255.
fn epoch_us(text: &[u8]) -> Option<i64> {
    let (whole, after) = match text.iter().position(|byte| *byte == b'.') {
        Some(point) => (&text[..point], &text[point + 1..]),
        None => (text, &b""[..]),
    };
    if after.contains(&b'.') || (after.is_empty() && whole.len() != text.len()) {
        return None;
    }
    let number = number(whole)?;
    match number {
        ..SECONDS_BELOW => Some(number * 1_000_000 + fraction(after, 6)?),
        SECONDS_BELOW..MILLIS_BELOW => Some(number * 1_000 + fraction(after, 3)?),
        MILLIS_BELOW..MICROS_BELOW => Some(number),
        _ => Some(number / 1_000),
    }
}

/// Returns the first `places` digits behind a point as a number; further digits are dropped.
fn fraction(digits: &[u8], places: usize) -> Option<i64> {
    let kept = &digits[..digits.len().min(places)];
    if !digits.iter().all(u8::is_ascii_digit) {
        return None;
    }
    let value = kept.iter().fold(0, |value, digit| value * 10 + i64::from(digit - b'0'));
    Some((kept.len()..places).fold(value, |value, _| value * 10))
}

/// Reads an offset: `+0100`, `+01:00`, `-07`.
fn offset(zone: &[u8]) -> Option<Offset> {
    let (sign, digits) = match zone {
        [b'+', digits @ ..] => (1, digits),
        [b'-', digits @ ..] => (-1, digits),
        b"Z" | b"z" | b"UTC" | b"GMT" => return Some(Offset::UTC),
        _ => return None,
    };
    let (hours, minutes) = match digits {
        [h1, h2] => (number(&[*h1, *h2])?, 0),
        [h1, h2, m1, m2] | [h1, h2, b':', m1, m2] => (number(&[*h1, *h2])?, number(&[*m1, *m2])?),
        _ => return None,
    };
    let seconds = i32::try_from(sign * (hours * 3_600 + minutes * 60)).ok()?;
    Offset::from_seconds(seconds).ok().filter(|_| minutes < 60)
}

fn number(digits: &[u8]) -> Option<i64> {
    if digits.is_empty() || digits.len() > 18 {
        return None;
    }
    digits.iter().try_fold(0, |value, digit| {
        digit.is_ascii_digit().then(|| value * 10 + i64::from(digit - b'0'))
    })
}

/// Returns the seconds from the epoch to a date and a time of day.
fn seconds(date: (i64, i64, i64), time: (i64, i64, i64), offset: Offset) -> Option<i64> {
    let small = |number: i64| i8::try_from(number).ok();
    let ((year, month, day), (hour, minute, second)) = (date, time);
    // A leap second counts as the second before it.
    let second = if second == 60 { 59 } else { second };
    let (year, month, day) = (i16::try_from(year).ok()?, small(month)?, small(day)?);
    let (hour, minute, second) = (small(hour)?, small(minute)?, small(second)?);
    let civil = DateTime::new(year, month, day, hour, minute, second, 0).ok()?;
    Some(offset.to_timestamp(civil).ok()?.as_second())
}

const MONTHS: [[u8; 3]; 12] = [
    *b"Jan", *b"Feb", *b"Mar", *b"Apr", *b"May", *b"Jun", *b"Jul", *b"Aug", *b"Sep", *b"Oct",
    *b"Nov", *b"Dec",
];
/// Algorithms count below 2^53 µs, some day of the year 2255. The bound is a year before, so that all waits fit.
const LATEST_US: u64 = 8_975_000_000_000_000;
const SECONDS_BELOW: i64 = 100_000_000_000;
const MILLIS_BELOW: i64 = SECONDS_BELOW * 1_000;
const MICROS_BELOW: i64 = MILLIS_BELOW * 1_000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_instant_is_the_same_in_every_format() {
        for text in [
            "10/Oct/2000:13:55:36 -0700",
            "10/Oct/2000:20:55:36 +0000",
            "10/Oct/2000:20:55:36",
            "2000-10-10T20:55:36Z",
            "2000-10-10T22:55:36+02:00",
            "2000-10-10 22:55:36.000+0200",
            "2000-10-10T20:55:36",
            "2000-10-10 20:55:36,000 UTC",
            "971211336",
            "971211336.000",
            "971211336000",
            "971211336000000",
            "971211336000000000",
        ] {
            assert_eq!(instant_us(text.as_bytes()), Some(971_211_336_000_000), "{text}");
        }
        assert_eq!(instant_us(b"1646861401.5241024"), Some(1_646_861_401_524_102));
        assert_eq!(instant_us(b"1646861401524.5"), Some(1_646_861_401_524_500));
        assert_eq!(instant_us(b"2016-12-31T23:59:60Z"), instant_us(b"2016-12-31T23:59:59Z"));
    }

    #[test]
    fn other_text_is_no_instant() {
        for text in [
            "",
            "-",
            ".",
            "1.",
            "1.2.3",
            "-5",
            "yesterday",
            "10/Oct/2000",
            "32/Oct/2000:13:55:36 -0700",
            "29/Feb/2001:00:00:00 +0000",
            "10/Okt/2000:13:55:36 -0700",
            "10/Oct/2000:24:00:00 +0000",
            "1969-12-31T23:59:59Z",
            "2300-01-01T00:00:00Z",
            "2026-13-01T00:00:00Z",
            "2026-11-03T12:00:00+1",
            "2026-11-03T12:00:00+26:00",
            "2026-11-03T12:00:00+01:60",
            "2016-12-31T23:59:61Z",
            "2100-02-29T00:00:00Z",
            "9999999999999999999999",
        ] {
            assert_eq!(instant_us(text.as_bytes()), None, "{text}");
        }
    }
}
