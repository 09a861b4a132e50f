//! Calendar windows: days, Monday weeks, months and years of a time zone.
//!
//! A window begins with the first instant of its first day on the zone's wall clocks: midnight, or
//! where a change of clocks skips midnight, the instant of that change. The time-zone data is
//! bundled, so that every process agrees whatever its machine holds.

use std::fmt;
use std::sync::Arc;

use arc_swap::ArcSwap;
use jiff::civil::Date;
use jiff::tz::{TimeZone, TimeZoneDatabase};
use jiff::{Span, Timestamp};

/// How long a calendar window lasts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CalendarUnit {
    /// From midnight to midnight.
    Day,
    /// From Monday to Monday.
    Week,
    /// From the first of a month to the first of the next.
    Month,
    /// From one January 1 to the next.
    Year,
}

impl CalendarUnit {
    /// All of them, by number.
    #[cfg(feature = "redis")]
    pub(crate) const ALL: [CalendarUnit; 4] =
        [CalendarUnit::Day, CalendarUnit::Week, CalendarUnit::Month, CalendarUnit::Year];
}

/// The windows of one unit in one time zone.
#[derive(Clone, Debug)]
pub struct Calendar {
    unit: CalendarUnit,
    zone: TimeZone,
    /// The furthest that the zone's clocks are put back at once: what a window gains by it.
    put_back_us: u64,
    /// What `around` found last: all subjects share their windows, and time stays in one for long.
    found: Arc<ArcSwap<[u64; 4]>>,
}

impl Calendar {
    /// The windows of `unit` in the zone of that IANA name; nothing if there is no such zone.
    pub fn new(unit: CalendarUnit, zone_name: &str) -> Option<Calendar> {
        let zone =
            TimeZoneDatabase::bundled().get(zone_name).ok().filter(|zone| !zone.is_unknown())?;
        Some(Calendar { unit, put_back_us: put_back_us(&zone), zone, found: Arc::default() })
    }

    /// The windows around an instant, in µs since the epoch, where time begins: the start of the
    /// window before, the start of the one that contains it, its end, and the end of the next.
    ///
    /// Instants after the year 9990 have the windows of its first.
    pub fn around(&self, now_us: u64) -> [u64; 4] {
        let found = **self.found.load();
        if (found[1]..found[2]).contains(&now_us) {
            return found;
        }
        let around = self.find(now_us);
        self.found.store(Arc::new(around));
        around
    }

    /// What it was made of.
    #[cfg(feature = "redis")]
    pub(crate) fn parts(&self) -> (CalendarUnit, &str) {
        (self.unit, self.zone.iana_name().unwrap_or("UTC"))
    }

    /// The longest that a window can last.
    pub fn longest_us(&self) -> u64 {
        let days = match self.unit {
            CalendarUnit::Day => 1,
            CalendarUnit::Week => 7,
            CalendarUnit::Month => 31,
            CalendarUnit::Year => 366,
        };
        days * DAY_US + self.put_back_us
    }

    fn find(&self, now_us: u64) -> [u64; 4] {
        let now_us = i64::try_from(now_us).unwrap_or(i64::MAX).min(LAST_US);
        let now = Timestamp::from_microsecond(now_us).unwrap_or_default();
        let first = self.unit.first_day(self.zone.to_datetime(now).date());
        // One more to each side: the date is a window behind where a clock was put back over
        // midnight, and a day that a zone left out when it moved over the date line is none.
        let mut starts: Vec<i64> = (-2..=3)
            .filter_map(|n| first.checked_add(self.unit.times(n)).ok())
            .map(|day| self.begins_us(day))
            .collect();
        starts.dedup();
        let current = starts.partition_point(|start| *start <= now_us).saturating_sub(1);
        [-1, 0, 1, 2].map(|n| {
            let start = current.checked_add_signed(n).and_then(|place| starts.get(place));
            start.map_or(0, |start| u64::try_from(*start).unwrap_or(0))
        })
    }

    fn begins_us(&self, day: Date) -> i64 {
        // Of two midnights the first; where it is skipped, the end of the gap. (Since the epoch no
        // zone's gap began before a midnight that it skipped: then this would be late.)
        let midnight = self.zone.to_ambiguous_timestamp(day.at(0, 0, 0, 0)).compatible();
        midnight.unwrap_or(Timestamp::MAX).as_microsecond()
    }
}

impl CalendarUnit {
    fn first_day(self, day: Date) -> Date {
        match self {
            CalendarUnit::Day => day,
            CalendarUnit::Week => {
                let days = day.weekday().to_monday_zero_offset();
                day.saturating_sub(Span::new().days(days))
            }
            CalendarUnit::Month => day.first_of_month(),
            CalendarUnit::Year => day.first_of_year(),
        }
    }

    fn times(self, n: i32) -> Span {
        match self {
            CalendarUnit::Day => Span::new().days(n),
            CalendarUnit::Week => Span::new().weeks(n),
            CalendarUnit::Month => Span::new().months(n),
            CalendarUnit::Year => Span::new().years(n),
        }
    }
}

