//! Nothing is counted: what stands in for the metrics where the feature is off.

use crate::decision::{Judged, Verdict};
use crate::policy::{Policy, Rule};
use crate::request::Request;
use crate::subject::{Secret, SubjectKey};

#[path = "wanted.rs"]
mod wanted;
pub(crate) use wanted::Wanted;

#[derive(Debug)]
pub(crate) struct Metrics;

#[derive(Clone, Debug, Default)]
pub(crate) struct Meters {}

#[cfg(feature = "redis")]
#[derive(Debug)]
pub(crate) struct ShardMeter;

#[cfg(feature = "redis")]
pub(crate) enum ErrorClass {
    NotHere,
    Unfit,
    Unknown,
    NotSent,
    Overloaded,
    Bug,
}

#[derive(Clone, Copy)]
pub(crate) struct Began;

#[derive(Clone, Copy)]
pub(crate) struct Took;

impl Metrics {
    pub(crate) fn new(_on_store: bool, _wanted: Wanted) -> Metrics {
        Metrics
    }

    pub(crate) fn begin(&self) -> Began {
        Began
    }

    pub(crate) fn end(&self, _began: Began) {}

    pub(crate) fn stop(_began: Began) -> Took {
        Took
    }

    pub(crate) fn add(&self, _took: Took) {}

    #[cfg(feature = "redis")]
    pub(crate) fn begin_drawn(&self) -> Began {
        Began
    }

    #[cfg(feature = "redis")]
    pub(crate) fn count_drawn(&self, _: Began, _: Option<&Meters>, _judged: &Judged) {}

    pub(crate) fn watch(
        &self,
        _policy: &Policy,
        _request: &Request<'_>,
        _secret: &Secret,
        _tiers: &[Judged],
        _allowed: impl FnOnce() -> bool,
    ) {
    }

    pub(crate) fn watch_ad_hoc(&self, _key: &str, _of: SubjectKey, _cost: u64, _: Verdict) {}

    pub(crate) fn end_tallied(&self, _began: Began, _judged: &Judged) {}

    pub(crate) fn count_alone(&self, _began: Began, _: Option<&Meters>, _judged: &Judged) {}

    pub(crate) fn count(&self, _tiers: &[Judged], _: Option<&Meters>) {}
}

impl Meters {
    pub(crate) fn of<'r>(_rules: impl Iterator<Item = &'r Rule>, _before: &Meters) -> Meters {
        Meters {}
    }
}

#[cfg(feature = "redis")]
impl ShardMeter {
    pub(crate) fn new(_shard: String) -> ShardMeter {
        ShardMeter
    }

    pub(crate) fn begin(&self) -> Began {
        Began
    }

    pub(crate) fn end(&self, _began: Began, _error: impl FnOnce() -> Option<ErrorClass>) {}
}
