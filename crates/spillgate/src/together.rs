//! Several requests as one decision: all of them are charged, or none is.

use crate::decision::Decision;
use crate::limit::Limit;
use crate::request::Request;

/// One request of several that are decided together, each matched by itself.
#[derive(Clone, Debug)]
pub struct Part<'a> {
    request: Request<'a>,
    limit: Option<Limit>,
    refunds: bool,
}

/// What became of several requests together.
#[derive(Clone, Debug)]
#[must_use = "a denied request must not proceed"]
pub struct AtomicDecision {
    whole: Decision,
    parts: Vec<Decision>,
}

impl<'a> Part<'a> {
    /// This request.
    pub fn new(request: Request<'a>) -> Part<'a> {
        Part { request, limit: None, refunds: false }
    }

    /// With a limit of the caller's own: a rule with `request_limit = true` enforces it beside each of its limits that
    /// it is below, with a counter of its own; other rules take no notice.
    pub fn limited_to(self, limit: Limit) -> Part<'a> {
        Part { limit: Some(limit), ..self }
    }

    /// The other way round: what it costs goes back to the rules with `negative_hits = true`, never
    /// below nothing used, and nothing is charged. It is never refused.
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

    /// The one decision: every counter once, its costs added up.
    pub fn whole(&self) -> &Decision {
        &self.whole
    }

    /// For each part, in order, the counters that it met: how they stand, and what they alone would
    /// have said. Whether anything was charged only [`AtomicDecision::whole`] tells.
    pub fn parts(&self) -> &[Decision] {
        &self.parts
    }
}
