//! Reads the limits of an API from its response, in any of the styles in use. The fields come from
//! other parties, so invalid ones are ignored.

use std::time::Duration;

use http::header::{HeaderMap, HeaderName, RETRY_AFTER};
use http::{HeaderValue, StatusCode};
use jiff::fmt::rfc2822;

/// Returns how long the API asks its clients to wait, if it does.
pub fn requested_wait(status: StatusCode, headers: &HeaderMap, now_s: u64) -> Option<Duration> {
    let denied = matches!(status, StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE);
    let retry_after = text(headers, &RETRY_AFTER).filter(|_| denied);
    let seconds = retry_after
        .and_then(|retry_after| after(retry_after, now_s))
        .or_else(|| until_more(headers, status == StatusCode::TOO_MANY_REQUESTS, now_s));
    seconds.filter(|seconds| *seconds > 0).map(|seconds| Duration::from_secs(seconds.min(DAY_S)))
}

/// Parses `Retry-After`: seconds or a date.
fn after(text: &str, now_s: u64) -> Option<u64> {
    if let Ok(seconds) = text.parse() {
        return Some(seconds);
    }
    let date = rfc2822::parse(text).ok()?.timestamp().as_second();
    Some(u64::try_from(date).ok()?.saturating_sub(now_s))
}

/// Returns the time until more quota is free, by the `RateLimit` fields, if none is left or the
/// call was denied.
fn until_more(headers: &HeaderMap, denied: bool, now_s: u64) -> Option<u64> {
    let lines = headers.get_all("ratelimit").iter().filter_map(|line| line.to_str().ok());
    let of_lines = lines.flat_map(outside_quotes).filter_map(|item| of_item(item, denied)).max();
    of_lines.or_else(|| of_draft_7(headers, denied)).or_else(|| {
        let prefixes = ["ratelimit", "x-ratelimit", "x-rate-limit"];
        let by = |prefix| of_single_fields(headers, prefix, denied, now_s);
        prefixes.into_iter().find_map(by)
    })
}

/// Splits a list at commas outside strings.
fn outside_quotes(line: &str) -> impl Iterator<Item = &str> {
    let (mut quoted, mut escaped) = (false, false);
    line.split(move |character| {
        let ends = character == ',' && !quoted;
        quoted ^= character == '"' && !escaped;
        escaped = character == '\\' && !escaped;
        ends
    })
}

/// Reads `"name";r=0;t=13`.
fn of_item(item: &str, denied: bool) -> Option<u64> {
    let number = |key: &str| {
        let mut parameters = item.rsplit('"').next()?.split(';').map(str::trim);
        parameters.find_map(|parameter| parameter.strip_prefix(key)?.parse::<u64>().ok())
    };
    let remaining = number("r=");
    number("t=").filter(|_| remaining == Some(0) || denied && remaining.is_none())
}

/// Reads `limit=100, remaining=0, reset=13`.
fn of_draft_7(headers: &HeaderMap, denied: bool) -> Option<u64> {
    let line = headers.get("ratelimit")?.to_str().ok()?;
    let number = |key: &str| {
        let mut parts = line.split(',').map(str::trim);
        parts.find_map(|part| part.strip_prefix(key)?.parse::<u64>().ok())
    };
    number("reset=").filter(|_| number("remaining=") == Some(0) || denied)
}

/// Reads `RateLimit-Remaining: 0` and `RateLimit-Reset: 13`. Some APIs give the reset as a Unix
/// time.
fn of_single_fields(headers: &HeaderMap, prefix: &str, denied: bool, now_s: u64) -> Option<u64> {
    let number = |name: &str| {
        let name = HeaderName::try_from(format!("{prefix}-{name}")).ok()?;
        text(headers, &name)?.parse::<u64>().ok()
    };
    let remaining = number("remaining");
    let reset = number("reset").filter(|_| remaining == Some(0) || denied)?;
    Some(if reset > DECADES_S { reset.saturating_sub(now_s) } else { reset })
}

fn text<'h>(headers: &'h HeaderMap, name: &HeaderName) -> Option<&'h str> {
    headers.get(name).map(HeaderValue::to_str)?.ok().map(str::trim)
}

/// A larger number is a Unix time, since no wait is that long.
const DECADES_S: u64 = 500_000_000;
/// The longest wait. After it the API is called again, even if it asked for more.
const DAY_S: u64 = 86_400;

#[cfg(test)]
mod tests {
    use super::*;

    /// Sun, 06 Nov 1994 08:49:37 GMT
    const NOW_S: u64 = 784_111_777;

    fn read(status: u16, fields: &[(&str, &str)]) -> Option<u64> {
        let mut headers = HeaderMap::new();
        for (name, value) in fields {
            headers.append(
                HeaderName::try_from(*name).unwrap(),
                HeaderValue::try_from(*value).unwrap(),
            );
        }
        let wait = requested_wait(StatusCode::from_u16(status).unwrap(), &headers, NOW_S);
        wait.map(|wait| wait.as_secs())
    }

    #[test]
    fn reads_the_wait_of_a_denial() {
        for status in [429, 503] {
            assert_eq!(read(status, &[("retry-after", "13")]), Some(13));
            let date = "Sun, 06 Nov 1994 08:49:50 GMT";
            assert_eq!(read(status, &[("retry-after", date)]), Some(13));
            let past = "Sun, 06 Nov 1994 08:49:00 GMT";
            assert_eq!(read(status, &[("retry-after", past)]), None);
        }
        assert_eq!(read(200, &[("retry-after", "13")]), None, "it was not denied");
        assert_eq!(read(301, &[("retry-after", "13")]), None);
    }

    #[test]
    fn reads_when_quota_is_free_from_the_last_admitted_call() {
        let cases: [&[(&str, &str)]; 6] = [
            &[("ratelimit", "\"a\";r=0;t=13")],
            &[("ratelimit", "\"a, \\\"b\";r=4;t=1, \"c\";r=0;t=13"), ("ratelimit", "d;r=0;t=2")],
            &[("ratelimit", "limit=100, remaining=0, reset=13")],
            &[("ratelimit-remaining", "0"), ("ratelimit-reset", "13")],
            &[("x-ratelimit-remaining", "0"), ("x-ratelimit-reset", "784111790")],
            &[("x-rate-limit-remaining", "0"), ("x-rate-limit-reset", "13")],
        ];
        for fields in cases {
            assert_eq!(read(200, fields), Some(13), "{fields:?}");
        }
        assert_eq!(read(200, &[("ratelimit", "\"a\";r=1;t=13")]), None);
        assert_eq!(read(200, &[("x-ratelimit-remaining", "1"), ("x-ratelimit-reset", "9")]), None);
    }

    #[test]
    fn ignores_invalid_fields() {
        for text in ["", "soon", "-5", "1e9", "99999999999999999999", ";r=0", "\"", "\";r=0;t="] {
            assert_eq!(read(429, &[("retry-after", text)]), None, "{text}");
            assert_eq!(read(429, &[("ratelimit", text)]), None, "{text}");
            assert_eq!(read(429, &[("ratelimit-reset", text)]), None, "{text}");
        }
        assert_eq!(read(429, &[("retry-after", "18446744073709551615")]), Some(86_400));
        let valid = ("ratelimit", "\"a\";r=0;t=13");
        assert_eq!(read(429, &[("retry-after", "1.5"), valid]), Some(13));
        assert_eq!(read(429, &[("retry-after", "0"), valid]), None, "it is valid");
    }
}
