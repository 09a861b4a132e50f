//! Unchecked limits, and their conversion into valid ones.

use super::{Algorithm, COUNT_MAX, Kind, Limit, LimitError, checked_name};
use crate::algorithm::quota::Quota;
use crate::algorithm::{Fields, OwnField, names_of};

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
#[cfg_attr(
    feature = "serde",
    derive(serde::Serialize, serde::Deserialize),
    serde(deny_unknown_fields)
)]
pub struct LimitSpec {
    /// The quota: `100/second`, `5/30s`, `20` (permits), `unlimited` or `block`.
    pub quota: String,
    /// The name of the algorithm. The default is `token-bucket`.
    #[cfg_attr(feature = "serde", serde(default, skip_serializing_if = "Option::is_none"))]
    pub algorithm: Option<String>,
    /// The most that is allowed at once, for token buckets only. The default is the count.
    #[cfg_attr(feature = "serde", serde(default, skip_serializing_if = "Option::is_none"))]
    pub burst: Option<u64>,
    /// The name. The default is its position.
    #[cfg_attr(feature = "serde", serde(default, skip_serializing_if = "Option::is_none"))]
    pub name: Option<String>,
    /// The unit that is counted. The default is `requests`.
    #[cfg_attr(feature = "serde", serde(default, skip_serializing_if = "Option::is_none"))]
    pub unit: Option<String>,
    /// The time zone of calendar windows. The default is UTC.
    #[cfg_attr(feature = "serde", serde(default, skip_serializing_if = "Option::is_none"))]
    pub time_zone: Option<String>,
    /// The longest time that a permit may be held. Required for concurrency, and only valid there.
    #[cfg_attr(feature = "serde", serde(default, skip_serializing_if = "Option::is_none"))]
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

    /// Returns the name of the algorithm, the default included. It need not be one that there is.
    pub(crate) fn algorithm_name(&self) -> &str {
        self.algorithm.as_deref().unwrap_or(Algorithm::TokenBucket.name())
    }

    /// Makes the limit, or returns which field is wrong and which value would fit.
    pub fn build(&self) -> Result<Limit, LimitError> {
        let name = self.algorithm_name();
        let algorithm = Algorithm::named(name).ok_or_else(|| {
            let names = names_of(|_| true);
            LimitError::new("algorithm", format!("{name:?} is not an algorithm; write {names}"))
        })?;
        self.build_with(Quota::parse(&self.quota)?, algorithm)
    }

    /// Returns the burst with the same ratio to another quota's rate, rounded up, so that a higher
    /// rate never lowers the capacity. Returns `None` without a burst, or if one of them is no rate.
    pub(crate) fn burst_for(&self, quota: &str) -> Option<u64> {
        let rate = |quota: &str| match Quota::parse(quota) {
            Ok(Quota::Counted { count, length: Some(length) }) => {
                Some((u128::from(count), u128::from(length.us())))
            }
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
        for (field, is_written) in [
            (OwnField::Burst, self.burst.is_some()),
            (OwnField::TimeZone, self.time_zone.is_some()),
            (OwnField::MaxHold, self.max_hold.is_some()),
        ] {
            if is_written && algorithm.profile().own_field != Some(field) {
                return Err(LimitError::field_of_another(field, algorithm));
            }
        }
        let kind = match quota {
            Quota::Unlimited => Kind::Unlimited,
            Quota::Block => Kind::Block,
            Quota::Counted { count, length } => {
                let (time_zone, max_hold) = (self.time_zone.as_deref(), self.max_hold.as_deref());
                let fields = Fields { count, length, burst: self.burst, time_zone, max_hold };
                Kind::Counted((algorithm.profile().build)(&fields)?)
            }
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
}

impl From<Limit> for LimitSpec {
    /// Returns the fields that make this limit again.
    ///
    /// ```
    /// # use spillgate_core as spillgate;
    /// use spillgate::{Limit, LimitSpec};
    /// let spec = LimitSpec::from(Limit::per_minute(5).burst(10));
    /// assert_eq!(spec, LimitSpec::new("5/minute").burst(10));
    /// ```
    fn from(limit: Limit) -> LimitSpec {
        let text = limit.to_string();
        // The quota is the first word. The algorithm's own field follows it.
        let quota = text.split_once(' ').map_or(&*text, |(quota, _)| quota);
        let mut spec = LimitSpec {
            name: limit.name().map(str::to_owned),
            unit: (!limit.counts_requests()).then(|| limit.unit().to_owned()),
            ..LimitSpec::new(quota)
        };
        if limit.algorithm() != Algorithm::TokenBucket {
            spec.algorithm = Some(limit.algorithm().name().to_owned());
        }
        let value = limit.params().and_then(|params| params.counting().own_value());
        match limit.algorithm().profile().own_field {
            Some(OwnField::Burst) => spec.burst = value.and_then(|burst| burst.parse().ok()),
            Some(OwnField::TimeZone) => spec.time_zone = value,
            Some(OwnField::MaxHold) => spec.max_hold = value,
            None => {}
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
