//! Reads and writes lengths of time: `90s`, `1 m 30 s`.

/// Reads a length of time such as `90s`, `5m`, `1h30m`, `2d` or `250ms`, and returns its microseconds.
pub(crate) fn parse(text: &str) -> Result<u64, String> {
    let wrong =
        || format!("{text:?} is no length of time; write for example 500ms, 90s, 10m, 1h30m or 2d");
    let mut rest = text;
    let mut us = 0_u64;
    while !rest.is_empty() {
        let digits = rest.bytes().take_while(u8::is_ascii_digit).count();
        let amount: u64 = rest[..digits].parse().map_err(|_| wrong())?;
        rest = &rest[digits..];
        let letters = rest.bytes().take_while(u8::is_ascii_alphabetic).count();
        let unit = UNITS.iter().find(|(unit, _)| *unit == &rest[..letters]).ok_or_else(wrong)?;
        us = amount.checked_mul(unit.1).and_then(|more| us.checked_add(more)).ok_or_else(wrong)?;
        rest = &rest[letters..];
    }
    if text.is_empty() || us > LONGEST_US { Err(wrong()) } else { Ok(us) }
}

/// Reads a length of time above zero.
pub(crate) fn positive(text: &str) -> Result<u64, String> {
    parse(text).and_then(|us| match us {
        0 => Err("write a time greater than 0, for example 10s".to_owned()),
        us => Ok(us),
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
            ("2d", 172_800_000_000, "2 d"),
            ("0s", 0, "0 s"),
            ("1d1s", 86_401_000_000, "1 d"),
        ] {
            assert_eq!(parse(text), Ok(us), "{text}");
            assert_eq!(shown(us), back, "{text}");
        }
        for text in
            ["", "5", "s", "5 s", "-5s", "1.5s", "5y", "99999999999d", "18446744073709551615d"]
        {
            assert!(parse(text).is_err(), "{text}");
        }
    }
}
