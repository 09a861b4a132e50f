//! The policy in force with the meters of its rules.

use std::sync::Arc;

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
