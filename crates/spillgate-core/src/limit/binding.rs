//! Determines whether one limit can deny a request that another allows, by the bounds of both.

use super::{Kind, Limit};

#[doc(hidden)]
impl Limit {
    /// Returns whether this limit never denies a request that `other` has room for, if both are
    /// charged the same or this one a part of it. Then it has no effect.
    ///
    /// It assumes that nothing is refunded or charged by force. The result is exact between token
    /// buckets, and from a bucket or a log to a log. In other cases `false` may also mean that the
    /// bounds are too close to decide.
    ///
    /// ```
    /// # use spillgate_core::Limit;
    /// let (seconds, minutes) = (Limit::per_second(10), Limit::per_minute(1_000));
    /// assert!(minutes.never_refuses_beside(&seconds));       // at most 10 + 60 × 10 in a minute
    /// assert!(!seconds.never_refuses_beside(&minutes));
    /// assert!(!Limit::per_minute(500).never_refuses_beside(&seconds));
    /// ```
    pub fn never_refuses_beside(&self, other: &Limit) -> bool {
        match (&self.kind, &other.kind) {
            (Kind::Unlimited, _) => true,
            _ if self.unit() != other.unit() => false,
            (_, Kind::Block) => true,
            (Kind::Block, _) | (_, Kind::Unlimited) => false,
            (Kind::Counted(this), Kind::Counted(other)) => this.counting().has_room_for(other),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::algorithm::fixed_window::Window;
    use crate::calendar::{Calendar, CalendarUnit};
    use crate::limit::LimitSpec;

    /// Parses `10/second`, `10/second burst 20`, or these after the name of an algorithm.
    fn limit(text: &str) -> Limit {
        let mut words = text.split(' ').peekable();
        let mut spec = LimitSpec::default();
        if words.peek().is_some_and(|word| crate::Algorithm::named(word).is_some()) {
            spec.algorithm = words.next().map(str::to_owned);
        }
        spec.quota = words.next().unwrap().to_owned();
        while let (Some(field), Some(value)) = (words.next(), words.next()) {
            match field {
                "burst" => spec.burst = value.parse().ok(),
                "zone" => spec.time_zone = Some(value.to_owned()),
                "max_hold" => spec.max_hold = Some(value.to_owned()),
                _ => spec.unit = Some(value.to_owned()),
            }
        }
        spec.build().unwrap()
    }

    #[track_caller]
    fn check(this: &str, other: &str, never: bool) {
        assert_eq!(limit(this).never_refuses_beside(&limit(other)), never, "{this} beside {other}");
    }

    #[test]
    fn buckets_compare_by_burst_and_rate() {
        check("1000/minute", "10/second", true);
        check("600/minute burst 10", "10/second", true);
        check("600/minute burst 9", "10/second", false);
        check("599/minute burst 1000", "10/second", false);
        check("10/second", "10/second", true);
        check("3/7s", "3000000/7000000s burst 3", true);
    }

    #[test]
    fn a_window_must_hold_the_most_that_a_bucket_allows() {
        check("fixed-window 609/minute", "10/second", true);
        check("fixed-window 608/minute", "10/second", false);
        check("sliding-log 609/minute", "10/second", true);
        check("sliding-log 608/minute", "10/second", false);
        check("sliding-window 610/minute", "10/second", true);
        check("sliding-window 609/minute", "10/second", false);
        check("fixed-window 1000000/month", "10/minute", true);
        check("fixed-window 400000/month", "10/minute", false);
    }

    #[test]
    fn twice_a_window_passes_around_its_border() {
        check("20/s burst 20", "fixed-window 10/s", true);
        check("20/s burst 19", "fixed-window 10/s", false);
        check("sliding-log 20/s", "fixed-window 10/s", true);
        check("sliding-log 19/s", "fixed-window 10/s", false);
        check("sliding-log 19/s", "sliding-log 10/s", true);
        check("fixed-window 10/s", "fixed-window 10/s", true);
        check("fixed-window 600/m", "fixed-window 10/s", true);
        check("fixed-window 599/m", "fixed-window 10/s", false);
        check("sliding-window 10/s", "sliding-window 10/s", true);
        check("sliding-window 19/s", "sliding-log 10/s", false);
    }

    #[test]
    fn calendars_are_taken_at_their_longest_and_shortest() {
        let berlin = "fixed-window 100/day zone Europe/Berlin";
        check(berlin, berlin, true);
        check(berlin, "fixed-window 100/day", false);
        check("fixed-window 200/day", berlin, false);
        check("300/day burst 300", berlin, true);
    }

    #[test]
    fn slots_compare_with_slots_only() {
        check("concurrency 20 max_hold 10s", "concurrency 10 max_hold 30s", true);
        check("concurrency 20 max_hold 31s", "concurrency 10 max_hold 30s", false);
        check("concurrency 9 max_hold 10s", "concurrency 10 max_hold 30s", false);
        check("concurrency 20 max_hold 10s", "1/s", false);
        check("1000/s", "concurrency 1 max_hold 1s", false);
    }

    #[test]
    fn units_are_counted_apart() {
        check("1000/minute unit tokens", "10/second", false);
        check("1000/minute unit tokens", "10/second unit tokens", true);
        check("unlimited", "10/second unit tokens", true);
        check("10/second", "unlimited", false);
        check("10/second", "block", true);
        check("block", "10/second", false);
    }

    #[test]
    fn no_calendar_window_is_shorter_than_its_bound() {
        // Zones with skipped days and with the largest clock steps.
        let zones =
            ["UTC", "Pacific/Apia", "Pacific/Kwajalein", "Antarctica/Troll", "Europe/Berlin"];
        let units =
            [CalendarUnit::Day, CalendarUnit::Week, CalendarUnit::Month, CalendarUnit::Year];
        for (zone, unit) in zones.iter().flat_map(|zone| units.map(|unit| (zone, unit))) {
            let calendar = Calendar::new(unit, zone).unwrap();
            let shortest_us = Window::Calendar(calendar).shortest_us();
            let mut now_us = 0;
            while now_us < 2_000_000_000_000_000 {
                let [_, start_us, end_us, _] = calendar.around(now_us);
                let first = start_us == 0;
                assert!(first || end_us - start_us > shortest_us, "{zone} {unit}");
                now_us = end_us;
            }
        }
    }
}
