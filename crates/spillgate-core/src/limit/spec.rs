//! Unchecked limits, and their conversion into valid ones.

use super::quota::{Length, Quota};
use super::{Algorithm, COUNT_MAX, Kind, Limit, LimitError, WINDOW_COUNT_MAX, checked_name};
use crate::algorithm::{
    LimitParams, concurrency, fixed_window, sliding_log, sliding_window, token_bucket,
};
use crate::calendar::{Calendar, CalendarUnit};

/// A limit as written, not checked yet.
///
/// ```
/// # use spillgate_core as spillgate;
/// use spillgate::{Algorithm, LimitSpec};
/// let limit = LimitSpec::new("1000/month").algorithm("fixed-window").time_zone("Europe/Berlin").build()?;
/// assert_eq!(limit.algorithm(), Algorithm::FixedWindow);
///
/// let error = LimitSpec::new("5/fortnight").build().unwrap_err();
/// assert_eq!(error.field(), "quota");
/// # Ok::<(), spillgate::LimitError>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LimitSpec {
    /// The quota: `100/second`, `5/30s`, `20` (permits), `unlimited` or `block`.
    pub quota: String,
    /// The name of the algorithm. The default is `token-bucket`.
    pub algorithm: Option<String>,
    /// The most that is allowed at once, for token buckets only. The default is the count.
    pub burst: Option<u64>,
    /// The name. The default is its position.
    pub name: Option<String>,
    /// The unit that is counted. The default is `requests`.
    pub unit: Option<String>,
    /// The time zone of calendar windows. The default is UTC.
    pub time_zone: Option<String>,
    /// The longest time that a permit may be held. Required for concurrency, and only valid there.
    pub max_hold: Option<String>,
}

impl LimitSpec {
    /// Makes a spec with a quota, and defaults for the rest.
    pub fn new(quota: impl Into<String>) -> LimitSpec {
        LimitSpec { quota: quota.into(), ..LimitSpec::default() }
    }

    /// Sets the name of the algorithm.
    pub fn algorithm(self, algorithm: impl Into<String>) -> LimitSpec {
        LimitSpec { algorithm: Some(algorithm.into()), ..self }
    }

    /// Sets the burst.
    pub fn burst(self, burst: u64) -> LimitSpec {
        LimitSpec { burst: Some(burst), ..self }
    }

    /// Sets the time zone.
    pub fn time_zone(self, time_zone: impl Into<String>) -> LimitSpec {
        LimitSpec { time_zone: Some(time_zone.into()), ..self }
    }

    /// Sets the longest time that a permit may be held.
    pub fn max_hold(self, max_hold: impl Into<String>) -> LimitSpec {
        LimitSpec { max_hold: Some(max_hold.into()), ..self }
    }

    /// Makes the limit, or returns which field is wrong and which value would fit.
    pub fn build(&self) -> Result<Limit, LimitError> {
        let algorithm = match &self.algorithm {
            None => Algorithm::TokenBucket,
            Some(name) => Algorithm::named(name).ok_or_else(|| {
                LimitError::new(
                    "algorithm",
                    format!(
                        "{name:?} is no algorithm; write token-bucket, fixed-window, sliding-log, sliding-window or concurrency"
                    ),
                )
            })?,
        };
        self.build_with(Quota::parse(&self.quota)?, algorithm)
    }

    /// Returns the burst with the same ratio to another quota's rate, rounded up, so that a higher
    /// rate never lowers the capacity. Returns `None` without a burst, or if one of them is no rate.
    pub(crate) fn burst_for(&self, quota: &str) -> Option<u64> {
        let rate = |quota| match Quota::parse(quota) {
            Ok(Quota::Rate { count, length }) => Some((u128::from(count), u128::from(length.us()))),
            _ => None,
        };
        let (burst, (old_count, old_us)) = (u128::from(self.burst?), rate(&self.quota)?);
        let (count, us) = rate(quota)?;
        // A count above the largest is refused, whatever its burst.
        let scaled = burst.checked_mul(count)?.checked_mul(old_us)?.div_ceil(old_count * us);
        Some(scaled.min(COUNT_MAX.into()) as u64)
    }

