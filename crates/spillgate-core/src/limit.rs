//! Limits: an algorithm with its parameters and a unit.
//!
//! A [`Limit`] is always valid. [`LimitSpec`] holds unchecked fields. [`LimitSpec::build`] makes a
//! `Limit` of it, or returns which field is wrong and which value would fit.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::algorithm::quota::{Length, Quota};
pub use crate::algorithm::{Algorithm, LimitError};
use crate::algorithm::{
    COUNT_MAX, LimitParams, OwnField, checked_count, concurrency, token_bucket,
};

mod binding;
mod named;
mod narrowed;
mod raised;
mod spec;

pub use named::{NamedLimit, RecordName};
pub use spec::LimitSpec;

/// One limit: an algorithm with its parameters and a unit. Cheap to clone.
///
/// ```
/// # use spillgate_core as spillgate;
/// use spillgate::{Algorithm, Limit};
/// let limit = Limit::per_second(10).burst(20);
/// assert_eq!((limit.algorithm(), limit.capacity()), (Algorithm::TokenBucket, Some(20)));
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limit {
    kind: Kind,
    /// `None` if the limit has neither, so that cloning does not touch other memory.
    words: Option<Arc<Words>>,
}

/// The name and unit given to a limit.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Words {
    name: Option<Arc<str>>,
    unit: Option<Arc<str>>,
}

/// The way in which a limit counts, if it does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Written as `"unlimited"`: there is always room, and no state.
    Unlimited,
    /// Written as `"block"`: the capacity is 0, so every cost exceeds it.
    Block,
    /// A count by an algorithm.
    Counted(LimitParams),
}

/// Parses a length of time such as `1s`, and returns it in µs.
pub fn length_us(field: &'static str, text: &str) -> Result<u64, LimitError> {
    Length::parse(field, text).map(Length::us)
}

impl Limit {
    /// Allows `count` requests a second on average, as a token bucket with a burst of `count`.
    ///
    /// ```
    /// # use spillgate_core::Limit;
    /// # use std::time::Duration;
    /// assert_eq!(Limit::per_second(7), Limit::per(7, Duration::from_secs(1)));
    /// assert_eq!(Limit::per_second(7).to_string(), "7/second");
    /// ```
    ///
    /// # Panics
    /// If `count` is 0 or above 10⁹. [`Limit::parse`] and [`LimitSpec`] return an error instead.
    #[track_caller]
    pub fn per_second(count: u64) -> Limit {
        Limit::per(count, Duration::from_secs(1))
    }

    /// Allows `count` requests a minute on average.
    ///
    /// ```
    /// # use spillgate_core::Limit;
    /// assert_eq!(Limit::per_minute(5), Limit::parse("5/minute").unwrap());
    /// ```
    ///
    /// # Panics
    /// As [`Limit::per_second`].
    #[track_caller]
    pub fn per_minute(count: u64) -> Limit {
        Limit::per(count, Duration::from_secs(60))
    }

    /// Allows `count` requests an hour on average.
    ///
    /// ```
    /// # use spillgate_core::Limit;
    /// assert_eq!(Limit::per_hour(5), Limit::parse("5/hour").unwrap());
    /// ```
    ///
    /// # Panics
    /// As [`Limit::per_second`].
    #[track_caller]
    pub fn per_hour(count: u64) -> Limit {
        Limit::per(count, Duration::from_secs(3_600))
    }

    /// Allows `count` requests a day (24 hours) on average.
    ///
    /// ```
    /// # use spillgate_core::Limit;
    /// assert_eq!(Limit::per_day(5), Limit::parse("5/day").unwrap());
    /// ```
    ///
    /// # Panics
    /// As [`Limit::per_second`].
    #[track_caller]
    pub fn per_day(count: u64) -> Limit {
        Limit::per(count, Duration::from_secs(86_400))
    }

    /// Allows `count` requests every `period` on average. `Limit::per(3, Duration::from_secs(10))`
    /// is three every ten seconds.
    ///
    /// ```
    /// # use spillgate_core::Limit;
    /// # use std::time::Duration;
    /// assert_eq!(Limit::per(3, Duration::from_secs(10)), Limit::parse("3/10s").unwrap());
    /// ```
    ///
    /// # Panics
    /// If `count` is 0 or above 10⁹, or `period` is not a whole number of milliseconds from 1 ms
    /// to 366 days.
    #[track_caller]
    pub fn per(count: u64, period: Duration) -> Limit {
        let length = Length::new("quota", period);
        Limit::valid(length.and_then(|length| {
            let quota = Quota::Counted { count, length: Some(length) };
            LimitSpec::default().build_with(quota, Algorithm::TokenBucket)
        }))
    }

