//! Parses quotas: `100/second`, `5/30s`, `1_000_000/month`, `20`, `unlimited`, `block`.

use std::borrow::Cow;
use std::fmt;
use std::time::Duration;

use super::period::{DAY_MS, NAMED, Period, SHORT};
use super::{COUNT_MAX, LimitError};
use crate::calendar::CalendarUnit;

/// A parsed quota. Its count is not yet checked against an algorithm.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Quota {
    /// Written as `unlimited`.
    Unlimited,
    /// Written as `block`.
    Block,
    /// A count in a period, or of permits, which have none.
    Counted {
        /// The count.
        count: u64,
        /// The period.
        length: Option<Length>,
    },
}

impl Quota {
    /// Parses a quota as users write it.
    pub fn parse(text: &str) -> Result<Quota, LimitError> {
        match text {
            "unlimited" => return Ok(Quota::Unlimited),
            "block" => return Ok(Quota::Block),
            // A word such as "none" or "off" may mean either: the message must not prefer one.
            word if !word.contains(|c: char| c == '/' || c.is_ascii_digit()) => {
                let message = format!(
                    "{word:?} is not a quota; write \"unlimited\" for no limit, \"block\" to allow nothing, or for example \"5/minute\""
                );
                return Err(LimitError::new("quota", message));
            }
            _ => {}
        }
        let counted = |digits: &str| number(digits).map_err(|error| no_quota(text, error));
        let Some((count, length)) = text.split_once('/') else {
            return Ok(Quota::Counted { count: counted(text)?, length: None });
        };
        let count = counted(count)?;
        let length = Length::parse("quota", length).map_err(|error| {
            let message = format!("{text:?} is not a quota: {}", error.message());
            LimitError::new("quota", message)
        })?;
        Ok(Quota::Counted { count, length: Some(length) })
    }
}

/// A length of time from 1 ms to 366 days, and its calendar unit if it was written as one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Length {
    ms: u64,
    calendar: Option<CalendarUnit>,
}

impl Length {
    /// Checks a length of time. An error names the field.
    pub fn new(field: &'static str, duration: Duration) -> Result<Length, LimitError> {
        let whole = duration.subsec_nanos().is_multiple_of(1_000_000);
        let ms = u64::try_from(duration.as_millis()).unwrap_or(u64::MAX);
        if !whole {
            return Err(LimitError::new(
                field,
                format!(
                    "{duration:?} is not a whole number of milliseconds; the nearest that fits is {}ms",
                    ms.max(1)
                ),
            ));
        }
        Length::checked(field, ms)
    }

    /// Parses a length of time as users write it. An error names the field.
    pub fn parse(field: &'static str, text: &str) -> Result<Length, LimitError> {
        let digits = text.bytes().take_while(|b| b.is_ascii_digit() || *b == b'_').count();
        let (amount, unit) = text.split_at(digits);
        if let Some((ms, calendar)) = spelled(unit).filter(|_| amount.is_empty()) {
            return Ok(Length { ms, calendar });
        }
        let Some(unit_ms) = short(unit) else {
            return Err(no_length(field, text));
        };
        let amount = match number(amount) {
            _ if amount.is_empty() => 1,
            Ok(amount) => amount,
            // Above the longest period in every unit.
            Err(NumberError::TooLarge) => u64::MAX,
            Err(NumberError::Malformed) => return Err(no_length(field, text)),
        };
        Length::checked(field, amount.saturating_mul(unit_ms))
    }

    /// Returns it in µs.
    pub fn us(self) -> u64 {
        self.ms * 1_000
    }

    /// Returns the unit of the calendar that it was written as, such as `month`.
    pub fn calendar(self) -> Option<CalendarUnit> {
        self.calendar
    }