    pub(crate) fn build_with(
        &self,
        quota: Quota,
        algorithm: Algorithm,
    ) -> Result<Limit, LimitError> {
        if algorithm != Algorithm::TokenBucket && self.burst.is_some() {
            return Err(LimitError::burst_elsewhere(algorithm));
        }
        if algorithm != Algorithm::FixedWindow && self.time_zone.is_some() {
            return Err(LimitError::new(
                "time_zone",
                format!(
                    "{algorithm} has no calendar; leave time_zone out, or write algorithm = \"fixed-window\""
                ),
            ));
        }
        if algorithm != Algorithm::Concurrency && self.max_hold.is_some() {
            return Err(LimitError::new(
                "max_hold",
                format!(
                    "{algorithm} has no permits; leave max_hold out, or write algorithm = \"concurrency\""
                ),
            ));
        }
        let kind = match quota {
            Quota::Unlimited => Kind::Unlimited,
            Quota::Block => Kind::Block,
            Quota::Permits { count } if algorithm == Algorithm::Concurrency => {
                Kind::Counted(LimitParams::Concurrency(self.permits(count)?))
            }
            Quota::Permits { count } => {
                return Err(LimitError::new(
                    "quota",
                    format!("{count} has no period; write for example \"{count}/second\""),
                ));
            }
            Quota::Rate { count, length } => Kind::Counted(self.rate(count, length, algorithm)?),
        };
        let mut limit = Limit::from_kind(kind);
        if let Some(name) = &self.name {
            limit = limit.with_name(checked_name("name", name)?);
        }
        if let Some(unit) = &self.unit {
            limit = limit.with_unit(checked_name("unit", unit)?);
        }
        Ok(limit)
    }

    fn permits(&self, count: u64) -> Result<concurrency::Params, LimitError> {
        let Some(max_hold) = &self.max_hold else {
            return Err(LimitError::new(
                "max_hold",
                "a permit must end even if its holder dies; write for example max_hold = \"30s\"",
            ));
        };
        let max_hold = Length::parse("max_hold", max_hold)?;
        Ok(concurrency::Params { count: checked_count(count)?, max_hold_us: max_hold.us() })
    }

    fn rate(
        &self,
        count: u64,
        length: Length,
        algorithm: Algorithm,
    ) -> Result<LimitParams, LimitError> {
        let is_window = matches!(algorithm, Algorithm::FixedWindow | Algorithm::SlidingWindow);
        let count = if is_window { window_count(count)? } else { checked_count(count)? };
        let period_us = length.us();
        match algorithm {
            Algorithm::TokenBucket => {
                let burst = self.burst.unwrap_or(u64::from(count));
                token_bucket::Params::new(count, period_us, burst).map(LimitParams::TokenBucket)
            }
            Algorithm::FixedWindow => {
                let window = match (length.calendar(), &self.time_zone) {
                    (Some(unit), zone) => {
                        fixed_window::Window::Calendar(calendar(unit, zone.as_deref())?)
                    }
                    (None, None) => fixed_window::Window::Every { period_us },
                    (None, Some(_)) => {
                        return Err(LimitError::new(
                            "time_zone",
                            format!(
                                "windows of {length} are aligned to the epoch, in no time zone; write a quota per day, week, month or year, or leave time_zone out"
                            ),
                        ));
                    }
                };
                Ok(LimitParams::FixedWindow(fixed_window::Params { count, window }))
            }
            Algorithm::SlidingLog if count > sliding_log::COUNT_MAX => Err(LimitError::new(
                "quota",
                format!(
                    "a sliding-log keeps the instant of every admitted unit, so its count is at most {}, got {count}; write that, or algorithm = \"sliding-window\"",
                    sliding_log::COUNT_MAX
                ),
            )),
            Algorithm::SlidingLog => {
                Ok(LimitParams::SlidingLog(sliding_log::Params { count, period_us }))
            }
            Algorithm::SlidingWindow => {
                Ok(LimitParams::SlidingWindow(sliding_window::Params { count, period_us }))
            }
            Algorithm::Concurrency => Err(LimitError::new(
                "quota",
                format!(
                    "concurrency counts permits, not requests in a period; write quota = \"{count}\" and max_hold = \"30s\""
                ),
            )),
        }
    }
}

