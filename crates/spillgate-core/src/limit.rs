//! A limit: an algorithm with its numbers and a unit.
//!
//! [`Limit`] is always valid: [`LimitSpec`] holds what somebody wrote, and [`LimitSpec::build`]
//! either makes a `Limit` of it or says which field is wrong and what would fit.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::algorithm::COUNT_MAX;
pub use crate::algorithm::{Algorithm, LimitError};
use crate::algorithm::{LimitParams, token_bucket};

mod binding;
mod named;
mod narrowed;
mod quota;
mod raised;
mod spec;

pub use named::{NamedLimit, RecordName};
use quota::{Length, Quota};
pub use spec::LimitSpec;

/// One limit: an algorithm with its numbers and a unit. Cheap to clone.
///
/// ```
/// # use spillgate_core as spillgate;
/// use spillgate::{Algorithm, Limit};
/// let limit = Limit::per_second(10).burst(20);
/// assert_eq!((limit.algorithm(), limit.capacity()), (Algorithm::TokenBucket, Some(20)));
/// ```
#[derive(Debug, PartialEq, Eq)]
pub struct Limit {
    kind: Kind,
    algorithm: Algorithm,
    /// None of them, and a limit is copied without touching memory elsewhere.
    words: Option<Arc<Words>>,
}

/// What a limit may be given beside its numbers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Words {
    name: Option<Arc<str>>,
    unit: Option<Arc<str>>,
}

/// What a limit counts by, if it counts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Said as `"unlimited"`: always room, nothing kept.
    Unlimited,
    /// Written `"block"`: the capacity is 0, so every cost exceeds it.
    Nothing,
    /// A count by an algorithm.
    Counted(LimitParams),
}

/// A length of time as written, as `1s`, in us.
pub fn length_us(field: &'static str, text: &str) -> Result<u64, LimitError> {
    Length::parse(field, text).map(Length::us)
}

impl Limit {
    /// `count` calls a second on average, as a token bucket whose burst is `count`.
    ///
    /// ```
    /// # use spillgate_core::Limit;
    /// # use std::time::Duration;
    /// assert_eq!(Limit::per_second(7), Limit::per(7, Duration::from_secs(1)));
    /// assert_eq!(Limit::per_second(7).to_string(), "7/1s");
    /// ```
    ///
    /// # Panics
    /// If `count` is 0 or above 10⁹; [`Limit::parse`] and [`LimitSpec`] answer an error instead.
    #[track_caller]
    pub fn per_second(count: u64) -> Limit {
        Limit::per(count, Duration::from_secs(1))
    }

    /// Returns what it counts over, in words that differ where the periods do: state of one period says nothing of
    /// another. Limits without a period have none.
    pub(crate) fn period(&self) -> Option<String> {
        let Kind::Counted(params) = &self.kind else { return None };
        Some(match params {
            LimitParams::TokenBucket(params) => params.period_us.to_string(),
            LimitParams::FixedWindow(params) => params.window.period(),
            LimitParams::SlidingLog(params) => params.period_us.to_string(),
            LimitParams::SlidingWindow(params) => params.period_us.to_string(),
            LimitParams::Concurrency(_) => return None,
        })
    }

    /// `count` calls a minute on average.
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

    /// `count` calls an hour on average.
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

    /// `count` calls a day (24 hours) on average.
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

