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
    pub const ALL: [CalendarUnit; 4] =
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

    /// Returns the unit and the name of the time zone.
    pub fn parts(&self) -> (CalendarUnit, &str) {
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