impl From<Limit> for LimitSpec {
    /// Returns the fields that make this limit again.
    ///
    /// ```
    /// # use spillgate_core as spillgate;
    /// use spillgate::{Limit, LimitSpec};
    /// let spec = LimitSpec::from(Limit::per_minute(5).burst(10));
    /// assert_eq!(spec, LimitSpec::new("5/1m").burst(10));
    /// ```
    fn from(limit: Limit) -> LimitSpec {
        let text = limit.to_string();
        // The quota is the first word. Burst, time zone and longest hold follow it.
        let (quota, rest) = text.split_once(' ').unwrap_or((&text, ""));
        let mut spec = LimitSpec {
            name: limit.name().map(str::to_owned),
            unit: (!limit.counts_requests()).then(|| limit.unit().to_owned()),
            ..LimitSpec::new(quota)
        };
        if limit.algorithm() != Algorithm::TokenBucket {
            spec.algorithm = Some(limit.algorithm().name().to_owned());
        }
        match limit.kind() {
            Kind::Counted(LimitParams::TokenBucket(bucket)) if bucket.burst != bucket.count => {
                spec.burst = Some(bucket.burst.into());
            }
            Kind::Counted(LimitParams::FixedWindow(params)) => {
                if let fixed_window::Window::Calendar(calendar) = &params.window {
                    spec.time_zone = Some(calendar.parts().1.to_owned());
                }
            }
            Kind::Counted(LimitParams::Concurrency(_)) => {
                spec.max_hold = rest.strip_prefix("max_hold ").map(str::to_owned);
            }
            Kind::Unlimited | Kind::Block | Kind::Counted(_) => {}
        }
        spec
    }
}

impl From<&str> for LimitSpec {
    fn from(quota: &str) -> LimitSpec {
        LimitSpec::new(quota)
    }
}

impl From<String> for LimitSpec {
    fn from(quota: String) -> LimitSpec {
        LimitSpec::new(quota)
    }
}

pub fn checked_count(count: u64) -> Result<u32, LimitError> {
    count_up_to(COUNT_MAX, count)
}

fn window_count(count: u64) -> Result<u32, LimitError> {
    count_up_to(WINDOW_COUNT_MAX, count)
}

fn count_up_to(most: u32, count: u64) -> Result<u32, LimitError> {
    match u32::try_from(count) {
        Ok(count) if (1..=most).contains(&count) => Ok(count),
        Ok(0) => Err(LimitError::new(
            "quota",
            "a count of 0 allows nothing; write \"block\" if you mean that, or \"unlimited\" for the opposite",
        )),
        _ => Err(LimitError::new(
            "quota",
            match most {
                COUNT_MAX => format!(
                    "{count} is above {COUNT_MAX}, the nearest count that fits; windows count up to {WINDOW_COUNT_MAX}"
                ),
                _ => format!("{count} is above {most}, the nearest count that fits"),
            },
        )),
    }
}

fn calendar(unit: CalendarUnit, time_zone: Option<&str>) -> Result<Calendar, LimitError> {
    Calendar::new(unit, time_zone.unwrap_or("UTC")).ok_or_else(|| {
        LimitError::new(
            "time_zone",
            format!(
                "{:?} is no time zone; write an IANA name such as \"Europe/Berlin\"",
                time_zone.unwrap_or_default()
            ),
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_is_made_again_from_its_spec() {
        let mut named = LimitSpec::new("5/minute").burst(9);
        (named.name, named.unit) = (Some("fast".into()), Some("tokens".into()));
        let calendar = || LimitSpec::new("1000/month").algorithm("fixed-window");
        for spec in [
            LimitSpec::new("unlimited"),
            LimitSpec::new("block"),
            LimitSpec::new("1_000_000/1500ms"),
            named,
            LimitSpec::new("5/90s").algorithm("fixed-window"),
            calendar(),
            calendar().time_zone("Europe/Berlin"),
            LimitSpec::new("5/day").algorithm("sliding-log"),
            LimitSpec::new("5/day").algorithm("sliding-window"),
            LimitSpec::new("20").algorithm("concurrency").max_hold("90s"),
        ] {
            let limit = spec.build().unwrap();
            assert_eq!(LimitSpec::from(limit.clone()).build(), Ok(limit), "{spec:?}");
        }
    }
}
