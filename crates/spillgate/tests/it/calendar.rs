//! Calendar windows, with and without clock changes.

use jiff::Timestamp;
use jiff::civil::Date;
use jiff::tz::{TimeZone, TimeZoneDatabase};
use spillgate_core::calendar::Calendar;
use spillgate_core::calendar::CalendarUnit::{self, Day, Month, Week, Year};

/// Asserts the four boundaries around every instant of the window between the middle two.
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

fn date(zone: &TimeZone, now: u64) -> Date {
    let now = Timestamp::from_microsecond(now.try_into().unwrap()).unwrap();
    zone.to_datetime(now).date()
}

#[test]
fn months_have_their_own_lengths() {
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
    for (now, days) in [("2000-06-01T00Z", 366), ("2023-06-01T00Z", 365), ("2100-06-01T00Z", 365)] {
        assert_eq!(length(now), days, "{now}");
    }
}

#[test]
fn weeks_begin_on_monday() {
    check(Week, "UTC", "2025-12-22T00Z 2025-12-29T00Z 2026-01-05T00Z 2026-01-12T00Z");
    check(Week, "America/New_York", "2026-02-23T05Z 2026-03-02T05Z 2026-03-09T04Z 2026-03-16T04Z");
}

#[test]
fn days_are_an_hour_shorter_or_longer_when_clocks_change() {
    check(Day, "Europe/Berlin", "2026-03-27T23Z 2026-03-28T23Z 2026-03-29T22Z 2026-03-30T22Z");
    check(Day, "Europe/Berlin", "2026-10-23T22Z 2026-10-24T22Z 2026-10-25T23Z 2026-10-26T23Z");
    check(Day, "America/New_York", "2026-03-07T05Z 2026-03-08T05Z 2026-03-09T04Z 2026-03-10T04Z");
    check(Day, "America/New_York", "2026-10-31T04Z 2026-11-01T04Z 2026-11-02T05Z 2026-11-03T05Z");
    check(Month, "Europe/Berlin", "2026-01-31T23Z 2026-02-28T23Z 2026-03-31T22Z 2026-04-30T22Z");
    check(Year, "Europe/Berlin", "2024-12-31T23Z 2025-12-31T23Z 2026-12-31T23Z 2027-12-31T23Z");
}

#[test]
fn a_day_without_midnight_begins_when_the_clock_is_put_forward() {
    check(Day, "America/Sao_Paulo", "2018-11-03T03Z 2018-11-04T03Z 2018-11-05T02Z 2018-11-06T02Z");
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
fn a_day_that_a_zone_skipped_is_no_window() {
    check(Day, "Pacific/Apia", "2011-12-28T10Z 2011-12-29T10Z 2011-12-30T10Z 2011-12-31T10Z");
    check(Day, "Pacific/Apia", "2011-12-29T10Z 2011-12-30T10Z 2011-12-31T10Z 2012-01-01T10Z");
}

#[test]
fn windows_of_every_zone_meet_at_every_clock_change() {
    let database = TimeZoneDatabase::bundled();
    for name in database.available() {
        let zone = database.get(name.as_str()).unwrap();
        for unit in [Day, Week, Month, Year] {
            let calendar = Calendar::new(unit, name.as_str()).unwrap();
            let changes = zone.following(Timestamp::UNIX_EPOCH);
            for change in changes.take_while(|change| change.timestamp().as_second() < RULED_S) {
                let change_us = change.timestamp().as_microsecond().unsigned_abs();
                for now in [change_us - 1, change_us, change_us + 1, change_us + DAY_US / 24] {
                    let [before, start, end, after] = calendar.around(now);
                    let case = format!("{calendar} at {now}: {before} {start} {end} {after}");
                    assert!(start <= now && now < end, "{case}");
                    assert!(start == 0 || before < start && end < after, "{case}");
                    assert!(end - start <= calendar.longest_us(), "{case}");
                    assert_eq!(calendar.around(end)[..3], [start, end, after], "{case}");
                    assert!(date(&zone, end - 1) < date(&zone, end), "{case}");
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
            for now in [LAST_US, 1 << 63, u64::MAX] {
                calendar.around(now);
            }
        }
    }
}

#[test]
fn equal_calendars_share_windows_and_others_do_not() {
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
fn returns_the_longest_length_of_a_window() {
    let hours = |unit, zone| Calendar::new(unit, zone).unwrap().longest_us() / (DAY_US / 24);
    assert_eq!(hours(Day, "UTC"), 24);
    assert_eq!(hours(Day, "Europe/Berlin"), 25);
    assert_eq!(hours(Week, "Asia/Tokyo"), 7 * 24);
    assert_eq!(hours(Month, "America/New_York"), 31 * 24 + 1);
    assert_eq!(hours(Year, "UTC"), 366 * 24);
}

const DAY_US: u64 = 86_400_000_000;
/// From 2040 on, zones follow their rules alone.
const RULED_S: i64 = 2_208_988_800;
/// The last instant that is computed: within the year 9990.
const LAST_US: u64 = 253_086_768_000_000_000;
