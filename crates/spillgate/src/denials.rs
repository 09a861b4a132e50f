//! Which subjects were denied in the last 48 hours, by which limit, and in which minutes.
//!
//! [`LimiterBuilder::denials`](crate::LimiterBuilder::denials) turns this on. Each instance counts every denial of its
//! rules by limit and subject. After each minute it adds the most denied subjects of each rule to the record that all
//! instances share, and [`Limiter::denials_of`](crate::Limiter::denials_of) reads it.

// This module has the data: the counts of the minute, the hours, and their seal. `limiter/control/denials.rs` counts,
// writes and reads.

use std::sync::Arc;
use std::time::SystemTime;

use crate::control::system_time;
use crate::decision::Reason;

mod allowed;
mod hours;
#[cfg(feature = "redis")]
mod index;
mod minute;
mod recorder;
#[cfg(feature = "redis")]
mod sealed;

pub(crate) use allowed::AllowedCounts;
pub(crate) use hours::Hours;
#[cfg(feature = "redis")]
pub(crate) use index::Index;
pub(crate) use minute::MinuteCounts;
pub(crate) use recorder::{Keeping, Recorder};
#[cfg(feature = "redis")]
pub(crate) use sealed::DenialSeal;

/// The denials that were found.
///
/// [`Limiter::denials_of`](crate::Limiter::denials_of) and
/// [`Limiter::denials_like`](crate::Limiter::denials_like) return it.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct Denials {
    /// The subjects that were denied, the most denied first. A subject that is missing was not recorded; it may have
    /// been denied all the same, and then is among the [`others`](Self::others).
    pub subjects: Vec<DeniedSubject>,
    /// How many denials of these hours were not recorded by subject.
    pub others: u64,
    /// Whether this instance records denials.
    pub is_recording: bool,
    /// How many hours of the record were not searched yet. Unless it is 0, ask again: the search goes on.
    pub unread_hours: u64,
    /// How many more subjects were found than are listed.
    pub left_out: usize,
}

/// The denials of one subject by one limit.
///
/// [`Denials`] lists them.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct DeniedSubject {
    /// The rule.
    pub rule: String,
    /// The limit: its name, or its position in the rule.
    pub limit: String,
    /// The names and values of the rule's key attributes.
    pub attributes: Vec<(String, Vec<u8>)>,
    /// Whether the values are complete; long ones are cut.
    pub is_whole: bool,
    /// The last reason.
    pub reason: Reason,
    /// How many requests the limit denied, in all of these hours.
    pub denied: u64,
    /// About how many requests of the subject were allowed at this limit in the minutes in which it denied any. The
    /// number is estimated from the decisions that [`Limiter::top`](crate::Limiter::top) samples. `None` if an instance
    /// took no samples, because its builder has [`top(false)`](crate::LimiterBuilder::top), or if too many subjects
    /// were allowed to count each of them.
    pub allowed: Option<u64>,
    /// The beginning of each minute with a denial, the earliest first.
    pub minutes: Vec<SystemTime>,
    /// The hours with a denial, the earliest first.
    pub hours: Vec<DeniedHour>,
}

/// The denials of one subject by one limit within one hour.
///
/// [`DeniedSubject`] lists them.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct DeniedHour {
    /// The beginning of the hour.
    pub begin: SystemTime,
    /// How many requests the limit denied in the whole hour.
    pub denied: u64,
    /// About how many were allowed in the minutes in which it denied any, as in
    /// [`DeniedSubject::allowed`](DeniedSubject::allowed).
    pub allowed: Option<u64>,
    /// The beginning of each minute with a denial, the earliest first.
    pub minutes: Vec<SystemTime>,
}

/// How well a subject fits a question, the better first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Fit {
    /// A value is the one that was asked for.
    Whole,
    /// A value has the part that was asked for.
    Part,
}

/// Rule, limit and subject of a count.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Denied {
    pub(crate) rule: Box<str>,
    pub(crate) limit: Box<str>,
    pub(crate) attributes: Vec<(Box<str>, Box<[u8]>)>,
    pub(crate) is_whole: bool,
}

/// How often one subject was denied by one limit, within a minute or an hour.
#[derive(Clone, Debug)]
pub(crate) struct DenialCount {
    pub(crate) denied: u32,
    /// About how many were allowed in the minutes with a denial; `None` if unknown.
    pub(crate) allowed: Option<u32>,
    /// The minutes of the hour, as bits; 0 within a minute.
    pub(crate) minutes: u64,
    pub(crate) reason: Reason,
    pub(crate) subject: Arc<Denied>,
}

impl Denied {
    /// Returns the subject with cut values; `None` if the names alone are too long to keep.
    pub(crate) fn new<'v>(
        rule: &str,
        limit: &str,
        attributes: impl Iterator<Item = (&'v str, &'v [u8])>,
    ) -> Option<Denied> {
        let mut is_whole = true;
        let mut bytes = rule.len() + limit.len();
        let cut = attributes.map(|(name, value)| {
            let kept = &value[..value.len().min(VALUE_KEPT)];
            is_whole &= kept.len() == value.len();
            bytes += name.len() + kept.len();
            (name.into(), kept.into())
        });
        let attributes = cut.collect();
        let (rule, limit) = (rule.into(), limit.into());
        (bytes <= TEXT_MAX).then_some(Denied { rule, limit, attributes, is_whole })
    }

    /// Returns how well any value fits this part, in capitals or not. An empty part is in each.
    pub(crate) fn fit(&self, part: &[u8]) -> Option<Fit> {
        if part.is_empty() {
            return Some(Fit::Part);
        }
        let fit = |value: &[u8]| {
            let mut parts = value.windows(part.len());
            match value.eq_ignore_ascii_case(part) {
                true => Some(Fit::Whole),
                false => parts.any(|it| it.eq_ignore_ascii_case(part)).then_some(Fit::Part),
            }
        };
        self.attributes.iter().filter_map(|(_, value)| fit(value)).min()
    }
}

impl DeniedSubject {
    fn new(subject: &Denied, reason: Reason) -> DeniedSubject {
        let attributes = subject.attributes.iter();
        DeniedSubject {
            rule: subject.rule.to_string(),
            limit: subject.limit.to_string(),
            attributes: attributes
                .map(|(name, value)| (name.to_string(), value.to_vec()))
                .collect(),
            is_whole: subject.is_whole,
            reason,
            denied: 0,
            allowed: Some(0),
            minutes: Vec::new(),
            hours: Vec::new(),
        }
    }

    /// Adds a later hour.
    fn add(&mut self, hour: DeniedHour) {
        self.denied += hour.denied;
        self.allowed = self.allowed.zip(hour.allowed).map(|(sum, more)| sum + more);
        self.minutes.extend(&hour.minutes);
        self.hours.push(hour);
    }
}

/// Returns the instant at which a minute begins.
fn begin_of(minute: u64) -> SystemTime {
    system_time(minute * MINUTE_US)
}

pub(crate) const MINUTE_US: u64 = 60_000_000;
pub(crate) const MINUTES: u64 = 60;
/// How many hours are kept and read.
pub(crate) const HOURS_KEPT: u64 = 48;
/// The bytes of a value that are kept: a UUID, an address or most names.
const VALUE_KEPT: usize = 64;
/// The bytes of all names and values together.
const TEXT_MAX: usize = 512;