    /// `count` calls every `period` on average: `Limit::per(3, Duration::from_secs(10))` is three
    /// every ten seconds.
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
        let length = Length::of(period);
        Limit::valid(length.and_then(|length| {
            LimitSpec::default().build_with(Quota::Rate { count, length }, Algorithm::TokenBucket)
        }))
    }

    /// `count` calls every `period` on average and `burst` at once, for numbers from outside: what
    /// does not fit is an error.
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
        let length = Length::of(period)?;
        spec.build_with(Quota::Rate { count, length }, Algorithm::TokenBucket)
    }

    /// Returns a concurrency limit: at most `count` permits at once, each held for at most `max_hold`.
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
        Limit::valid(Length::of(max_hold).and_then(|max_hold| {
            let spec = LimitSpec { max_hold: Some(max_hold.to_string()), ..LimitSpec::default() };
            spec.build_with(Quota::Permits { count }, Algorithm::Concurrency)
        }))
    }

    /// Returns the limit `unlimited`, which allows every request.
    ///
    /// ```
    /// # use spillgate_core::Limit;
    /// assert_eq!(Limit::unlimited(), Limit::parse("unlimited").unwrap());
    /// assert_eq!(Limit::unlimited().capacity(), None);
    /// ```
    pub fn unlimited() -> Limit {
        Limit::of(Kind::Unlimited, Algorithm::TokenBucket)
    }

    /// Returns the limit `block`, which denies every request with the reason `blocked`.
    ///
    /// ```
    /// # use spillgate_core::Limit;
    /// assert_eq!(Limit::block(), Limit::parse("block").unwrap());
    /// assert_eq!(Limit::block().capacity(), Some(0));
    /// ```
    pub fn block() -> Limit {
        Limit::of(Kind::Nothing, Algorithm::TokenBucket)
    }

    /// A token bucket from a quota such as `100/second`, `5/30s`, `1_000_000/month`.
    pub fn parse(quota: &str) -> Result<Limit, LimitError> {
        LimitSpec::new(quota).build()
    }

    /// The same bucket with another burst: how much may pass at once after a quiet time.
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
            return Limit::valid(Err(LimitError::burst_elsewhere(self.algorithm)));
        };
        let params = token_bucket::Params::new(params.count, params.period_us, burst);
        Limit::valid(
            params.map(|params| Limit {
                kind: Kind::Counted(LimitParams::TokenBucket(params)),
                ..self
            }),
        )
    }

    /// The same limit under a name of its own, which says which state is whose when a rule's
    /// limits are reordered.
    ///
    /// # Panics
    /// If `name` is not `[A-Za-z0-9_./-]{1,64}`.
    #[track_caller]
    pub fn named(self, name: &str) -> Limit {
        Limit::valid(checked_name("name", name).map(|name| self.with_name(name)))
    }

    /// The same limit, counting another unit than `requests`.
    ///
    /// # Panics
    /// If `unit` is not `[A-Za-z0-9_./-]{1,64}`.
    #[track_caller]
    pub fn unit_named(self, unit: &str) -> Limit {
        Limit::valid(checked_name("unit", unit).map(|unit| self.with_unit(unit)))
    }

    /// How this limit counts.
    #[inline]
    pub fn algorithm(&self) -> Algorithm {
        self.algorithm
    }

    /// The name given to it, if any; else its position in the rule is its name.
    #[inline]
    pub fn name(&self) -> Option<&str> {
        self.words.as_ref().and_then(|words| words.name.as_deref())
    }

    /// What it counts: `requests` unless said otherwise.
    #[inline]
    pub fn unit(&self) -> &str {
        self.words.as_ref().and_then(|words| words.unit.as_deref()).unwrap_or(REQUESTS)
    }

    /// The most that can be used at once: the burst of a bucket, the count of the others.
    /// Absent when unlimited.
    #[inline]
    pub fn capacity(&self) -> Option<u64> {
        match &self.kind {
            Kind::Unlimited => None,
            Kind::Nothing => Some(0),
            Kind::Counted(params) => Some(params.capacity()),
        }
    }

    /// How long a used-up counter takes to be untouched again, by the limit's own numbers.
    pub fn refill(&self) -> Option<Duration> {
        match &self.kind {
            Kind::Unlimited | Kind::Nothing => None,
            Kind::Counted(params) => Some(Duration::from_micros(params.longest_wait_us())),
        }
    }

    /// The time in which a capacity comes back: a window, the period of a log, or what a bucket's
    /// burst takes to refill. Absent for permits, which come back when they are released, and for
    /// what keeps no state. Of calendar windows the longest.
    ///
    /// ```
    /// # use spillgate_core::Limit;
    /// # use std::time::Duration;
    /// assert_eq!(Limit::per_second(10).burst(50).window(), Some(Duration::from_secs(5)));
    /// assert_eq!(Limit::concurrent(20, Duration::from_secs(30)).window(), None);
    /// ```
    pub fn window(&self) -> Option<Duration> {
        match &self.kind {
            Kind::Unlimited | Kind::Nothing | Kind::Counted(LimitParams::Concurrency(_)) => None,
            Kind::Counted(LimitParams::SlidingWindow(params)) => {
                Some(Duration::from_micros(params.period_us))
            }
            Kind::Counted(params) => Some(Duration::from_micros(params.longest_wait_us())),
        }
    }

    /// How long a bucket takes to drain so many tokens, rounded down; the others do not drain evenly.
    pub fn drain_us(&self, tokens: u64) -> Option<u64> {
        let Kind::Counted(LimitParams::TokenBucket(params)) = &self.kind else { return None };
        // Most rates take whole µs for a token.
        if let (Some(us), 1) = (tokens.checked_mul(params.n), params.d) {
            return Some(us);
        }
        let us = u128::from(tokens) * u128::from(params.n) / u128::from(params.d);
        u64::try_from(us).ok()
    }

    /// Whether no other unit was named, told without reading one.
    #[inline]
    pub(crate) fn counts_requests(&self) -> bool {
        self.words.as_ref().is_none_or(|words| words.unit.is_none())
    }

    /// A limit of which nothing is known but its numbers.
    pub fn counted(params: LimitParams) -> Limit {
        let algorithm = params.algorithm();
        Limit::of(Kind::Counted(params), algorithm)
    }

    /// Returns what it counts by, if it counts.
    #[inline]
    pub fn kind(&self) -> &Kind {
        &self.kind
    }

    #[inline]
    fn of(kind: Kind, algorithm: Algorithm) -> Limit {
        Limit { kind, algorithm, words: None }
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

impl Clone for Limit {
    /// Most limits are buckets without words, which are copied in a few instructions: a decision keeps its limit.
    #[inline]
    fn clone(&self) -> Limit {
        let kind = match &self.kind {
            Kind::Counted(LimitParams::TokenBucket(params)) => {
                Kind::Counted(LimitParams::TokenBucket(*params))
            }
            kind => kind.clone(),
        };
        Limit { kind, algorithm: self.algorithm, words: self.words.clone() }
    }
}

impl fmt::Display for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.kind {
            Kind::Unlimited => f.write_str("unlimited"),
            Kind::Nothing => f.write_str("block"),
            Kind::Counted(params) => params.fmt(f),
        }
    }
}

/// A name as rules, limits and units have them.
pub fn checked_name(field: &'static str, name: &str) -> Result<Arc<str>, LimitError> {
    let fits = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'.' | b'/' | b'-');
    if (1..=NAME_MAX).contains(&name.len()) && name.bytes().all(fits) {
        return Ok(name.into());
    }
    Err(LimitError::new(
        field,
        format!("{name:?} is no name; write 1 to {NAME_MAX} of A-Z a-z 0-9 _ . / -"),
    ))
}

/// The unit of a limit that names none.
pub const REQUESTS: &str = "requests";
/// Names go into headers and metrics, so they are short.
const NAME_MAX: usize = 64;