    /// Allows `count` requests every `period` on average and `burst` at once. For numbers from
    /// outside: returns an error if they do not fit.
    ///
    /// ```
    /// # use spillgate_core::Limit;
    /// # use std::time::Duration;
    /// let limit = Limit::bucket(30, Duration::from_secs(60), 16);
    /// assert_eq!(limit, Ok(Limit::per_minute(30).burst(16)));
    /// assert_eq!(Limit::bucket(0, Duration::from_secs(60), 16).unwrap_err().field(), "quota");
    /// ```
    pub fn bucket(count: u64, period: Duration, burst: u64) -> Result<Limit, LimitError> {
        let spec = LimitSpec { burst: Some(burst), ..LimitSpec::default() };
        let length = Some(Length::new("quota", period)?);
        spec.build_with(Quota::Counted { count, length }, Algorithm::TokenBucket)
    }

    /// Allows at most `count` permits held at once, each for at most `max_hold`.
    ///
    /// ```
    /// # use spillgate_core::{Algorithm, Limit};
    /// # use std::time::Duration;
    /// let limit = Limit::concurrent(20, Duration::from_secs(30));
    /// assert_eq!((limit.algorithm(), limit.capacity()), (Algorithm::Concurrency, Some(20)));
    /// ```
    ///
    /// # Panics
    /// As [`Limit::per`].
    #[track_caller]
    pub fn concurrent(count: u64, max_hold: Duration) -> Limit {
        Limit::valid(Length::new("max_hold", max_hold).and_then(|max_hold| {
            let (count, max_hold_us) = (checked_count(COUNT_MAX, count)?, max_hold.us());
            let params = concurrency::Params { count, max_hold_us };
            Ok(Limit::counted(LimitParams::Concurrency(params)))
        }))
    }

    /// Makes a limit that allows everything.
    ///
    /// ```
    /// # use spillgate_core::Limit;
    /// assert_eq!(Limit::unlimited(), Limit::parse("unlimited").unwrap());
    /// assert_eq!(Limit::unlimited().capacity(), None);
    /// ```
    pub fn unlimited() -> Limit {
        Limit::from_kind(Kind::Unlimited)
    }

    /// Makes a limit that allows nothing, as used by blocks.
    ///
    /// ```
    /// # use spillgate_core::Limit;
    /// assert_eq!(Limit::block(), Limit::parse("block").unwrap());
    /// assert_eq!(Limit::block().capacity(), Some(0));
    /// ```
    pub fn block() -> Limit {
        Limit::from_kind(Kind::Block)
    }

    /// Parses a quota such as `100/second`, `5/30s` or `1_000_000/month` into a token bucket.
    ///
    /// ```
    /// # use spillgate_core::Limit;
    /// assert_eq!(Limit::parse("100/second"), Ok(Limit::per_second(100)));
    /// assert_eq!(Limit::parse("5/fortnight").unwrap_err().field(), "quota");
    /// ```
    pub fn parse(quota: &str) -> Result<Limit, LimitError> {
        LimitSpec::new(quota).build()
    }

    /// Sets the burst of a token bucket: the most that is allowed at once.
    ///
    /// ```
    /// # use spillgate_core::Limit;
    /// assert_eq!(Limit::per_second(10).burst(20).capacity(), Some(20));
    /// ```
    ///
    /// # Panics
    /// If this is no token bucket, or `burst` is 0 or above 10⁹.
    #[track_caller]
    pub fn burst(self, burst: u64) -> Limit {
        let Kind::Counted(LimitParams::TokenBucket(params)) = self.kind else {
            return Limit::valid(Err(LimitError::field_of_another(
                OwnField::Burst,
                self.algorithm(),
            )));
        };
        let params = token_bucket::Params::new(params.count, params.period_us, burst);
        Limit::valid(
            params.map(|params| Limit {
                kind: Kind::Counted(LimitParams::TokenBucket(params)),
                ..self
            }),
        )
    }

    /// Counts the same quota by another algorithm.
    ///
    /// ```
    /// # use spillgate_core::{Algorithm, Limit};
    /// let limit = Limit::per_minute(100).by(Algorithm::SlidingLog);
    /// assert_eq!((limit.algorithm(), limit.capacity()), (Algorithm::SlidingLog, Some(100)));
    /// ```
    ///
    /// # Panics
    /// If the quota does not fit the algorithm, or a burst was set that no other algorithm has.
    #[track_caller]
    pub fn by(self, algorithm: Algorithm) -> Limit {
        Limit::valid(LimitSpec::from(self).algorithm(algorithm.name()).build())
    }

    /// Sets the name of the limit. With a name its state survives when the rule's limits are
    /// reordered.
    ///
    /// # Panics
    /// If `name` is not `[A-Za-z0-9_./-]{1,64}`.
    #[track_caller]
    pub fn named(self, name: &str) -> Limit {
        Limit::valid(checked_name("name", name).map(|name| self.with_name(name)))
    }