impl PartialEq for Calendar {
    fn eq(&self, other: &Calendar) -> bool {
        self.unit == other.unit && self.zone == other.zone
    }
}

impl Eq for Calendar {}

impl fmt::Display for Calendar {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.unit, self.zone.iana_name().unwrap_or("UTC"))
    }
}

impl fmt::Display for CalendarUnit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            CalendarUnit::Day => "day",
            CalendarUnit::Week => "week",
            CalendarUnit::Month => "month",
            CalendarUnit::Year => "year",
        })
    }
}

fn put_back_us(zone: &TimeZone) -> u64 {
    let mut offset = zone.to_offset(Timestamp::UNIX_EPOCH);
    let mut most_s = 0;
    for change in zone.following(Timestamp::UNIX_EPOCH) {
        if change.timestamp().as_second() > RULED_S {
            break;
        }
        most_s = most_s.max(offset.seconds() - change.offset().seconds());
        offset = change.offset();
    }
    u64::from(most_s.unsigned_abs()) * 1_000_000
}

const DAY_US: u64 = 86_400_000_000;
/// From 2040 on every zone follows a rule of which the years before hold a whole round.
const RULED_S: i64 = 2_208_988_800;
/// The first instant of 9990: from here on dates of later windows might not exist.
const LAST_US: i64 = 253_086_768_000_000_000;

#[cfg(test)]
mod tests {
    use super::*;

    use CalendarUnit::{Day, Month, Week, Year};

    /// Claims the four boundaries around every instant of the window between the middle two.
    #[track_caller]
    fn check(unit: CalendarUnit, zone: &str, boundaries: &str) {
        let calendar = Calendar::new(unit, zone).unwrap();
        let expected: Vec<u64> = boundaries.split(' ').map(us).collect();
        let (start, end) = (expected[1], expected[2]);
        for now in [start, start + 1, (start + end) / 2, end - 1] {
            assert_eq!(calendar.around(now)[..], expected, "{calendar} at {now}");
        }
        assert_eq!(calendar.around(start - 1)[1..], expected[..3], "{calendar} before its start");
        assert_eq!(calendar.around(end)[..3], expected[1..], "{calendar} at its end");
    }

    fn us(instant: &str) -> u64 {
        instant.parse::<Timestamp>().unwrap().as_microsecond().try_into().unwrap()
    }

    fn date(calendar: &Calendar, now: u64) -> Date {
        let now = Timestamp::from_microsecond(now.try_into().unwrap()).unwrap();
        calendar.zone.to_datetime(now).date()
    }

    #[test]
    fn months_end_when_they_end() {
        check(Month, "UTC", "2024-01-01T00Z 2024-02-01T00Z 2024-03-01T00Z 2024-04-01T00Z");
        check(Month, "UTC", "2025-12-01T00Z 2026-01-01T00Z 2026-02-01T00Z 2026-03-01T00Z");
        check(Month, "UTC", "2100-01-01T00Z 2100-02-01T00Z 2100-03-01T00Z 2100-04-01T00Z");
        check(
            Month,
            "Asia/Kolkata",
            "2026-09-30T18:30Z 2026-10-31T18:30Z 2026-11-30T18:30Z 2026-12-31T18:30Z",
        );
    }

    #[test]
    fn leap_years_are_a_day_longer() {
        check(Year, "UTC", "2023-01-01T00Z 2024-01-01T00Z 2025-01-01T00Z 2026-01-01T00Z");
        let length = |now: &str| {
            let [_, start, end, _] = Calendar::new(Year, "UTC").unwrap().around(us(now));
            (end - start) / DAY_US
        };
        for (now, days) in
            [("2000-06-01T00Z", 366), ("2023-06-01T00Z", 365), ("2100-06-01T00Z", 365)]
        {
            assert_eq!(length(now), days, "{now}");
        }
    }

    #[test]
    fn weeks_begin_on_monday() {
        check(Week, "UTC", "2025-12-22T00Z 2025-12-29T00Z 2026-01-05T00Z 2026-01-12T00Z");
        check(
            Week,
            "America/New_York",
            "2026-02-23T05Z 2026-03-02T05Z 2026-03-09T04Z 2026-03-16T04Z",
        );
    }

    #[test]
    fn days_are_an_hour_shorter_or_longer_when_clocks_change() {
        check(Day, "Europe/Berlin", "2026-03-27T23Z 2026-03-28T23Z 2026-03-29T22Z 2026-03-30T22Z");
        check(Day, "Europe/Berlin", "2026-10-23T22Z 2026-10-24T22Z 2026-10-25T23Z 2026-10-26T23Z");
        check(
            Day,
            "America/New_York",
            "2026-03-07T05Z 2026-03-08T05Z 2026-03-09T04Z 2026-03-10T04Z",
        );
        check(
            Day,
            "America/New_York",
            "2026-10-31T04Z 2026-11-01T04Z 2026-11-02T05Z 2026-11-03T05Z",
        );
        check(
            Month,
            "Europe/Berlin",
            "2026-01-31T23Z 2026-02-28T23Z 2026-03-31T22Z 2026-04-30T22Z",
        );
        check(Year, "Europe/Berlin", "2024-12-31T23Z 2025-12-31T23Z 2026-12-31T23Z 2027-12-31T23Z");
    }

