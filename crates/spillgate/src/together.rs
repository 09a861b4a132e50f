//! Several requests that are decided as one: all are charged, or none is.

use crate::decision::Decision;
use crate::limit::Limit;
use crate::request::Request;

/// One of several requests that are decided as one. Each is matched by itself.
#[derive(Clone, Debug)]
pub struct Part<'a> {
    request: Request<'a>,
    limit: Option<Limit>,
    refunds: bool,
}

/// The decision on several requests as one.
#[derive(Clone, Debug)]
#[must_use = "a denied request must not proceed"]
pub struct AtomicDecision {
    whole: Decision,
    parts: Vec<Decision>,
}

impl<'a> Part<'a> {
    /// Makes a member of the group from a request.
    pub fn new(request: Request<'a>) -> Part<'a> {
        Part { request, limit: None, refunds: false }
    }

    /// Adds a limit of the caller's own.
    ///
    /// A rule with `request_limit = true` enforces it beside each of its limits that are larger,
    /// with a counter of its own. Other rules ignore it.
    pub fn limited_to(self, limit: Limit) -> Part<'a> {
        Part { limit: Some(limit), ..self }
    }

    /// Turns the charge into a refund.
    ///
    /// The cost goes back to rules with `negative_hits = true`, until nothing is used. Such a
    /// member charges nothing and is never denied.
    pub fn giving_back(self) -> Part<'a> {
        Part { refunds: true, ..self }
    }

    pub(crate) fn request(&self) -> &Request<'a> {
        &self.request
    }

    pub(crate) fn limit(&self) -> Option<&Limit> {
        self.limit.as_ref()
    }

    pub(crate) fn refunds(&self) -> bool {
        self.refunds
    }
}

impl AtomicDecision {
    pub(crate) fn new(whole: Decision, parts: Vec<Decision>) -> AtomicDecision {
        AtomicDecision { whole, parts }
    }

    /// Returns the one decision. It has every counter once, with the sum of its costs.
    pub fn whole(&self) -> &Decision {
        &self.whole
    }

    /// Returns the counters of each member, in order: their numbers, and what each member alone
    /// would get. Only [`AtomicDecision::whole`] shows whether anything was charged.
    pub fn parts(&self) -> &[Decision] {
        &self.parts
    }
}