    /// Sets the unit that the limit counts, instead of `requests`.
    ///
    /// # Panics
    /// If `unit` is not `[A-Za-z0-9_./-]{1,64}`.
    #[track_caller]
    pub fn unit_named(self, unit: &str) -> Limit {
        Limit::valid(checked_name("unit", unit).map(|unit| self.with_unit(unit)))
    }

    /// Returns the algorithm; that of a bucket for limits without state.
    pub fn algorithm(&self) -> Algorithm {
        match &self.kind {
            Kind::Counted(params) => params.algorithm(),
            Kind::Unlimited | Kind::Block => Algorithm::TokenBucket,
        }
    }

    /// Returns the name, if one was given. Otherwise its position in the rule is its name.
    pub fn name(&self) -> Option<&str> {
        self.words.as_ref().and_then(|words| words.name.as_deref())
    }

    /// Returns the unit that it counts. The default is `requests`.
    pub fn unit(&self) -> &str {
        self.words.as_ref().and_then(|words| words.unit.as_deref()).unwrap_or(REQUESTS)
    }

    /// Returns the most that can be used at once: the burst of a bucket, the count of others.
    /// `None` if unlimited.
    pub fn capacity(&self) -> Option<u64> {
        match &self.kind {
            Kind::Unlimited => None,
            Kind::Block => Some(0),
            Kind::Counted(params) => Some(params.capacity()),
        }
    }

    /// Returns the time in which an exhausted counter becomes full again.
    pub fn refill(&self) -> Option<Duration> {
        match &self.kind {
            Kind::Unlimited | Kind::Block => None,
            Kind::Counted(params) => {
                Some(Duration::from_micros(params.counting().longest_wait_us()))
            }
        }
    }

    /// Returns the time in which the capacity comes back: a window, the period of a log, or the
    /// refill time of a bucket's burst. `None` for permits, which come back when released, and for
    /// limits without state. For calendar windows it is the longest.
    ///
    /// ```
    /// # use spillgate_core::Limit;
    /// # use std::time::Duration;
    /// assert_eq!(Limit::per_second(10).burst(50).window(), Some(Duration::from_secs(5)));
    /// assert_eq!(Limit::concurrent(20, Duration::from_secs(30)).window(), None);
    /// ```
    pub fn window(&self) -> Option<Duration> {
        self.params()?.counting().window_us().map(Duration::from_micros)
    }

    /// Returns a number that differs whenever the periods differ, since state of one period has no
    /// meaning for another. Limits without a period have 0.
    #[inline]
    pub(crate) fn period(&self) -> u64 {
        self.params().map_or(0, LimitParams::period)
    }

    /// Returns whether the unit is requests, without comparing texts.
    #[inline]
    pub(crate) fn counts_requests(&self) -> bool {
        self.words.as_ref().is_none_or(|words| words.unit.is_none())
    }

    /// Makes a limit from its parameters alone.
    #[doc(hidden)]
    pub fn counted(params: LimitParams) -> Limit {
        Limit::from_kind(Kind::Counted(params))
    }

    /// Returns its parameters, if it counts.
    #[inline]
    #[doc(hidden)]
    pub fn params(&self) -> Option<&LimitParams> {
        if let Kind::Counted(params) = &self.kind { Some(params) } else { None }
    }

    /// Returns what it counts by, if it counts.
    #[inline]
    #[doc(hidden)]
    pub fn kind(&self) -> &Kind {
        &self.kind
    }

    fn from_kind(kind: Kind) -> Limit {
        Limit { kind, words: None }
    }

    fn with_name(mut self, name: Arc<str>) -> Limit {
        Arc::make_mut(self.words.get_or_insert_default()).name = Some(name);
        self
    }

    fn with_unit(mut self, unit: Arc<str>) -> Limit {
        Arc::make_mut(self.words.get_or_insert_default()).unit = Some(unit);
        self
    }

    #[track_caller]
    fn valid(limit: Result<Limit, LimitError>) -> Limit {
        match limit {
            Ok(limit) => limit,
            Err(error) => panic!("{error}"),
        }
    }
}

impl fmt::Display for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.kind {
            Kind::Unlimited => f.write_str("unlimited"),
            Kind::Block => f.write_str("block"),
            Kind::Counted(params) => params.fmt(f),
        }
    }
}

/// Returns the name if it is valid for rules, limits and units.
pub fn checked_name(field: &'static str, name: &str) -> Result<Arc<str>, LimitError> {
    let fits = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'.' | b'/' | b'-');
    if (1..=NAME_MAX).contains(&name.len()) && name.bytes().all(fits) {
        return Ok(name.into());
    }
    Err(LimitError::new(
        field,
        format!("{name:?} is not a valid name; write 1 to {NAME_MAX} of A-Z a-z 0-9 _ . / -"),
    ))
}

/// The default unit of a limit.
pub const REQUESTS: &str = "requests";
/// The longest name. Names are used in headers and metrics.
const NAME_MAX: usize = 64;
