//! The policy in force with the meters of its rules.

use std::sync::Arc;

use crate::metrics::Meters;
use crate::policy::Policy;

/// The policy in force with the meters of its rules. Both are replaced together, so that a rule's
/// index always finds its own meter.
#[derive(Debug)]
pub(crate) struct InForce {
    /// The rules of the policy file, joined with the runtime changes.
    pub(crate) policy: Arc<Policy>,
    pub(crate) meters: Meters,
}

impl InForce {
    /// Replaces the policy that counted by the meters `before`. A rule that keeps its name keeps
    /// its meter.
    pub fn new(policy: Policy, before: &Meters) -> InForce {
        let meters = Meters::for_rules(policy.rules(), before);
        InForce { policy: Arc::new(policy), meters }
    }
}