    fn checked(field: &'static str, ms: u64) -> Result<Length, LimitError> {
        if (1..=MS_MAX).contains(&ms) {
            return Ok(Length { ms, calendar: None });
        }
        let nearest = if ms == 0 { "1ms" } else { "366d" };
        Err(LimitError::new(
            field,
            format!("a period lasts from 1ms to 366d; the nearest that fits is {nearest}"),
        ))
    }
}

impl fmt::Display for Length {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Period(self.us()).fmt(f)
    }
}

fn no_quota(text: &str, error: NumberError) -> LimitError {
    let message = match error {
        NumberError::Malformed => format!(
            "{text:?} is not a quota; write a whole number, a slash and a period, without spaces, such as \"5/minute\" or \"1_000/30s\""
        ),
        NumberError::TooLarge => {
            format!("{text:?} has too large a number; the largest count is {COUNT_MAX}")
        }
    };
    LimitError::new("quota", message)
}

fn no_length(field: &'static str, text: &str) -> LimitError {
    let message = match similar(text) {
        Some(unit) => format!("{text:?} is not a length of time; did you mean {unit:?}?"),
        None => format!(
            "{text:?} is not a length of time; write second, minute, hour, day, week, month or year, or a number with ms, s, m, h or d"
        ),
    };
    LimitError::new(field, message)
}

/// Returns the unit that a plural, an abbreviation or capital letters most likely mean.
fn similar(unit: &str) -> Option<&'static str> {
    let unit = unit.to_ascii_lowercase();
    Some(match unit.strip_suffix('s').unwrap_or(&unit) {
        "second" | "sec" => "second",
        "minute" | "min" => "minute",
        "hour" | "hr" => "hour",
        "day" => "day",
        "week" | "wk" => "week",
        "month" | "mo" => "month",
        "year" | "yr" => "year",
        _ => return None,
    })
}

/// The reason why a text is no number.
enum NumberError {
    Malformed,
    TooLarge,
}

/// Parses digits, with underscores between groups of them.
fn number(digits: &str) -> Result<u64, NumberError> {
    let grouped = |s: &str| !s.starts_with('_') && !s.ends_with('_') && !s.contains("__");
    if digits.is_empty()
        || !digits.bytes().all(|b| b.is_ascii_digit() || b == b'_')
        || !grouped(digits)
    {
        return Err(NumberError::Malformed);
    }
    let ungrouped = match digits.contains('_') {
        true => Cow::Owned(digits.replace('_', "")),
        false => Cow::Borrowed(digits),
    };
    ungrouped.parse().map_err(|_| NumberError::TooLarge)
}

fn spelled(unit: &str) -> Option<(u64, Option<CalendarUnit>)> {
    let (ms, _) = NAMED.into_iter().find(|(_, name)| *name == unit)?;
    let calendar = match unit {
        "day" => Some(CalendarUnit::Day),
        "week" => Some(CalendarUnit::Week),
        "month" => Some(CalendarUnit::Month),
        "year" => Some(CalendarUnit::Year),
        _ => None,
    };
    Some((ms, calendar))
}

fn short(unit: &str) -> Option<u64> {
    SHORT.into_iter().find(|(_, name)| *name == unit).map(|(ms, _)| ms)
}

