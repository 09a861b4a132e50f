//! Calendar windows: days, weeks from Monday, months and years of a time zone.
//!
//! A window begins with the first instant of its first day on the zone's wall clocks. That is
//! midnight, or if a clock change skips midnight, the instant of that change. The time-zone data is
//! bundled, so that every instance agrees.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, LazyLock};

use arc_swap::ArcSwap;
use jiff::civil::Date;
use jiff::tz::{TimeZone, TimeZoneDatabase};
use jiff::{Span, Timestamp};
use parking_lot::Mutex;

/// The length of a calendar window.
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
    /// All units, by number.
    pub const ALL: [CalendarUnit; 4] =
        [CalendarUnit::Day, CalendarUnit::Week, CalendarUnit::Month, CalendarUnit::Year];
}

/// The windows of one unit in one time zone.
///
/// A copy is a reference. Each unit and zone has one set of windows, made at first use and kept
/// until the process ends: there are some 600 zones.
#[derive(Clone, Copy, Debug)]
pub struct Calendar(&'static Windows);

#[derive(Debug)]
struct Windows {
    unit: CalendarUnit,
    zone: TimeZone,
    /// The largest step back of the zone's clocks, by which a window can grow.
    put_back_us: u64,
    /// The last result of `around`. All subjects share their windows, and time stays in one for
    /// long.
    found: ArcSwap<[u64; 4]>,
}

static CALENDARS: LazyLock<Mutex<HashMap<(CalendarUnit, String), Calendar>>> =
    LazyLock::new(Mutex::default);

impl Calendar {
    /// Returns the windows of `unit` in the zone with this IANA name. Returns `None` if there is no
    /// such zone.
    pub fn new(unit: CalendarUnit, zone_name: &str) -> Option<Calendar> {
        let zone =
            TimeZoneDatabase::bundled().get(zone_name).ok().filter(|zone| !zone.is_unknown())?;
        // The zone's own spelling of its name, since names are found in any case.
        let name = zone.iana_name().unwrap_or("UTC").to_owned();
        let made = || {
            let put_back_us = put_back_us(&zone);
            Calendar(Box::leak(Box::new(Windows {
                unit,
                zone,
                put_back_us,
                found: ArcSwap::default(),
            })))
        };
        Some(*CALENDARS.lock().entry((unit, name)).or_insert_with(made))
    }

    /// Returns the bounds of the windows around an instant, in µs since the epoch: the start of the
    /// previous window, the start and the end of the window that contains it, and the end of the
    /// next.
    ///
    /// Bounds before the epoch are 0. Instants after the year 9990 have the windows of its first.
    pub fn around(self, now_us: u64) -> [u64; 4] {
        let found = **self.0.found.load();
        if (found[1]..found[2]).contains(&now_us) {
            return found;
        }
        let around = self.find(now_us);
        self.0.found.store(Arc::new(around));
        around
    }

    /// Returns the unit and the name of the time zone.
    pub fn parts(self) -> (CalendarUnit, &'static str) {
        (self.0.unit, self.0.zone.iana_name().unwrap_or("UTC"))
    }

    /// Returns the longest possible window in µs.
    pub fn longest_us(self) -> u64 {
        let days = match self.0.unit {
            CalendarUnit::Day => 1,
            CalendarUnit::Week => 7,
            CalendarUnit::Month => 31,
            CalendarUnit::Year => 366,
        };
        days * DAY_US + self.0.put_back_us
    }

    fn find(self, now_us: u64) -> [u64; 4] {
        let now_us = i64::try_from(now_us).unwrap_or(i64::MAX).min(LAST_US);
        let now = Timestamp::from_microsecond(now_us).unwrap_or_default();
        let first = self.0.unit.first_day(self.0.zone.to_datetime(now).date());
        // One more on each side. If a clock was put back over midnight, the date can be one window
        // behind. A day that a zone skipped when it moved over the date line is no window.
        let mut starts: Vec<i64> = (-2..=3)
            .filter_map(|n| first.checked_add(self.0.unit.times(n)).ok())
            .map(|day| self.begins_us(day))
            .collect();
        starts.dedup();
        let current = starts.partition_point(|start| *start <= now_us).saturating_sub(1);
        [-1, 0, 1, 2].map(|n| {
            let start = current.checked_add_signed(n).and_then(|place| starts.get(place));
            start.map_or(0, |start| u64::try_from(*start).unwrap_or(0))
        })
    }

    fn begins_us(self, day: Date) -> i64 {
        // Of two midnights the first counts. If midnight is skipped, it is the end of the gap.
        // (Since the epoch no zone's gap began before a midnight that it skipped; that would give a
        // late result.)
        let midnight = self.0.zone.to_ambiguous_timestamp(day.at(0, 0, 0, 0)).compatible();
        midnight.unwrap_or(Timestamp::MAX).as_microsecond()
    }
}

impl CalendarUnit {
    /// Returns the length of this unit outside a calendar, in µs: a month has 30 days, a year 365.
    pub fn usual_us(self) -> u64 {
        let days = match self {
            CalendarUnit::Day => 1,
            CalendarUnit::Week => 7,
            CalendarUnit::Month => 30,
            CalendarUnit::Year => 365,
        };
        days * DAY_US
    }

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
        std::ptr::eq(self.0, other.0)
    }
}

impl Eq for Calendar {}

impl fmt::Display for Calendar {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (unit, zone) = self.parts();
        write!(f, "{unit} {zone}")
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
/// From 2040 on every zone follows a rule, and the years before contain a full cycle of it.
const RULED_S: i64 = 2_208_988_800;
/// The first instant of the year 9990. Dates of later windows might not exist.
const LAST_US: i64 = 253_086_768_000_000_000;