    #[test]
    fn a_day_without_midnight_begins_when_the_clock_is_put_forward() {
        check(
            Day,
            "America/Sao_Paulo",
            "2018-11-03T03Z 2018-11-04T03Z 2018-11-05T02Z 2018-11-06T02Z",
        );
        check(Day, "Africa/Cairo", "2026-04-22T22Z 2026-04-23T22Z 2026-04-24T21Z 2026-04-25T21Z");
        check(Day, "Asia/Beirut", "2026-03-27T22Z 2026-03-28T22Z 2026-03-29T21Z 2026-03-30T21Z");
    }

    #[test]
    fn a_day_that_comes_twice_begins_once() {
        // At 00:01 the clock went back to 23:01 of the day before.
        check(
            Day,
            "America/St_Johns",
            "2010-11-06T02:30Z 2010-11-07T02:30Z 2010-11-08T03:30Z 2010-11-09T03:30Z",
        );
    }

    #[test]
    fn a_day_that_a_zone_left_out_is_no_window() {
        check(Day, "Pacific/Apia", "2011-12-28T10Z 2011-12-29T10Z 2011-12-30T10Z 2011-12-31T10Z");
        check(Day, "Pacific/Apia", "2011-12-29T10Z 2011-12-30T10Z 2011-12-31T10Z 2012-01-01T10Z");
    }

    #[test]
    fn windows_of_every_zone_meet_around_every_change_of_its_clocks() {
        let database = TimeZoneDatabase::bundled();
        for name in database.available() {
            for unit in [Day, Week, Month, Year] {
                let calendar = Calendar::new(unit, name.as_str()).unwrap();
                let changes = calendar.zone.following(Timestamp::UNIX_EPOCH);
                for change in changes.take_while(|change| change.timestamp().as_second() < RULED_S)
                {
                    let change_us = change.timestamp().as_microsecond().unsigned_abs();
                    for now in [change_us - 1, change_us, change_us + 1, change_us + DAY_US / 24] {
                        let [before, start, end, after] = calendar.around(now);
                        let case = format!("{calendar} at {now}: {before} {start} {end} {after}");
                        assert!(start <= now && now < end, "{case}");
                        assert!(start == 0 || before < start && end < after, "{case}");
                        assert!(end - start <= calendar.longest_us(), "{case}");
                        assert_eq!(calendar.around(end)[..3], [start, end, after], "{case}");
                        assert!(date(&calendar, end - 1) < date(&calendar, end), "{case}");
                    }
                }
            }
        }
    }

    #[test]
    fn answers_at_every_instant() {
        for unit in [Day, Week, Month, Year] {
            for zone in ["UTC", "Pacific/Kiritimati", "Etc/GMT+12"] {
                let calendar = Calendar::new(unit, zone).unwrap();
                for now in [0, 1, DAY_US, us("2250-12-31T23:59:59Z"), (1 << 53) - 1] {
                    let [before, start, end, after] = calendar.around(now);
                    assert!(
                        before <= start && start <= now && now < end && end < after,
                        "{calendar} at {now}"
                    );
                }
                for now in [LAST_US.unsigned_abs(), 1 << 63, u64::MAX] {
                    calendar.around(now);
                }
            }
        }
    }

    #[test]
    fn clones_and_equals_share_windows_and_others_do_not() {
        let berlin = Calendar::new(Day, "Europe/Berlin").unwrap();
        berlin.around(us("2026-03-29T12Z"));
        assert_eq!(berlin.clone(), Calendar::new(Day, "Europe/Berlin").unwrap());
        assert_ne!(berlin, Calendar::new(Week, "Europe/Berlin").unwrap());
        assert_ne!(berlin, Calendar::new(Day, "Europe/Paris").unwrap());
        assert_eq!(berlin.to_string(), "day Europe/Berlin");
    }

    #[test]
    fn knows_no_other_zones() {
        for name in ["", "Europe/Bonn", "Etc/Unknown", "+02:00", "../UTC"] {
            assert_eq!(Calendar::new(Day, name), None, "{name:?}");
        }
    }

    #[test]
    fn says_the_longest_that_a_window_lasts() {
        let hours = |unit, zone| Calendar::new(unit, zone).unwrap().longest_us() / (DAY_US / 24);
        assert_eq!(hours(Day, "UTC"), 24);
        assert_eq!(hours(Day, "Europe/Berlin"), 25);
        assert_eq!(hours(Week, "Asia/Tokyo"), 7 * 24);
        assert_eq!(hours(Month, "America/New_York"), 31 * 24 + 1);
        assert_eq!(hours(Year, "UTC"), 366 * 24);
    }
}
