//! Reads and writes lengths of time: `90s`, `1 m 30 s`.

use jiff::SignedDuration;

/// Reads a length of time such as `90s`, `5m`, `1h30m` or `250ms`, and returns its microseconds.
pub(crate) fn parse(text: &str) -> Result<u64, String> {
    let length = text.parse::<SignedDuration>().ok();
    let us = length.and_then(|length| u64::try_from(length.as_micros()).ok());
    us.filter(|us| *us <= LONGEST_US).ok_or_else(|| {
        format!(
            "{text:?} is not a valid length of time; write for example 500ms, 90s, 10m or 1h30m"
        )
    })
}

/// Returns the two largest units that are not 0: `1 d 6 h`, `250 ms`, `0 s`.
pub(crate) fn shown(us: u64) -> String {
    let mut rest = us;
    let mut parts = Vec::new();
    for (unit, unit_us) in UNITS {
        if rest >= unit_us && parts.len() < 2 {
            parts.push(format!("{} {unit}", rest / unit_us));
            rest %= unit_us;
        } else if !parts.is_empty() {
            break;
        }
    }
    if parts.is_empty() { "0 s".to_owned() } else { parts.join(" ") }
}

const UNITS: [(&str, u64); 6] = [
    ("d", 86_400_000_000),
    ("h", 3_600_000_000),
    ("m", 60_000_000),
    ("s", 1_000_000),
    ("ms", 1_000),
    ("us", 1),
];
/// Ten years, longer than the window of any limit.
const LONGEST_US: u64 = 3_660 * 86_400_000_000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_length_is_read_and_shown() {
        for (text, us, back) in [
            ("500ms", 500_000, "500 ms"),
            ("90s", 90_000_000, "1 m 30 s"),
            ("1h30m", 5_400_000_000, "1 h 30 m"),
            ("48h", 172_800_000_000, "2 d"),
            ("0s", 0, "0 s"),
            ("24h1s", 86_401_000_000, "1 d"),
        ] {
            assert_eq!(parse(text), Ok(us), "{text}");
            assert_eq!(shown(us), back, "{text}");
        }
        for text in ["", "5", "s", "-5s", "5y", "99999999999h", "18446744073709551615s"] {
            assert!(parse(text).is_err(), "{text}");
        }
    }
}
