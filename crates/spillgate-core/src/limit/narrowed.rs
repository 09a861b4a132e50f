//! Narrows a limit to one that a caller asks for, or replaces it by that.

use super::{Kind, Limit};

#[doc(hidden)]
impl Limit {
    /// Returns this limit narrowed to `asked`, a bucket, a sliding window or `block`: it never allows more at once,
    /// and never more in the long run. Returns `None` if that changes nothing, or if permits and
    /// rates would be compared. Name and unit stay, and the algorithm of a limit with state.
    pub fn narrowed(&self, asked: &Limit) -> Option<Limit> {
        let kind = match (&self.kind, &asked.kind) {
            (_, Kind::Unlimited) | (Kind::Block, _) => return None,
            (_, Kind::Block) => Kind::Block,
            (Kind::Unlimited, Kind::Counted(_)) => asked.kind,
            (Kind::Counted(params), Kind::Counted(asked)) => {
                Kind::Counted(params.counting().narrowed_to(&asked.counting().rate()?)?)
            }
        };
        Some(Limit { kind, ..self.clone() })
    }

    /// Returns the limit that `asked`, a bucket, a sliding window, `block` or `unlimited`, makes in place of this one.
    /// Name and unit stay, the algorithm of a limit with state, and a block. A count above the algorithm's maximum
    /// becomes that maximum. Returns `None` if nothing changes: a block stays, and permits have no rate.
    pub fn replaced_by(&self, asked: &Limit) -> Option<Limit> {
        let kind = match (&self.kind, &asked.kind) {
            (Kind::Block, _) => return None,
            (Kind::Counted(params), Kind::Counted(asked)) => {
                Kind::Counted(params.counting().replaced_by(&asked.counting().rate()?)?)
            }
            (Kind::Unlimited, _) => {
                return Some(Limit { words: self.words.clone(), ..asked.clone() });
            }
            (_, Kind::Unlimited | Kind::Block) => asked.kind,
        };
        Some(Limit { kind, ..self.clone() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limit::LimitSpec;

    #[track_caller]
    fn check(own: LimitSpec, asked: &str, expected: Option<&str>) {
        let narrowed = own.build().unwrap().narrowed(&Limit::parse(asked).unwrap());
        assert_eq!(narrowed.map(|limit| limit.to_string()).as_deref(), expected, "{asked}");
    }

    #[test]
    fn a_bucket_takes_the_lower_rate_and_the_lower_burst() {
        let own = || LimitSpec::new("100/minute").burst(50);
        check(own(), "10/minute", Some("10/minute"));
        check(own(), "1000/minute", Some("100/minute burst 50"));
        check(own(), "2/second", Some("100/minute burst 2"));
        check(own(), "120/hour", Some("120/hour burst 50"));
        check(own(), "block", Some("block"));
        check(own(), "unlimited", None);
    }

    #[test]
    fn a_count_that_only_windows_have_is_never_unlimited() {
        let of = |algorithm: &str, count: u32| {
            LimitSpec::new(format!("{count}/month")).algorithm(algorithm).build().unwrap()
        };
        let asked = of("sliding-window", 3_000_000_000);
        for algorithm in ["fixed-window", "sliding-window"] {
            let own = of(algorithm, u32::MAX);
            assert_eq!(own.narrowed(&asked), Some(of(algorithm, 3_000_000_000)));
            assert_eq!(of(algorithm, 5).replaced_by(&asked), Some(of(algorithm, 3_000_000_000)));
        }
        let bucket = of("token-bucket", 1_000_000_000);
        assert_eq!(bucket.narrowed(&asked), Some(bucket.clone()));
        assert_eq!(of("token-bucket", 5).replaced_by(&asked), Some(bucket));
        let unlimited = Limit::unlimited();
        assert_eq!(unlimited.narrowed(&asked), Some(asked.clone()));
        assert_eq!(unlimited.replaced_by(&asked), Some(asked));
    }

    #[test]
    fn a_count_above_the_maximum_of_a_log_becomes_the_maximum() {
        let of = |count: u32| {
            LimitSpec::new(format!("{count}/minute")).algorithm("sliding-log").build().unwrap()
        };
        for asked in [10_000, 10_001, 2_000_000] {
            assert_eq!(of(2).replaced_by(&Limit::per_minute(asked)), Some(of(10_000)));
        }
    }

    #[test]
    fn windows_hold_no_more_than_either_limit() {
        for algorithm in ["fixed-window", "sliding-log", "sliding-window"] {
            let own = || LimitSpec::new("100/minute").algorithm(algorithm);
            check(own(), "10/minute", Some("10/minute"));
            check(own(), "1000/minute", Some("100/minute"));
            check(own(), "120/hour", Some("100/hour"));
            check(own(), "2/second", None);
        }
    }

    #[test]
    fn a_calendar_window_stays_one_while_it_is_as_long() {
        let own = LimitSpec::new("100/day").algorithm("fixed-window").build().unwrap();
        let narrowed = own.narrowed(&Limit::parse("10/day").unwrap()).unwrap();
        let expected = LimitSpec::new("10/day").algorithm("fixed-window").build().unwrap();
        assert_eq!(narrowed, expected);
    }

    #[test]
    fn a_month_of_a_caller_is_a_month_of_the_calendar() {
        for (unit, zone) in [("day", "Europe/Berlin"), ("month", "UTC"), ("year", "UTC")] {
            let of = |count: u32| {
                let spec = LimitSpec::new(format!("{count}/{unit}")).algorithm("fixed-window");
                spec.time_zone(zone).build().unwrap()
            };
            let asked = |count: u32| Limit::parse(&format!("{count}/{unit}")).unwrap();
            assert_eq!(of(100).narrowed(&asked(99)), Some(of(99)));
            assert_eq!(of(100).replaced_by(&asked(101)), Some(of(101)));
        }
    }

    #[test]
    fn a_limit_is_replaced_by_a_lower_or_a_higher_one_of_its_algorithm() {
        let own = |algorithm: &str| LimitSpec::new("100/minute").algorithm(algorithm);
        let replaced = |spec: LimitSpec, asked: Limit| {
            spec.build().unwrap().replaced_by(&asked).map(|limit| limit.to_string())
        };
        for algorithm in ["token-bucket", "fixed-window", "sliding-log", "sliding-window"] {
            for count in [5, 900] {
                let expected =
                    LimitSpec::new(format!("{count}/hour")).algorithm(algorithm).build().unwrap();
                let asked = Limit::per_hour(count);
                assert_eq!(own(algorithm).build().unwrap().replaced_by(&asked), Some(expected));
            }
            assert_eq!(replaced(own(algorithm), Limit::block()).as_deref(), Some("block"));
            assert_eq!(replaced(own(algorithm), Limit::unlimited()).as_deref(), Some("unlimited"));
        }
        let burst = Limit::per_minute(300).burst(40);
        assert_eq!(
            replaced(own("token-bucket").burst(7), burst).as_deref(),
            Some("300/minute burst 40")
        );
        let unlimited = || LimitSpec::new("unlimited");
        assert_eq!(replaced(unlimited(), Limit::per_minute(5)).as_deref(), Some("5/minute"));
        assert_eq!(replaced(LimitSpec::new("block"), Limit::unlimited()), None);
        let permits = LimitSpec::new("20").algorithm("concurrency").max_hold("30s");
        assert_eq!(replaced(permits, Limit::per_minute(5)), None);
    }

    #[test]
    fn slots_are_not_compared_with_rates() {
        check(LimitSpec::new("20").algorithm("concurrency").max_hold("30s"), "1/second", None);
    }
}
