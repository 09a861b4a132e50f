//! Checks any limit.
//!
//! An input is the fields of a limit, each on a line: quota, algorithm, burst, name, unit, time zone, hold. An empty
//! line leaves its field out.

use std::time::Duration;

use spillgate::{Limit, LimitSpec};

/// Panics if a limit that is built breaks a bound, or a quota does not read back.
pub fn holds(input: &[u8]) {
    let Ok(text) = std::str::from_utf8(input) else { return };
    let mut lines = text.split('\n');
    let mut line = || lines.next().filter(|line| !line.is_empty()).map(str::to_owned);
    let spec = LimitSpec {
        quota: line().unwrap_or_default(),
        algorithm: line(),
        burst: line().and_then(|burst| burst.parse().ok()),
        name: line(),
        unit: line(),
        time_zone: line(),
        max_hold: line(),
    };
    if let Ok(limit) = Limit::parse(&spec.quota) {
        let written = limit.to_string();
        let again = Limit::parse(&written).unwrap_or_else(|error| panic!("{written}: {error}"));
        assert_eq!(again, limit, "{written}");
    }
    match spec.build() {
        Ok(limit) => is_bounded(&limit),
        Err(error) => {
            assert!(FIELDS.contains(&error.field()), "{error}");
            let written = 12 * text.len();
            assert!((1..=1_000 + written).contains(&error.message().len()), "{error}");
        }
    }
}

fn is_bounded(limit: &Limit) {
    assert!(limit.capacity().is_none_or(|capacity| capacity <= 1_000_000_000), "{limit:?}");
    assert!(limit.refill().is_none_or(|refill| refill <= REFILL_MAX), "{limit:?}");
    assert!(limit.name().is_none_or(|name| (1..=64).contains(&name.len())), "{limit:?}");
    assert!((1..=64).contains(&limit.unit().len()), "{limit:?}");
}

const FIELDS: [&str; 7] = ["quota", "algorithm", "burst", "name", "unit", "time_zone", "max_hold"];
/// The longest time that a script can count: 2^53 µs.
const REFILL_MAX: Duration = Duration::from_micros(1 << 53);
