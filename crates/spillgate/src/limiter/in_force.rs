//! The policy in force with the meters of its rules, and what a decision is made under.

use std::sync::Arc;

use crate::decision::Names;
use crate::limit::Limit;
use crate::metrics::Meters;
use crate::policy::Policy;

/// A policy and the meters of its rules. Both are replaced together, so that a rule's index always finds
/// its own meter.
#[derive(Debug)]
pub(crate) struct InForce {
    /// The rules of the file, and what operators set while the limiter runs.
    pub(crate) policy: Arc<Policy>,
    pub(crate) meters: Meters,
}

impl InForce {
    /// Puts a policy in place of one that counted by the meters `before`: a rule of the same name keeps
    /// its meter.
    pub(super) fn new(policy: Policy, before: &Meters) -> InForce {
        let meters = Meters::of(policy.rules(), before);
        InForce { policy: Arc::new(policy), meters }
    }
}

/// What a decision is made under: where its names are found, and where it counts.
#[derive(Clone, Debug)]
pub(crate) enum Under<'f> {
    Policy(&'f InForce),
    /// A limit that comes with the request. It has no rule.
    AdHoc(Limit),
}

impl Under<'_> {
    /// Returns the meters of the rules; `None` for a limit that comes with the request.
    pub(super) fn meters(&self) -> Option<&Meters> {
        match self {
            Under::Policy(in_force) => Some(&in_force.meters),
            Under::AdHoc(_) => None,
        }
    }

    pub(super) fn into_names(self) -> Names {
        match self {
            Under::Policy(in_force) => Names::Policy(Arc::clone(&in_force.policy)),
            Under::AdHoc(limit) => Names::AdHoc(limit),
        }
    }
}