/// The longest period: a leap year.
const MS_MAX: u64 = 366 * DAY_MS;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_every_unit() {
        for (text, ms) in [
            ("second", 1_000),
            ("minute", 60_000),
            ("week", 604_800_000),
            ("month", 2_592_000_000),
            ("year", 31_536_000_000),
            ("30s", 30_000),
            ("5m", 300_000),
            ("1ms", 1),
            ("366d", 31_622_400_000),
            ("d", 86_400_000),
        ] {
            assert_eq!(Length::parse("quota", text).unwrap().ms, ms, "{text}");
        }
    }

    #[test]
    fn a_quota_is_shown_with_the_name_of_its_period() {
        use crate::LimitSpec;
        for (written, shown) in [
            ("5/minute", "5/minute"),
            ("5/60s", "5/minute"),
            ("5/90s", "5/90s"),
            ("100/day", "100/day"),
            ("100/month", "100/month"),
            ("1/year", "1/year"),
        ] {
            let limit = LimitSpec::new(written).build().unwrap();
            assert_eq!(limit.to_string(), shown);
            assert_eq!(LimitSpec::new(shown).build().unwrap(), limit, "{written}");
        }
        // Aligned to the epoch, not to the calendar.
        for written in ["5/1d", "5/7d", "5/30d"] {
            let limit = LimitSpec::new(written).algorithm("fixed-window").build().unwrap();
            assert_eq!(limit.to_string(), written);
        }
    }

    #[test]
    #[should_panic(expected = "max_hold: 1.5ms is not a whole number of milliseconds")]
    fn an_invalid_max_hold_is_reported_by_its_name() {
        let _ = crate::Limit::concurrent(20, Duration::from_micros(1_500));
    }

    #[test]
    fn rejects_invalid_quotas_with_a_remedy() {
        for text in [
            "",
            "/",
            "5/",
            "/second",
            "5/0s",
            "5/367d",
            "-1/second",
            "1.5/second",
            "5/seconds",
            "5 / second",
            "5/second/second",
            "99999999999999999999/second",
            "5/99999999999999999999d",
            "_5/second",
            "5_/second",
            "5__0/second",
            "∞/second",
            "5/30",
            "0x5/second",
            "1e3/second",
        ] {
            let error = Quota::parse(text).expect_err(text);
            assert!(error.message().len() > 20, "{text}: {error}");
        }
    }

    #[test]
    fn an_error_says_what_to_write_instead() {
        for (text, message) in [
            (
                "none",
                r#""none" is not a quota; write "unlimited" for no limit, "block" to allow nothing, or for example "5/minute""#,
            ),
            ("unlimted", r#""unlimted" is not a quota; write "unlimited" for no limit"#),
            ("BLOCK", r#""BLOCK" is not a quota; write "unlimited" for no limit"#),
            ("", r#""" is not a quota; write "unlimited" for no limit"#),
            (
                "5 per minute",
                r#""5 per minute" is not a quota; write a whole number, a slash and a period, without spaces, such as "5/minute" or "1_000/30s""#,
            ),
            ("5 / minute", r#""5 / minute" is not a quota; write a whole number, a slash"#),
            ("5r/s", r#""5r/s" is not a quota; write a whole number, a slash"#),
            ("1,000/s", r#""1,000/s" is not a quota; write a whole number, a slash"#),
            (
                "99999999999999999999/s",
                r#""99999999999999999999/s" has too large a number; the largest count is 1000000000"#,
            ),
            (
                "5/minutes",
                r#""5/minutes" is not a quota: "minutes" is not a length of time; did you mean "minute"?"#,
            ),
            (
                "5/Minute",
                r#""5/Minute" is not a quota: "Minute" is not a length of time; did you mean "minute"?"#,
            ),
            (
                "5/min",
                r#""5/min" is not a quota: "min" is not a length of time; did you mean "minute"?"#,
            ),
            (
                "5/hrs",
                r#""5/hrs" is not a quota: "hrs" is not a length of time; did you mean "hour"?"#,
            ),
            (
                "5/fortnight",
                r#""5/fortnight" is not a quota: "fortnight" is not a length of time; write second, minute"#,
            ),
            (
                "5/_3s",
                r#""5/_3s" is not a quota: "_3s" is not a length of time; write second, minute"#,
            ),
            ("5/0s", r#""5/0s" is not a quota: a period lasts from 1ms to 366d; the nearest"#),
        ] {
            let error = Quota::parse(text).expect_err(text);
            assert!(error.message().starts_with(message), "{text}: {error}");
        }
    }

    #[test]
    fn underscores_group_digits() {
        assert_eq!(
            Quota::parse("1_000_000/month").unwrap(),
            Quota::Counted { count: 1_000_000, length: Length::parse("quota", "month").ok() }
        );
    }
}
