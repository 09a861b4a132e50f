//! Reads instants in the formats of logs: `10/Oct/2000:13:55:36 -0700`, RFC 3339, or a number since 1970.

use jiff::civil::DateTime;
use jiff::tz::TimeZone;
use jiff::{Timestamp, Zoned};

/// Reads an instant and returns its microseconds since 1970. Returns `None` for other text, and for instants before 1970
/// or later than limits can count.
pub fn instant_us(text: &[u8]) -> Option<u64> {
    let text = std::str::from_utf8(text).ok()?.trim();
    let at = match text.as_bytes() {
        [_, _, b'/', ..] => Timestamp::strptime("%d/%b/%Y:%H:%M:%S %z", text).ok()?,
        _ if text.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.') => since_1970(text)?,
        _ => rfc3339(text)?,
    };
    u64::try_from(at.as_microsecond()).ok().filter(|us| *us < LATEST_US)
}

/// Reads RFC 3339. A space may replace the `T`, and a comma the point; an instant without an offset is UTC.
fn rfc3339(text: &str) -> Option<Timestamp> {
    let text = text.replacen(',', ".", 1);
    let as_utc = || text.parse::<DateTime>().ok()?.to_zoned(TimeZone::UTC).ok();
    text.parse().ok().or_else(|| as_utc().as_ref().map(Zoned::timestamp))
}

/// Reads seconds, milliseconds, microseconds or nanoseconds, with or without a fraction. Their magnitudes differ by three
/// digits each, which distinguishes them from 1973 to 2255.
fn since_1970(text: &str) -> Option<Timestamp> {
    let (whole, fraction) = text.split_once('.').unwrap_or((text, "0"));
    let whole: i128 = whole.parse().ok()?;
    let unit_ns = match whole {
        ..SECONDS_BELOW => 1_000_000_000,
        SECONDS_BELOW..MILLIS_BELOW => 1_000_000,
        MILLIS_BELOW..MICROS_BELOW => 1_000,
        _ => 1,
    };
    let kept = &fraction[..fraction.len().min(9)];
    let fraction_ns = kept.parse::<i128>().ok()? * unit_ns / 10_i128.pow(kept.len() as u32);
    let is_number = fraction.bytes().all(|byte| byte.is_ascii_digit());
    Timestamp::from_nanosecond(whole * unit_ns + fraction_ns).ok().filter(|_| is_number)
}

/// Algorithms count below 2^53 µs, some day of the year 2255. The bound is a year before, so that all waits fit.
const LATEST_US: u64 = 8_975_000_000_000_000;
const SECONDS_BELOW: i128 = 100_000_000_000;
const MILLIS_BELOW: i128 = SECONDS_BELOW * 1_000;
const MICROS_BELOW: i128 = MILLIS_BELOW * 1_000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_instant_is_the_same_in_every_format() {
        for text in [
            "10/Oct/2000:13:55:36 -0700",
            "10/Oct/2000:20:55:36 +0000",
            "2000-10-10T20:55:36Z",
            "2000-10-10T22:55:36+02:00",
            "2000-10-10 22:55:36.000+0200",
            "2000-10-10T20:55:36",
            "2000-10-10 20:55:36,000",
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
            "10/Oct/2000:20:55:36",
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
            "99999999999999999999999999999999999999",
            "1.0000000001.2",
        ] {
            assert_eq!(instant_us(text.as_bytes()), None, "{text}");
        }
    }
}
