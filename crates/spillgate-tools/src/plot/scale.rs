//! Converts values to positions, and chooses the values that an axis shows.

use jiff::Timestamp;

use super::{Span, TimeLabels};

/// A range of values, and the positions of its ends.
#[derive(Clone, Copy, Debug)]
pub(super) struct Scale {
    values: (u64, u64),
    places: (u64, u64),
}

impl Scale {
    pub(super) fn new(values: (u64, u64), places: (u64, u64)) -> Scale {
        Scale { values: (values.0, values.1.max(values.0 + 1)), places }
    }

    /// Returns the position of a value; a value outside the range is at the nearer end.
    pub(super) fn place(self, value: u64) -> u64 {
        let ((low, high), (from, to)) = (self.values, self.places);
        let part = |length: u64| {
            let into = u128::from(value.clamp(low, high) - low) * u128::from(length);
            (into / u128::from(high - low)) as u64
        };
        if to >= from { from + part(to - from) } else { from - part(from - to) }
    }
}

/// Returns at most six round numbers at equal distances, from 0 to at least a little above the largest value.
pub(super) fn number_ticks(most: u64) -> Vec<u64> {
    let top = most.saturating_add(most / 20).max(1);
    let mut step = 1_u64;
    for factor in [2, 5, 10].into_iter().cycle() {
        if top.div_ceil(step) <= 5 {
            break;
        }
        let decade = 10_u64.saturating_pow(step.ilog10());
        step = decade.saturating_mul(factor).max(step);
        if step > u64::MAX / 20 {
            break;
        }
    }
    (0..=top.div_ceil(step)).map(|number| number * step).collect()
}

/// Returns at most nine round instants of a span, with their labels.
pub(super) fn instant_ticks(span: Span) -> Vec<(u64, String)> {
    let length_us = span.to_us - span.from_us;
    let step_us = STEPS_US.into_iter().find(|step_us| length_us / step_us <= 8);
    let step_us = step_us.unwrap_or_else(|| length_us / 8 + 1);
    // Round instants of the clock, or round times since the start.
    let zero_us = match span.written {
        TimeLabels::SinceStart => span.from_us,
        TimeLabels::ByClock => span.from_us.next_multiple_of(step_us),
    };
    let ticks =
        (0..).map(|number| zero_us + number * step_us).take_while(|at_us| *at_us <= span.to_us);
    let words = |at_us| match span.written {
        TimeLabels::SinceStart => since_start(at_us - span.from_us),
        TimeLabels::ByClock => by_clock(at_us, step_us),
    };
    ticks.map(|at_us| (at_us, words(at_us))).collect()
}

/// Returns `90 s` as `1:30`; days, and fractions of seconds, have their units.
fn since_start(us: u64) -> String {
    let (seconds, part_us) = (us / 1_000_000, us % 1_000_000);
    let (minutes, hours) = (seconds / 60, seconds / 3_600);
    match (hours, part_us) {
        (_, 1..) if part_us.is_multiple_of(1_000) && seconds == 0 => {
            format!("{} ms", part_us / 1_000)
        }
        (_, 1..) => format!("{seconds}.{:03} s", part_us / 1_000),
        (0, 0) => format!("{minutes}:{:02}", seconds % 60),
        (1..48, 0) => format!("{hours}:{:02} h", minutes % 60),
        _ => format!("{} d {} h", hours / 24, hours % 24),
    }
}

fn by_clock(at_us: u64, step_us: u64) -> String {
    let Ok(at) = Timestamp::from_microsecond(i64::try_from(at_us).unwrap_or(i64::MAX)) else {
        return String::new();
    };
    let words = match step_us {
        ..1_000_000 => "%H:%M:%S%.3f",
        1_000_000..60_000_000 => "%H:%M:%S",
        60_000_000..21_600_000_000 => "%H:%M",
        21_600_000_000..86_400_000_000 => "%b %-d, %H:%M",
        _ => "%b %-d",
    };
    at.strftime(words).to_string()
}

const SECOND_US: u64 = 1_000_000;
const HOUR_US: u64 = 3_600 * SECOND_US;
const DAY_US: u64 = 24 * HOUR_US;
const STEPS_US: [u64; 34] = [
    1_000,
    2_000,
    5_000,
    10_000,
    20_000,
    50_000,
    100_000,
    200_000,
    500_000,
    SECOND_US,
    2 * SECOND_US,
    5 * SECOND_US,
    10 * SECOND_US,
    15 * SECOND_US,
    30 * SECOND_US,
    60 * SECOND_US,
    120 * SECOND_US,
    300 * SECOND_US,
    600 * SECOND_US,
    900 * SECOND_US,
    1_800 * SECOND_US,
    HOUR_US,
    2 * HOUR_US,
    3 * HOUR_US,
    6 * HOUR_US,
    12 * HOUR_US,
    DAY_US,
    2 * DAY_US,
    5 * DAY_US,
    10 * DAY_US,
    30 * DAY_US,
    60 * DAY_US,
    120 * DAY_US,
    365 * DAY_US,
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn axis_numbers_are_round_few_and_reach_above_the_largest_value() {
        assert_eq!(number_ticks(0), [0, 1]);
        assert_eq!(number_ticks(3), [0, 1, 2, 3]);
        assert_eq!(number_ticks(100), [0, 50, 100, 150]);
        assert_eq!(number_ticks(200), [0, 50, 100, 150, 200, 250]);
        for most in (0..59).map(|bits| (1_u64 << bits) - 1).chain([7, 99, 12_345]) {
            let ticks = number_ticks(most);
            let top = *ticks.last().unwrap();
            assert!(
                (2..=7).contains(&ticks.len()) && top >= most && top / 3 <= most.max(1),
                "{most}: {ticks:?}"
            );
        }
    }

    #[test]
    fn axis_instants_are_round_and_few() {
        let labels = |from_us, to_us, written| -> Vec<String> {
            let span = Span { from_us, to_us, written };
            instant_ticks(span).into_iter().map(|(_, label)| label).collect()
        };
        assert_eq!(
            labels(5, 180_000_005, TimeLabels::SinceStart),
            ["0:00", "0:30", "1:00", "1:30", "2:00", "2:30", "3:00"]
        );
        let day = 971_211_336_000_000;
        assert_eq!(labels(day, day + 4 * HOUR_US, TimeLabels::ByClock)[..2], ["21:00", "21:30"]);
        assert_eq!(labels(day, day + 20 * DAY_US, TimeLabels::ByClock)[0], "Oct 15");
        for bits in 0..53 {
            let count = labels(0, 1 << bits, TimeLabels::ByClock).len();
            assert!((1..=10).contains(&count), "{bits}: {count}");
        }
    }

    #[test]
    fn a_value_outside_is_at_the_nearer_end() {
        let scale = Scale::new((10, 20), (100, 0));
        assert_eq!([0, 10, 15, 20, 99].map(|value| scale.place(value)), [100, 100, 50, 0, 0]);
    }
}
